"""One peer that has linked to this manager, as the owner remembers it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cachecore.engine import PeerIdentity
from cachecore.errors import CacheBusyError
from cachecore.peers import process
from cachecore.peers.liveness import boottime
from cachecore.peers.notices import Notices
from cachecore.peers.records import CacheRecord

__all__ = ["Session", "SessionInfo", "busy_error"]


@dataclass(frozen=True)
class SessionInfo:
    """What is known about one peer that has linked to this manager.

    Attributes:
        peer: Who.
        address: Where its connection comes from.
        state: "LINKING" while its engine connects, "LINKED", or "LOST" when its connection is gone and it may still be
            reading.
        silent_for: Seconds since its last ping was answered.
        wire_id: The engine it reads with; None for a peer in this process, and while it is linking.
        writes: Whether it may also write.
        owes: Ids of retiring caches that it has not let go of.
    """

    peer: PeerIdentity
    address: str
    state: str
    silent_for: float
    wire_id: str | None
    writes: bool
    owes: tuple[int, ...]


class Session:
    """What the owner keeps of one reader. Guarded by the lock of `Sessions`.

    Attributes:
        token: Repeated in everything the reader sends.
        peer: Who it is.
        routing_id: Where messages to it go. None when the connection is gone; what comes under that id later is
            somebody else.
        address: Where its connection comes from.
        ready: Whether it counts as a reader.
        writes: Whether it may also write.
        wire_id: The engine it reads with.
        answered_at: When its last ping was answered, on `boottime()`.
        number: Of the last change it was sent.
        owed: Retiring caches that it has not let go of.
        notices: Notifications to it.
    """

    notices: Notices

    def __init__(self, peer: PeerIdentity, routing_id: bytes, address: str) -> None:
        self.token = process.new_token()
        self.peer = peer
        self.routing_id: bytes | None = routing_id
        self.address = address
        self.ready = False
        self.writes = False
        self.wire_id: str | None = None
        self.answered_at = boottime()
        self.number = 0
        self.owed: set[int] = set()

    @property
    def state(self) -> str:
        """As in `SessionInfo`."""
        return "LOST" if self.routing_id is None else "LINKED" if self.ready else "LINKING"

    def info(self, now: float) -> SessionInfo:
        """What others may know, at `now` on `boottime()`."""
        return SessionInfo(
            self.peer,
            self.address,
            self.state,
            max(0.0, now - self.answered_at),
            self.wire_id,
            self.writes,
            tuple(sorted(self.owed)),
        )


def busy_error(records: Iterable[CacheRecord], holders: Sequence[Session]) -> CacheBusyError:
    """The error of a retirement that `holders` keep from ending."""
    held = list(records)
    names = ", ".join(
        f"cluster {session.peer.cluster_id} (process {session.peer.pid} on {session.peer.host}, {session.state})"
        for session in holders
    )
    return CacheBusyError(
        f"caches {[record.cache_id for record in held]} may still be read by {names}; their memory stays registered and "
        "must not be freed; repeat the call, or end those transfers",
        peers=tuple(sorted({session.peer.cluster_id for session in holders})),
        ranges=tuple(piece for record in held for piece in record.ranges),
    )
