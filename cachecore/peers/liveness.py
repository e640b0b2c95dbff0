"""Clocks, intervals and the reader's lease.

Reading a peer's memory asks nobody, so an owner may only reuse memory when it knows that no reader counts on it. A
reader therefore holds a lease that every answered ping renews, counted from the moment the ping was SENT; the owner
counts a peer's silence from the moment it ANSWERED a ping and waits longer than any lease. The clock counts time spent
in suspend, or a machine that slept through its lease would believe in it.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, fields

from cachecore.errors import CacheValueError

__all__ = ["Lease", "Timing", "boottime"]


def boottime() -> float:
    """Seconds on the clock of leases, CLOCK_BOOTTIME: never set back, and counting while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Timing:
    """Intervals of a manager's links, in seconds. The defaults are the documented ones; tests use shorter ones.

    Attributes:
        ping_interval: Between two pings of a link, and between two rounds of the owner's checks.
        stall_after: A ping unanswered for this long makes the link STALLED.
        lease: How long after sending the last answered ping a reader may trust what it reads.
        owner_silence: How long after answering the last ping an owner keeps memory readable for a silent peer.
        handshake: A connection that has not proven its key by then is dropped.
        heartbeat_interval: Between two heartbeats of ZeroMQ, which its own thread sends and answers.
        heartbeat_timeout: A connection without an answer to a heartbeat for this long is lost.
        farewell: How long an unlink waits for the peer's acknowledgement.
    """

    ping_interval: float = 1.0
    stall_after: float = 3.0
    lease: float = 15.0
    owner_silence: float = 20.0
    handshake: float = 2.0
    heartbeat_interval: float = 1.0
    heartbeat_timeout: float = 3.0
    farewell: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0.01):
                raise CacheValueError(f"Timing.{field.name} is {value!r}; it must be at least 0.01 seconds")
        if self.lease > self.safe_lease(self.owner_silence):
            raise CacheValueError(
                f"Timing.lease is {self.lease} s and Timing.owner_silence {self.owner_silence} s; a lease may last "
                f"at most three quarters of the silence, or memory could be reused while a reader trusts it"
            )

    @staticmethod
    def safe_lease(owner_silence: float) -> float:
        """The longest lease, in seconds, towards an owner that waits out `owner_silence` seconds of silence."""
        return 0.75 * owner_silence


class Lease:
    """A reader's right to trust what it reads over one link. Thread-safe; `holds` takes no lock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = -math.inf
        self._void = False
        self._changed = threading.Condition()

    @property
    def seconds(self) -> float:
        """How long one answered ping carries."""
        return self._seconds

    @property
    def remaining(self) -> float:
        """Seconds until it ends, 0 when it has ended."""
        return 0.0 if self._void else max(0.0, self._until - boottime())

    def holds(self) -> bool:
        """Whether bytes read until now are those the owner promised to keep."""
        return not self._void and boottime() < self._until

    def renew(self, sent: float) -> None:
        """A ping that was sent at `sent` (on `boottime()`) has been answered."""
        with self._changed:
            self._until = max(self._until, sent + self._seconds)
            self._changed.notify_all()

    def end(self) -> None:
        """The owner has said, or the link knows, that there is nothing to trust any more. Final."""
        with self._changed:
            self._void = True
            self._changed.notify_all()

    def wake(self) -> None:
        """Let waiters look again at what they also wait for."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, deadline: float, hopeless: threading.Event) -> bool:
        """Wait until the lease holds, `hopeless` is set or `deadline` (on `time.monotonic()`) passes.

        Returns:
            Whether it holds.
        """
        with self._changed:
            while not self.holds():
                remaining = deadline - time.monotonic()
                if self._void or hopeless.is_set() or remaining <= 0:
                    return False
                self._changed.wait(min(remaining, 3600.0))  # threading refuses an endless number
            return True
