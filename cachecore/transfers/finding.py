"""Finding both ends of a transfer: the caller's cache, and what a key or raw addresses name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from cachecore import _arguments as arguments
from cachecore.driver import BackendDriver
from cachecore.engine import TransferEngine
from cachecore.errors import CacheValueError, NotSupportedError
from cachecore.layers import LayersCache
from cachecore.peers import Link, Peers
from cachecore.registration.local_caches import LocalLayers, Registered, State
from cachecore.registration.registry import Registry
from cachecore.shape import CacheShape, LayersShape
from cachecore.tensors import check_unmoved
from cachecore.transfers.addresses import FoundTensors, find_tensors
from cachecore.transfers.ends import Consume, End, LocalEnd, RemoteEnd
from cachecore.types import BlocksCacheKey, Cache, CacheKeyByIdAndIndex, Placement, TransferKey

__all__ = ["Ends"]

#: Most caches of peers that a cache remembers.
_REMEMBERED: Final = 64


class Ends:
    """Finds both ends of a transfer for one manager."""

    def __init__(
        self, cluster_id: int, driver: BackendDriver, registry: Registry, peers: Peers, consume: Consume
    ) -> None:
        self._cluster_id = cluster_id
        self._driver = driver
        self._registry = registry
        self._peers = peers
        self._consume = consume

    def own(self, name: str, cache: object) -> Registered:
        """The registration of the caller's cache, whose tensors are where they were.

        Raises:
            MissingArgumentError, CacheTypeError, CacheNotFoundError, AddressMovedError: See `CacheManager.pull_blocks`.
        """
        arguments.instance(name, cache, (Cache, LayersCache))
        assert isinstance(cache, Cache | LayersCache)
        own = self._registry.get(cache, name)
        if own.tensors:
            check_unmoved(own.tensors)
        return own

    def find(self, key: TransferKey, own: Registered, deadline: float) -> End:
        """What a checked key names, for a transfer with the caller's cache `own`.

        Raises:
            NotLinkedError, CacheNotFoundError, LinkLostError, CacheTimeoutError: It cannot be found.
            CacheValueError: Its batch index is outside the cache, or `own` may not be reached from outside.
            NotSupportedError: The link's engine does not move between memory of these placements.
        """
        group = own.group if isinstance(own, LocalLayers) else None
        if key.cluster_id == self._cluster_id:
            cache, index = self._registry.by_key(key, group)
            entry = _entry(key, cache.shape, index)
            return LocalEnd(self._cluster_id, self._driver, self._registry, self._peers, cache, entry, self._consume)
        link = self._peers.get(key.cluster_id)
        found = link.lookup(key, deadline=deadline, group=group)
        known = own.known_ends.get(found)
        if isinstance(known, RemoteEnd) and known.is_of(link):
            return known
        remote, index = found
        entry = _entry(key, remote.shape, index)
        if link.engine is not None:
            if not own.remote_accessible:
                raise CacheValueError(
                    f"{own} was registered with remote_accessible=False and cannot take part in a transfer between "
                    "processes; register it with remote_accessible=True"
                )
            check_movable(link.engine, own.shape.placement, remote.shape.placement)
        if len(own.known_ends) >= _REMEMBERED:
            own.known_ends.clear()
        end = own.known_ends[found] = RemoteEnd(self._driver, link, remote, entry)
        return end

    def find_addresses(self, cluster_id: int, addrs: Sequence[int], paged: bool, deadline: float) -> FoundTensors:
        """The cache of a cluster that raw addresses point into; see `find_tensors`.

        Raises:
            NotLinkedError, LinkLostError, CacheTimeoutError: It cannot be asked.
            CacheValueError: They name no tensors of a cache that it offers.
        """
        if cluster_id == self._cluster_id:
            live = [cache for cache in self._registry.caches() if cache.state is State.LIVE]
            found = find_tensors(addrs, ((cache.cache.cache_id, cache.shape) for cache in live), paged)
        else:
            link = self._peers.get(cluster_id)
            try:
                found = find_tensors(addrs, _offered(link), paged)
            except CacheValueError:  # a cache has some of them; one that the peer has registered since may have all
                found = None
            if found is None:
                link.dialogue.refresh(deadline)
                found = find_tensors(addrs, _offered(link), paged)
        if found is None:
            raise CacheValueError(
                f"dst_addrs[0] is {addrs[0]:#x}, which is in no {'paged' if paged else 'contiguous'} cache that cluster "
                f"{cluster_id} has registered and offers; addresses are looked up there and not taken on trust"
            )
        return found


def _offered(link: Link) -> Iterator[tuple[int, CacheShape | LayersShape]]:
    return ((cache.cache_id, cache.shape) for cache in link.caches if not cache.retiring)


def _entry(key: TransferKey, shape: CacheShape | LayersShape, index: int) -> int | None:
    """The entry that a key names; None where it names a whole paged cache, by its key or by its id."""
    if isinstance(key, BlocksCacheKey):
        return None
    if not shape.is_blocks or not isinstance(key, CacheKeyByIdAndIndex):
        return index
    if index:
        raise CacheValueError(
            f"{key} has batch_index {index} and names {shape.owner}, which is paged and has no entries; leave it 0"
        )
    return None


def check_movable(engine: TransferEngine, local: Placement, remote: Placement) -> None:
    """Refuse a pair of placements that the link's engine cannot move between.

    Raises:
        NotSupportedError: Names engine and placements.
    """
    pairs = engine.capabilities().placement_pairs
    if (local, remote) not in pairs.value_or(frozenset()):
        raise NotSupportedError(
            f"the link's engine {engine.wire_id} does not move between {local.name} memory here and {remote.name} memory "
            f"of the peer ({pairs.source}); use memory of a placement it moves, or link by another engine",
            product=engine.wire_id,
            feature=f"{local.name} to {remote.name}",
        )
