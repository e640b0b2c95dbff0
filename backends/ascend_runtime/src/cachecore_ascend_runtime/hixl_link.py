"""One native link to the engine of a peer: made when it is needed, cut when memory changes.

A native link sees the memory that both sides had registered when it was made. So it is made again before its next
use when memory was registered since, and cut before memory is deregistered. Whoever does that waits for the transfers
that run and lets no new one begin; each step of a link's life is taken by one thread, outside of the lock.

A disconnect ends every transfer of the link: those of others begin again (see `hixl_transfer`).
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cachecore.outcome import FailureCause
from cachecore_ascend_runtime.hixl_native import (
    ALREADY_CONNECTED,
    FAILED,
    NOT_CONNECTED,
    TIMEOUT,
    Answer,
)

if TYPE_CHECKING:
    from cachecore_ascend_runtime.hixl_links import Links

__all__ = ["NativeLink", "NoLinkError"]

#: Seconds after which a waiting thread looks whether it was cancelled.
_LOOK_INTERVAL: Final = 0.05
#: Seconds for a native disconnect that nobody gave a deadline for.
DISCONNECT_SECONDS: Final = 0.5


class NoLinkError(Exception):
    """The link could not be made, or not in time; nothing was transferred. Never leaves this package.

    Attributes:
        cause: For the outcome.
        status: The vendor's, 0 when no native call failed.
    """

    def __init__(self, message: str, cause: FailureCause, status: int = 0) -> None:
        super().__init__(message)
        self.cause, self.status = cause, status


class _State(enum.Enum):
    DOWN = enum.auto()
    CONNECTING = enum.auto()
    UP = enum.auto()
    CUTTING = enum.auto()


class NativeLink:
    """One native link, in any state. Made by `Links.join`; the condition of `Links` guards it.

    Attributes:
        remote: Address of the peer's engine.
        generation: Counts the times it was made; a transfer belongs to one of them.
    """

    def __init__(self, links: Links, remote: str) -> None:
        self.remote = remote
        self.generation = 0
        self._links = links
        self._native = links.native
        self._changed = links.changed
        self._state = _State.DOWN
        self._running = 0
        #: Counted by `Links`.
        self.users = 0
        #: Changes of the peer's memory, and what was known when the link was made.
        self._changes = 0
        self._made_with = (0, 0)
        #: Whether a disconnect failed: nothing is known about its transfers.
        self._doubtful = False
        #: The last generation on which a transfer failed.
        self._blamed = 0
        #: Threads that want it down.
        self._cutters = 0
        #: Whether the last transfer is to cut it, and the seconds for which it is then not made again.
        self._cut_when_idle: float | None = None
        self._not_before = 0.0

    # --- transfers --------------------------------------------------------------------------------------------------

    def acquire(self, deadline: float, cancelled: Callable[[], bool] = lambda: False) -> int:
        """Make the link where it is not up to date, and count a transfer; `release` must follow.

        Args:
            deadline: On `time.monotonic()`.
            cancelled: Asked while it waits.

        Returns:
            The generation.

        Raises:
            NoLinkError: Not made, or not before the deadline; nothing is counted.
        """
        while True:
            with self._changed:
                step = self._next()
                if step is _State.UP:
                    self._running += 1
                    return self.generation
                if cancelled():
                    raise NoLinkError("cancelled before it began", FailureCause.CANCELLED)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise NoLinkError(
                        f"the link to {self.remote} was not ready before the deadline", FailureCause.DEADLINE
                    )
                if step is None:
                    self._changed.wait(min(left, self._patience()))
                    continue
                known = self._take(step)
            if step is _State.CONNECTING:
                self._connect(known, deadline)
                continue
            answer = self._cut(time.monotonic() + min(left, DISCONNECT_SECONDS))
            if not answer.ok:
                raise NoLinkError(
                    f"the link to {self.remote} is out of date and could not be ended: {answer}",
                    FailureCause.NATIVE,
                    answer.status,
                )

    def _next(self) -> _State | None:
        """The step to take: UP = nothing, go on; None = wait for somebody else."""
        if self._state in (_State.CONNECTING, _State.CUTTING) or self._cutters or self._links.holders:
            return None
        if self._cut_when_idle is not None and self._state is _State.UP:
            return None if self._running else _State.CUTTING
        if self._state is _State.DOWN:
            return None if time.monotonic() < self._not_before else _State.CONNECTING
        useless = self._doubtful or self._blamed == self.generation
        if self._made_with == self._now() and not useless:
            return _State.UP
        return None if self._running else _State.CUTTING

    def _take(self, step: _State) -> tuple[int, int]:
        """Take a step, after which only this thread changes the state; returns what the link is made with."""
        self._state = step
        if step is _State.CONNECTING:
            self.generation += 1  # now: what belonged to the one before is over
        return self._now()

    def _now(self) -> tuple[int, int]:
        return self._links.registrations, self._changes

    def _patience(self) -> float:
        pause = self._not_before - time.monotonic() if self._state is _State.DOWN else 0.0
        return min(_LOOK_INTERVAL, pause) if pause > 0 else _LOOK_INTERVAL

    def release(self) -> None:
        """A transfer has ended, or nobody waits for it any more."""
        with self._changed:
            self._running -= 1
            self._changed.notify_all()
            if self._running or self._state is not _State.UP or self._cut_when_idle is None:
                return
            self._take(_State.CUTTING)
        self._cut(time.monotonic() + DISCONNECT_SECONDS)

    def lost(self, generation: int) -> None:
        """The native engine says that the link does not exist."""
        with self._changed:
            if self.generation == generation and self._state is _State.UP:
                self._down()

    def blame(self, generation: int) -> bool:
        """Whether a transfer that failed is the first to; it must `reset` the link then.

        The others on the link failed because of it, or of whoever is cutting the link, and may begin again.
        """
        with self._changed:
            if self.generation != generation or self._state is not _State.UP or self._blamed == generation:
                return False
            self._blamed = generation
            return True

    def is_over(self, generation: int) -> bool:
        """Whether every transfer of this generation has stopped."""
        with self._changed:
            return self.generation != generation or self._state is _State.DOWN

    def reset(self, generation: int, seconds: float = DISCONNECT_SECONDS) -> bool:
        """Cut the link whatever runs on it; it is made again when it is next used.

        Returns:
            Whether every transfer of this generation has stopped.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            while self.generation == generation and self._state is _State.CUTTING:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
            if self.generation != generation or self._state is _State.DOWN:
                return True
            self._take(_State.CUTTING)
        return self._cut(deadline).ok

    # --- life -------------------------------------------------------------------------------------------------------

    def changed_there(self) -> None:
        """The peer has registered memory: the link is made again before its next use."""
        with self._changed:
            self._changes += 1

    def cut(self, deadline: float, pause: float = 0.0, *, insist: bool = False) -> bool:
        """Wait for the transfers that run, begin no new ones meanwhile, and cut the link. True when it is down.

        Args:
            deadline: For the transfers that run, on `time.monotonic()`.
            pause: Seconds for which it is not made again.
            insist: Where they run past the deadline, cut it when the last one ends.
        """
        with self._changed:
            self._cutters += 1
            try:
                while self._state is not _State.DOWN and (self._state is not _State.UP or self._running):
                    left = deadline - time.monotonic()
                    if left <= 0:
                        if insist:
                            self._cut_when_idle = pause
                        return False
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))
                if self._state is _State.DOWN:
                    self._down(pause)
                    return True
                self._take(_State.CUTTING)
            finally:
                self._cutters -= 1
                self._changed.notify_all()
        return self._cut(max(deadline, time.monotonic() + DISCONNECT_SECONDS), pause).ok

    def _connect(self, known: tuple[int, int], deadline: float) -> None:
        """From CONNECTING to UP or, with an exception, to DOWN."""
        answer = Answer(FAILED)
        try:
            answer = self._native.connect(self.remote, deadline)
            if answer.status == ALREADY_CONNECTED:
                # A link that we know nothing of, and so of a time before memory changed.
                self._native.disconnect(self.remote, deadline)
                answer = self._native.connect(self.remote, deadline)
        finally:
            with self._changed:
                self._state = _State.UP if answer.ok else _State.DOWN
                self._made_with = known
                self._changed.notify_all()
        if not answer.ok:
            raise NoLinkError(
                f"the link to {self.remote} could not be made: {answer}",
                FailureCause.DEADLINE if answer.status == TIMEOUT else FailureCause.NATIVE,
                answer.status,
            )

    def _cut(self, deadline: float, pause: float = 0.0) -> Answer:
        """From CUTTING to DOWN or, when the native engine refuses, back to UP and doubtful."""
        answer = Answer(FAILED)
        try:
            answer = self._native.disconnect(self.remote, deadline)
            if answer.status == NOT_CONNECTED:
                answer = Answer(0)  # nothing runs on a link that is not there
        finally:
            with self._changed:
                if answer.ok:
                    self._down(pause)
                else:
                    self._state, self._doubtful = _State.UP, True
                    self._changed.notify_all()
        return answer

    def _down(self, pause: float = 0.0) -> None:
        """The link is down, and is not made again for `pause` seconds, or for as long as who insisted on it wants."""
        pause = max(pause, self._cut_when_idle or 0.0)
        self._state, self._doubtful, self._cut_when_idle = _State.DOWN, False, None
        self._not_before = max(self._not_before, time.monotonic() + pause)
        self._changed.notify_all()
