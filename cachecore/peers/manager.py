"""Everything one manager has to do with other managers: `Peers`."""

from __future__ import annotations

import inspect
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import zmq

from cachecore import _arguments as arguments
from cachecore.engine import EngineBinding, PeerIdentity
from cachecore.errors import LinkFailedError, LinkLostError, ManagerClosedError
from cachecore.events import Event
from cachecore.lease_table import LeaseTable
from cachecore.peers.addresses import resolve
from cachecore.peers.courier import Courier, make_post
from cachecore.peers.descriptors import Door
from cachecore.peers.events import EventKind, PeersCounters, Tally
from cachecore.peers.inbox import Inbox
from cachecore.peers.link import Link
from cachecore.peers.linking import Dialer
from cachecore.peers.links import LinkTable
from cachecore.peers.listener import Listener
from cachecore.peers.liveness import Timing, boottime
from cachecore.peers.messages import EngineOffer
from cachecore.peers.proof import ProcessProof
from cachecore.peers.records import CacheRecord
from cachecore.peers.remote import RemoteCache
from cachecore.peers.security import Keyring, Security
from cachecore.peers.service import Service
from cachecore.peers.session import SessionInfo
from cachecore.peers.sessions import Sessions
from cachecore.peers.worker import Worker
from cachecore.types import CacheKey

__all__ = ["Peers"]

_logger = logging.getLogger("cachecore.peers")
_START_SECONDS = 10.0


class Peers:
    """Links of one manager, in both directions. Thread-safe; every wait has a deadline on `time.monotonic()`.

    A link is one-way: the manager that calls `link` may read and write the remotely accessible caches of the manager it
    linked to, which must listen. The other direction is another link.

    Args:
        identity: Of this manager.
        listen: "host:port" or "[ipv6]:port" to be linked to, port 0 for any free one; None to not listen.
        security: Explicit keys; None for links within this machine.
        insecure: Neither encryption nor authentication, on any address.
        engines: This manager's engines.
        events: Called with what happens to links and sessions, from one thread, one event at a time. Of a bound
            method the object is not kept alive.
        bind_thread: Called first in the thread that calls engines.
        on_consumed: (cache id, key) -> whether the key was there and is dropped now. Called when a reader has taken what
            a key names, for published caches and keys only, from one thread; never two at once. None: readers cannot
            use up keys. Of a bound method the object is not kept alive.
        compare_layouts: From the caches of a peer to sentences about where their layouts differ from this manager's.
            Called when a link is made and whenever the peer's catalogue has changed.
        timing: Intervals.

    Raises:
        CacheTypeError, CacheValueError: A bad argument.
        AuthenticationError: `listen` leaves this machine and there are no keys for it.
    """

    def __init__(
        self,
        identity: PeerIdentity,
        *,
        listen: str | None = None,
        security: Security | None = None,
        insecure: bool = False,
        engines: Sequence[EngineBinding] = (),
        events: Callable[[Event], None] | None = None,
        bind_thread: Callable[[], None] | None = None,
        on_consumed: Callable[[int, CacheKey], bool] | None = None,
        compare_layouts: Callable[[Sequence[RemoteCache]], tuple[str, ...]] | None = None,
        timing: Timing | None = None,
    ) -> None:
        self._identity = identity
        self._listen = listen
        self._keyring = Keyring(security, insecure)
        self._timing = timing or Timing()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._worker = Worker(f"cachecore-{identity.cluster_id}-engines", bind_thread)
        self._tally = Tally(identity.cluster_id, self._worker, events)
        self._schedule = _Schedule()
        self._service: Service | None = None
        self._door: Door | None = None
        self._listener: Listener | None = None
        self._post = make_post(identity.cluster_id, bind_thread, self._tally)
        #: Notifications of peers that wait to be read.
        self.inbox = self._post.inbox
        weakref.finalize(self, _close_inbox, self.inbox, self._pid).atexit = False
        #: The block leases that this manager has granted.
        self.leases = LeaseTable(identity, boottime)
        self._compare_layouts = compare_layouts
        self._links = LinkTable(identity, engines, self._timing, self._tally)
        self._sessions = Sessions(
            identity,
            self._timing,
            partial(_offers, tuple(engines)),
            ProcessProof(engines, self._worker),
            self._schedule,
            self._tally.add,
            self._worker,
            self.leases,
            self._post,
            _weakly(on_consumed),
        )
        self._courier = Courier(self._links, self._sessions)

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to listen, if this manager does. Without `listen` nothing is started before the first link.

        Raises:
            LinkFailedError: The address cannot be listened on.
            AuthenticationError: It needs explicit keys and there are none.
        """
        if self._listen is None:
            return
        deadline = time.monotonic() + _START_SECONDS
        addresses = resolve("listen", self._listen, deadline, lowest_port=0)
        keys = self._keyring.listening(self._listen, addresses)
        service, door = self._serving()
        text, sessions, timing = self._listen, self._sessions, self._timing

        def open_listener() -> Listener:
            try:
                listener = Listener(
                    service, text, addresses, keys, timing, sessions.receive, partial(_look_for_lost, service, sessions)
                )
            except LinkFailedError:  # which is an OSError too
                raise
            except (OSError, zmq.ZMQError) as error:
                raise LinkFailedError(
                    f"listen is {text!r} and cannot be listened on: {error.strerror} (error {error.errno})"
                ) from error
            door.guard(listener)
            sessions.serve(listener)
            service.at_end(listener.close)
            service.at_end(sessions.close)
            service.every(timing.ping_interval, sessions.check)
            service.every(timing.ping_interval / 4, listener.guard_door)
            return listener

        try:
            self._listener = service.call(open_listener, deadline)
        except BaseException:
            self.close(deadline=time.monotonic() + 5.0)
            raise

    @property
    def identity(self) -> PeerIdentity:
        """This manager as its peers see it."""
        return self._identity

    @property
    def address(self) -> str | None:
        """Where this manager listens, "host:port" with the real port; None when it does not."""
        return None if self._listener is None else str(self._listener.address)

    @property
    def links(self) -> tuple[Link, ...]:
        """Links this manager made, also lost ones that were neither replaced nor unlinked."""
        return self._links.links

    @property
    def sessions(self) -> tuple[SessionInfo, ...]:
        """Peers that have linked to this manager."""
        return self._sessions.infos

    @property
    def counters(self) -> PeersCounters:
        """Totals since the start."""
        listener = self._listener
        return PeersCounters(
            links_made=self._tally.count(EventKind.LINKED),
            links_lost=self._tally.count(EventKind.LOST),
            sessions_started=self._tally.count(EventKind.SESSION_STARTED),
            sessions_refused=self._tally.count(EventKind.REFUSED),
            strangers_denied=0 if listener is None else listener.strangers_denied,
            malformed_messages=self._tally.count(EventKind.MALFORMED),
            fetches=self._links.fetches,
            listener_pauses=0 if listener is None else listener.pauses,
        )

    def close(self, *, deadline: float) -> tuple[Link, ...]:
        """End every link and session and the threads. Bounded also when peers are dead; repeated calls do nothing.

        The caches should have been retired before: a peer that still reads is only told that this manager ends.

        Returns:
            Links over which something may still be moving: their engine did not become quiescent before the deadline.
        """
        with self._lock:
            if self._closed or os.getpid() != self._pid:
                return ()
            self._closed = True
        self.inbox.close()
        unsafe = self._links.close(deadline)
        soon = max(deadline, time.monotonic() + 0.5)
        if self._service is not None and not self._service.stop(soon):
            _logger.warning("the link service did not end before the deadline")
        if not self.inbox.join(soon):
            _logger.warning("the callback for notifications has not returned before the deadline")
        if not self._worker.stop(soon):
            _logger.warning("an engine call or a listener of events has not returned before the deadline")
        return unsafe

    # --- links ---------------------------------------------------------------------------------------------------

    def link(
        self,
        cluster_id: int | None,
        address: str,
        *,
        deadline: float,
        security: Security | None = None,
        writes: bool = False,
    ) -> Link:
        """Link to the manager that listens at `address`.

        A link to the same cluster that is lost is replaced.

        Args:
            cluster_id: Who is expected there; None takes whoever answers.
            address: "host:port" or "[ipv6]:port".
            deadline: On `time.monotonic()`.
            security: Keys for this link instead of the manager's.
            writes: Whether this manager may also write there: the owner then never takes silence for the end of it.

        Raises:
            CacheTypeError, CacheValueError: A bad argument; the own cluster id.
            AlreadyLinkedError: There is a live link to this cluster.
            AuthenticationError: Keys are missing or do not fit.
            LinkFailedError: Another peer answers, it refuses, or no engine can reach it; the message says which.
            CacheBusyError: The lost link to the same peer still has transfers that run.
            CacheTimeoutError: Not before the deadline.
        """
        if cluster_id is not None:
            cluster_id = arguments.integer("cluster_id", cluster_id, 0, 2**64 - 1)
            self._links.check_other_id(cluster_id)
        self._check_alive()
        addresses = resolve("address", address, deadline, lowest_port=1)
        keys = self._keyring.dialing(address, addresses, security)
        service, door = self._serving()
        dialer = Dialer(self._identity, self._timing, service, self._worker, self._tally.add, door, self._post)
        try:
            link = self._links.make(dialer, cluster_id, addresses, keys, deadline, writes)
        except LinkLostError as error:
            raise LinkFailedError(f"address {address}: the link was lost while it was made: {error}") from error
        if self._compare_layouts is not None:
            link.watch_layouts(self._compare_layouts)
        return link

    def look_at_layouts(self) -> None:
        """Layouts of this manager have changed: compare them with those of every linked peer. Never waits."""
        for link in self._links.links:
            link.look_at_layouts()

    def unlink(self, cluster_id: int, *, deadline: float) -> None:
        """Undo a link: wait for its transfers, give up access, tell the peer.

        Raises:
            NotLinkedError: There is no link to this cluster.
            CacheBusyError: Transfers run past the deadline; no new one can start and the call can be repeated.
        """
        self._check_alive()
        self._links.unlink(cluster_id, deadline)

    def get(self, cluster_id: int) -> Link:
        """The link to a cluster, in whatever state.

        Raises:
            NotLinkedError: There is none.
        """
        link = self._links.find(cluster_id)
        if link is None:
            self._check_alive()
            return self._links.get(cluster_id)
        return link

    # --- notifications -------------------------------------------------------------------------------------------

    def notify(self, cluster_id: int, name: str, payload: bytes, *, deadline: float) -> None:
        """Put a notification into the inbox of a linked peer: over the link to it, or over its link to this manager.

        Args:
            cluster_id: Whom.
            name: 1 to 200 characters.
            payload: Up to 256 KiB.
            deadline: On `time.monotonic()`.

        Raises:
            NotLinkedError: There is no connection to it, in neither direction. Nothing was sent.
            LinkBusyError: Its inbox, or the way to it, is full. Nothing was delivered.
            LinkLostError: The connection ended before it answered. It may or may not have arrived.
            CacheTimeoutError: The deadline passed. The message says whether it may still arrive.
            CacheError: The peer is closing.
        """
        self._check_alive()
        self._courier.send(self._service, cluster_id, name, payload, deadline)

    # --- the owner's side ----------------------------------------------------------------------------------------

    def publish(self, added: Sequence[CacheRecord]) -> None:
        """Offer caches to every peer that has linked or will link. A peer that asks afterwards finds them.

        Raises:
            CacheValueError: The whole catalogue would not fit one message.
        """
        self._check_alive()
        self._sessions.publish(added)

    def republish(self, record: CacheRecord) -> None:
        """Offer a published cache by other keys: one numbered change. Transfers that run on it are not disturbed.

        Args:
            record: The record it was published with, except for `keys`.

        Raises:
            CacheNotFoundError: It is not published.
            CacheError: More than the keys differs.
            CacheValueError: The whole catalogue would not fit one message.
        """
        self._check_alive()
        self._sessions.republish(record)

    def retire(self, cache_ids: Iterable[int], *, deadline: float) -> None:
        """Take caches back: peers start nothing more on them, and this waits until what runs has ended.

        A peer that is gone (its process is proven dead, or it was silent for longer than its lease) is not waited for.

        Raises:
            CacheBusyError: Peers may still read past the deadline. The caches stay taken back and the memory must stay;
                the call can be repeated.
            CacheNotFoundError: An id is not published.
        """
        self._check_alive()
        self._sessions.retire(cache_ids, deadline)

    # --- inside --------------------------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self._service is not None:
            self._service.check()
        if self._closed:
            raise ManagerClosedError("the manager was closed")

    def _serving(self) -> tuple[Service, Door]:
        """The service and the door, started when they are not there."""
        with self._lock:
            if self._closed:
                raise ManagerClosedError("the manager was closed")
            if self._service is None or self._door is None:
                service = Service(f"cachecore-{self._identity.cluster_id}-links")
                service.on_failure(self._sessions.fail)
                service.on_failure(self.leases.fail)
                service.on_failure(self._links.fail)
                interval, links = self._timing.ping_interval, self._links

                def set_up() -> Door:
                    service.every(interval, links.clean_up)
                    door = Door()
                    service.at_end(door.close)
                    return door

                self._door = service.start(set_up, time.monotonic() + _START_SECONDS)
                self._service = self._schedule.service = service
                # A manager that nobody refers to any more ends its threads; nothing in them refers to it.
                weakref.finalize(self, _abandon, service, self._worker, self._pid).atexit = False
            return self._service, self._door


class _Schedule:
    """Runs functions in the service thread once there is one. Before, there is nobody to send anything to."""

    service: Service | None = None

    def __call__(self, function: Callable[[], None]) -> None:
        if self.service is not None:
            self.service.submit(function)


def _weakly(method: Callable[[int, CacheKey], bool] | None) -> Callable[[int, CacheKey], bool] | None:
    """A bound method without its object: a manager's own method would keep the manager's threads alive for ever."""
    if not inspect.ismethod(method):
        return method
    reference = weakref.WeakMethod(method)

    def call(cache_id: int, key: CacheKey) -> bool:
        target = reference()
        return target is not None and bool(target(cache_id, key))

    return call


def _offers(engines: Sequence[EngineBinding]) -> tuple[EngineOffer, ...]:
    return tuple(EngineOffer(binding.wire_id, binding.rank, binding.engine.endpoint()) for binding in engines)


def _look_for_lost(service: Service, sessions: Sessions) -> None:
    sessions.connection_lost()
    # ZeroMQ reports the end of a connection a moment before it stops taking messages for it.
    service.after(0.05, sessions.connection_lost)


def _close_inbox(inbox: Inbox, pid: int) -> None:
    if os.getpid() == pid:
        inbox.close()


def _abandon(service: Service, worker: Worker, pid: int) -> None:
    if os.getpid() == pid:  # in a forked child the threads are the parent's and a lock may be held for ever
        service.request_stop()
        worker.request_stop()
