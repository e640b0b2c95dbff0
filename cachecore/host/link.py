"""What the local engine knows about one peer: its process, its regions, and the blocks mapped here."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import msgspec

from cachecore import _core
from cachecore._core import SharedBlock
from cachecore.engine import Region, RemoteRegion
from cachecore.errors import CacheError, LinkFailedError
from cachecore.host.identity import Endpoint, Process
from cachecore.host.sharing import SharedRange, fetch
from cachecore.planning import CopyPlan
from cachecore.types import Placement

__all__ = ["Link", "View"]


@dataclass(frozen=True)
class View:
    """The regions of a peer at one time. A transfer keeps the one it began with, and with it the mappings.

    Attributes:
        regions: (base, bytes) of each region, packed for `_core.plan_within`.
        mapped: (base, bytes, address here) of those that are mapped, packed for `_core.map_plan`.
        blocks: The mapped blocks by number; unmapped when the last view with them is gone.
    """

    regions: bytes = b""
    mapped: bytes = b""
    blocks: tuple[tuple[int, SharedBlock], ...] = ()


class Link:
    """One connected peer. `change` is serialised by the core; the rest is for many threads.

    Args:
        endpoint: The peer's.
        process: Its process; closed with the link.
    """

    def __init__(self, endpoint: Endpoint, process: Process) -> None:
        self.endpoint = endpoint
        self.process = process
        self._idle = threading.Condition()
        self._regions: tuple[RemoteRegion, ...] = ()
        self._view = View()
        self._running: dict[int, CopyPlan] = {}
        self._started = 0
        self._closed = False

    def change(self, added: Iterable[RemoteRegion], removed: Iterable[RemoteRegion], deadline: float) -> list[str]:
        """Take regions in and out, and map those the owner shares.

        Returns:
            For each region that is shared and could not be mapped, why.
        """
        gone = set(removed)
        self._regions = (*(region for region in self._regions if region not in gone), *added)
        shared: dict[RemoteRegion, SharedRange] = {}
        problems: list[str] = []
        for region in self._regions:
            if region.descriptor:
                try:
                    shared[region] = _shared_range(region)
                except LinkFailedError as error:
                    problems.append(str(error))
        blocks = self._map(shared.values(), deadline, problems)
        mapped = []
        for region, part in shared.items():
            block = blocks.get(part.block)
            if block is None:
                continue
            # Another descriptor may have said how large the block is, and only what is mapped may be touched.
            if part.offset + region.nbytes > block.nbytes:
                problems.append(
                    f"the region at {region.base:#x} ends at byte {part.offset + region.nbytes} of block {part.block} of "
                    f"process {self.endpoint.pid}, of which another descriptor says that it has {block.nbytes} bytes"
                )
                continue
            mapped.append(struct.pack("QQQ", region.base, region.nbytes, block.address + part.offset))
        self._view = View(
            b"".join(struct.pack("QQ", region.base, region.nbytes) for region in self._regions),
            b"".join(mapped),
            tuple(blocks.items()),
        )
        return problems

    def _map(self, ranges: Iterable[SharedRange], deadline: float, problems: list[str]) -> dict[int, SharedBlock]:
        """The blocks of all ranges: those of the present view, and new ones fetched from the owner."""
        wanted = {part.block: part.block_bytes for part in ranges}
        blocks = {number: block for number, block in self._view.blocks if number in wanted}
        missing = [number for number in wanted if number not in blocks]
        if not missing:
            return blocks
        try:
            files = fetch(self.endpoint, missing, deadline)
        except LinkFailedError as error:
            problems.append(str(error))
            return blocks
        for number in missing:
            fd = files.pop(number, None)
            if fd is None:
                problems.append(f"process {self.endpoint.pid} does not share its block {number} any more")
                continue
            try:
                blocks[number] = _core.map_shared(fd, wanted[number], writable=True)
            except CacheError as error:
                problems.append(f"block {number} of process {self.endpoint.pid} cannot be mapped: {error}")
            finally:
                os.close(fd)
        return blocks

    def begin(self, plan: CopyPlan) -> tuple[int, View] | None:
        """A transfer begins: its number and what it may use; None when the link is closed."""
        with self._idle:
            if self._closed:
                return None
            self._started += 1
            self._running[self._started] = plan
            return self._started, self._view

    def end(self, number: int) -> None:
        """The transfer with this number has ended."""
        with self._idle:
            del self._running[number]
            self._idle.notify_all()

    def regions_in_use(self) -> list[Region]:
        """What of this side running transfers touch, from the first to the last byte of each tensor."""
        with self._idle:
            plans = list(self._running.values())
        found = []
        for bases, runs in (group for plan in plans for group in plan.groups()):
            spans = [(offset, offset + nbytes) for offset, _, nbytes in cast("list[list[int]]", runs.tolist())]
            start, end = min(low for low, _ in spans), max(high for _, high in spans)
            for local, _ in cast("list[list[int]]", bases.tolist()):
                found.append(Region(local + start, end - start, Placement.HOST))
        return found

    def close(self, deadline: float) -> bool:
        """Begin no more transfers, and wait for those that run. Can be repeated; True when none is left."""
        with self._idle:
            self._closed = True
            timeout = max(0.0, min(deadline - time.monotonic(), threading.TIMEOUT_MAX))
            if not self._idle.wait_for(lambda: not self._running, timeout):
                return False
            self._view = View()
            self.process.close()
            return True


def _shared_range(region: RemoteRegion) -> SharedRange:
    try:
        part = msgspec.msgpack.decode(region.descriptor, type=SharedRange)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise LinkFailedError(f"the descriptor of the region at {region.base:#x} cannot be read: {error}") from error
    if part.offset + region.nbytes > part.block_bytes:
        raise LinkFailedError(
            f"the region at {region.base:#x} has {region.nbytes} bytes from {part.offset} on in a block of "
            f"{part.block_bytes}; it would end behind it"
        )
    return part
