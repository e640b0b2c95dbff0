"""Counters of a manager: a frozen snapshot that can be added up over managers and processes."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields

__all__ = ["Stats"]


@dataclass(frozen=True)
class Stats:
    """What a manager has done since it was made. `a + b` adds two snapshots up.

    Attributes:
        pulls: Pulls that ended in success.
        pulls_failed: Pulls that had started and did not.
        blocks: Blocks (or entries) moved by successful pulls, counted per tensor.
        nbytes: Bytes moved by successful pulls.
        chunks: Contiguous pieces they were moved in, after merging neighbours.
        seconds: Time inside successful pulls, summed over threads.
        registered_caches: Caches registered now.
        registered_addresses: Addresses of the budget in use now.
        registered_bytes: Bytes of the regions registered now.
        quarantined: Failed transfers that may still be writing now.
        links: Outgoing links now, in any state.
        sessions: Peers linked to this manager now.
        listener_failures: Events a listener raised on.
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

    def __add__(self, other: Stats) -> Stats:
        if not isinstance(other, Stats):
            return NotImplemented
        return Stats(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


class PullCounters:
    """The part of `Stats` that grows; shared by the threads of one manager."""

    __slots__ = ("_lock", "blocks", "chunks", "failed", "nbytes", "pulls", "seconds")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.pulls = self.failed = self.blocks = self.nbytes = self.chunks = 0
        self.seconds = 0.0

    def success(self, blocks: int, nbytes: int, chunks: int, seconds: float) -> None:
        """Count a pull that moved everything."""
        with self._lock:
            self.pulls += 1
            self.blocks += blocks
            self.nbytes += nbytes
            self.chunks += chunks
            self.seconds += seconds

    def failure(self) -> None:
        """Count a pull that started and did not move everything."""
        with self._lock:
            self.failed += 1
