"""Registering memory that the caller allocated, and taking it back."""

from __future__ import annotations

from collections.abc import Sequence

from cachecore import _arguments as arguments
from cachecore.api.base import DEFAULT_TIMEOUT, ManagerParts
from cachecore.errors import CacheNotFoundError, CacheValueError
from cachecore.events import Event
from cachecore.layers import LayersCache
from cachecore.types import BlocksCacheKey, Cache, CacheDesc, CacheKey

__all__ = ["RegisteringMethods"]


class RegisteringMethods(ManagerParts):
    """`register_*` and `unregister_cache`."""

    def register_cache(
        self,
        cache_desc: CacheDesc,
        addrs: Sequence[int],
        cache_keys: Sequence[CacheKey] = (),
        remote_accessible: bool | None = None,
    ) -> Cache:
        """Register memory that the caller allocated as a contiguous (not paged) cache.

        Args:
            cache_desc: Shape of each tensor.
            addrs: One address for each tensor. Not owned: the caller keeps the memory until it is unregistered.
            cache_keys: Names for the batch entries, in order, at most one an entry.
            remote_accessible: Whether peers may reach it; None = True for DEVICE memory, False for HOST memory.

        Raises:
            MissingArgumentError, CacheTypeError: None or another type where it must not be.
            AddressBudgetError, OverlapError, MemoryAccessError, PlacementError, CacheKeyExistsError, CacheValueError:
                A rule is broken; see docs/registration.md. Nothing is registered.
            AlignmentError, NotSupportedError: A rule of the product is broken.
            EngineError: A native registration failed; what was registered before it is undone.
        """
        self._enter()
        return self._registrar.register(
            "register_cache", cache_desc, addrs, is_blocks=False, keys=cache_keys, remote_accessible=remote_accessible
        )

    def register_blocks_cache(
        self,
        cache_desc: CacheDesc,
        addrs: Sequence[int],
        blocks_cache_key: BlocksCacheKey | None = None,
        remote_accessible: bool | None = None,
    ) -> Cache:
        """Register memory that the caller allocated as a paged cache.

        Args:
            cache_desc: Shape of each tensor; the first dimension is the number of blocks.
            addrs: One address for each tensor. Not owned: the caller keeps the memory until it is unregistered.
            blocks_cache_key: Name for peers; one cache for each model id.
            remote_accessible: Whether peers may reach it; None = True for DEVICE memory, False for HOST memory.

        Raises:
            As `register_cache`.
        """
        self._enter()
        return self._registrar.register(
            "register_blocks_cache",
            cache_desc,
            addrs,
            is_blocks=True,
            blocks_key=blocks_cache_key,
            remote_accessible=remote_accessible,
        )

    def register_cache_tensors(
        self,
        tensors: Sequence[object],
        *,
        cache_keys: Sequence[CacheKey] = (),
        remote_accessible: bool | None = None,
        batch_dim_index: int = 0,
        seq_len_dim_index: int = -1,
    ) -> Cache:
        """Register tensors as a contiguous cache; they are kept alive until it is unregistered.

        Args:
            tensors: numpy arrays, torch tensors or objects with a buffer; all of one shape and data type.
            cache_keys: As in `register_cache`.
            remote_accessible: As in `register_cache`.
            batch_dim_index: Dimension that counts batch entries.
            seq_len_dim_index: Dimension that counts tokens, -1 for none.

        Raises:
            As `register_cache`; later `AddressMovedError` from a transfer, when a tensor was resized.
        """
        self._enter()
        return self._registrar.register_tensors(
            "register_cache_tensors",
            tensors,
            is_blocks=False,
            keys=cache_keys,
            remote_accessible=remote_accessible,
            batch_dim_index=batch_dim_index,
            seq_len_dim_index=seq_len_dim_index,
        )

    def register_blocks_tensors(
        self,
        tensors: Sequence[object],
        *,
        blocks_cache_key: BlocksCacheKey | None = None,
        remote_accessible: bool | None = None,
    ) -> Cache:
        """Register tensors as a paged cache; they are kept alive until it is unregistered.

        Args:
            tensors: As in `register_cache_tensors`; the first dimension is the number of blocks.
            blocks_cache_key: As in `register_blocks_cache`.
            remote_accessible: As in `register_blocks_cache`.

        Raises:
            As `register_cache_tensors`.
        """
        self._enter()
        return self._registrar.register_tensors(
            "register_blocks_tensors",
            tensors,
            is_blocks=True,
            blocks_key=blocks_cache_key,
            remote_accessible=remote_accessible,
        )

    def unregister_cache(self, cache_id: int | Cache | LayersCache, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Unregister a cache, after every peer has stopped using it. Afterwards its memory may be freed.

        Args:
            cache_id: `Cache.cache_id` or `LayersCache.cache_id`, or the cache itself.
            timeout: Seconds to wait for transfers that run. A peer that does not answer counts as gone after 20 s.

        Raises:
            CacheNotFoundError: It is not registered.
            CacheValueError: The manager allocated it; `deallocate_cache` or `deallocate_blocks_cache` is for those.
            CacheBusyError: It is still in use at the deadline. The memory stays registered, new transfers are
                refused, and the call can be repeated.
            StillReachableError: An engine cannot make the memory unreachable; the same holds.
        """
        self._enter()
        deadline = arguments.deadline("timeout", timeout)
        given = cache_id.cache_id if isinstance(cache_id, Cache | LayersCache) else cache_id
        number = arguments.integer("cache_id", given, -(2**63), 2**64 - 1)
        registered = self._registry.by_id(number)
        if given is not cache_id and registered.cache is not cache_id:
            raise CacheNotFoundError(f"cache_id is {cache_id!r}, which is another manager's cache")
        if registered.allocation is not None:
            right = "deallocate_blocks_cache" if registered.shape.is_blocks else "deallocate_cache"
            raise CacheValueError(
                f"cache_id is {number}, which names {registered.cache!r}: its memory is the manager's, use {right}"
            )
        with self._retirement.retired([registered], deadline) as caches:
            if not caches:
                raise CacheNotFoundError(f"cache_id is {number}, which another thread has just unregistered")
            self._registry.remove(caches[0])
        self._listeners.send(Event("unregistered", self._cluster_id, cache_id=number))
