"""What the registry knows about one registered cache of this manager."""

from __future__ import annotations

import enum
import threading
from array import array
from collections.abc import Sequence

from cachecore.driver import Allocation
from cachecore.layers import LayersCache
from cachecore.registration.regions import LocalRegion
from cachecore.shape import CacheShape, LayersShape
from cachecore.tensors import TensorView
from cachecore.types import BlocksCacheKey, Cache, CacheKey

__all__ = ["LocalCache", "LocalLayers", "Registered", "State"]


class State(enum.Enum):
    """Life of a registered cache. RETIRING refuses new transfers and keeps the memory registered."""

    LIVE = "live"
    RETIRING = "retiring"
    GONE = "gone"


class Registered:
    """One registered cache of either kind. What changes does so only inside `Registry`.

    Attributes:
        cache: What the caller has.
        shape: Its layout, as planning sees it.
        blocks_key: Key of a paged cache.
        keys: Keys of the batch entries of a contiguous one.
        remote_accessible: Whether peers may reach it.
        tensors: What is kept alive, and must not have moved.
        regions: The native memory it lies in.
        running: Transfers of this process that use it.
        withdrawn: Whether no peer uses it and none will: the catalogue no longer has it.
        retirement: Held by the one thread that is unregistering it.
        allocation: Its memory, where the manager allocated it: one region, freed when the cache is removed.
        released: Whether the caller gave it back and only its keys keep it.
        known_ends: What transfers with it have found out about caches of peers, so that the next one need not.
    """

    __slots__ = (
        "allocation",
        "blocks_key",
        "cache",
        "keys",
        "known_ends",
        "regions",
        "released",
        "remote_accessible",
        "retirement",
        "running",
        "shape",
        "state",
        "tensors",
        "withdrawn",
    )
    cache: Cache | LayersCache
    shape: CacheShape | LayersShape

    def __init__(
        self,
        blocks_key: BlocksCacheKey | None,
        keys: tuple[CacheKey, ...],
        remote_accessible: bool,
        tensors: Sequence[TensorView],
        regions: Sequence[LocalRegion],
    ) -> None:
        self.blocks_key = blocks_key
        self.keys = keys
        self.remote_accessible = remote_accessible
        self.tensors = tuple(tensors)
        self.regions = tuple(regions)
        self.state = State.LIVE
        self.running = 0
        self.withdrawn = not remote_accessible
        self.retirement = threading.Lock()
        self.allocation: Allocation | None = None
        self.released = False
        self.known_ends: dict[object, object] = {}

    @property
    def has_keys(self) -> bool:
        """Whether a key names it or one of its entries."""
        return self.blocks_key is not None or not all(key.is_placeholder for key in self.keys)

    def __str__(self) -> str:
        return f"cache {self.cache.cache_id}"


class LocalCache(Registered):
    """A cache whose tensors have one shape: of the raw-address functions, where each is a region, or allocated."""

    __slots__ = ("addrs", "desc")
    cache: Cache
    shape: CacheShape

    def __init__(
        self,
        cache: Cache,
        blocks_key: BlocksCacheKey | None,
        keys: tuple[CacheKey, ...],
        remote_accessible: bool,
        tensors: Sequence[TensorView],
        regions: Sequence[LocalRegion],
        allocation: Allocation | None = None,
    ) -> None:
        super().__init__(blocks_key, keys, remote_accessible, tensors, regions)
        self.allocation = allocation
        self.cache = cache
        self.desc = desc = cache.cache_desc
        self.addrs = tuple(cache.tensor_addrs)
        self.shape = CacheShape(
            f"cache {cache.cache_id}",
            memoryview(array("Q", self.addrs)),
            desc.shape,
            desc.data_type,
            desc.placement,
            desc.batch_dim,
            cache.is_blocks_cache,
        )

    @property
    def counted_addresses(self) -> int:
        """How many addresses of the budget it uses: none of memory that the manager allocated."""
        return len(self.addrs) if self.allocation is None else 0


class LocalLayers(Registered):
    """A cache of `register_layers`: tensors of any layout, merged into regions by allocation."""

    __slots__ = ("group",)
    cache: LayersCache
    shape: LayersShape

    def __init__(
        self, cache: LayersCache, shape: LayersShape, tensors: Sequence[TensorView], regions: Sequence[LocalRegion]
    ) -> None:
        super().__init__(cache.key, (), cache.remote_accessible, tensors, regions)
        self.cache = cache
        self.group = cache.group
        self.shape = shape
