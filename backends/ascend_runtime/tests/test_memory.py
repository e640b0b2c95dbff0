"""Where memory came from: every row of the table in `memory`, on the emulator and where the runtime cannot say."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass

import pytest
from cachecore_ascend_runtime import Device, Location, MallocPolicy, MemoryFacts
from cachecore_ascend_runtime.memory import judge

from cachecore import _core
from cachecore.driver import MemoryOrigin
from cachecore.types import Placement

HUGE, PAGE = 2 << 20, mmap.PAGESIZE
ON_DEVICE, ON_HOST = frozenset({Placement.DEVICE}), frozenset({Placement.HOST})


def describe(device: Device, base: int, nbytes: int) -> MemoryFacts:
    return device.describe([(base, nbytes)])[0]


# --- on the emulator -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nbytes", "policy", "page"),
    [
        (HUGE, MallocPolicy.HUGE_FIRST, HUGE),
        (64, MallocPolicy.HUGE_FIRST, 4096),  # up to 1 MiB the policy gives ordinary pages
        (64, MallocPolicy.HUGE_ONLY, HUGE),
        (HUGE, MallocPolicy.NORMAL_ONLY, 4096),
    ],
)
def test_the_start_of_an_allocation_is_aclrt_malloc(
    device: Device, nbytes: int, policy: MallocPolicy, page: int
) -> None:
    # A small allocation may be cut out of a bigger block, the first of several is its start or not: make it large.
    address = device.allocate(max(nbytes, 8 << 20) if policy is not MallocPolicy.HUGE_FIRST else nbytes, policy)
    try:
        facts = describe(device, address, nbytes)
        assert (facts.location, facts.placements, facts.page_size) == (Location.DEVICE, ON_DEVICE, page)
        assert facts.block_base is not None and facts.block_bytes is not None
        starts = facts.block_base == address
        assert facts.origin is (MemoryOrigin.ACLRT_MALLOC if starts else MemoryOrigin.SUB_ALLOCATION)
        assert facts.device == 0 and not facts.reason
    finally:
        device.free(address)


def test_the_inside_of_an_allocation_is_a_slice(device: Device) -> None:
    address = device.allocate(8 << 20, MallocPolicy.HUGE_ONLY)
    try:
        inside = describe(device, address + HUGE, HUGE)
        assert inside.origin is MemoryOrigin.SUB_ALLOCATION
        assert inside.block_base == address
        assert describe(device, address, 8 << 20).origin is MemoryOrigin.ACLRT_MALLOC
    finally:
        device.free(address)


def test_memory_behind_an_allocation_is_not_part_of_it(device: Device) -> None:
    address = device.allocate(8 << 20, MallocPolicy.HUGE_ONLY)
    try:
        facts = describe(device, address, 64 << 20)
        assert facts.placements == frozenset()
        assert "67108864 bytes" in facts.reason and f"{address:#x}" in facts.reason
    finally:
        device.free(address)


@pytest.mark.parametrize("huge", [True, False])
def test_mapped_memory_is_vmm_over_all_its_blocks(emulator, device: Device, huge: bool) -> None:
    start, give_back = emulator.mapped(5, huge=huge)
    for base, nbytes in ((start, 5 * HUGE), (start + HUGE, HUGE), (start + 3, 4 * HUGE), (start + HUGE - 1, 2)):
        facts = describe(device, base, nbytes)
        assert (facts.origin, facts.placements) == (MemoryOrigin.VMM, ON_DEVICE)
        assert facts.page_size == (HUGE if huge else 4096)
        assert facts.block_base is not None and facts.block_bytes is not None
        assert facts.block_base <= base and base + nbytes <= facts.block_base + facts.block_bytes
    assert describe(device, start, 5 * HUGE).block_bytes == 5 * HUGE
    assert emulator.calls("aclrtFreePhysical") > 0
    give_back()  # demands that no handle was kept


def test_a_hole_between_mapped_blocks_is_found(emulator, device: Device) -> None:
    start, give_back = emulator.mapped(2, spare=2)
    facts = describe(device, start, 3 * HUGE)
    assert facts.placements == frozenset()
    assert f"only the first {2 * HUGE} of the {3 * HUGE} bytes" in facts.reason
    give_back()


def test_page_locked_memory_is_the_hosts(device: Device) -> None:
    address = device.allocate_host(100_000)
    try:
        for base, nbytes in ((address, 100_000), (address + 7, 99_000)):
            facts = describe(device, base, nbytes)
            assert (facts.location, facts.origin, facts.placements) == (
                Location.HOST,
                MemoryOrigin.HOST_PINNED,
                ON_HOST,
            )
    finally:
        device.free_host(address)


def test_ordinary_memory_is_what_the_kernel_says(device: Device) -> None:
    writable, closed = mmap.mmap(-1, 4 * PAGE), mmap.mmap(-1, 4 * PAGE, prot=mmap.PROT_READ)
    base = ctypes.addressof(ctypes.c_char.from_buffer(writable))
    read_only = _core.buffer_address(memoryview(closed))
    plain, refused = device.describe([(base, 4 * PAGE), (read_only, PAGE)])
    assert (plain.location, plain.origin) == (Location.UNREGISTERED, MemoryOrigin.HOST_PLAIN)
    assert (plain.placements, plain.page_size) == (ON_HOST, PAGE)
    assert refused.placements == frozenset()
    assert "read-only" in refused.reason


def test_memory_of_another_device_is_refused_with_both_numbers(runtime, device: Device) -> None:
    other = runtime.device(1)
    address = other.allocate(1 << 21)
    try:
        facts = describe(device, address, 64)
        assert facts.placements == frozenset()
        assert "on device 1 and this driver uses device 0" in facts.reason
        assert describe(other, address, 64).placements == ON_DEVICE
    finally:
        other.free(address)


def test_visible_devices_that_are_numbered_anew_do_not_confuse_devices(in_process) -> None:
    code = """
from cachecore_ascend_runtime import load
runtime = load()
first, second = runtime.device(0), runtime.device(1)
mine, other = first.allocate(64), second.allocate(64)
answer([runtime.device_count, bool(first.describe([(mine, 64)])[0].placements),
        first.describe([(other, 64)])[0].reason])
"""
    count, accepted, reason = in_process(code, CACHECORE_EMULATE="Ascend910B4:4", ASCEND_RT_VISIBLE_DEVICES="3,1")
    assert (count, accepted) == (2, True)
    assert "use a manager of that device" in reason


def test_a_driver_that_is_too_old_to_say_is_not_taken_for_a_no(emulator, device: Device) -> None:
    address = device.allocate(8 << 20)
    try:
        emulator.faults("aclrtMemRetainAllocationHandle:*:code=207000")
        facts = describe(device, address, 64)
        assert (facts.origin, facts.placements) == (MemoryOrigin.UNKNOWN, ON_DEVICE)
        assert "aclrtMemRetainAllocationHandle answered 207000 (the driver or product does not have" in facts.reason
        emulator.faults("aclrtMemGetAddressRange:*:code=207000")
        facts = describe(device, address, 64)
        assert (facts.origin, facts.block_base) == (MemoryOrigin.UNKNOWN, None)
        assert "aclrtMemGetAddressRange answered 207000" in facts.reason
        emulator.faults("aclrtPointerGetAttributes:*:code=207000")
        facts = describe(device, address, 64)
        assert (facts.location, facts.origin) == (Location.UNKNOWN, MemoryOrigin.UNKNOWN)
        assert facts.placements == ON_DEVICE, "an old driver must not make all device memory useless"
    finally:
        emulator.faults()
        device.free(address)


def test_unknown_in_the_middle_of_a_tensor_is_unknown(emulator, device: Device) -> None:
    start, give_back = emulator.mapped(3)
    emulator.faults("aclrtMemRetainAllocationHandle:2:code=207000")
    assert describe(device, start, 3 * HUGE).origin is MemoryOrigin.UNKNOWN
    give_back()


def test_one_call_asks_the_kernel_only_for_what_the_runtime_does_not_know(device: Device, monkeypatch) -> None:
    asked = []
    real = _core.describe_mappings
    monkeypatch.setattr(_core, "describe_mappings", lambda ranges: asked.append(list(ranges)) or real(ranges))
    address = device.allocate(1 << 21)
    buffer = bytearray(64)
    base = _core.buffer_address(buffer)
    try:
        device.describe([(address, 64), (address + 64, 64)])
        assert asked == []
        device.describe([(base, 64), (address, 64), (base, 32)])
        assert asked == [[(base, 64), (base, 32)]]
    finally:
        device.free(address)


# --- an old runtime ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hidden", "expected"),
    [
        ("aclrtPointerGetAttributes", ["UNKNOWN", ["DEVICE"], "lacks aclrtPointerGetAttributes"]),
        ("aclrtMemGetAddressRange", ["UNKNOWN", ["DEVICE"], "lacks aclrtMemGetAddressRange"]),
        ("aclrtMemRetainAllocationHandle", ["UNKNOWN", ["DEVICE"], "lacks aclrtMemRetainAllocationHandle"]),
    ],
)
def test_without_a_query_the_origin_is_unknown_and_says_why(in_process, hidden: str, expected: list) -> None:
    code = """
from cachecore_ascend_runtime import load
runtime = load()
device = runtime.device(0)
address, pinned = device.allocate(8 << 20), device.allocate_host(64)
facts, bad, host = device.describe([(address, 64), (1, 64), (pinned, 64)])
answer([sorted(runtime.missing_symbols), facts.origin.name, [one.name for one in facts.placements], facts.reason,
        [one.name for one in bad.placements], [one.name for one in host.placements]])
"""
    missing, origin, placements, reason, bad, host = in_process(
        code, CACHECORE_EMULATE="Ascend910B4", CACHECORE_EMULATE_HIDE=hidden
    )
    assert hidden in missing
    assert [origin, placements] == expected[:2]
    assert expected[2] in reason
    assert (bad, host) == ([], ["HOST"])


# --- answers that the emulator does not give -------------------------------------------------------------------------


@dataclass
class Facts:
    """What the native query reports."""

    attributes_code: int = 0
    location: int = 1
    device: int = 0
    page_bytes: int = HUGE
    range_code: int = 0
    block_base: int = 8 * HUGE
    block_bytes: int = HUGE
    blocks: int = 1
    handle_code: int = 0
    mapped: str = "no"
    covered: int = HUGE


@dataclass
class Row:
    facts: Facts
    origin: MemoryOrigin
    placements: frozenset[Placement]
    words: str = ""


ROWS = {
    "managed memory is both": Row(Facts(location=3), MemoryOrigin.MANAGED, ON_HOST | ON_DEVICE),
    "host memory by NUMA node is page-locked": Row(Facts(location=4), MemoryOrigin.HOST_PINNED, ON_HOST),
    "an undocumented location is refused": Row(Facts(location=9), MemoryOrigin.UNKNOWN, frozenset(), "location 9"),
    "two blocks side by side are no single aclrtMalloc": Row(
        Facts(blocks=2, block_bytes=2 * HUGE), MemoryOrigin.SUB_ALLOCATION, ON_DEVICE
    ),
    "mapped in part is unknown": Row(
        Facts(blocks=2, mapped="partly"), MemoryOrigin.UNKNOWN, ON_DEVICE, "some were not"
    ),
    "a block that makes no sense is unknown": Row(
        Facts(blocks=0, range_code=0, mapped="unknown"), MemoryOrigin.UNKNOWN, ON_DEVICE, "makes no sense"
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_an_answer_of_the_runtime_becomes_the_documented_origin(name: str) -> None:
    row = ROWS[name]
    facts = judge(8 * HUGE, 64, row.facts, None, 0, 0, PAGE)  # type: ignore[arg-type]  # looks the same
    assert (facts.origin, facts.placements) == (row.origin, row.placements)
    assert row.words in facts.reason


def test_an_unknown_page_size_is_none() -> None:
    assert judge(8 * HUGE, 64, Facts(page_bytes=0), None, 0, 0, PAGE).page_size is None  # type: ignore[arg-type]
