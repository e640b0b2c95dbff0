import ctypes
import os
import signal

import pytest
from emulated_acl import CODE, HUGE, HUGE_1G, KIND, LOCATION, MIB, NORMAL, Acl


def _touch(what):
    acl = Acl()
    address = {
        "small": lambda: acl.malloc(100),
        "huge": lambda: acl.malloc(4 * MIB),
        "reserved": lambda: acl.reserve(4 * MIB),
        "mapped": lambda: acl.map_blocks(2),
    }[what]()
    if what not in ("reserved",):
        acl.write(address, b"secret")
    ctypes.string_at(address, 1)


@pytest.mark.parametrize("what", ["small", "huge", "reserved", "mapped"])
def test_the_host_faults_on_device_memory(child, what):
    child(_touch, what, code=-signal.SIGSEGV)


def _copies():
    acl = Acl(device=1)
    data = os.urandom(3 * MIB)
    first, second = acl.malloc(len(data)), acl.malloc(len(data), "NORMAL_ONLY")
    acl.write(first, data)
    acl.ok("aclrtSetDevice", 0)
    other = acl.malloc(len(data))
    acl.ok("aclrtMemcpy", other, len(data), first, len(data), KIND["D2D"])
    acl.ok("aclrtMemcpy", second + 64, len(data) - 64, other + 128, 1000, KIND["DEFAULT"])
    host, back = ctypes.create_string_buffer(data, len(data)), ctypes.create_string_buffer(100)
    acl.ok("aclrtMemcpy", back, 100, host, 100, KIND["H2H"])
    assert acl.read(other, len(data)) == data
    assert acl.read(second + 64, 1000) == data[128:1128]
    assert back.raw == data[:100]


def test_bytes_survive_copies_in_every_direction_and_between_devices(child):
    child(_copies, soc="Ascend910B4:2")


def _refused_copies():
    acl = Acl()
    device, host = acl.malloc(4 * MIB), ctypes.create_string_buffer(4096)
    freed = acl.malloc(4 * MIB)
    acl.free(freed)
    reserved, small, gone = acl.reserve(4 * MIB), acl.malloc(100), acl.malloc(100)
    acl.free(gone)  # its block lives on
    copies = {
        "past the end": (device + 4 * MIB, 4096, host, 4096, KIND["H2D"]),
        "room too small": (device, 100, host, 101, KIND["H2D"]),
        "host as device": (host, 4096, device, 4096, KIND["D2D"]),
        "device as host": (device, 4096, device, 4096, KIND["H2D"]),
        "freed": (host, 4096, freed, 4096, KIND["D2H"]),
        "past the end of a small one": (host, 193, small, 193, KIND["D2H"]),
        "freed small, as host": (host, 100, gone, 100, KIND["H2H"]),
        "not mapped": (reserved, 4096, host, 4096, KIND["H2D"]),
        "not mapped, as host": (host, 4096, reserved, 4096, KIND["H2H"]),
        "unknown kind": (device, 4096, host, 4096, 5),
    }
    return {name: acl.failure("aclrtMemcpy", *arguments) for name, arguments in copies.items()}


def test_copies_outside_of_memory_or_of_the_wrong_kind_are_refused(child):
    assert set(child(_refused_copies).values()) == {CODE["PARAMETER_INVALID"]}


PAGES = [
    # policy, bytes asked for, page, bytes taken from the device with 32 more (A2, A3) and without (950)
    ("HUGE_FIRST", MIB, NORMAL, 2 * MIB, 2 * MIB),
    ("HUGE_FIRST", MIB + 1, HUGE, 2 * MIB, 2 * MIB),
    ("HUGE_FIRST", 4 * MIB, HUGE, 6 * MIB, 4 * MIB),
    ("HUGE_FIRST_P2P", 4 * MIB, HUGE, 6 * MIB, 4 * MIB),
    ("HUGE_ONLY", 100, HUGE, 2 * MIB, 2 * MIB),
    ("HUGE_ONLY_P2P", 2 * MIB, HUGE, 4 * MIB, 2 * MIB),
    ("NORMAL_ONLY", 8 * MIB, NORMAL, 8 * MIB + NORMAL, 8 * MIB),
    ("NORMAL_ONLY_P2P", 100, NORMAL, 2 * MIB, 2 * MIB),
    ("LOW_BANDWIDTH", 4 * MIB, HUGE, 6 * MIB, 4 * MIB),
    ("HIGH_BANDWIDTH", MIB, NORMAL, 2 * MIB, 2 * MIB),
    (99, 2 * MIB, HUGE, 4 * MIB, 2 * MIB),
    (99, 2 * MIB - 1, NORMAL, 2 * MIB + NORMAL, 2 * MIB),
    (0x1000 | 2, 4 * MIB, HUGE, 6 * MIB, 4 * MIB),  # or-ed: out of range, though one part says ordinary pages
    (0x1000 | 2, MIB, NORMAL, 2 * MIB, 2 * MIB),
]


def _pages():
    acl = Acl()
    found = []
    for policy, size, *_ in PAGES:
        before = acl.used()
        pointer = acl.malloc(size, policy)
        _, location, page = acl.attributes(pointer)
        base, nbytes = acl.block(pointer)
        assert location == LOCATION["DEVICE"]
        assert base == pointer
        assert base % page == 0
        assert nbytes == acl.used() - before
        found.append([page, nbytes])
        acl.free(pointer)
        assert acl.used() == before
    return found


@pytest.mark.parametrize(("soc", "taken"), [("Ascend910B4", 3), ("Ascend910_9392", 3), ("Ascend950PR_9599", 4)])
def test_pages_and_rounding_follow_policy_and_size(child, soc, taken):
    assert child(_pages, soc=soc) == [[row[2], row[taken]] for row in PAGES]


def _huge_1g():
    acl = Acl()
    pointer = ctypes.c_void_p()
    code = acl.code("aclrtMalloc", ctypes.byref(pointer), HUGE_1G, 6)
    if code:
        return code
    assert pointer.value % HUGE_1G == 0
    return [acl.attributes(pointer.value)[2], acl.used()]


def test_pages_of_1_gib_are_not_lengthened_and_the_950_has_none(child):
    assert child(_huge_1g) == [HUGE_1G, HUGE_1G]
    assert child(_huge_1g, soc="Ascend950PR_9599") == CODE["FEATURE_NOT_SUPPORTED"]


def _small():
    acl = Acl()
    pointers = [acl.malloc(size) for size in (1, 100, 5000, 64, 4096)]
    blocks = {acl.block(pointer) for pointer in pointers}
    assert len(blocks) == 1
    ((base, nbytes),) = blocks
    assert nbytes == 2 * MIB
    assert base % HUGE == 0
    assert all(pointer % 64 == 0 for pointer in pointers)
    assert any(pointer % NORMAL for pointer in pointers)
    for index, pointer in enumerate(pointers):
        acl.write(pointer, bytes([index]))
    assert [acl.read(pointer, 1)[0] for pointer in pointers] == list(range(5))
    acl.free(pointers[1])
    assert acl.malloc(90) == pointers[1]  # the gap is taken again
    filled = [acl.malloc(MIB) for _ in range(4)]
    assert len({acl.block(pointer) for pointer in [*pointers, *filled]}) > 1
    for pointer in [*pointers, *filled]:
        acl.free(pointer)
    assert acl.used() == 0


def test_small_allocations_are_cut_out_of_one_block_and_give_it_back(child):
    child(_small)


def _limits():
    acl = Acl()
    kept = acl.malloc(32 * MIB - 32)
    codes = [acl.failure("aclrtMalloc", ctypes.byref(ctypes.c_void_p()), 33 * MIB, policy) for policy in (0, 1, 2)]
    codes.append(
        acl.failure("aclrtMallocPhysical", ctypes.byref(ctypes.c_void_p()), 64 * MIB, acl.physical_properties(), 0)
    )
    codes.append(acl.failure("aclrtMalloc", ctypes.byref(ctypes.c_void_p()), 2**64 - 1, 0))
    # Half a huge page is left: "huge first" takes ordinary pages then.
    huge = acl.malloc(30 * MIB - 32, "HUGE_ONLY")
    first = acl.malloc(MIB + 4096)
    page = acl.attributes(first)[2]
    acl.free(kept)
    acl.free(huge)
    acl.free(first)
    acl.free(acl.malloc(60 * MIB))
    return codes, page, acl.used()


def test_a_full_device_says_out_of_memory_and_loses_nothing(child):
    codes, page, used = child(_limits, CACHECORE_EMULATE_HBM_BYTES=str(63 * MIB + MIB // 2))
    assert set(codes) == {CODE["OUT_OF_MEMORY"]}
    assert page == NORMAL
    assert used == 0


def _host():
    acl = Acl()
    pinned = acl.made("aclrtMallocHost", 10000)
    plain = ctypes.create_string_buffer(64)
    ctypes.memset(pinned, 7, 10000)
    assert acl.attributes(pinned + 9999)[1] == LOCATION["HOST"]
    assert acl.block(pinned + 5) == (pinned, 10000)
    assert acl.attributes(pinned)[2] == os.sysconf("SC_PAGESIZE")
    assert acl.attributes(ctypes.addressof(plain))[1] == LOCATION["UNREGISTERED"]
    device = acl.malloc(10)
    wrong = [
        acl.failure("aclrtFree", pinned),
        acl.failure("aclrtFreeHost", device),
        acl.failure("aclrtFree", device + 64),
        acl.failure("aclrtMemGetAddressRange", plain, ctypes.byref(ctypes.c_void_p()), ctypes.byref(ctypes.c_size_t())),
    ]
    acl.ok("aclrtFreeHost", pinned)
    acl.free(device)
    return [*wrong, acl.failure("aclrtFreeHost", pinned), acl.failure("aclrtFree", device)]


def test_host_memory_is_told_apart_and_freed_by_its_own_function_once(child):
    assert set(child(_host)) == {CODE["PARAMETER_INVALID"]}


def _register():
    import mmap

    acl = Acl()
    memory = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    out = ctypes.c_void_p()
    code = acl.code("aclrtHostRegister", start, 4 * mmap.PAGESIZE, 0, ctypes.byref(out))
    if code:
        return [code]
    assert acl.attributes(start + 100)[1] == LOCATION["HOST"]
    codes = [
        acl.failure("aclrtHostRegister", start + mmap.PAGESIZE, mmap.PAGESIZE, 0, ctypes.byref(out)),
        acl.failure("aclrtHostRegister", start + 16, 100, 0, ctypes.byref(out)),
        acl.failure("aclrtHostRegister", start, 100, 1, ctypes.byref(out)),
        acl.failure("aclrtHostRegister", acl.malloc(4 * MIB), 100, 0, ctypes.byref(out)),
        acl.failure("aclrtHostUnregister", start + mmap.PAGESIZE),
    ]
    acl.ok("aclrtHostUnregister", start)
    assert acl.attributes(start)[1] == LOCATION["UNREGISTERED"]
    return codes


def test_host_registration_checks_its_range_and_the_950_has_none(child):
    assert set(child(_register)) == {CODE["PARAMETER_INVALID"]}
    assert child(_register, soc="Ascend950PR_9599") == [CODE["FEATURE_NOT_SUPPORTED"]]


def _no_alias():
    # /proc/self/mem and process_vm_readv must not see behind the device addresses either.
    acl = Acl()
    pointer = acl.malloc(4 * MIB)
    acl.write(pointer, b"secret")
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        memory.seek(pointer)
        try:
            return memory.read(6).decode()
        except OSError:
            return "refused"


def test_the_device_addresses_have_no_memory_of_their_own(child):
    assert child(_no_alias) != "secret"
