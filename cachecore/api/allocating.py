"""Caches whose memory the manager allocates, and the keys of contiguous caches."""

from __future__ import annotations

from collections.abc import Sequence

from cachecore import _arguments as arguments
from cachecore.api.base import DEFAULT_TIMEOUT, ManagerParts
from cachecore.types import BlocksCacheKey, Cache, CacheDesc, CacheKey

__all__ = ["AllocatingMethods"]


class AllocatingMethods(ManagerParts):
    """`allocate_*`, `deallocate_*` and `remove_cache_key`."""

    def allocate_cache(
        self,
        cache_desc: CacheDesc,
        cache_keys: Sequence[CacheKey] = (),
        *,
        remote_accessible: bool | None = None,
    ) -> Cache:
        """Allocate a contiguous (not paged) cache. Its memory comes from the driver and belongs to the manager.

        All tensors lie in one allocation, which is registered as one region and does not count against the address
        budget. On a machine without an accelerator it is shared memory that peers map. The content is not defined.

        Args:
            cache_desc: Shape of each tensor, and where: HOST or DEVICE.
            cache_keys: Names for the batch entries, in order, at most one an entry; a placeholder skips an entry.
            remote_accessible: Whether peers may reach it; None = True for DEVICE memory, False for HOST memory.

        Raises:
            MissingArgumentError, CacheTypeError: None or another type where it must not be.
            CacheKeyExistsError, CacheValueError: A key is in use or is twice in the list, there are more keys than batch
                entries, or a limit of the product is passed. Nothing is allocated.
            CacheOutOfMemoryError: There is not enough memory; its status code is DEVICE_OUT_OF_MEMORY or OUT_OF_MEMORY.
            NotSupportedError: The product does not offer allocated caches.
            EngineError: The driver or a native registration failed; what was done before is undone.
        """
        self._enter()
        return self._allocations.allocate(
            "allocate_cache", cache_desc, is_blocks=False, keys=cache_keys, remote_accessible=remote_accessible
        )

    def allocate_blocks_cache(
        self,
        cache_desc: CacheDesc,
        blocks_cache_key: BlocksCacheKey | None = None,
        *,
        remote_accessible: bool | None = None,
    ) -> Cache:
        """Allocate a paged cache; otherwise as `allocate_cache`.

        Args:
            cache_desc: Shape of each tensor; the first dimension is the number of blocks.
            blocks_cache_key: Name for peers; one cache for each model id.
            remote_accessible: As in `allocate_cache`.

        Raises:
            As `allocate_cache`.
        """
        self._enter()
        return self._allocations.allocate(
            "allocate_blocks_cache",
            cache_desc,
            is_blocks=True,
            blocks_key=blocks_cache_key,
            remote_accessible=remote_accessible,
        )

    def deallocate_cache(self, cache: Cache, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Give back a cache of `allocate_cache`: its memory is freed after every peer has stopped using it.

        With the option manager.remote_cache_accessible=False a cache that still has keys is only released: it takes no
        new call of this manager, peers can still pull by the keys, and the memory is freed when the last key has been
        consumed or removed.

        Args:
            cache: What `allocate_cache` returned.
            timeout: Seconds to wait for transfers that run. A peer that does not answer counts as gone after 20 s.

        Raises:
            MissingArgumentError, CacheTypeError: None, or no cache.
            CacheNotFoundError: It was deallocated already, or is another manager's.
            CacheValueError: It was registered (`unregister_cache` is for those) or is paged (`deallocate_blocks_cache`).
            CacheBusyError: It is still in use at the deadline. The memory stays, new transfers are refused, and the call
                can be repeated.
            StillReachableError: An engine cannot make the memory unreachable; the same holds.
        """
        self._enter()
        deadline = arguments.deadline("timeout", timeout)
        self._allocations.deallocate("deallocate_cache", cache, is_blocks=False, deadline=deadline)

    def deallocate_blocks_cache(self, cache: Cache, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Give back a cache of `allocate_blocks_cache`: its memory is freed after every peer has stopped using it.

        Args:
            cache: What `allocate_blocks_cache` returned.
            timeout: As in `deallocate_cache`.

        Raises:
            As `deallocate_cache`, which is for contiguous caches.
        """
        self._enter()
        deadline = arguments.deadline("timeout", timeout)
        self._allocations.deallocate("deallocate_blocks_cache", cache, is_blocks=True, deadline=deadline)

    def remove_cache_key(self, cache_key: CacheKey, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Drop the key of a batch entry: peers find nothing by it any more. The cache and its other keys stay.

        Transfers that run are not disturbed; but where pulls consume keys (manager.remote_cache_accessible=False), one by
        this key that ends later raises CacheNotFoundError: the request is not its own any more. Where the cache was
        released by `deallocate_cache` and this was its last key, its memory is freed.

        Args:
            cache_key: A key of a contiguous cache of this manager.
            timeout: Seconds to wait for transfers on memory that is freed; what is still in use then is freed later.

        Raises:
            MissingArgumentError, CacheTypeError, CacheValueError: None; no `CacheKey`; a placeholder, or the key of
                another cluster.
            CacheNotFoundError: It names nothing here, or not any more.
        """
        self._enter()
        self._allocations.remove_key(cache_key, arguments.deadline("timeout", timeout))
