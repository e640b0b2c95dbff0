import ctypes
import os
import threading

import pytest
from emulated_acl import CODE, MIB, Acl


def _in_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join(30)
    return results[0]


def _no_context():
    acl = Acl()
    pointer, out = acl.malloc(100), ctypes.c_uint64()
    context = acl.made("aclrtGetCurrentContext")

    def without():
        calls = {
            "aclrtMalloc": (ctypes.byref(out), 100, 0),
            "aclrtFree": (pointer,),
            "aclrtMallocHost": (ctypes.byref(out), 100),
            "aclrtMemcpy": (pointer, 100, ctypes.byref(out), 8, 1),
            "aclrtCreateStream": (ctypes.byref(out),),
            "aclrtCreateEvent": (ctypes.byref(out),),
            "aclrtGetDevice": (ctypes.byref(out),),
            "aclrtGetCurrentContext": (ctypes.byref(out),),
            "aclrtGetMemInfo": (1, ctypes.byref(out), ctypes.byref(out)),
            "aclrtPointerGetAttributes": (pointer, ctypes.create_string_buffer(28)),
            "aclrtMemGetAddressRange": (pointer, ctypes.byref(out), ctypes.byref(out)),
            "aclrtReserveMemAddress": (ctypes.byref(out), 100, 0, None, 0),
        }
        codes = {acl.failure(name, *arguments) for name, arguments in calls.items()}
        acl.ok("aclrtSetCurrentContext", context)
        return sorted(codes), acl.made("aclrtGetDevice", kind=ctypes.c_int32), acl.read(pointer, 1).hex()

    return _in_thread(without)


def test_a_thread_without_a_context_is_refused_until_it_has_one(child):
    codes, device, _ = child(_no_context)
    assert codes == [CODE["NO_CURRENT_CONTEXT"]]
    assert device == 0


def _devices():
    acl = Acl(device=None)
    before = [acl.failure("aclrtSetDevice", 0), acl.failure("aclrtMalloc", ctypes.byref(ctypes.c_void_p()), 1, 0)]
    acl.ok("aclInit", None)
    again = acl.failure("aclInit", None)
    acl.ok("aclrtSetDevice", 1)
    # The other thread has a device of its own and leaves this one's alone.
    other = _in_thread(lambda: (acl.ok("aclrtSetDevice", 0), acl.made("aclrtGetDevice", kind=ctypes.c_int32))[1])
    mine = acl.made("aclrtGetDevice", kind=ctypes.c_int32)
    invalid = acl.failure("aclrtSetDevice", 2), acl.failure("aclrtSetDevice", -1)
    return before, again, other, mine, invalid


def test_each_thread_has_its_own_device(child):
    before, again, other, mine, invalid = child(_devices, soc="Ascend910B4:2")
    assert before == [CODE["NOT_INITIALISED"]] * 2
    assert again == CODE["REPEAT_INITIALISE"]
    assert (other, mine) == (0, 1)
    assert list(invalid) == [CODE["INVALID_DEVICE_ID"]] * 2


def _reset():
    acl = Acl()
    acl.ok("aclrtSetDevice", 0)  # counted: the first reset only takes this one back
    acl.malloc(4 * MIB)
    acl.made("aclrtCreateStream")
    acl.ok("aclrtResetDevice", 0)
    used = acl.used()
    acl.ok("aclrtResetDevice", 0)
    gone = acl.failure("aclrtMalloc", ctypes.byref(ctypes.c_void_p()), 1, 0)
    third = acl.failure("aclrtResetDevice", 0)
    acl.ok("aclrtSetDevice", 0)
    assert acl.used() == 0
    acl.malloc(4 * MIB)
    acl.ok("aclFinalize")
    after = [acl.failure("aclrtSetDevice", 0), acl.failure("aclFinalize")]
    acl.ok("aclInit", None)
    acl.ok("aclrtSetDevice", 0)
    return used, gone, third, after, acl.used()


def test_reset_is_counted_and_frees_and_finalize_ends_everything_once(child):
    used, gone, third, after, left = child(_reset)
    assert used == 6 * MIB
    assert gone == third == CODE["NO_CURRENT_CONTEXT"]
    assert after == [CODE["NOT_INITIALISED"], CODE["REPEAT_FINALISE"]]
    assert left == 0


def _visible():
    acl = Acl(device=None)
    count = ctypes.c_uint32(99)
    code = acl.code("aclrtGetDeviceCount", ctypes.byref(count))
    acl.ok("aclInit", None)
    physical = [_physical(acl, device) for device in range(count.value)]
    return code, physical


def _physical(acl, device):
    value = ctypes.c_int64()
    acl.ok("aclrtGetDeviceInfo", device, 402, ctypes.byref(value))
    return value.value


@pytest.mark.parametrize(
    ("visible", "physical"),
    [("2,0", [2, 0]), ("0,1,7,2", [0, 1]), ("1,1,2", [1]), (" 3 ", [3]), ("", [0, 1, 2, 3]), ("x", [])],
)
def test_visible_devices_renumber_and_end_at_the_first_bad_entry(child, visible, physical):
    code, found = child(_visible, soc="Ascend910B4:4", ASCEND_RT_VISIBLE_DEVICES=visible)
    assert found == physical
    assert code == (0 if physical else CODE["NO_DEVICE"])


def _start():
    acl = Acl(device=None)
    name = acl.library.aclrtGetSocName()
    code = acl.code("aclInit", None)
    return name and name.decode(), code, acl.message()


@pytest.mark.parametrize("soc", ["Ascend910B4", "Ascend310P3", "AscendUnheardOf", "ascend950dt_9582"])
def test_any_soc_name_is_answered_as_given(child, soc):
    assert child(_start, soc=soc)[:2] == [soc, 0]


@pytest.mark.parametrize(
    ("soc", "variables", "word"),
    [
        (None, {}, "CACHECORE_EMULATE is not set"),
        ("Ascend910B4:0", {}, "1 to 64"),
        ("Ascend910B4:two", {}, "1 to 64"),
        (":2", {}, "name of a SoC"),
        ("Ascend910B4", {"CACHECORE_EMULATE_HBM_BYTES": "64G"}, "CACHECORE_EMULATE_HBM_BYTES is '64G'"),
        ("Ascend910B4", {"CACHECORE_EMULATE_FAULTS": "aclrtMalloc:first:code=1"}, "'first' is not a whole number"),
    ],
)
def test_a_setting_that_makes_no_sense_fails_initialisation_with_the_reason(child, soc, variables, word):
    _, code, message = child(_start, soc=soc, **variables)
    assert code == CODE["INVALID_PARAMETER"]
    assert word in message


def _fork():
    acl = Acl()
    acl.malloc(100)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = acl.code("aclrtMalloc", ctypes.byref(ctypes.c_void_p()), 100, 0)
        os.write(writer, str(code).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    acl.malloc(100)  # the parent goes on
    return int(os.read(reader, 20))


def test_a_forked_child_is_refused(child):
    assert child(_fork) == CODE["INTERNAL_ERROR"]
