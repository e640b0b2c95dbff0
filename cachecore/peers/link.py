"""The reader's side: one link to one peer.

The hot path of a transfer is `lookup` (a dictionary), `begin` and `end` (a counter under a lock) and `lease_holds` (a
clock). Messages are handled in the service thread, engines are called in the caller's thread or the worker's.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from cachecore.engine import EngineBinding, PeerIdentity, RemoteRegion, TransferEngine
from cachecore.errors import (
    CacheBusyError,
    CacheError,
    CacheIncompatibleError,
    CacheNotFoundError,
    CacheTimeoutError,
    LinkLostError,
    ManagerClosedError,
    NotLinkedError,
)
from cachecore.peers.channel import Channel, Ending
from cachecore.peers.events import EventKind, PeerEvent
from cachecore.peers.liveness import Lease, Timing, boottime
from cachecore.peers.messages import (
    Changes,
    Farewell,
    Fetch,
    Goodbye,
    Linked,
    MalformedMessageError,
    OtherVersionError,
    OwnerMessage,
    Ping,
    Pong,
    ReaderMessage,
    Ready,
    Retired,
    Retiring,
    SessionGone,
    Snapshot,
    Welcome,
    decode_owner_message,
    encode,
)
from cachecore.peers.records import CacheRecord
from cachecore.peers.remote import RemoteCache, RemoteCatalogue, RemoteEntry
from cachecore.peers.service import Service
from cachecore.peers.worker import Worker
from cachecore.types import TransferKey

__all__ = ["Link"]

_logger = logging.getLogger("cachecore.peers")
#: With this many unanswered pings they are sent ten times less often: they would only pile up at a peer that is busy.
_MANY_UNANSWERED = 30
_CLEAN_UP_SECONDS = 5.0


class Link:
    """A one-way link: this manager may read and write the remotely accessible caches of the peer. Thread-safe.

    Made by `Peers.link`.

    Attributes:
        identity: Who the peer is.
        address: Where it listens, numeric.
        lease: The right to trust what is read over this link.
    """

    def __init__(
        self,
        service: Service,
        worker: Worker,
        channel: Channel,
        welcome: Welcome,
        timing: Timing,
        notify: Callable[[PeerEvent], None],
    ) -> None:
        self.identity: PeerIdentity = welcome.identity.identity
        self.address = str(channel.address)
        self.lease = Lease(min(timing.lease, Timing.safe_lease(welcome.silence)))
        self.fetches = 0
        self._service, self._worker, self._channel = service, worker, channel
        self._timing, self._notify = timing, notify
        self._token = welcome.session
        self._binding: EngineBinding | None = None
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._catalogue = RemoteCatalogue()
        self._catalogue.number = welcome.number
        for record in welcome.records:
            self._add(record)
        self._running = self._unsettled = 0
        self._region_users: Counter[RemoteRegion] = Counter()
        self._state = "LINKING"
        self._lost_because = ""
        self._lost_at = 0.0
        self._gone = threading.Event()
        self._unlinking = False
        self._engine_connected = False
        self._sequence = self._ticks = 0
        self._unanswered: dict[int, float] = {}
        self._ready: Future[Any] | None = None
        self._farewell: Future[Any] | None = None
        self._unsent: list[Future[Any]] = []
        self._asked: dict[int, list[Future[Any]]] = {}
        self._fetch_request = self._fetched_for = 0
        self._over = False
        self._timers: list[Callable[[], None]] = []

    # --- what it is ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """One of "LINKED", "STALLED" (the peer's process is there and does not answer) and "LOST" (it is gone)."""
        return self._state

    @property
    def engine(self) -> TransferEngine | None:
        """What moves bytes over this link; None for a peer in this process."""
        return None if self._binding is None else self._binding.engine

    @property
    def wire_id(self) -> str | None:
        """The `wire_id` of `engine`."""
        return None if self._binding is None else self._binding.wire_id

    @property
    def running(self) -> int:
        """Transfers that run over this link."""
        return self._running

    @property
    def caches(self) -> tuple[RemoteCache, ...]:
        """The peer's caches as known now; sends nothing."""
        with self._lock:
            return tuple(self._catalogue.caches)

    def __repr__(self) -> str:
        peer = self.identity
        return (
            f"<Link to cluster {peer.cluster_id} at {self.address} (process {peer.pid} on {peer.host}) {self._state}>"
        )

    # --- the path of a transfer ----------------------------------------------------------------------------------

    def lookup(self, key: TransferKey, *, deadline: float) -> RemoteEntry:
        """What `key` names at the peer.

        A hit sends nothing. A miss fetches the catalogue once.

        Args:
            key: Its cluster id is not looked at.
            deadline: On `time.monotonic()`.

        Returns:
            The cache and, for keys of a contiguous cache, the batch entry. The link's engine can reach it.

        Raises:
            CacheNotFoundError: The peer offers no such cache.
            CacheValueError: The key is a placeholder or ambiguous, or its batch index is out of range.
            LinkLostError: The peer is gone.
            CacheTimeoutError: The peer did not answer before the deadline.
        """
        entry = self._catalogue.find(key)
        if entry is None:
            self.refresh(deadline)
            entry = self._catalogue.find(key)
            if entry is None:
                raise self._not_found(key)
        if self._state == "LOST":
            raise self._lost_error()
        if not entry.cache.usable:
            self._make_usable(entry.cache, deadline)
        return entry

    def begin(self, cache: RemoteCache) -> None:
        """A transfer on this cache starts. Each `begin` needs its `end`.

        Raises:
            CacheNotFoundError: The owner has taken the cache back, or is about to.
            LinkLostError: The peer is gone.
            NotLinkedError: The link is being undone.
        """
        with self._lock:
            if self._state == "LOST":
                raise self._lost_error()
            if self._unlinking:
                raise NotLinkedError(f"cluster {self.identity.cluster_id} is being unlinked; no transfer can start")
            if cache.retiring:
                raise CacheNotFoundError(
                    f"cache {cache.cache_id} of cluster {self.identity.cluster_id} is being unregistered by its owner"
                )
            cache.running += 1
            self._running += 1

    def end(self, cache: RemoteCache, quiescent: bool = True) -> None:
        """A transfer on this cache has ended.

        Args:
            cache: As given to `begin`.
            quiescent: Whether it touches nothing any more. If not, the cache is held until `settled`.
        """
        with self._lock:
            if not quiescent:
                cache.unsettled += 1
                self._unsettled += 1
            cache.running -= 1
            self._running -= 1
            self._after_end(cache)

    def settled(self, cache: RemoteCache) -> None:
        """A transfer that ended without being quiescent is quiescent now. Once for each such transfer."""
        with self._lock:
            cache.unsettled -= 1
            self._unsettled -= 1
            self._after_end(cache)

    def lease_holds(self) -> bool:
        """Whether what has been read over this link until now is what the owner promised to keep."""
        return self.lease.holds()

    def wait_for_lease(self, deadline: float) -> bool:
        """Wait until the lease holds. Returns whether it does; False at `deadline` or when there is no hope."""
        if self.lease.holds():
            return True
        if self._state != "LOST":
            self._service.submit(self._ping)
        return self.lease.wait(deadline, self._gone)

    def report_gone(self, reason: str) -> None:
        """An engine has found that the peer's process is gone: the link is lost, whatever its connection says."""
        with contextlib.suppress(ManagerClosedError):
            self._service.submit(lambda: self._lose(reason))

    def refresh(self, deadline: float) -> None:
        """Fetch the catalogue now; threads that ask at the same time share one fetch.

        Raises:
            LinkLostError, CacheTimeoutError: As in `lookup`.
        """
        with self._lock:
            if self._state == "LOST":
                raise self._lost_error()
            future = self._service.future()
            self._unsent.append(future)
        self._service.submit(self._send_fetch)
        peer = self.identity
        self._service.wait(future, deadline, f"cluster {peer.cluster_id} ({self._state}) did not send its catalogue")

    # --- being made and undone -----------------------------------------------------------------------------------

    def connect_engine(self, binding: EngineBinding, endpoint: bytes, deadline: float) -> None:
        """Give the engine access to everything the peer offers now. In the thread that links.

        Raises:
            LinkFailedError, EngineError: What the engine raises.
            CacheTimeoutError: The engine is busy with something else.
        """
        with self._engine(binding, deadline):
            with self._lock:
                caches = [cache for cache in self._catalogue.caches if not cache.retiring]
            users: Counter[RemoteRegion] = Counter()
            for cache in caches:
                cache.regions = cache.regions_for(binding.wire_id)
                users.update(cache.regions)
            binding.engine.connect(self.identity, endpoint, list(users), deadline)
            with self._lock:
                self._binding, self._engine_connected, self._region_users = binding, True, users
                for cache in caches:
                    cache.usable = True
                    if cache.retiring:  # the owner took it back while the engine connected
                        cache.forgetting = True
                        self._worker.submit(partial(self._forget, cache))

    def make_ready(self, deadline: float, writes: bool) -> None:
        """Tell the owner that reading begins, and wait until it counts this reader.

        Raises:
            LinkLostError, CacheTimeoutError: It did not answer.
        """
        future = self._service.future()

        def send() -> None:
            self._ready = future
            if self._state == "LOST":
                self._service.settle(future, error=self._lost_error())
            elif not self._send_timed(lambda number: Ready(self._token, number, self.wire_id, writes)):
                self._lose("the peer takes no messages")

        self._service.submit(send)
        self._service.wait(future, deadline, f"cluster {self.identity.cluster_id} did not confirm the link")

    def unlink(self, deadline: float) -> None:
        """Start nothing more, wait for what runs, give up access, and say goodbye. Can be repeated.

        Raises:
            CacheBusyError: Transfers run, or have ended without being quiescent, past the deadline.
        """
        with self._idle:
            self._unlinking = True
            while self._running or self._unsettled:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise self._busy_error(f"{self._running} transfers run and {self._unsettled} are not quiescent")
                self._idle.wait(min(remaining, 3600.0))
        if not self.release_engine(deadline):
            raise self._busy_error(f"its engine {self.wire_id} is not quiescent")
        self._say_goodbye(deadline)
        self.abandon("it was unlinked")

    def release_engine(self, deadline: float) -> bool:
        """Take the engine's access away. Returns whether everything it started towards this peer is quiescent.

        Raises:
            CacheTimeoutError: The engine is busy with something else.
        """
        binding = self._binding
        if binding is None:
            return True
        with self._engine(binding, deadline):
            if self._engine_connected and binding.engine.disconnect(self.identity, deadline):
                self._engine_connected = False
                self._region_users.clear()
            return not self._engine_connected

    @property
    def released(self) -> bool:
        """Whether nothing of this link is left anywhere: no transfer, no access of an engine."""
        return self._state == "LOST" and not (self._running or self._unsettled or self._engine_connected)

    @property
    def quiet(self) -> bool:
        """Whether no transfer runs over it and every ended one is quiescent."""
        return not (self._running or self._unsettled)

    @property
    def number(self) -> int:
        """Number of the owner's last change that is known here."""
        return self._catalogue.number

    @property
    def token(self) -> str:
        """The owner's name of this session."""
        return self._token

    @property
    def lost_at(self) -> float:
        """When it was lost, on `boottime()`."""
        return self._lost_at

    def abandon(self, reason: str) -> None:
        """Drop the connection, whatever is still running. The owner then waits until the lease is over."""
        with contextlib.suppress(CacheError):  # without a service thread there is no connection
            self._service.submit(lambda: self._lose(reason, announce=False))
        with self._lock:
            self._mark_lost(reason)

    def drop(self, reason: str) -> None:
        """Drop the connection, without an event. Service thread."""
        self._lose(reason, announce=False)

    def retry_clean_up(self) -> None:
        """Try again to give up the engine's access of a lost link, if there is any."""
        if self._state == "LOST" and self._engine_connected and self.quiet:
            self._worker.submit(self._clean_up)

    def look_now(self) -> None:
        """Find out whether the connection is there. Service thread."""
        self._channel.read_events()

    # --- service thread ------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Start to ping and to watch, once the messages of the channel come here."""
        quarter = self._timing.ping_interval / 4
        self._timers.append(self._service.every(self._timing.ping_interval, self._tick))
        self._timers.append(self._service.every(quarter, self._check))

    def receive(self, frames: list[bytes]) -> None:
        """Handle one message of the owner. One that is not understood ends the link."""
        if self._state == "LOST":
            return
        try:
            if len(frames) != 1:
                raise MalformedMessageError(f"a message of {len(frames)} frames instead of one")
            self._handle(decode_owner_message(frames[0]))
        except (MalformedMessageError, OtherVersionError) as error:
            self._notify(PeerEvent(EventKind.MALFORMED, self.identity, str(error)[:200]))
            self._lose(f"the peer sent a message that was not understood: {str(error)[:200]}")
        except Exception as error:
            _logger.exception("handling a message of cluster %d failed", self.identity.cluster_id)
            self._lose(f"handling a message failed: {type(error).__name__}: {error}")

    def ended(self, ending: Ending) -> None:
        """The connection is gone."""
        self._lose(ending.value)

    def fail(self, error: CacheError) -> None:
        """The service thread has failed."""
        self._lose(str(error))

    def _handle(self, message: OwnerMessage) -> None:
        if isinstance(message, Pong):
            self._answered(message.sequence)
            self._expect(message.number)
        elif isinstance(message, Changes):
            self._apply(message)
        elif isinstance(message, Snapshot):
            self._replace(message)
        elif isinstance(message, Retiring):
            self._retire(message.cache_ids)
        elif isinstance(message, Linked):
            self._answered(message.sequence)
            self._expect(message.number)
            if self._ready is not None:
                self._state = "LINKED"
                self._service.settle(self._ready)
        elif isinstance(message, SessionGone):
            self.lease.end()
            self._lose(f"the peer has ended the session: {message.reason}")
        elif isinstance(message, Farewell) and self._farewell is not None:
            self._service.settle(self._farewell)

    def _send(self, message: ReaderMessage) -> bool:
        return self._state != "LOST" and self._channel.send(encode(message))

    def _send_timed(self, make: Callable[[int], ReaderMessage]) -> bool:
        self._sequence += 1
        now = boottime()
        if not self._send(make(self._sequence)):
            return False
        self._unanswered[self._sequence] = now
        return True

    def _tick(self) -> None:
        self._ticks += 1
        if len(self._unanswered) < _MANY_UNANSWERED or self._ticks % 10 == 0:
            self._ping()

    def _ping(self) -> None:
        self._send_timed(lambda number: Ping(self._token, number))
        if self._unsent:
            self._send_fetch()

    def _answered(self, sequence: int) -> None:
        sent = self._unanswered.get(sequence)
        if sent is None:
            return
        self._unanswered = {number: when for number, when in self._unanswered.items() if number > sequence}
        self.lease.renew(sent)
        if self._state == "STALLED" and not self._overdue():
            self._state = "LINKED"
            self._notify(PeerEvent(EventKind.RESUMED, self.identity, "it answers again"))

    def _overdue(self) -> bool:
        oldest = min(self._unanswered.values(), default=None)
        return oldest is not None and boottime() - oldest > self._timing.stall_after

    def _check(self) -> None:
        if not self._overdue() or self._state != "LINKED":
            return
        # The answer may have come while this process was busy.
        self._channel.read_events()
        self._channel.read_messages()
        if self._overdue() and self._state == "LINKED":
            self._state = "STALLED"
            detail = f"no answer for {self._timing.stall_after:g} s"
            _logger.warning("cluster %d is stalled: %s", self.identity.cluster_id, detail)
            self._notify(PeerEvent(EventKind.STALLED, self.identity, detail))

    def _send_fetch(self) -> None:
        """One fetch for everybody who has asked by now."""
        request = self._fetch_request + 1
        with self._lock:  # first: who asks after the request was sent needs another one
            waiting, self._unsent = self._unsent, []
        if self._send(Fetch(self._token, request)):
            self._fetch_request = request
            self.fetches += 1
            self._asked[request] = waiting
        else:  # the next ping tries again, or the link is lost
            with self._lock:
                self._unsent += waiting

    def _expect(self, number: int) -> None:
        """The owner is at `number`: ask for what was missed, once for each number."""
        if number > self._catalogue.number and number > self._fetched_for:
            self._fetched_for = number
            self._send_fetch()

    def _apply(self, changes: Changes) -> None:
        if changes.base != self._catalogue.number:
            self._expect(changes.number)
            return
        with self._lock:
            for cache_id in changes.removed:
                cache = self._catalogue.get(cache_id)
                if cache is not None:
                    self._withdraw(cache)
            for record in changes.added:
                self._add(record)
            self._catalogue.number = changes.number

    def _replace(self, snapshot: Snapshot) -> None:
        with self._lock:
            if snapshot.number >= self._catalogue.number:
                offered = {record.cache_id for record in snapshot.records}
                for cache in self._catalogue.caches:
                    if cache.cache_id not in offered:
                        self._withdraw(cache)
                for record in snapshot.records:
                    self._add(record)
                self._catalogue.number = snapshot.number
        for request in [one for one in self._asked if one <= snapshot.request]:
            for future in self._asked.pop(request):
                self._service.settle(future)

    def _add(self, record: CacheRecord) -> None:
        if self._catalogue.get(record.cache_id) is None:
            self._catalogue.add(RemoteCache(record))

    def _retire(self, cache_ids: Sequence[int]) -> None:
        done = []
        with self._lock:
            for cache_id in cache_ids:
                cache = self._catalogue.get(cache_id)
                if cache is None:
                    done.append(cache_id)
                else:
                    cache.answer_owed = True
                    self._withdraw(cache)
        if done:
            self._send(Retired(self._token, tuple(done)))

    # --- with the lock held --------------------------------------------------------------------------------------

    def _withdraw(self, cache: RemoteCache) -> None:
        cache.retiring = True
        self._catalogue.unname(cache)
        self._after_end(cache)

    def _after_end(self, cache: RemoteCache) -> None:
        if cache.retiring and cache.quiet and not cache.forgetting:
            cache.forgetting = True
            self._worker.submit(partial(self._forget, cache))
        if not (self._running or self._unsettled):
            self._idle.notify_all()
            if self._state == "LOST" and self._engine_connected:
                self._worker.submit(self._clean_up)

    def _mark_lost(self, reason: str) -> None:
        if self._state != "LOST":
            self._lost_because, self._lost_at, self._state = reason, boottime(), "LOST"
        self._gone.set()
        self.lease.wake()

    # --- worker --------------------------------------------------------------------------------------------------

    def _forget(self, cache: RemoteCache) -> None:
        """Nothing touches a withdrawn cache any more: the engine forgets its regions, the owner learns of it."""
        binding = self._binding
        if binding is not None:
            with binding.lock:
                if cache.usable and self._engine_connected:
                    self._drop_regions(binding, cache)
                cache.usable = False
        with self._lock:
            self._catalogue.forget(cache)
            owed = cache.answer_owed
        if owed:
            self._service.submit(lambda: self._retired(cache.cache_id))

    def _drop_regions(self, binding: EngineBinding, cache: RemoteCache) -> None:
        removed = []
        for region in cache.regions:
            self._region_users[region] -= 1
            if self._region_users[region] == 0:
                del self._region_users[region]
                removed.append(region)
        if removed:
            try:
                binding.engine.update(self.identity, [], removed)
            except Exception:
                # Nothing is read from there any more, which is all that the owner must know.
                _logger.exception("engine %s did not forget cache %d", binding.wire_id, cache.cache_id)

    def _clean_up(self) -> None:
        """Give up the engine's access of a lost link."""
        if self._state == "LOST" and self.quiet:
            self.release_engine(time.monotonic() + _CLEAN_UP_SECONDS)

    # --- helpers -------------------------------------------------------------------------------------------------

    def _retired(self, cache_id: int) -> None:
        self._send(Retired(self._token, (cache_id,)))  # not sent: the owner asks again

    def _lose(self, reason: str, announce: bool = True) -> None:
        """The link is over. Service thread."""
        if self._over:
            return
        self._over = True
        for cancel in self._timers:
            cancel()
        self._timers.clear()
        self._channel.close()
        with self._lock:
            self._mark_lost(reason)
            waiting, self._unsent = self._unsent, []
            if self._engine_connected and self.quiet:
                self._worker.submit(self._clean_up)
        error = self._lost_error()
        for futures in self._asked.values():
            waiting += futures
        self._asked.clear()
        for future in (*waiting, self._ready, self._farewell):
            if future is not None:
                self._service.settle(future, error=error)
        if announce:
            _logger.warning("link to cluster %d lost: %s", self.identity.cluster_id, reason)
            self._notify(PeerEvent(EventKind.LOST, self.identity, reason))

    def _make_usable(self, cache: RemoteCache, deadline: float) -> None:
        """The first use of a cache that was published after the engine connected."""
        binding = self._binding
        if binding is None:
            cache.usable = True
            return
        with self._engine(binding, deadline):
            with self._lock:
                if self._state == "LOST":
                    raise self._lost_error()
                if cache.retiring:
                    raise CacheNotFoundError(
                        f"cache {cache.cache_id} of cluster {self.identity.cluster_id} is being unregistered by its owner"
                    )
            if cache.usable:
                return
            regions = cache.regions_for(binding.wire_id)
            if not regions:
                raise CacheIncompatibleError(
                    f"cache {cache.cache_id} of cluster {self.identity.cluster_id} is registered with the engines "
                    f"{sorted(cache.record.regions)} and the link uses {binding.wire_id}; register it with that one too"
                )
            binding.engine.update(self.identity, [one for one in regions if not self._region_users[one]], [])
            self._region_users.update(regions)
            cache.regions, cache.usable = regions, True

    @contextlib.contextmanager
    def _engine(self, binding: EngineBinding, deadline: float) -> Iterator[None]:
        if not binding.lock.acquire(timeout=max(0.0, min(deadline - time.monotonic(), 3600.0))):
            raise CacheTimeoutError(
                f"engine {binding.wire_id} was busy until the deadline; it does one thing at a time"
            )
        try:
            yield
        finally:
            binding.lock.release()

    def _say_goodbye(self, deadline: float) -> None:
        """Let the owner forget this reader at once. Whatever goes wrong: it would find out by itself, later."""
        try:
            future = self._service.future()
        except CacheError:
            return

        def send() -> None:
            self._farewell = future
            if not self._send(Goodbye(self._token)):
                self._service.settle(future)

        with contextlib.suppress(CacheError):
            self._service.submit(send)
            until = max(min(deadline, time.monotonic() + self._timing.farewell), time.monotonic() + 0.05)
            self._service.wait(future, until, "no farewell")

    def _not_found(self, key: TransferKey) -> CacheNotFoundError:
        peer = self.identity
        with self._lock:
            existing = self._catalogue.describe_keys()
        return CacheNotFoundError(
            f"{key!r}: cluster {peer.cluster_id} at {self.address} offers no such cache; {existing}. Was it registered "
            "with this key and remote_accessible=True (the default for DEVICE memory only), and not unregistered since?"
        )

    def _lost_error(self) -> LinkLostError:
        peer = self.identity
        return LinkLostError(
            f"the link to cluster {peer.cluster_id} at {self.address} (process {peer.pid} on {peer.host}) is lost: "
            f"{self._lost_because}; call link() again when the peer is back",
            state="LOST",
        )

    def _busy_error(self, reason: str) -> CacheBusyError:
        peer = self.identity
        return CacheBusyError(
            f"cluster {peer.cluster_id} cannot be unlinked: {reason}; repeat the call when they have ended",
            peers=(peer.cluster_id,),
        )
