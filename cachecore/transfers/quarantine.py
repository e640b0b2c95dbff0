"""Destinations of failed transfers that may still be written.

A transfer that failed or timed out may go on in the hardware. Until its engine says quiescent, its destination bytes
are refused to further transfers, and the caches of both sides count as in use, so that nothing is freed under it.
Destinations of pushes are memory of a peer: an address means something only together with the address space it is in.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from cachecore.errors import CacheBusyError
from cachecore.outcome import Outcome
from cachecore.planning import CopyPlan
from cachecore.threads import start_or_log

__all__ = ["Quarantine", "has_stopped"]

_log = logging.getLogger("cachecore")
#: Seconds between two questions to an engine whether it has stopped; doubled up to the longer one.
_POLL_INTERVAL = 0.01
_LONGEST_INTERVAL = 0.32


def has_stopped(poll: Callable[[object], bool], ticket: object) -> bool:
    """Whether a transfer has stopped. Where the engine fails to say that it has, it has not."""
    try:
        return poll(ticket)
    except Exception:  # noqa: BLE001
        _log.exception("an engine failed while asked whether a transfer has stopped; its memory stays held")
        return False


class _Held:
    """One transfer that may still be writing `intervals` of `space`.

    `memory` is what it touches in this process: the same for a pull, what it reads for a push. Both are packed, as
    `CopyPlan.intervals` makes them.
    """

    __slots__ = ("intervals", "memory", "poll", "release", "space", "ticket")

    def __init__(
        self,
        space: str | None,
        intervals: bytes,
        memory: bytes,
        ticket: object,
        poll: Callable[[object], bool],
        release: Callable[[], None],
    ) -> None:
        self.space = space
        self.intervals = intervals
        self.memory = memory
        self.ticket = ticket
        self.poll = poll
        self.release = release


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
        memory = plan.intervals(outcome.unknown, local=True)
        written = memory if local else plan.intervals(outcome.unknown, local=False)
        held = _Held(None if local else space, written, memory, outcome.ticket, poll, release)
        with self._lock:
            self._held.append(held)
            self._start_poller()

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
            self._start_poller()
            here = [item for item in self._held if item.space is None]
            there = [item for item in self._held if item.space == space]
        _check_side(plan, True, "here", here)
        _check_side(plan, False, "of the other side", there)

    def wait_empty(self, deadline: float) -> list[tuple[int, int]]:
        """Wait until nothing is held; returns the (address, bytes) of this process still touched at the deadline."""
        with self._changed:
            while self._held:
                self._start_poller()
                left = deadline - time.monotonic()
                if left <= 0:
                    return [(start, end - start) for item in self._held for start, end in _unpacked(item.memory)]
                self._changed.wait(left)
            return []

    def _start_poller(self) -> None:
        """With the lock held. Where no thread can be started now, whoever looks at the quarantine next tries again."""
        if self._poller is None:
            self._poller = start_or_log(self._watch, "cachecore-quarantine")

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


def _check_side(plan: CopyPlan, local: bool, side: str, held: Sequence[_Held]) -> None:
    for item in held:
        found = plan.overlaps(item.intervals, local=local)
        if found is not None:
            start, end = found
            raise CacheBusyError(
                f"[{start:#x}, {end:#x}) {side} is quarantined: a failed transfer may still be writing it, and this one "
                "reads or writes there. Use other blocks, or try again later",
                ranges=((start, end - start),),
            )


def _unpacked(intervals: bytes) -> Iterator[tuple[int, int]]:
    words = memoryview(intervals).cast("Q")
    return zip(words[0::2], words[1::2], strict=True)
