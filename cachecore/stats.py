"""Counters of a manager: a frozen snapshot that can be added up over managers and processes."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cachecore.transfers.requests import Step

__all__ = ["Stats"]


@dataclass(frozen=True)
class Stats:
    """What a manager has done since it was made. `a + b` adds two snapshots up.

    Attributes:
        pulls: Pulls that ended in success.
        pulls_failed: Pulls that had started and did not.
        blocks: Blocks (or entries) moved by successful pulls and pushes, counted per tensor.
        nbytes: Bytes moved by successful pulls and pushes.
        chunks: Contiguous pieces they were moved in, after merging neighbours.
        seconds: Time inside successful pulls and pushes, summed over threads.
        registered_caches: Caches registered now.
        registered_addresses: Addresses of the budget in use now.
        registered_bytes: Bytes of the regions registered now.
        quarantined: Failed transfers that may still be writing now.
        links: Outgoing links now, in any state.
        sessions: Peers linked to this manager now.
        listener_failures: Events a listener raised on.
        pushes: Pushes that ended in success.
        pushes_failed: Pushes that had started and did not.
        transfers_cancelled: Pulls and pushes that ended because somebody cancelled them. Those that had started count
            as failed too.
        transfers_queued: Asynchronous transfers that wait for a thread now.
        transfers_running: Asynchronous transfers that run now.
        copies: Calls of copy_cache, copy_blocks and swap_blocks that ended in success.
        copies_failed: Those that had started and did not.
        copied_bytes: Bytes they moved; not in `nbytes`.
        allocated_caches: Caches whose memory the manager allocated, now; they are in `registered_caches` too.
        allocated_bytes: Bytes of that memory.
    """

    pulls: int = 0
    pulls_failed: int = 0
    blocks: int = 0
    nbytes: int = 0
    chunks: int = 0
    seconds: float = 0.0
    registered_caches: int = 0
    registered_addresses: int = 0
    registered_bytes: int = 0
    quarantined: int = 0
    links: int = 0
    sessions: int = 0
    listener_failures: int = 0
    pushes: int = 0
    pushes_failed: int = 0
    transfers_cancelled: int = 0
    transfers_queued: int = 0
    transfers_running: int = 0
    copies: int = 0
    copies_failed: int = 0
    copied_bytes: int = 0
    allocated_caches: int = 0
    allocated_bytes: int = 0

    def __add__(self, other: Stats) -> Stats:
        if not isinstance(other, Stats):
            return NotImplemented
        return Stats(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


class TransferCounters:
    """The part of `Stats` that grows; shared by the threads of one manager."""

    __slots__ = (
        "_lock",
        "blocks",
        "cancelled",
        "chunks",
        "nbytes",
        "pulls",
        "pulls_failed",
        "pushes",
        "pushes_failed",
        "seconds",
    )

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.pulls = self.pulls_failed = self.pushes = self.pushes_failed = self.cancelled = 0
        self.blocks = self.nbytes = self.chunks = 0
        self.seconds = 0.0

    def success(self, push: bool, steps: Iterable[Step], seconds: float) -> None:
        """Count a transfer that moved everything."""
        with self._lock:
            if push:
                self.pushes += 1
            else:
                self.pulls += 1
            for step in steps:
                plan = step.plan
                self.blocks += plan.blocks
                self.nbytes += plan.nbytes
                self.chunks += plan.chunks
            self.seconds += seconds

    def failure(self, push: bool) -> None:
        """Count a transfer that started and did not move everything."""
        with self._lock:
            if push:
                self.pushes_failed += 1
            else:
                self.pulls_failed += 1

    def cancellation(self) -> None:
        """Count a transfer that was cancelled, started or not."""
        with self._lock:
            self.cancelled += 1
