"""The owner's side: a session for each manager that has linked to this one, and what must wait for it.

A session counts as a reader from the moment it is ready until it says goodbye, its process is proven dead, or it has
been silent for longer than its lease lasts. While it counts, memory is only given back after it said Retired. The end
of its connection alone proves nothing: the process may still be reading.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from cachecore.engine import PeerIdentity
from cachecore.errors import CacheBusyError, CacheError
from cachecore.lease_table import LeaseTable
from cachecore.peers import process
from cachecore.peers.answering import Answering, ReaderQuestion
from cachecore.peers.catalogue import Catalogue
from cachecore.peers.connections import Connections, same_life
from cachecore.peers.events import EventKind, PeerEvent
from cachecore.peers.liveness import Timing, boottime
from cachecore.peers.messages import (
    EngineOffer,
    Farewell,
    Fetch,
    Goodbye,
    Hello,
    IdentityRecord,
    Linked,
    MalformedMessageError,
    OtherVersionError,
    OwnerMessage,
    Ping,
    Pong,
    ReaderMessage,
    Ready,
    Refusal,
    Refused,
    Retired,
    Retiring,
    SessionGone,
    Snapshot,
    Welcome,
    decode_reader_message,
)
from cachecore.peers.notices import Notice as Outgoing
from cachecore.peers.notices import Notices, Post
from cachecore.peers.proof import ProcessProof
from cachecore.peers.records import CacheRecord, EntryKeyRecord
from cachecore.peers.session import Session, SessionInfo, busy_error
from cachecore.peers.worker import Worker
from cachecore.types import CacheKey

__all__ = ["Sessions"]

_logger = logging.getLogger("cachecore.peers")


class Sessions(Connections):
    """All sessions and the catalogue they read. Thread-safe; messages are sent and handled in the service thread.

    Args:
        identity: Of this manager.
        timing: Intervals.
        offers: Engines that readers may use; asked for each new session.
        proof: What the engines know about the processes of readers.
        schedule: Runs a function in the service thread.
        notify: Takes events; never waits.
        worker: For what may wait.
        leases: The leases that this manager granted.
        post: Where notifications go.
        on_consumed: See `Peers`.
    """

    def __init__(
        self,
        identity: PeerIdentity,
        timing: Timing,
        offers: Callable[[], tuple[EngineOffer, ...]],
        proof: ProcessProof,
        schedule: Callable[[Callable[[], None]], None],
        notify: Callable[[PeerEvent], None],
        worker: Worker,
        leases: LeaseTable,
        post: Post,
        on_consumed: Callable[[int, CacheKey], bool] | None = None,
    ) -> None:
        super().__init__(proof, notify, leases)
        self._identity = identity
        self._timing = timing
        self._offers = offers
        self._schedule = schedule
        self._catalogue = Catalogue()
        self._closing = False
        self._failure: CacheError | None = None
        self._post = post
        self._answering = Answering(
            identity.cluster_id,
            worker,
            leases,
            post.inbox,
            on_consumed,
            self._offered,
            self._drop_key,
            self._send,
            self._answer_later,
        )

    # --- any thread ----------------------------------------------------------------------------------------------

    @property
    def infos(self) -> tuple[SessionInfo, ...]:
        """What is known about every session."""
        now = boottime()
        with self._changed:
            return tuple(session.info(now) for session in self._sessions)

    def publish(self, records: Sequence[CacheRecord]) -> None:
        """Offer caches to every reader, now and later; one numbered change. A fetch that starts afterwards has them."""
        with self._changed:
            self._check()
            self._catalogue.add(records)
        self._schedule(self.push)

    def republish(self, record: CacheRecord) -> None:
        """Offer a published cache by other keys; see `Peers.republish`."""
        with self._changed:
            self._check()
            if not self._catalogue.replace(record):
                return
        self._schedule(self.push)

    def retire(self, cache_ids: Iterable[int], deadline: float) -> None:
        """Take caches back from every reader; see `Peers.retire`."""
        wanted = set(cache_ids)
        with self._changed:
            self._check()
            # When the call is repeated, those who have answered are not asked again.
            fresh = wanted - self._catalogue.retiring
            self._catalogue.retire(wanted)
            for session in self._sessions:
                if session.ready:
                    session.owed |= fresh
        self._schedule(self.push)
        with self._changed:
            while True:
                self._check()
                holders = [session for session in self._sessions if session.owed & wanted]
                if not holders:
                    break
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise self._busy(wanted, holders)
                self._changed.wait(min(remaining, 3600.0))
            self._catalogue.remove(sorted(wanted))
        self._schedule(self.push)

    def fail(self, error: CacheError) -> None:
        """The service thread has failed: whoever waits gets the error."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    # --- service thread ------------------------------------------------------------------------------------------

    def push(self) -> None:
        """Send every session what it has not been sent: changes, and the caches it is to let go of."""
        with self._changed:
            for session in list(self._sessions):
                self._update(session)
                if session.owed and session.routing_id is not None:
                    self._send(session, Retiring(tuple(sorted(session.owed))))

    def check(self) -> None:
        """Once each interval: repeat what was not answered, and end the sessions that do not count any more."""
        listener = self._listener
        # What a peer has sent while this process was busy counts: it must be read before silence is judged.
        drained = listener is None or listener.read_messages(10_000)
        self.push()
        now = boottime()
        with self._changed:
            for session in list(self._sessions):
                self._probe(session)
                silent = now - session.answered_at >= self._timing.owner_silence
                if session.routing_id is None and self._proven_dead(session.peer):
                    self._end(session, "its process is dead")
                elif silent and drained and not session.writes:
                    self._end(session, f"it was silent for {self._timing.owner_silence:g} s")
                elif silent and drained and self._proven_dead(session.peer):
                    self._end(session, "it was silent and its process is dead")

    def receive(self, routing_id: bytes, frames: list[bytes], address: str) -> None:
        """Handle one message. Whatever is wrong with it ends its own session and nothing else."""
        with self._changed:
            session = self._by_routing_id.get(routing_id)
            try:
                if len(frames) != 1:
                    raise MalformedMessageError(f"a message of {len(frames)} frames instead of one")
                message = decode_reader_message(frames[0])
                if isinstance(message, Hello):
                    self._hello(routing_id, session, message, address)
                elif session is None or session.token != message.session:
                    self._answer(routing_id, SessionGone("there is no such session any more"))
                else:
                    self._handle(session, message)
            except OtherVersionError as error:
                # Whoever reads the answer sees by its first bytes which version this side speaks.
                self._answer(routing_id, Refused(Refusal.VERSION.name, str(error)))
                self._bad_message(routing_id, session, address, error)
            except MalformedMessageError as error:
                self._bad_message(routing_id, session, address, error)
            except Exception as error:
                _logger.exception("handling a message from %s failed", address)
                self._bad_message(routing_id, session, address, error)

    def notify(self, cluster_id: int, notice: Outgoing) -> bool:
        """Send a notification to a reader. Returns whether there is a connection to it."""
        with self._changed:
            for session in reversed(self._sessions):
                if session.peer.cluster_id == cluster_id and session.ready and session.routing_id is not None:
                    session.notices.put(notice)
                    return True
            return False

    def close(self) -> None:
        """Tell every reader that this manager ends, and take no new ones."""
        with self._changed:
            self._closing = True
            for session in list(self._sessions):
                self._end(session, "the manager was closed")

    # --- with the lock held, in the service thread ---------------------------------------------------------------

    def _hello(self, routing_id: bytes, session: Session | None, hello: Hello, address: str) -> None:
        if session is not None:
            raise MalformedMessageError("a second Hello in one session")
        peer = hello.identity.identity
        self._end_former(peer, hello.ended)
        refusal = self._refusal(peer)
        if refusal is not None:
            reason, detail = refusal
            _logger.warning("refused a link from %s at %s: %s", peer, address, reason.value)
            self._notify(PeerEvent(EventKind.REFUSED, peer, reason.value))
            self._answer(routing_id, Refused(reason.name, detail))
            return
        session = Session(peer, routing_id, address)
        session.notices = Notices(
            f"cluster {peer.cluster_id} at {address}", self._post.numbers, partial(self._send_notice, session)
        )
        snapshot = self._catalogue.snapshot(0)
        session.number = snapshot.number
        welcome = Welcome(
            IdentityRecord.of(self._identity),
            session.token,
            process.answer(hello.challenge, self._identity.incarnation),
            self._timing.owner_silence,
            self._offers(),
            snapshot.number,
            snapshot.records,
        )
        self._sessions.append(session)
        self._by_routing_id[routing_id] = session
        self._send(session, welcome)

    def _refusal(self, peer: PeerIdentity) -> tuple[Refusal, str] | None:
        own = self._identity
        if self._closing:
            return Refusal.CLOSING, f"cluster {own.cluster_id}"
        if peer.incarnation == own.incarnation:
            return Refusal.SELF, f"cluster {own.cluster_id}"
        if peer.cluster_id == own.cluster_id:
            return Refusal.OWN_ID, f"both have cluster id {own.cluster_id}; the listener runs on {own.host}"
        for other in [one for one in self._sessions if one.peer.cluster_id == peer.cluster_id]:
            if same_life(other.peer, peer):
                continue  # it may only be looking who answers here; see _ready
            if self._probe(other) and not self._proven_dead(other.peer):
                return Refusal.DUPLICATE, (
                    f"process {other.peer.pid} on {other.peer.host} has linked with cluster id {peer.cluster_id} and lives; "
                    "give every manager an id of its own"
                )
        return None

    def _handle(self, session: Session, message: ReaderMessage) -> None:
        if isinstance(message, Ping):
            self._update(session)
            if self._send(session, Pong(message.sequence, self._catalogue.number)):
                session.answered_at = boottime()
        elif isinstance(message, Fetch):
            snapshot = self._catalogue.snapshot(message.request)
            if self._send(session, snapshot):
                session.number = snapshot.number
        elif isinstance(message, Retired):
            session.owed.difference_update(message.cache_ids)
            self._changed.notify_all()
        elif isinstance(message, Ready):
            self._ready(session, message)
        elif isinstance(message, Goodbye):
            self._send(session, Farewell())
            self._end(session, "the peer has unlinked", tell=False)
        elif isinstance(message, ReaderQuestion):
            self._answering.handle(session, message)

    def _ready(self, session: Session, message: Ready) -> None:
        if session.ready:
            raise MalformedMessageError("a second Ready in one session")
        self._end_former(session.peer, message.ended)
        # The changes go first: caches that were taken back meanwhile are unknown to the reader before it may read.
        self._update(session)
        session.ready, session.wire_id, session.writes = True, message.wire_id, message.writes
        session.owed = set(self._catalogue.retiring)
        session.answered_at = boottime()
        self._proof.watch(session.peer, message.wire_id, message.endpoint)
        if self._send(session, Linked(message.sequence, self._catalogue.number)):
            self._notify(PeerEvent(EventKind.SESSION_STARTED, session.peer, f"from {session.address}"))
        # Last: what waits to be sent over a former connection can go over this one.
        for other in [one for one in self._sessions if one is not session and same_life(one.peer, session.peer)]:
            self._detach(other, "the peer has linked anew")

    def _update(self, session: Session) -> None:
        if session.number != self._catalogue.number and session.routing_id is not None:
            message: OwnerMessage = self._catalogue.since(session.number)
            assert not isinstance(message, Snapshot) or message.request == 0
            if self._send(session, message):
                session.number = self._catalogue.number

    def _answer_later(self, session: Session, message: OwnerMessage) -> None:
        """Send an answer, behind the changes that it is about. From any thread."""

        def send() -> None:
            with self._changed:
                self._update(session)
                self._send(session, message)

        with contextlib.suppress(CacheError):  # without a service thread there is no connection
            self._schedule(send)

    def _offered(self, cache_id: int) -> CacheRecord | None:
        return None if cache_id in self._catalogue.retiring else self._catalogue.record(cache_id)

    def _drop_key(self, cache_id: int, key: EntryKeyRecord) -> None:
        with self._changed:
            record = self._catalogue.record(cache_id)
            if record is not None:
                self._catalogue.replace(
                    msgspec.structs.replace(record, keys=tuple(one for one in record.keys if one != key))
                )
        self._schedule(self.push)

    def _busy(self, cache_ids: set[int], holders: list[Session]) -> CacheBusyError:
        held = {cache_id for session in holders for cache_id in session.owed & cache_ids}
        records = [self._catalogue.record(cache_id) for cache_id in sorted(held)]
        return busy_error([record for record in records if record is not None], holders)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
