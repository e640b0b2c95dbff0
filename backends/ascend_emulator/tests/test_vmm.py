import ctypes
import os

import pytest
from emulated_acl import CODE, HUGE, HUGE_1G, LOCATION, NORMAL, Acl

REFUSED = CODE["PARAMETER_INVALID"]


def _spanning():
    acl = Acl()
    start = acl.map_blocks(3)
    data = os.urandom(2 * HUGE)
    acl.write(start + HUGE // 2, data)
    assert acl.read(start + HUGE // 2, 2 * HUGE) == data
    assert acl.read(start + HUGE, 100) == data[HUGE // 2 :][:100]
    assert acl.block(start + HUGE + 7) == (start + HUGE, HUGE)
    assert acl.attributes(start + HUGE + 7) == (0, LOCATION["DEVICE"], HUGE)
    acl.ok("aclrtUnmapMem", start + HUGE)
    assert acl.failure("aclrtMemcpy", ctypes.create_string_buffer(data, len(data)), 2 * HUGE, start, 2 * HUGE, 2)
    assert acl.attributes(start + HUGE)[1] == LOCATION["UNREGISTERED"]
    assert acl.read(start + 2 * HUGE, 100) == data[HUGE + HUGE // 2 :][:100]


def test_a_tensor_lies_over_several_mapped_blocks(child):
    child(_spanning)


def _handles():
    acl = Acl()
    start = acl.reserve(2 * HUGE)
    handle = acl.physical(HUGE)
    acl.ok("aclrtMapMem", start, HUGE, 0, handle, 0)
    out = ctypes.c_void_p()
    for _ in range(2):
        acl.ok("aclrtMemRetainAllocationHandle", start, ctypes.byref(out))
        assert out.value == handle
    malloc = acl.malloc(4 * HUGE)
    wrong = [
        acl.failure("aclrtMemRetainAllocationHandle", address, ctypes.byref(out))
        for address in (start + 64, start + HUGE, malloc, ctypes.addressof(out))
    ]
    acl.free(malloc)
    for _ in range(3):  # aclrtMallocPhysical's own and the two retained
        acl.ok("aclrtFreePhysical", handle)
    wrong.append(acl.failure("aclrtFreePhysical", handle))
    acl.write(start, b"still mapped")
    assert acl.read(start, 12) == b"still mapped"
    assert acl.used() == HUGE
    acl.ok("aclrtUnmapMem", start)
    acl.ok("aclrtReleaseMemAddress", start)
    return wrong, acl.used()


def test_only_the_start_of_a_mapping_has_a_handle_and_each_is_given_back_once(child):
    wrong, used = child(_handles)
    assert wrong == [REFUSED] * 5
    assert used == 0


def _misuse():
    acl = Acl()
    start, handle, other = acl.reserve(4 * HUGE), acl.physical(2 * HUGE), acl.physical(HUGE, device=1)
    acl.ok("aclrtMapMem", start + HUGE, 2 * HUGE, 0, handle, 0)
    out = ctypes.c_void_p()
    again = acl.physical(2 * HUGE)
    return {
        "overlap": acl.failure("aclrtMapMem", start + 2 * HUGE, 2 * HUGE, 0, again, 0),
        "outside": acl.failure("aclrtMapMem", start + 3 * HUGE, 2 * HUGE, 0, again, 0),
        "wrong size": acl.failure("aclrtMapMem", start, HUGE, 0, again, 0),
        "offset": acl.failure("aclrtMapMem", start, 2 * HUGE, NORMAL, again, 0),
        "unaligned": acl.failure("aclrtMapMem", start + NORMAL, 2 * HUGE, 0, again, 0),
        "second device": acl.failure("aclrtMapMem", start, HUGE, 0, other, 0),
        "no handle": acl.failure("aclrtMapMem", start, HUGE, 0, start, 0),
        "unmap inside": acl.failure("aclrtUnmapMem", start + 2 * HUGE),
        "release mapped": acl.failure("aclrtReleaseMemAddress", start),
        "free mapped": acl.failure("aclrtFree", start + HUGE),
        "alignment": acl.failure("aclrtReserveMemAddress", ctypes.byref(out), HUGE, HUGE, None, 0),
        "odd size": acl.failure("aclrtMallocPhysical", ctypes.byref(out), HUGE + 1, acl.physical_properties(), 0),
        "host attribute": acl.failure(
            "aclrtMallocPhysical", ctypes.byref(out), HUGE, acl.physical_properties("DDR_HUGE"), 0
        ),
    }


def test_misuse_of_mappings_is_refused(child):
    assert set(child(_misuse, soc="Ascend910B4:2").values()) == {REFUSED}


def _granularity():
    acl = Acl()
    found = {}
    for attribute in ("HBM_HUGE", "HBM_NORMAL", "HUGE", "NORMAL", "P2P_NORMAL", "HBM_HUGE1G", "HUGE1G"):
        size = ctypes.c_size_t()
        code = acl.code("aclrtMemGetAllocationGranularity", acl.physical_properties(attribute), 0, ctypes.byref(size))
        found[attribute] = code or size.value
    return found


@pytest.mark.parametrize(
    ("soc", "huge1g"), [("Ascend910_9392", HUGE_1G), ("Ascend950PR_9599", CODE["FEATURE_NOT_SUPPORTED"])]
)
def test_granularity_is_the_page_of_the_attribute(child, soc, huge1g):
    assert child(_granularity, soc=soc) == {
        "HBM_HUGE": HUGE,
        "HBM_NORMAL": HUGE,
        "HUGE": HUGE,
        "NORMAL": NORMAL,
        "P2P_NORMAL": NORMAL,
        "HBM_HUGE1G": HUGE_1G,
        "HUGE1G": huge1g,
    }
