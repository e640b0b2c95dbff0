"""What the local engine knows about one peer: its process, its regions, and the blocks mapped here."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, cast

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

#: Seconds between two looks at whether a waiting transfer was cancelled.
_LOOK: Final = 0.05
#: Where the owner's memory can be read too: seconds that a transfer waits for memory files, and until one asks again.
_BRIEFLY, _PAUSE = 0.1, 5.0


@dataclass(frozen=True)
class View:
    """The regions of a peer at one time. A transfer keeps the one it began with, and with it the mappings.

    Attributes:
        regions: (base, bytes) of each region, packed for `_core.plan_within`.
        mapped: (base, bytes, address here) of those that are mapped, packed for `_core.map_plan`.
        shared: (base, bytes) of those that are or could be mapped, packed; empty where none is missing in `mapped`.
        blocks: The mapped blocks by number; unmapped when the last view with them is gone.
    """

    regions: bytes = b""
    mapped: bytes = b""
    shared: bytes = b""
    blocks: tuple[tuple[int, SharedBlock], ...] = ()


class Link:
    """One connected peer. `change` is serialised by the core; the rest is for many threads.

    Args:
        endpoint: The peer's.
        process: Its process; closed with the link.
        readable: Whether the kernel lets this process read it, so that memory files are not the only way.
    """

    def __init__(self, endpoint: Endpoint, process: Process, readable: bool) -> None:
        self.endpoint = endpoint
        self.process = process
        self._readable = readable
        #: Held while regions or the view are exchanged, never while somebody waits for the owner.
        self._changing = threading.Lock()
        #: Held by the one transfer that asks the owner again.
        self._asking = threading.Lock()
        self._ask_from = 0.0
        #: Bytes of each block, by number, that the owner shares and that is not mapped.
        self._missing: dict[int, int] = {}
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
        with self._changing:
            self._regions = (*(region for region in self._regions if region not in gone), *added)
            problems = self._show(dict(self._view.blocks))
        return self._map_missing(deadline, lambda: False) if self._missing else problems

    def view_again(self, plan: CopyPlan, deadline: float, cancelled: Callable[[], bool]) -> tuple[View, list[str]]:
        """What a plan may use that is not mapped as a whole: asks the owner again for what a mapping lacks.

        The owner may only have been busy for a moment when its memory came or the link was made. Where there is another
        way to it, it is asked briefly and not each time.

        Returns:
            The present view, and for each region that could still not be mapped, why.
        """
        while not self._asking.acquire(timeout=0 if self._readable else _LOOK):
            if self._readable or cancelled() or time.monotonic() >= deadline:
                return self._view, []
        try:
            problems: list[str] = []
            view, now = self._view, time.monotonic()
            # Another transfer may have mapped it meanwhile, and other memory needs no mapping.
            if view.shared and now >= self._ask_from and _core.plan_within(plan, view.shared, False):
                problems = self._map_missing(min(deadline, now + _BRIEFLY) if self._readable else deadline, cancelled)
                if self._readable:
                    self._ask_from = time.monotonic() + _PAUSE
            return self._view, problems
        finally:
            self._asking.release()

    def _show(self, blocks: dict[int, SharedBlock]) -> list[str]:
        """Make a new view of the regions with these blocks; returns what cannot be mapped, whoever is asked."""
        shared: dict[RemoteRegion, SharedRange] = {}
        problems: list[str] = []
        for region in self._regions:
            if region.descriptor:
                try:
                    shared[region] = _shared_range(region)
                except LinkFailedError as error:
                    problems.append(str(error))
        mapped, possible = [], []
        for region, part in shared.items():
            block = blocks.get(part.block)
            # Another descriptor may have said how large the block is, and only what is mapped may be touched.
            if block is not None and part.offset + region.nbytes > block.nbytes:
                problems.append(
                    f"the region at {region.base:#x} ends at byte {part.offset + region.nbytes} of block {part.block} of "
                    f"process {self.endpoint.pid}, of which another descriptor says that it has {block.nbytes} bytes"
                )
                continue
            possible.append(struct.pack("QQ", region.base, region.nbytes))
            if block is not None:
                mapped.append(struct.pack("QQQ", region.base, region.nbytes, block.address + part.offset))
        wanted = {part.block: part.block_bytes for part in shared.values()}
        self._missing = {number: nbytes for number, nbytes in wanted.items() if number not in blocks}
        self._view = View(
            b"".join(struct.pack("QQ", region.base, region.nbytes) for region in self._regions),
            b"".join(mapped),
            b"".join(possible) if self._missing else b"",
            tuple((number, block) for number, block in blocks.items() if number in wanted),
        )
        return problems

    def _map_missing(self, deadline: float, cancelled: Callable[[], bool]) -> list[str]:
        """Fetch blocks from the owner, map them and show them; returns for each that could not be mapped, why."""
        missing = self._missing
        problems: list[str] = []
        blocks: dict[int, SharedBlock] = {}
        try:
            files = fetch(self.endpoint, list(missing), deadline, cancelled)
        except LinkFailedError as error:
            problems.append(str(error))
            missing, files = {}, {}
        for number, nbytes in missing.items():
            fd = files.pop(number, None)
            if fd is None:
                problems.append(f"process {self.endpoint.pid} does not share its block {number} any more")
                continue
            try:
                blocks[number] = _core.map_shared(fd, nbytes, writable=True)
            except CacheError as error:
                problems.append(f"block {number} of process {self.endpoint.pid} cannot be mapped: {error}")
            finally:
                os.close(fd)
        with self._changing:
            return problems + self._show({**dict(self._view.blocks), **blocks})

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
