"""The reader's side: one link to one peer, as transfers use it.

The hot path of a transfer is `lookup` (a dictionary), `begin` and `end` (a counter under a lock) and `lease_holds` (a
clock). Messages are handled in the service thread, engines are called in the caller's thread or the worker's.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from cachecore.engine import EngineBinding, PeerIdentity, TransferEngine
from cachecore.errors import CacheBusyError, CacheError, CacheNotFoundError, ManagerClosedError, NotLinkedError
from cachecore.peers.access import EngineAccess
from cachecore.peers.channel import Channel
from cachecore.peers.dialogue import Dialogue
from cachecore.peers.events import EventKind, PeerEvent
from cachecore.peers.liveness import Lease, Timing
from cachecore.peers.messages import Welcome
from cachecore.peers.notices import Post
from cachecore.peers.records import EntryKeyRecord
from cachecore.peers.remote import RemoteCache, RemoteEntry
from cachecore.peers.service import Service
from cachecore.peers.usage import CacheUsage
from cachecore.peers.worker import Worker
from cachecore.types import CacheKey, TransferKey

__all__ = ["Link"]

_logger = logging.getLogger("cachecore.peers")
_CLEAN_UP_SECONDS = 5.0


class Link:
    """A one-way link: this manager may read and write the remotely accessible caches of the peer. Thread-safe.

    Made by `Peers.link`.

    Attributes:
        identity: Who the peer is.
        address: Where it listens, numeric.
        lease: The right to trust what is read over this link.
        token: The owner's name of this session.
        dialogue: The messages, for those who make and end links.
    """

    def __init__(
        self,
        service: Service,
        worker: Worker,
        channel: Channel,
        welcome: Welcome,
        timing: Timing,
        notify: Callable[[PeerEvent], None],
        post: Post,
    ) -> None:
        self.identity: PeerIdentity = welcome.identity.identity
        self.address = str(channel.address)
        self.lease = Lease(min(timing.lease, Timing.safe_lease(welcome.silence)))
        self.token = welcome.session
        self._service, self._worker, self._notify = service, worker, notify
        self._access = EngineAccess(self.identity)
        self._usage = CacheUsage(
            self.identity.cluster_id,
            welcome.number,
            welcome.records,
            lambda cache: worker.submit(partial(self._forget, cache)),
            self.retry_clean_up,
        )
        self.dialogue = Dialogue(
            self._peer_text(),
            service,
            channel,
            self.token,
            timing,
            self.lease,
            self._usage,
            self._report,
            self.identity,
            post,
        )
        self.dialogue.on_unknown = lambda cache_ids: worker.submit(partial(self._forget_unknown, cache_ids))
        #: Compares caches of this manager with the peer's, see `watch_layouts`.
        self._compare: Callable[[Sequence[RemoteCache]], tuple[str, ...]] = lambda caches: ()
        self._differences: tuple[str, ...] = ()
        self._look_pending = False

    # --- what it is ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """One of "LINKED", "STALLED" (the peer's process is there and does not answer) and "LOST" (it is gone)."""
        return self.dialogue.state

    @property
    def engine(self) -> TransferEngine | None:
        """What moves bytes over this link; None for a peer in this process."""
        binding = self._access.binding
        return None if binding is None else binding.engine

    @property
    def wire_id(self) -> str | None:
        """The `wire_id` of `engine`."""
        binding = self._access.binding
        return None if binding is None else binding.wire_id

    @property
    def running(self) -> int:
        """Transfers that run over this link."""
        return self._usage.running

    @property
    def caches(self) -> tuple[RemoteCache, ...]:
        """The peer's caches as known now; sends nothing."""
        return self._usage.caches

    @property
    def layout_differences(self) -> tuple[str, ...]:
        """Where layouts of this manager and of the peer differ now, one sentence for each."""
        return self._compare(self.caches)

    @property
    def fetches(self) -> int:
        """Times its whole catalogue was asked for."""
        return self.dialogue.fetches

    @property
    def number(self) -> int:
        """Number of the owner's last change that is known here."""
        return self._usage.number

    @property
    def quiet(self) -> bool:
        """Whether no transfer runs over it and every ended one is quiescent."""
        return self._usage.idle

    @property
    def writes(self) -> bool:
        """Whether the owner was told that this manager also writes, so that only proof ends the session for it."""
        return self.dialogue.requests.writes

    @property
    def released(self) -> bool:
        """Whether nothing of this link is left anywhere: no connection, no transfer, no access of an engine."""
        return self.state == "LOST" and self._usage.idle and not self._access.connected

    def __repr__(self) -> str:
        return f"<Link to {self._peer_text()} {self.state}>"

    # --- the path of a transfer ----------------------------------------------------------------------------------

    def lookup(self, key: TransferKey, *, deadline: float, group: str | None = None) -> RemoteEntry:
        """What `key` names at the peer.

        A hit sends nothing. A miss fetches the catalogue once.

        Args:
            key: Its cluster id is not looked at.
            deadline: On `time.monotonic()`.
            group: Of the cache of named layers that a BlocksCacheKey is to name; None for one whose tensors are all of
                one shape.

        Returns:
            The cache and, for keys of a contiguous cache, the batch entry. The link's engine can reach it.

        Raises:
            CacheNotFoundError: The peer offers no such cache.
            CacheIncompatibleError: It is not registered with the engine of this link.
            NotSupportedError: The engine of this link does not move memory of its placement.
            CacheValueError: The key is a placeholder or ambiguous, or its batch index is out of range.
            LinkLostError: The peer is gone.
            CacheTimeoutError: The peer did not answer before the deadline.
        """
        if self.state == "LOST":
            raise self._lost_error()
        entry = self._usage.find(key, group)
        if entry is None:
            self.dialogue.refresh(deadline)
            entry = self._usage.find(key, group)
            if entry is None:
                raise self._not_found(key, group)
        if not entry.cache.usable:
            self._access.ensure(entry.cache, self._usage.check_offered, deadline)
        return entry

    def begin(self, cache: RemoteCache) -> None:
        """A transfer on this cache starts. Each `begin` needs its `end`.

        Raises:
            CacheNotFoundError: The owner has taken the cache back, or is about to.
            LinkLostError: The peer is gone.
            NotLinkedError: The link is being undone.
        """
        self._usage.begin(cache)

    def end(self, cache: RemoteCache, quiescent: bool = True) -> None:
        """A transfer on this cache has ended.

        Args:
            cache: As given to `begin`.
            quiescent: Whether it touches nothing any more. If not, the cache is held until `settled`.
        """
        self._usage.end(cache, quiescent)

    def settled(self, cache: RemoteCache) -> None:
        """A transfer that ended without being quiescent is quiescent now. Once for each such transfer."""
        self._usage.settled(cache)

    def lease_holds(self) -> bool:
        """Whether what has been read over this link until now is what the owner promised to keep."""
        return self.lease.holds()

    def wait_for_lease(self, deadline: float) -> bool:
        """Wait until the lease holds. Returns whether it does; False at `deadline` or when there is no hope."""
        if self.lease.holds():
            return True
        if self.state != "LOST":
            self.dialogue.ping_soon()
        return self.lease.wait(deadline, self.dialogue.gone)

    def report_gone(self, reason: str) -> None:
        """An engine has found that the peer's process is gone: the link is lost, whatever its connection says."""
        with contextlib.suppress(ManagerClosedError):
            self._service.submit(partial(self.dialogue.lose, reason))

    # --- what it asks of the owner -------------------------------------------------------------------------------

    def will_write(self, deadline: float) -> None:
        """Tell the owner, before the first write, that this manager also writes over this link.

        From then on the owner never takes silence for the end of this manager, only proof. Asks once; later calls
        return at once.

        Raises:
            LinkLostError, LinkBusyError, CacheTimeoutError: It did not confirm it; nothing may be written.
        """
        self.dialogue.requests.will_write(deadline)

    def consume(self, cache: RemoteCache, batch_index: int, key: CacheKey, deadline: float) -> bool:
        """Have the owner drop a key of one of its caches, because what it names has been taken.

        Args:
            cache: The cache.
            batch_index: The entry that the key names.
            key: The key; its cluster id is not looked at.
            deadline: On `time.monotonic()`.

        Returns:
            Whether this call dropped it. Of several readers exactly one gets True. False also when the owner does not
            let readers use up keys of this cache.

        Raises:
            LinkLostError, CacheTimeoutError: No answer came; the key may or may not be used up.
            LinkBusyError: The peer takes no messages now; nothing was asked.
            CacheError: The owner failed to drop it.
        """
        record = EntryKeyRecord(key.model_id, key.req_id, key.prefix_id, batch_index)
        return self.dialogue.requests.consume(cache.cache_id, record, deadline)

    def claim(self, lease_id: str, deadline: float) -> None:
        """Keep the blocks of a lease until `release_claim`; one round trip. Each `claim` needs its `release_claim`.

        A claim ends with the owner's session too: as for every read, what was read counts only if `lease_holds`
        after the last byte.

        Raises:
            LeaseExpiredError: The owner grants it no more.
            LinkLostError, LinkBusyError, CacheTimeoutError: It did not answer; nothing is claimed.
        """
        self.dialogue.requests.claim(lease_id, deadline)

    def release_claim(self, lease_id: str) -> None:
        """A transfer under a claim of this lease touches nothing any more. Waits for nothing."""
        self.dialogue.requests.release_claim(lease_id)

    # --- layouts -------------------------------------------------------------------------------------------------

    def watch_layouts(self, compare: Callable[[Sequence[RemoteCache]], tuple[str, ...]]) -> None:
        """Compare the layouts of both sides now and whenever the peer's catalogue changes, and report differences.

        Args:
            compare: From the peer's caches to sentences about what differs.
        """
        self._compare = compare
        self._usage.on_change = self.look_at_layouts
        self.look_at_layouts()

    def look_at_layouts(self) -> None:
        """Compare the layouts of both sides soon, in the worker. Never waits. Many changes at once cost one look."""
        if not self._look_pending:
            self._look_pending = True
            self._worker.submit(self._look_at_layouts)

    def _look_at_layouts(self) -> None:
        self._look_pending = False  # first: what changes from now on needs another look
        found = self.layout_differences
        if found != self._differences:
            self._differences = found
            if found:
                self._report(EventKind.LAYOUTS_DIFFER, " ".join(found))

    # --- being made and undone -----------------------------------------------------------------------------------

    def connect_engine(self, binding: EngineBinding, endpoint: bytes, deadline: float) -> None:
        """Give an engine access to everything the peer offers now; see `EngineAccess.connect`."""
        for cache in self._access.connect(binding, endpoint, lambda: self._usage.caches, deadline):
            self._worker.submit(partial(self._forget, cache))

    def make_ready(self, deadline: float, writes: bool, ended: tuple[str, ...] = ()) -> None:
        """Be counted as a reader by the owner; see `Dialogue.make_ready`."""
        engine = self.engine
        self.dialogue.make_ready(self.wire_id, b"" if engine is None else engine.endpoint(), writes, ended, deadline)

    def unlink(self, deadline: float) -> None:
        """Start nothing more, wait for what runs, give up access, and say goodbye. Can be repeated.

        Raises:
            CacheBusyError: Transfers run, or have ended without being quiescent, past the deadline.
        """
        self._usage.refuse(self._unlinking_error)
        if not self._usage.wait_idle(deadline):
            usage = self._usage
            raise self._busy_error(f"{usage.running} transfers run and {usage.unsettled} are not quiescent")
        if not self.release_engine(deadline):
            raise self._busy_error(f"its engine {self.wire_id} is not quiescent")
        self.dialogue.say_goodbye(deadline)
        self.dialogue.abandon("it was unlinked")

    def release_engine(self, deadline: float) -> bool:
        """Take the engine's access away; see `EngineAccess.release`."""
        return self._access.release(deadline)

    def retry_clean_up(self) -> None:
        """Give up the engine's access of a lost link when nothing uses it any more. Never waits."""
        if self.state == "LOST" and self._access.connected and self._usage.idle:
            self._worker.submit(self._clean_up)

    # --- inside --------------------------------------------------------------------------------------------------

    def _forget(self, cache: RemoteCache) -> None:
        """Nothing touches a cache any more that was taken back. In the worker."""
        self._access.forget(cache)
        if self._usage.forget(cache):
            self.dialogue.say_retired(cache.cache_id)

    def _forget_unknown(self, cache_ids: tuple[int, ...]) -> None:
        """The owner takes back caches that were never known here. In the worker."""
        self._access.forget_unknown()
        self.dialogue.say_retired(*cache_ids)

    def _clean_up(self) -> None:
        if self.state == "LOST" and self._usage.idle:
            self.release_engine(time.monotonic() + _CLEAN_UP_SECONDS)

    def _report(self, kind: EventKind, detail: str) -> None:
        if kind is EventKind.LOST:
            self.retry_clean_up()
        level = logging.INFO if kind is EventKind.RESUMED else logging.WARNING
        _logger.log(level, "%s: %s: %s", self._peer_text(), kind.value, detail)
        self._notify(PeerEvent(kind, self.identity, detail))

    def _peer_text(self) -> str:
        peer = self.identity
        return f"cluster {peer.cluster_id} at {self.address} (process {peer.pid} on {peer.host})"

    def _lost_error(self) -> CacheError:
        return self.dialogue.lost_error()

    def _unlinking_error(self) -> CacheError:
        return NotLinkedError(f"cluster {self.identity.cluster_id} is being unlinked; no transfer can start")

    def _not_found(self, key: TransferKey, group: str | None) -> CacheNotFoundError:
        layers = "" if group is None else f" with layers of group {group!r}"
        return CacheNotFoundError(
            f"{key!r}{layers}: cluster {self.identity.cluster_id} at {self.address} offers no such cache; "
            f"{self._usage.describe_keys()}. Was it registered with this key and remote_accessible=True (the default for "
            "DEVICE memory only), and not unregistered since? A cache of register_layers is found only for one of "
            "register_layers with its group, and any other only for one that is none"
        )

    def _busy_error(self, reason: str) -> CacheBusyError:
        cluster_id = self.identity.cluster_id
        return CacheBusyError(
            f"cluster {cluster_id} cannot be unlinked: {reason}; repeat the call when they have ended",
            peers=(cluster_id,),
        )
