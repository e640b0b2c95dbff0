"""What one engine has been told about one peer: connected or not, and which of its regions.

The engine is called under its lock, which everybody holds who registers with it or connects it. Regions that several
caches share are counted, so that the engine hears of each once when it comes and once when it goes.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from cachecore.engine import EngineBinding, PeerIdentity, RemoteRegion
from cachecore.errors import CacheError, CacheIncompatibleError, CacheTimeoutError, NotSupportedError
from cachecore.peers.remote import RemoteCache

__all__ = ["EngineAccess"]

_logger = logging.getLogger("cachecore.peers")


class EngineAccess:
    """The access of this manager's engine to one peer's memory. Thread-safe.

    Args:
        peer: Whose memory.
    """

    def __init__(self, peer: PeerIdentity) -> None:
        self._peer = peer
        self._users: Counter[RemoteRegion] = Counter()
        #: The engine in use; None for a peer in this process, whose memory needs none.
        self.binding: EngineBinding | None = None
        #: Whether the engine has access.
        self.connected = False

    def connect(
        self,
        binding: EngineBinding,
        endpoint: bytes,
        caches: Callable[[], Sequence[RemoteCache]],
        deadline: float,
    ) -> list[RemoteCache]:
        """Give the engine access to everything the peer offers now.

        Returns:
            Caches that were taken back meanwhile: `forget` them.

        Raises:
            LinkFailedError, EngineError: What the engine raises.
            CacheTimeoutError: The engine is busy with something else.
        """
        with _held(binding, deadline):
            offered = [cache for cache in caches() if not cache.retiring]
            users: Counter[RemoteRegion] = Counter()
            for cache in offered:
                cache.regions = cache.regions_for(binding.wire_id)
                users.update(cache.regions)
            binding.engine.connect(self._peer, endpoint, list(users), deadline)
            self.binding, self.connected, self._users = binding, True, users
            for cache in offered:
                cache.usable = bool(cache.regions)
            return [cache for cache in offered if cache.retiring]

    def ensure(self, cache: RemoteCache, check: Callable[[RemoteCache], None], deadline: float) -> None:
        """Make a cache usable that was published after the engine connected.

        Args:
            cache: Which.
            check: Raises when the cache must not be used any more; called with the engine held.
            deadline: On `time.monotonic()`.

        Raises:
            CacheIncompatibleError: It is not registered with this engine.
            NotSupportedError: This engine does not move memory of its placement.
            CacheTimeoutError: The engine is busy with something else.
        """
        binding = self.binding
        if binding is None:
            cache.usable = True
            return
        with _held(binding, deadline):
            check(cache)
            if cache.usable:
                return
            regions = cache.regions_for(binding.wire_id)
            if not regions:
                raise self._out_of_reach(cache, binding)
            fresh = [region for region in regions if not self._users[region]]
            if fresh:
                binding.engine.update(self._peer, fresh, [])
            self._users.update(regions)
            cache.regions, cache.usable = regions, True

    def _out_of_reach(self, cache: RemoteCache, binding: EngineBinding) -> CacheError:
        owner, placement = f"cluster {self._peer.cluster_id}", cache.record.placement
        pairs = binding.engine.capabilities().placement_pairs
        if pairs.known and all(there is not placement for _, there in pairs.value_or(frozenset())):
            return NotSupportedError(
                f"cache {cache.cache_id} of {owner} is {placement.name} memory, which the link's engine "
                f"{binding.wire_id} does not move ({pairs.source}); use memory of a placement it moves, or link by "
                "another engine",
                product=binding.wire_id,
                feature=placement.name,
            )
        # A manager notes each of its engines, also those that registered nothing of this cache.
        engines = ", ".join(sorted(engine for engine, regions in cache.record.regions.items() if regions))
        return CacheIncompatibleError(
            f"cache {cache.cache_id} of {owner} is registered with {engines or 'no engine'} and the link uses "
            f"{binding.wire_id}; make the manager of {owner} with that engine too (engine='auto' takes all that serve), or "
            "link by another engine"
        )

    def forget(self, cache: RemoteCache) -> None:
        """The cache is not used any more: the engine forgets what no other cache needs. In the worker.

        It hears of memory that was never used too: some engines must end their native link before the owner can
        deregister anything.
        """
        binding = self.binding
        if binding is None:
            return
        with binding.lock:
            if not self.connected:
                return
            regions = cache.regions if cache.usable else cache.regions_for(binding.wire_id)
            if cache.usable:
                self._users.subtract(regions)
            cache.usable = False
            gone = [region for region in dict.fromkeys(regions) if not self._users[region]]
            for region in gone:
                del self._users[region]
            if gone:
                self._update(binding, gone, f"cache {cache.cache_id}")

    def forget_unknown(self) -> None:
        """The peer takes back caches that this side never heard of. In the worker."""
        binding = self.binding
        if binding is None:
            return
        with binding.lock:
            if self.connected:
                self._update(binding, [], "caches it never knew")

    def _update(self, binding: EngineBinding, gone: Sequence[RemoteRegion], what: str) -> None:
        try:
            binding.engine.update(self._peer, [], gone)
        except Exception:
            # Nothing is read from there any more, which is all that the owner must know.
            _logger.exception("engine %s did not forget %s", binding.wire_id, what)

    def release(self, deadline: float) -> bool:
        """Take the access away. Returns whether everything the engine started towards this peer is quiescent.

        Raises:
            CacheTimeoutError: The engine is busy with something else.
        """
        binding = self.binding
        if binding is None:
            return True
        with _held(binding, deadline):
            if self.connected and binding.engine.disconnect(self._peer, deadline):
                self.connected = False
                self._users.clear()
            return not self.connected


@contextlib.contextmanager
def _held(binding: EngineBinding, deadline: float) -> Iterator[None]:
    if not binding.lock.acquire(timeout=max(0.0, min(deadline - time.monotonic(), 3600.0))):
        raise CacheTimeoutError(f"engine {binding.wire_id} was busy until the deadline; it does one thing at a time")
    try:
        yield
    finally:
        binding.lock.release()
