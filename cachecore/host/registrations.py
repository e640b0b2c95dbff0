"""What one side has registered with the local engine, and which blocks it hands out for that."""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Sequence

import msgspec

from cachecore import _core
from cachecore.engine import Region, Registration
from cachecore.errors import CacheValueError, EngineError
from cachecore.host.blocks import BlockTable
from cachecore.host.sharing import SharedRange
from cachecore.types import Placement

__all__ = ["Registrations"]


class Registrations:
    """For many threads.

    Args:
        blocks: Memory that can be shared with peers; None where the driver's cannot.
        placements: Placements that can be moved.
    """

    def __init__(self, blocks: BlockTable | None, placements: frozenset[Placement]) -> None:
        self._blocks = blocks
        self._placements = placements
        self._lock = threading.Lock()
        self._live: dict[int, Registration] = {}
        self._offered: Counter[int] = Counter()
        self._count = 0

    def __len__(self) -> int:
        return len(self._live)

    def add(self, regions: Sequence[Region]) -> list[Registration]:
        """Register all of them or none; see `TransferEngine.register`."""
        mappings = _core.describe_mappings([(region.base, region.nbytes) for region in regions])
        parts = [self._part(i, region, found) for i, (region, found) in enumerate(zip(regions, mappings, strict=True))]
        made = []
        with self._lock:
            for region, part in zip(regions, parts, strict=True):
                self._count += 1
                descriptor = b"" if part is None else msgspec.msgpack.encode(part)
                made.append(Registration(region, descriptor, (self._count, None if part is None else part.block)))
                self._live[self._count] = made[-1]
                if part is not None:
                    self._offered[part.block] += 1
        return made

    def _part(self, index: int, region: Region, mapping: _core.RangeMapping) -> SharedRange | None:
        where = f"regions[{index}] ({region.nbytes} bytes at {region.base:#x})"
        if region.placement not in self._placements:
            raise EngineError(f"{where} is {region.placement.name} memory, which the local engine cannot move")
        if mapping.special or not mapping.accessible:
            raise EngineError(
                f"{where} could not be registered: {mapping.fault_address or region.base:#x} is "
                f"{'memory of a device' if mapping.special else mapping.permissions}; it must be ordinary memory, "
                "mapped readable and writable",
                operation="register",
                code=errno.EFAULT,
            )
        block = None if self._blocks is None else self._blocks.find(region.base, region.nbytes)
        return None if block is None else SharedRange(block.number, region.base - block.address, block.nbytes)

    def remove(self, registration: Registration) -> None:
        """Undo one.

        Raises:
            CacheValueError: It is not live.
        """
        with self._lock:
            number, block = registration.token if isinstance(registration.token, tuple) else (0, None)
            if self._live.get(number) is not registration:
                raise CacheValueError(
                    f"registration is {registration}, which is not live in this engine; deregister each one once"
                )
            del self._live[number]
            if block is not None:
                self._offered[block] -= 1
                self._offered += Counter()  # drops what is zero

    def duplicate(self, block: int) -> int | None:
        """A descriptor of a block for a peer, which the caller closes; None when no region of it is registered."""
        with self._lock:
            offered = self._offered[block] > 0
        return self._blocks.duplicate(block) if offered and self._blocks is not None else None

    def clear(self) -> None:
        """Undo all."""
        with self._lock:
            self._live.clear()
            self._offered.clear()
