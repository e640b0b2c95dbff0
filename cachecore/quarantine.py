"""Destinations of failed transfers that may still be written.

A transfer that failed or timed out may go on in the hardware. Until its engine says quiescent, its destination bytes
are refused to further transfers, and the caches of both sides count as in use, so that nothing is freed under it.
Destinations of pushes are memory of a peer: an address means something only together with the address space it is in.
"""

from __future__ import annotations

import bisect
import logging
import threading
import time
from array import array
from collections.abc import Callable, Sequence

from cachecore.errors import CacheBusyError
from cachecore.outcome import Outcome
from cachecore.planning import CopyPlan

__all__ = ["Quarantine"]

_log = logging.getLogger("cachecore")
#: Seconds between two questions to an engine whether it has stopped; doubled up to the longer one.
_POLL_INTERVAL = 0.01
_LONGEST_INTERVAL = 0.32
_BATCH = 65536


class _Held:
    """One transfer that may still be writing `intervals` (sorted, disjoint [start, end) addresses) of `space`.

    `memory` is what it touches in this process: the same for a pull, what it reads for a push.
    """

    __slots__ = ("intervals", "memory", "poll", "release", "space", "starts", "ticket")

    def __init__(
        self,
        space: str | None,
        intervals: list[tuple[int, int]],
        memory: list[tuple[int, int]],
        ticket: object,
        poll: Callable[[object], bool],
        release: Callable[[], None],
    ) -> None:
        self.space = space
        self.intervals = intervals
        self.memory = memory
        self.starts = [start for start, _ in intervals]
        self.ticket = ticket
        self.poll = poll
        self.release = release

    def overlap(self, start: int, end: int) -> tuple[int, int] | None:
        position = bisect.bisect_left(self.starts, end)
        if position and self.intervals[position - 1][1] > start:
            return self.intervals[position - 1]
        return None


class Quarantine:
    """The failed transfers of one manager that are not known to have stopped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._held: list[_Held] = []
        self._poller: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._held)

    def add(
        self,
        plan: CopyPlan,
        outcome: Outcome,
        space: str | None,
        poll: Callable[[object], bool],
        release: Callable[[], None],
        *,
        local: bool = True,
    ) -> None:
        """Hold the unknown destinations of a failed transfer until `poll(outcome.ticket)`; then call `release`.

        Args:
            plan: What was moved.
            outcome: How that ended.
            space: The address space of the remote side: None for this process, else a peer's incarnation.
            poll: Whether the transfer with this ticket has stopped.
            release: Called once when it has.
            local: Whether the local side of the plan is written, else the remote one.
        """
        memory = _intervals(plan, outcome.unknown, 0)
        written = memory if local else _intervals(plan, outcome.unknown, 1)
        held = _Held(None if local else space, written, memory, outcome.ticket, poll, release)
        with self._lock:
            self._held.append(held)
            if self._poller is None:
                self._poller = threading.Thread(target=self._watch, name="cachecore-quarantine", daemon=True)
                self._poller.start()

    def check(self, plan: CopyPlan, space: str | None) -> None:
        """Refuse a plan that reads or writes where an earlier transfer may still be writing.

        Args:
            plan: Its local side is memory of this process.
            space: The address space of its remote side.

        Raises:
            CacheBusyError: Names the bytes.
        """
        if not self._held:  # the normal case: one look at a list
            return
        with self._lock:
            here = [item for item in self._held if item.space is None]
            there = [item for item in self._held if item.space == space]
        for column, side, held in ((0, "here", here), (1, "of the other side", there)):
            if held:
                _check_side(plan, column, side, held)

    def wait_empty(self, deadline: float) -> list[tuple[int, int]]:
        """Wait until nothing is held; returns the (address, bytes) of this process still touched at the deadline."""
        with self._changed:
            while self._held:
                left = deadline - time.monotonic()
                if left <= 0:
                    return [(start, end - start) for item in self._held for start, end in item.memory]
                self._changed.wait(left)
            return []

    def _watch(self) -> None:
        interval = _POLL_INTERVAL
        while True:
            with self._lock:
                held = list(self._held)
                if not held:
                    self._poller = None
                    return
            for item in held:
                if self._stopped(item):
                    item.release()
                    with self._changed:
                        self._held.remove(item)
                        self._changed.notify_all()
            time.sleep(interval)
            interval = min(2 * interval, _LONGEST_INTERVAL)

    def _stopped(self, item: _Held) -> bool:
        try:
            return item.poll(item.ticket)
        except Exception:  # noqa: BLE001
            # Not known to have stopped means held; close() names the memory. Say it once a poll round is too much.
            if item.poll is not _never:
                _log.exception("an engine failed while asked whether a transfer has stopped; its memory stays held")
                item.poll = _never
            return False


def _never(ticket: object) -> bool:
    return False


def _check_side(plan: CopyPlan, column: int, side: str, held: Sequence[_Held]) -> None:
    for first in range(0, plan.chunks, _BATCH):
        flat = array("Q", plan.flat(first, min(_BATCH, plan.chunks - first)))
        for address, length in zip(flat[column::3], flat[2::3], strict=True):
            for item in held:
                found = item.overlap(address, address + length)
                if found is not None:
                    raise CacheBusyError(
                        f"[{address:#x}, {address + length:#x}) {side} is quarantined: a failed transfer may still be "
                        f"writing [{found[0]:#x}, {found[1]:#x}). Use other blocks, or try again later",
                        ranges=((found[0], found[1] - found[0]),),
                    )


def _intervals(plan: CopyPlan, ranges: Sequence[tuple[int, int]], column: int) -> list[tuple[int, int]]:
    pieces: list[tuple[int, int]] = []
    for start, stop in ranges:
        for first in range(start, stop, _BATCH):
            flat = array("Q", plan.flat(first, min(_BATCH, stop - first)))
            pieces += [(low, low + length) for low, length in zip(flat[column::3], flat[2::3], strict=True)]
    pieces.sort()
    merged: list[tuple[int, int]] = []
    for low, high in pieces:
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged
