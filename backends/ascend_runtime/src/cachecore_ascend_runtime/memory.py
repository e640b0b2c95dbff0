"""What a range of memory is: from what runtime and kernel say about it to location, origin and a reason.

The rules, in the order in which they are asked:

| what is known | answer |
|---|---|
| location HOST | page-locked host memory |
| location MANAGED | managed memory, usable as both |
| location DEVICE, on another device | refused, with both devices |
| location DEVICE, a block was mapped by aclrtMapMem | VMM |
| location DEVICE, starts its block, which was not mapped | aclrtMalloc |
| location DEVICE, inside its block | slice of a larger allocation |
| location DEVICE, block or mapping cannot be asked (207000, or an old runtime) | origin unknown, never "not VMM" |
| not known to the runtime, mapped readable and writable | ordinary host memory |
| not known to the runtime, anything else | refused, with the reason |
| location cannot be asked, the processor can read and write it | host memory of unknown origin |
| location cannot be asked, mapped but closed to the processor | device memory of unknown origin |
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from cachecore._core import RangeMapping
from cachecore.driver import MemoryInfo, MemoryOrigin
from cachecore.types import Placement
from cachecore_ascend_runtime import _runtime
from cachecore_ascend_runtime.codes import acl_code

__all__ = ["Location", "MemoryFacts", "judge", "needs_mapping"]

_NOT_ASKED: Final = -1
_NOT_SUPPORTED: Final = (207000, 200001)


class Location(enum.IntEnum):
    """Where memory is, with the runtime's numbers."""

    HOST = 0
    DEVICE = 1
    UNREGISTERED = 2
    MANAGED = 3
    HOST_NUMA = 4
    UNKNOWN = -1


@dataclass(frozen=True)
class MemoryFacts:
    """What is known about one range.

    Attributes:
        location: Where it is. UNREGISTERED: the runtime does not know it.
        placements: What a descriptor may call it; empty: nothing may be registered there, see `reason`.
        origin: How it was allocated.
        page_size: Bytes of the largest page behind it, None when not known.
        block_base: Start of the block that its first byte lies in, None when not known.
        block_bytes: Bytes of the blocks that cover it, from `block_base` on.
        device: The device it is on, None when it is on none or not known.
        reason: Why something is unknown or refused, empty otherwise.
    """

    location: Location
    placements: frozenset[Placement]
    origin: MemoryOrigin = MemoryOrigin.UNKNOWN
    page_size: int | None = None
    block_base: int | None = None
    block_bytes: int | None = None
    device: int | None = None
    reason: str = ""

    def info(self) -> MemoryInfo:
        """The same in the words of the driver contract."""
        return MemoryInfo(
            self.placements, self.origin, self.page_size, self.block_base, self.block_bytes, reason=self.reason
        )


_HOST: Final = frozenset({Placement.HOST})
_DEVICE: Final = frozenset({Placement.DEVICE})


def needs_mapping(facts: _runtime.MemoryFacts) -> bool:
    """Whether the kernel must be asked too, because the runtime does not know the memory."""
    return facts.attributes_code != 0 or facts.location == Location.UNREGISTERED


def judge(
    base: int,
    nbytes: int,
    facts: _runtime.MemoryFacts,
    mapping: RangeMapping | str | None,
    device: int,
    own_number: int,
    page: int,
) -> MemoryFacts:
    """Decide what a range is.

    Args:
        base: Its first byte.
        nbytes: Its bytes, above 0.
        facts: What the runtime said.
        mapping: What the kernel said, or why it could not be asked; only looked at where `needs_mapping`.
        device: The device that asks.
        own_number: How the runtime numbers that device in its answers.
        page: Bytes of an ordinary page of the host.
    """
    if facts.attributes_code != 0:
        return _without_location(base, nbytes, facts, mapping)
    if facts.location == Location.UNREGISTERED:
        return _plain(base, nbytes, mapping, page)
    if facts.location not in (Location.HOST, Location.DEVICE, Location.MANAGED, Location.HOST_NUMA):
        return _refused(Location.UNKNOWN, f"the runtime says location {facts.location}, which is not documented")
    location = Location(facts.location)
    if facts.covered < nbytes:
        return _refused(location, _too_long(base, nbytes, facts))
    if location is Location.DEVICE and facts.device != own_number:
        return _refused(
            location,
            f"the memory is on device {facts.device} and this driver uses device {device}"
            f"{'' if own_number == device else f' (number {own_number} in the answers of the runtime)'}: "
            "use a manager of that device",
        )
    origin, reason = _origin(base, location, facts)
    return MemoryFacts(
        location,
        {Location.DEVICE: _DEVICE, Location.MANAGED: _HOST | _DEVICE}.get(location, _HOST),
        origin,
        facts.page_bytes or None,
        facts.block_base if facts.blocks else None,
        facts.block_bytes if facts.blocks else None,
        device if location is Location.DEVICE else None,
        reason,
    )


def _origin(base: int, location: Location, facts: _runtime.MemoryFacts) -> tuple[MemoryOrigin, str]:
    if location in (Location.HOST, Location.HOST_NUMA):
        return MemoryOrigin.HOST_PINNED, ""
    if location is Location.MANAGED:
        return MemoryOrigin.MANAGED, ""
    if facts.blocks == 0:
        return MemoryOrigin.UNKNOWN, _unasked("the block it belongs to", "aclrtMemGetAddressRange", facts.range_code)
    if facts.mapped == "yes":
        return MemoryOrigin.VMM, ""
    if facts.mapped == "partly":
        return MemoryOrigin.UNKNOWN, "some of its blocks were mapped by aclrtMapMem and some were not"
    if facts.mapped == "unknown":
        reason = _unasked("whether it was mapped by aclrtMapMem", "aclrtMemRetainAllocationHandle", facts.handle_code)
        return MemoryOrigin.UNKNOWN, reason
    if facts.blocks == 1 and base == facts.block_base:
        return MemoryOrigin.ACLRT_MALLOC, ""
    return MemoryOrigin.SUB_ALLOCATION, ""


def _plain(base: int, nbytes: int, mapping: RangeMapping | str | None, page: int) -> MemoryFacts:
    if not isinstance(mapping, RangeMapping):
        return _refused(
            Location.UNREGISTERED, f"the runtime does not know it, and {mapping or 'the kernel was not asked'}"
        )
    problem = _inaccessible(base, nbytes, mapping)
    if problem:
        return _refused(Location.UNREGISTERED, f"the runtime does not know it, and {problem}")
    # Pages of a hugetlb file are larger than the system's, and the map does not say by how much.
    return MemoryFacts(Location.UNREGISTERED, _HOST, MemoryOrigin.HOST_PLAIN, None if "huge" in mapping.path else page)


def _without_location(
    base: int, nbytes: int, facts: _runtime.MemoryFacts, mapping: RangeMapping | str | None
) -> MemoryFacts:
    reason = _unasked("where it is", "aclrtPointerGetAttributes", facts.attributes_code)
    if not isinstance(mapping, RangeMapping):
        return _refused(Location.UNKNOWN, f"{reason}, and {mapping or 'the kernel was not asked'}")
    problem = _inaccessible(base, nbytes, mapping)
    if not problem:
        return MemoryFacts(Location.UNKNOWN, _HOST, reason=f"{reason}; the processor can read and write it")
    closed = mapping.special or mapping.permissions != "unmapped"
    if closed and (facts.attributes_code == _NOT_ASKED or facts.attributes_code in _NOT_SUPPORTED):
        return MemoryFacts(Location.UNKNOWN, _DEVICE, reason=f"{reason}; taken for device memory, because {problem}")
    return _refused(Location.UNKNOWN, f"{reason}, and {problem}")


def _unasked(what: str, function: str, code: int) -> str:
    if code == _NOT_ASKED:
        return f"the runtime cannot say {what}, because it lacks {function}"
    if code == 0:
        return f"the runtime cannot say {what}: the answer of {function} makes no sense"
    return f"the runtime cannot say {what}: {function} answered {code} ({acl_code(code).words})"


def _inaccessible(base: int, nbytes: int, mapping: RangeMapping) -> str:
    """Why the processor cannot use the range, empty when it can."""
    if mapping.special:
        return f"device memory or memory of the kernel is mapped there ({mapping.path})"
    if mapping.accessible:
        return ""
    at = f"{mapping.fault_address:#x}"
    where = at if mapping.fault_address == base else f"{at} ({mapping.fault_address - base} bytes from the start)"
    if mapping.permissions == "unmapped":
        return f"{where} is not mapped"
    if not mapping.permissions.startswith("r"):
        return f"{where} is mapped without read access ({mapping.permissions})"
    return f"{where} is mapped read-only ({mapping.permissions})"


def _too_long(base: int, nbytes: int, facts: _runtime.MemoryFacts) -> str:
    end = base + facts.covered
    text = f"only the first {facts.covered} of the {nbytes} bytes are memory of one kind and device, up to {end:#x}"
    if facts.blocks:
        text += f" (allocation [{facts.block_base:#x}, {facts.block_base + facts.block_bytes:#x}))"
    return text


def _refused(location: Location, reason: str) -> MemoryFacts:
    return MemoryFacts(location, frozenset(), reason=reason)
