"""Everything one manager has to do with other managers: `Peers`."""

from __future__ import annotations

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
from cachecore.errors import (
    AlreadyLinkedError,
    CacheBusyError,
    CacheError,
    CacheValueError,
    EngineError,
    LinkFailedError,
    LinkLostError,
    ManagerClosedError,
    NotLinkedError,
)
from cachecore.events import Event
from cachecore.peers.addresses import ResolvedAddress, resolve
from cachecore.peers.descriptors import Door
from cachecore.peers.events import EventKind, PeerEvent, PeersCounters, Tally
from cachecore.peers.link import Link
from cachecore.peers.linking import Dialer
from cachecore.peers.listener import Listener
from cachecore.peers.liveness import Timing, boottime
from cachecore.peers.messages import EngineOffer
from cachecore.peers.records import CacheRecord
from cachecore.peers.security import CurveKeys, Keyring, Security
from cachecore.peers.service import Service
from cachecore.peers.session import SessionInfo, Sessions
from cachecore.peers.worker import Worker

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
        timing: Timing | None = None,
    ) -> None:
        self._identity = identity
        self._listen = listen
        self._keyring = Keyring(security, insecure)
        self._engines = tuple(engines)
        self._timing = timing or Timing()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._links: dict[int, Link] = {}
        self._departed: list[Link] = []
        self._linking: set[int] = set()
        self._closed = False
        name = f"cachecore-{identity.cluster_id}"
        self._worker = Worker(f"{name}-engines", bind_thread)
        self._tally = Tally(identity.cluster_id, self._worker, events)
        self._schedule = _Schedule()
        self._service: Service | None = None
        self._door: Door | None = None
        self._listener: Listener | None = None
        self._sessions = Sessions(
            identity,
            self._timing,
            partial(_offers, self._engines),
            partial(_peer_alive, self._engines),
            self._schedule,
            self._tally.add,
        )

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
        with self._lock:
            service = self._serving()
        text, sessions, timing, door = self._listen, self._sessions, self._timing, self._door
        assert door is not None

        def open_listener() -> Listener:
            try:
                listener = Listener(
                    service,
                    text,
                    addresses,
                    keys,
                    timing,
                    sessions.receive,
                    lambda: _look_for_the_lost(service, sessions),
                )
            except zmq.ZMQError as error:
                raise LinkFailedError(
                    f"listen is {text!r} and cannot be listened on: {error.strerror} (error {error.errno})"
                ) from error
            sessions.serve(listener)
            door.guard(listener)
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
        with self._lock:
            return tuple(self._links.values())

    @property
    def sessions(self) -> tuple[SessionInfo, ...]:
        """Peers that have linked to this manager."""
        return self._sessions.infos

    @property
    def counters(self) -> PeersCounters:
        """Totals since the start."""
        with self._lock:
            links = [*self._links.values(), *self._departed]
        listener = self._listener
        return PeersCounters(
            links_made=self._tally.count(EventKind.LINKED),
            links_lost=self._tally.count(EventKind.LOST),
            sessions_started=self._sessions.started,
            sessions_refused=self._sessions.refused,
            strangers_denied=0 if listener is None else listener.strangers_denied,
            malformed_messages=self._tally.count(EventKind.MALFORMED),
            fetches=self._tally.past_fetches + sum(link.fetches for link in links),
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
            links = [*self._links.values(), *self._departed]
            self._links.clear()
            self._departed.clear()
        unsafe = [link for link in links if not _close_link(link, deadline)]
        service = self._service
        soon = max(deadline, time.monotonic() + 0.5)
        if service is not None and not service.stop(soon):
            _logger.warning("the link service did not end before the deadline")
        self._worker.stop(soon)
        return tuple(unsafe)

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
            self._check_own_id(cluster_id, CacheValueError)
        self._check_alive()
        addresses = resolve("address", address, deadline, lowest_port=1)
        keys = self._keyring.dialing(address, addresses, security)
        reserved: set[int] = set()
        try:
            if cluster_id is not None:
                self._reserve(cluster_id, reserved, deadline)
            return self._link(cluster_id, addresses, keys, reserved, deadline, writes)
        except LinkLostError as error:
            raise LinkFailedError(f"address {address}: the link was lost while it was made: {error}") from error
        finally:
            with self._lock:
                self._linking -= reserved

    def unlink(self, cluster_id: int, *, deadline: float) -> None:
        """Undo a link: wait for its transfers, give up access, tell the peer.

        Raises:
            NotLinkedError: There is no link to this cluster.
            CacheBusyError: Transfers run past the deadline; no new one can start and the call can be repeated.
        """
        link = self.get(cluster_id)
        link.unlink(deadline)
        with self._lock:
            if self._links.get(cluster_id) is link:
                del self._links[cluster_id]
                self._tally.past_fetches += link.fetches
        self._tally.add(PeerEvent(EventKind.UNLINKED, link.identity, "unlinked"))

    def get(self, cluster_id: int) -> Link:
        """The link to a cluster, in whatever state.

        Raises:
            NotLinkedError: There is none.
        """
        link = self._links.get(cluster_id)
        if link is None:
            self._check_alive()
            with self._lock:
                linked = sorted(self._links)
            raise NotLinkedError(
                f"cluster {cluster_id} is not linked; linked are {linked or 'none'}: call link({cluster_id}, address) first"
            )
        return link

    # --- the owner's side ----------------------------------------------------------------------------------------

    def publish(self, added: Sequence[CacheRecord]) -> None:
        """Offer caches to every peer that has linked or will link. A peer that asks afterwards finds them.

        Raises:
            CacheValueError: The whole catalogue would not fit one message.
        """
        self._check_alive()
        self._sessions.publish(added)

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

    def _link(
        self,
        cluster_id: int | None,
        addresses: list[ResolvedAddress],
        keys: CurveKeys | None,
        reserved: set[int],
        deadline: float,
        writes: bool,
    ) -> Link:
        with self._lock:
            service = self._serving()
        assert self._door is not None
        dialer = Dialer(self._identity, self._timing, service, self._worker, self._tally.add, self._door)
        link, welcome, same_process = dialer.greet(addresses, keys, self._ended, deadline)
        try:
            declared = link.identity.cluster_id
            if cluster_id is not None and declared != cluster_id:
                raise LinkFailedError(
                    f"cluster_id is {cluster_id} and the manager at {link.address} declares cluster {declared} (process "
                    f"{link.identity.pid} on {link.identity.host}); correct the id or the address, or give None"
                )
            self._check_own_id(declared, LinkFailedError)
            if declared not in reserved:
                self._reserve(declared, reserved, deadline)
            self._give_way(declared, link, deadline)
            if not same_process:
                dialer.choose_engine(link, welcome.engines, self._engines, deadline)
            link.make_ready(deadline, writes)
        except BaseException:
            self._undo(link)
            raise
        with self._lock:
            if self._closed:
                closed = True
            else:
                closed = False
                old = self._links.get(declared)
                if old is not None:
                    self._departed.append(old)
                self._links[declared] = link
        if closed:
            self._undo(link)
            raise ManagerClosedError("the manager was closed while it linked")
        self._tally.add(PeerEvent(EventKind.LINKED, link.identity, f"to {link.address}, engine {link.wire_id}"))
        _logger.info("linked to cluster %d at %s with engine %s", declared, link.address, link.wire_id)
        return link

    def _reserve(self, cluster_id: int, reserved: set[int], deadline: float) -> None:
        """Make sure that nobody else links to this cluster now, and that nobody has."""
        with self._lock:
            existing = self._links.get(cluster_id)
            if cluster_id in self._linking:
                raise AlreadyLinkedError(f"cluster {cluster_id} is being linked by another thread")
            self._linking.add(cluster_id)
            reserved.add(cluster_id)
        if existing is None:
            return
        if existing.state != "LOST" and self._service is not None:
            self._service.call(existing.look_now, deadline)  # its end may not have been noticed yet
        if existing.state != "LOST":
            raise AlreadyLinkedError(
                f"cluster {cluster_id} is linked already, to {existing.address} ({existing.state}); unlink it first"
            )

    def _give_way(self, cluster_id: int, new: Link, deadline: float) -> None:
        """A lost link to the very same peer must be over for the engine, which knows peers by their identity."""
        with self._lock:
            old = [*self._departed, *(link for key, link in self._links.items() if key == cluster_id)]
        for link in old:
            if link.identity.incarnation != new.identity.incarnation or link.released:
                continue
            if not (link.quiet and link.release_engine(deadline)):
                raise CacheBusyError(
                    f"transfers over the lost link to cluster {cluster_id} are not quiescent; link again when they are",
                    peers=(cluster_id,),
                )

    def _undo(self, link: Link) -> None:
        """A link that could not be completed leaves nothing behind."""
        try:
            link.unlink(time.monotonic() + self._timing.farewell)
        except Exception:
            _logger.exception("giving up the unfinished link to cluster %d failed", link.identity.cluster_id)
            link.abandon("linking failed")
            with self._lock:
                self._departed.append(link)

    def _ended(self, address: ResolvedAddress) -> tuple[str, ...]:
        """Sessions at this address over which nothing is read any more and which the owner may still wait for."""
        since = boottime() - 2 * self._timing.owner_silence
        with self._lock:
            links = [*self._links.values(), *self._departed]
        return tuple(
            link.token for link in links if link.released and link.address == str(address) and link.lost_at > since
        )[:100]

    def _check_own_id(self, cluster_id: int, error: type[CacheError]) -> None:
        if cluster_id == self._identity.cluster_id:
            raise error(
                f"cluster_id is {cluster_id}, which is this manager's own; managers that link need different ids, and a "
                "manager cannot link to itself"
            )

    def _check_alive(self) -> None:
        if self._service is not None:
            self._service.check()
        if self._closed:
            raise ManagerClosedError("the manager was closed")

    def _serving(self) -> Service:
        """The service, started when it is not there. With the lock held."""
        if self._closed:
            raise ManagerClosedError("the manager was closed")
        if self._service is None:
            try:
                service = Service(f"cachecore-{self._identity.cluster_id}-links")
            except (OSError, zmq.ZMQError) as error:
                raise EngineError(
                    f"the link service cannot start: {error}; raise the limit of open files (ulimit -n) or close some",
                    operation="zmq_ctx_new",
                    code=error.errno or 0,
                ) from error
            reference = weakref.ref(self)
            service.on_failure(self._sessions.fail)
            service.on_failure(lambda error: _fail_links(reference, error))
            interval = self._timing.ping_interval

            def set_up() -> Door:
                service.every(interval, lambda: _retry_clean_ups(reference))
                door = Door()
                service.at_end(door.close)
                return door

            self._door = service.start(set_up, time.monotonic() + _START_SECONDS)
            self._service = self._schedule.service = service
            # A manager that nobody refers to any more ends its threads; in a forked child this does nothing.
            weakref.finalize(self, _abandon, service, self._worker).atexit = False
        return self._service


class _Schedule:
    """Runs functions in the service thread once there is one. Before, there is nobody to send anything to."""

    service: Service | None = None

    def __call__(self, function: Callable[[], None]) -> None:
        if self.service is not None:
            self.service.submit(function)


def _offers(engines: Sequence[EngineBinding]) -> tuple[EngineOffer, ...]:
    return tuple(EngineOffer(binding.wire_id, binding.rank, binding.engine.endpoint()) for binding in engines)


def _peer_alive(engines: Sequence[EngineBinding], peer: PeerIdentity) -> bool | None:
    """What the engines can prove about a peer's process; those that cannot say anything have no `peer_alive`."""
    answer: bool | None = None
    for binding in engines:
        ask = getattr(binding.engine, "peer_alive", None)
        if ask is None:
            continue
        try:
            alive = ask(peer)
        except Exception:
            _logger.exception("engine %s failed to say whether process %d lives", binding.wire_id, peer.pid)
            continue
        if alive is False:
            return False
        answer = alive if answer is None else answer
    return answer


def _look_for_the_lost(service: Service, sessions: Sessions) -> None:
    sessions.connection_lost()
    # ZeroMQ reports the end of a connection a moment before it stops taking messages for it.
    service.after(0.05, sessions.connection_lost)


def _close_link(link: Link, deadline: float) -> bool:
    """Whether nothing of it is left."""
    try:
        link.unlink(deadline)
    except CacheBusyError as error:
        _logger.warning("%s", error)
        link.abandon("the manager was closed")
        return False
    except Exception:
        _logger.exception("unlinking cluster %d failed", link.identity.cluster_id)
        link.abandon("the manager was closed")
        return link.released
    return True


def _fail_links(reference: weakref.ref[Peers], error: CacheError) -> None:
    peers = reference()
    for link in () if peers is None else (*peers._links.values(), *peers._departed):
        link.fail(error)


def _retry_clean_ups(reference: weakref.ref[Peers]) -> None:
    peers = reference()
    if peers is None:
        return
    with peers._lock:
        for link in peers._departed:
            link.retry_clean_up()
        since = boottime() - 2 * peers._timing.owner_silence
        kept = [link for link in peers._departed if not link.released or link.lost_at > since]
        peers._tally.past_fetches += sum(link.fetches for link in peers._departed if link not in kept)
        peers._departed = kept
        for link in peers._links.values():
            link.retry_clean_up()


def _abandon(service: Service, worker: Worker) -> None:
    service.request_stop()
    worker.request_stop()
