"""One peer that an engine is connected to: its memory, and the transfers that run to it."""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from cachecore.engine import Region, RemoteRegion
from cachecore.planning import CopyPlan
from cachecore.types import Placement
from cachecore_ascend_runtime.hixl_link import NativeLink
from cachecore_ascend_runtime.hixl_links import Links
from cachecore_ascend_runtime.hixl_transfer import Running

__all__ = ["HixlPeer"]


class HixlPeer:
    """A user of a native link. `change` is serialised by the core; the rest is for many threads.

    Args:
        links: The native links.
        remote: Address of the peer's engine.
        regions: What the peer has registered.

    Attributes:
        link: The native link.
        packed: (base, bytes) of the peer's regions, packed for `_core.plan_within`.
    """

    def __init__(self, links: Links, remote: str, regions: Iterable[RemoteRegion]) -> None:
        self._links = links
        self._idle = threading.Condition()
        self._regions: tuple[RemoteRegion, ...] = ()
        self._running: list[Running] = []
        self._closed = self._left = False
        self.packed = b""
        self.link: NativeLink = links.join(remote)
        self.change(regions, ())

    def change(self, added: Iterable[RemoteRegion], removed: Iterable[RemoteRegion]) -> None:
        """Take regions in and out."""
        gone = set(removed)
        self._regions = (*(region for region in self._regions if region not in gone), *added)
        self.packed = b"".join(struct.pack("QQ", region.base, region.nbytes) for region in self._regions)

    @contextlib.contextmanager
    def begin(self, plan: CopyPlan) -> Iterator[Running | None]:
        """Count a transfer for the length of the block; None when no more may begin."""
        running = Running(plan)
        with self._idle:
            closed = self._closed
            if not closed:
                self._running.append(running)
        if closed:
            yield None
            return
        try:
            yield running
        finally:
            with self._idle:
                self._running.remove(running)
                self._idle.notify_all()

    def abort(self) -> None:
        """Let the transfers that run give up."""
        with self._idle:
            for running in self._running:
                running.closing = True

    def regions_in_use(self) -> list[Region]:
        """What of this side running transfers touch, from the first to the last byte of each tensor."""
        with self._idle:
            plans: list[Any] = [running.plan for running in self._running]
        found = []
        for bases, runs in (group for plan in plans for group in plan.groups()):
            spans = [(offset, offset + nbytes) for offset, _, nbytes in runs.tolist()]
            start, end = min(low for low, _ in spans), max(high for _, high in spans)
            found += [Region(local + start, end - start, Placement.DEVICE) for local, _ in bases.tolist()]
        return found

    def close(self, deadline: float) -> bool:
        """Begin no more transfers, wait for those that run, and leave the link. Can be repeated; True when done."""
        with self._idle:
            self._closed = True
            left = max(0.0, min(deadline - time.monotonic(), threading.TIMEOUT_MAX))
            if not self._idle.wait_for(lambda: not self._running, left):
                return False
        if not self._left:
            self._left = self._links.leave(self.link, deadline)
        return self._left
