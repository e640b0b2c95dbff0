"""Connections of the readers of one manager: sending, noticing that one is gone, ending what does not count any more.

Guarded by one lock, held by whoever calls a method that starts with an underscore; all of them run in the service thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from cachecore.engine import PeerIdentity
from cachecore.lease_table import LeaseTable
from cachecore.peers.events import EventKind, PeerEvent
from cachecore.peers.listener import Delivery, Listener
from cachecore.peers.messages import OwnerMessage, Probe, SessionGone, encode
from cachecore.peers.proof import ProcessProof
from cachecore.peers.request_messages import Notice
from cachecore.peers.session import Session

__all__ = ["Connections", "same_life"]

_logger = logging.getLogger("cachecore.peers")


class Connections:
    """The part of `Sessions` that knows connections.

    Args:
        proof: What the engines know about the processes of readers.
        notify: Takes events; never waits.
        leases: The leases that this manager granted; the claims of a session end with it.
    """

    def __init__(self, proof: ProcessProof, notify: Callable[[PeerEvent], None], leases: LeaseTable) -> None:
        self._proof = proof
        self._notify = notify
        self._leases = leases
        self._changed = threading.Condition()
        self._sessions: list[Session] = []
        self._by_routing_id: dict[bytes, Session] = {}
        self._listener: Listener | None = None
        self._logged_at = 0.0

    # --- service thread ------------------------------------------------------------------------------------------

    def serve(self, listener: Listener) -> None:
        """Send through this listener from now on."""
        self._listener = listener

    def connection_lost(self) -> None:
        """Some connection is gone: find out whose."""
        with self._changed:
            for session in list(self._sessions):
                self._probe(session)

    # --- with the lock held, in the service thread ---------------------------------------------------------------

    def _send(self, session: Session, message: OwnerMessage) -> bool:
        """Whether it is on its way. A session whose connection is gone is detached."""
        if session.routing_id is None or self._listener is None:
            return False
        delivery = self._listener.send(session.routing_id, encode(message))
        if delivery is Delivery.GONE:
            self._detach(session, "its connection is gone")
        return delivery is Delivery.SENT

    def _answer(self, routing_id: bytes, message: OwnerMessage) -> None:
        if self._listener is not None:
            self._listener.send(routing_id, encode(message))

    def _send_notice(self, session: Session, number: int, name: str, payload: bytes) -> bool:
        return self._send(session, Notice(number, name, payload))

    def _probe(self, session: Session) -> bool:
        """Whether the session's connection is there."""
        self._send(session, Probe())
        return session.routing_id is not None

    def _detach(self, session: Session, reason: str) -> None:
        """The connection is gone, or does not count any more; the reader may still be reading."""
        if session.routing_id is None:
            return
        self._by_routing_id.pop(session.routing_id, None)
        session.routing_id = None
        session.notices.fail(reason)
        if not session.ready:
            self._end(session, reason)
            return
        _logger.info("session of cluster %d (process %d) lost: %s", session.peer.cluster_id, session.peer.pid, reason)
        self._notify(PeerEvent(EventKind.SESSION_LOST, session.peer, reason))
        if self._proven_dead(session.peer):
            self._end(session, "its process is dead")

    def _end(self, session: Session, reason: str, tell: bool = True) -> None:
        if session not in self._sessions:
            return
        if tell:
            self._send(session, SessionGone(reason))
        if session not in self._sessions:  # sending found it gone and ended it
            return
        self._sessions.remove(session)
        if session.routing_id is not None:
            self._by_routing_id.pop(session.routing_id, None)
            session.routing_id = None
        session.notices.fail(reason)
        session.owed.clear()
        self._leases.end(session.token)
        self._changed.notify_all()
        if session.ready:
            if not any(one.peer == session.peer for one in self._sessions):
                self._proof.unwatch(session.peer, session.wire_id)
            _logger.info(
                "session of cluster %d (process %d) ended: %s", session.peer.cluster_id, session.peer.pid, reason
            )
            self._notify(PeerEvent(EventKind.SESSION_ENDED, session.peer, reason))

    def _proven_dead(self, peer: PeerIdentity) -> bool:
        return self._proof.alive(peer) is False

    def _bad_message(self, routing_id: bytes, session: Session | None, address: str, error: Exception) -> None:
        if session is not None or time.monotonic() - self._logged_at > 1.0:  # one peer must not fill the disk
            self._logged_at = time.monotonic()
            _logger.warning("a message from %s was not understood: %s", address, error)
        peer = session.peer if session is not None else None
        self._notify(PeerEvent(EventKind.MALFORMED, peer, str(error)[:200]))
        gone = SessionGone(f"a message was not understood: {str(error)[:200]}")
        if session is None:
            self._answer(routing_id, gone)
        elif session.ready:
            # What it reads now is its own; it counts as a reader until its lease is over.
            self._send(session, gone)
            self._detach(session, "it sent a message that was not understood")
        else:
            self._end(session, "it sent a message that was not understood")

    def _end_former(self, peer: PeerIdentity, tokens: tuple[str, ...]) -> None:
        """The peer has said over which of its former links nothing moves any more."""
        for ended in [one for one in self._sessions if one.token in tokens and same_life(one.peer, peer)]:
            self._end(ended, "the peer has linked anew and moves nothing over the old link")


def same_life(one: PeerIdentity, other: PeerIdentity) -> bool:
    """Whether both are the same life of a manager."""
    return one.incarnation == other.incarnation
