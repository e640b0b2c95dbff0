import ctypes
import threading
import time

from emulated_acl import CODE, KIND, MIB, Acl


def _counted():
    acl = Acl()
    out = ctypes.c_void_p()
    acl.faults("aclrtMalloc:2:code=207001; aclrtMalloc:4+:code=207005; aclrtFree:*:code=207002")
    codes = [acl.code("aclrtMalloc", ctypes.byref(out), 100, 0) for _ in range(5)]
    free = acl.code("aclrtFree", out)
    message = acl.message()
    calls = acl.library.cachecore_emulator_calls(b"aclrtMalloc")
    acl.faults("")
    acl.free(out)
    return codes, free, message, calls


def test_the_planned_calls_fail_and_no_others(child):
    codes, free, message, calls = child(_counted)
    assert codes == [
        0,
        CODE["OUT_OF_MEMORY"],
        0,
        CODE["RESOURCE_ALLOCATION_FAILED"],
        CODE["RESOURCE_ALLOCATION_FAILED"],
    ]
    assert free == CODE["FREE_FAILED"]
    assert "fault of the plan" in message
    assert calls == 5


def _from_environment():
    acl = Acl(device=None)
    return acl.code("aclInit", None), acl.code("aclInit", None)


def test_the_plan_of_the_environment_holds_from_the_first_call(child):
    assert child(_from_environment, CACHECORE_EMULATE_FAULTS="aclInit:1:code=500000") == [500000, 0]


def _half_done():
    acl = Acl()
    pointer, data = acl.malloc(1000), ctypes.create_string_buffer(b"x" * 1000, 1000)
    acl.faults("aclrtMemcpy:1:truncate=10; aclrtMemcpy:3:truncate=20; aclrtMemcpy:3:code=507899")
    silent = acl.code("aclrtMemcpy", pointer, 1000, data, 1000, KIND["H2D"])
    first = acl.read(pointer, 30)
    failed = acl.code("aclrtMemcpy", pointer, 1000, data, 1000, KIND["H2D"])
    return silent, first.count(b"x"), failed, acl.read(pointer, 30).count(b"x")


def test_a_truncated_copy_says_success_and_with_a_code_it_fails_after_a_part(child):
    assert child(_half_done) == [0, 10, 507899, 20]


def _delay():
    acl = Acl()
    acl.faults("aclrtMallocHost:1:delay=0.05")
    started = time.monotonic()
    acl.made("aclrtMallocHost", 100)
    return time.monotonic() - started


def test_a_delayed_call_takes_at_least_that_long(child):
    assert child(_delay) >= 0.05


BAD_PLANS = [
    "aclrtMalloc",
    "aclrtMalloc:1",
    "aclrtMalloc:1:explode",
    "aclrtMalloc:1:delay=-1",
    "aclrtMalloc:1:delay=x",
    "aclrtMaloc:1:code=1",
    "hixl_misspelt:1:code=1",
    ":1:code=1",
]


def _unreadable():
    acl = Acl()
    codes = []
    for plan in BAD_PLANS:
        codes.append(acl.code("cachecore_emulator_set_faults", plan.encode()))
        assert "fault plan entry" in acl.message()
    return codes


def test_a_plan_that_cannot_be_read_is_refused(child):
    assert set(child(_unreadable)) == {CODE["INVALID_PARAMETER"]}


def _threads():
    acl = Acl()
    context, problems = acl.made("aclrtGetCurrentContext"), []

    def work(seed):
        try:
            acl.ok("aclrtSetCurrentContext", context)
            stream = acl.made("aclrtCreateStream")
            for step in range(12):
                nbytes = (seed * 7919 + step * 104729) % (3 * MIB) + 1
                data = bytes([seed]) * nbytes
                pointer, copy = acl.malloc(nbytes), acl.malloc(nbytes)
                acl.write(pointer, data)
                acl.ok("aclrtMemcpyAsync", copy, nbytes, pointer, nbytes, KIND["D2D"], stream)
                acl.ok("aclrtSynchronizeStreamWithTimeout", stream, -1)
                assert acl.read(copy, nbytes) == data
                block = acl.map_blocks(2)
                acl.write(block, data[:100])
                for start in (block, block + 2 * MIB):
                    acl.ok("aclrtUnmapMem", start)
                acl.ok("aclrtReleaseMemAddress", block)
                acl.free(pointer)
                acl.free(copy)
            acl.ok("aclrtDestroyStream", stream)
        except BaseException as problem:
            problems.append(repr(problem))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return problems, acl.used()


def test_many_threads_share_a_device_without_mixing_their_bytes(child):
    assert child(_threads) == [[], 0]
