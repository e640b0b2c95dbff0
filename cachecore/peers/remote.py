"""The reader's view of a peer's caches: one object for each, and the index that finds them by key."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from cachecore.engine import RemoteRegion
from cachecore.errors import CacheValueError
from cachecore.peers.records import BlocksKeyRecord, CacheRecord
from cachecore.shape import CacheShape, LayersShape
from cachecore.types import NO_ID, BlocksCacheKey, CacheKey, CacheKeyByIdAndIndex, TransferKey

__all__ = ["RemoteCache", "RemoteCatalogue", "RemoteEntry"]

_SHOWN = 5


class RemoteCache:
    """One cache of a peer. The same object for as long as the link knows the cache; compared by identity.

    Attributes:
        record: Its geometry and addresses.
        shape: Its layout, as planning sees it.
        regions: What the link's engine reaches it by; empty for a peer in this process.
        retiring: Whether nothing may be started on it any more.
        running: Transfers that run on it.
        unsettled: Ended transfers that may still be touching local memory, see `Link.settled`.
    """

    __slots__ = (
        "__weakref__",
        "answer_owed",
        "forgetting",
        "record",
        "regions",
        "retiring",
        "running",
        "shape",
        "unsettled",
        "usable",
    )

    def __init__(self, record: CacheRecord) -> None:
        self.record = record
        self.shape = _shape(record)
        self.regions: tuple[RemoteRegion, ...] = ()
        self.retiring = False
        self.running = 0
        self.unsettled = 0
        #: Whether the owner waits for our Retired.
        self.answer_owed = False
        #: Whether the link's engine has been told of the regions.
        self.usable = False
        #: Whether it is on its way out of the link's tables.
        self.forgetting = False

    @property
    def cache_id(self) -> int:
        """The owner's id of it."""
        return self.record.cache_id

    @property
    def quiet(self) -> bool:
        """Whether nothing of ours touches it or was started from it."""
        return self.running == 0 and self.unsettled == 0

    def regions_for(self, wire_id: str) -> tuple[RemoteRegion, ...]:
        """What an engine with this wire id reaches it by; empty when it is not registered with that engine."""
        return tuple(region.remote_region for region in self.record.regions.get(wire_id, ()))

    def __repr__(self) -> str:
        if self.record.layers is not None:
            return f"<RemoteCache {self.cache_id} {len(self.record.layers.names)} layers, {self.record.num_tensors} tensors>"
        kind = "blocks" if self.record.is_blocks else "contiguous"
        return f"<RemoteCache {self.cache_id} {kind} {self.record.num_tensors} x {list(self.record.shape)}>"


def _shape(record: CacheRecord) -> CacheShape | LayersShape:
    owner = f"cache {record.cache_id} of the peer"
    if record.layers is not None:
        return record.layers.shape(owner, record.placement)
    return CacheShape(
        owner,
        memoryview(array("Q", record.addrs)).toreadonly(),
        record.shape,
        record.data_type,
        record.placement,
        record.batch_dim,
        record.is_blocks,
    )


class RemoteEntry(NamedTuple):
    """What a key names: a cache and, for a contiguous one, the batch entry."""

    cache: RemoteCache
    batch_index: int


class RemoteCatalogue:
    """The caches of one peer by key. The link's lock guards changes; `find` needs none."""

    def __init__(self) -> None:
        self.number = 0
        self._by_id: dict[int, RemoteCache] = {}
        self._blocks: dict[int, RemoteEntry] = {}
        #: Caches of named layers, by model id and group.
        self._groups: dict[tuple[int, str], RemoteEntry] = {}
        self._requests: dict[tuple[int, int], RemoteEntry] = {}
        self._prefixes: dict[tuple[int, int], RemoteEntry] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def caches(self) -> list[RemoteCache]:
        """Every cache known, also those that are retiring."""
        return list(self._by_id.values())

    def get(self, cache_id: int) -> RemoteCache | None:
        """The cache with this id."""
        return self._by_id.get(cache_id)

    def find(self, key: TransferKey, group: str | None = None) -> RemoteEntry | None:
        """What the key names, None when it names nothing usable.

        Args:
            key: Which.
            group: For a BlocksCacheKey: the group of a cache of named layers, None for a cache of one shape.

        Raises:
            CacheValueError: The key does not say what it means, or a batch index is out of range.
        """
        if isinstance(key, BlocksCacheKey):
            entry = self._blocks.get(key.model_id) if group is None else self._groups.get((key.model_id, group))
        elif isinstance(key, CacheKey):
            if key.prefix_id == NO_ID:
                if key.req_id == NO_ID:
                    raise CacheValueError(f"{key!r} is a placeholder; give req_id or prefix_id")
                entry = self._requests.get((key.model_id, key.req_id))
            elif key.req_id == NO_ID:
                entry = self._prefixes.get((key.model_id, key.prefix_id))
            else:
                raise CacheValueError(f"{key!r} has both req_id and prefix_id; give one of them")
        else:
            entry = self._find_by_id(key)
        return None if entry is None or entry.cache.retiring else entry

    def _find_by_id(self, key: CacheKeyByIdAndIndex) -> RemoteEntry | None:
        cache = self._by_id.get(key.cache_id)
        if cache is None:
            return None
        if key.batch_index >= cache.record.batch_size:
            raise CacheValueError(
                f"batch_index is {key.batch_index}; cache {key.cache_id} of cluster {key.cluster_id} has "
                f"{cache.record.batch_size} batch entries, counted from 0"
            )
        return RemoteEntry(cache, key.batch_index)

    def add(self, cache: RemoteCache) -> None:
        """Add a cache and its keys; a key that named another cache names this one from now on."""
        self._by_id[cache.cache_id] = cache
        for key in cache.record.keys:
            if isinstance(key, BlocksKeyRecord):
                layers = cache.record.layers
                if layers is None:
                    self._blocks[key.model_id] = RemoteEntry(cache, 0)
                else:
                    self._groups[key.model_id, layers.group] = RemoteEntry(cache, 0)
                continue
            entry = RemoteEntry(cache, key.batch_index)
            if key.req_id != NO_ID:
                self._requests[key.model_id, key.req_id] = entry
            if key.prefix_id != NO_ID:
                self._prefixes[key.model_id, key.prefix_id] = entry

    def rename(self, cache: RemoteCache, record: CacheRecord) -> None:
        """Give a cache that stays as it is the keys of `record`.

        A look-up in between finds the cache by neither, which makes it ask the owner; it never finds another cache.
        """
        self.unname(cache)
        cache.record = record
        self.add(cache)

    def unname(self, cache: RemoteCache) -> None:
        """Forget the keys of a cache; it stays known by its id."""
        index: dict[int, RemoteEntry] | dict[tuple[int, str], RemoteEntry] | dict[tuple[int, int], RemoteEntry]
        for index in (self._blocks, self._groups, self._requests, self._prefixes):
            stale: Iterable[object] = [key for key, entry in index.items() if entry.cache is cache]
            for key in stale:
                del index[key]  # type: ignore[arg-type]  # keys of this very index

    def forget(self, cache: RemoteCache) -> None:
        """Forget a cache altogether."""
        self.unname(cache)
        if self._by_id.get(cache.cache_id) is cache:
            del self._by_id[cache.cache_id]

    def describe_keys(self) -> str:
        """The keys that exist, as far as a message can show them."""
        names = [f"BlocksCacheKey(model_id={model})" for model in islice(self._blocks, _SHOWN)]
        names += [
            f"BlocksCacheKey(model_id={model}) with layers of group {group!r}"
            for model, group in islice(self._groups, _SHOWN)
        ]
        names += [f"CacheKey(req_id={req}, model_id={model})" for model, req in islice(self._requests, _SHOWN)]
        names += [f"CacheKey(prefix_id={prefix}, model_id={model})" for model, prefix in islice(self._prefixes, _SHOWN)]
        ids = [str(number) for number in islice(self._by_id, _SHOWN)]
        if not ids:
            return "it offers no cache at all"
        more = len(self._blocks) + len(self._groups) + len(self._requests) + len(self._prefixes) - len(names[:_SHOWN])
        keys = ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "") if names else "none"
        return (
            f"keys that exist: {keys}; cache ids that exist: {', '.join(ids)}{' ...' if len(self._by_id) > 5 else ''}"
        )
