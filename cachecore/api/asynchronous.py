"""Pulls and pushes that return at once, with a handle to wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachecore import _arguments as arguments
from cachecore.api.base import DEFAULT_TIMEOUT, ManagerParts
from cachecore.layers import LayersCache
from cachecore.leases import BlockLease
from cachecore.transfers.handles import Transfer
from cachecore.transfers.matching import layer_ranges
from cachecore.transfers.requests import Request, frozen
from cachecore.types import BlocksCacheKey, Cache, CacheKey, CacheKeyByIdAndIndex

__all__ = ["AsynchronousMethods"]


class AsynchronousMethods(ManagerParts):
    """`pull_blocks_async`, `pull_cache_async`, `push_blocks_async` and `push_cache_async`.

    Each takes what the call without `_async` takes, checks it and raises what is wrong with it before it returns; what
    the caller gave may be changed afterwards. The deadline runs from the call on, also while the transfer waits for one
    of the threads that move (option "manager.transfer_threads"). With `layerwise=True` the transfer goes layer by layer,
    so that `Transfer.wait_layer` can tell of each.
    """

    def pull_blocks_async(
        self,
        src_cache_key: BlocksCacheKey | CacheKey | CacheKeyByIdAndIndex,
        dst_cache: Cache | LayersCache,
        src_blocks: Any = (),
        dst_blocks: Any = (),
        *,
        src_layer_range: range | None = None,
        dst_layer_range: range | None = None,
        tensor_num_per_layer: int = 2,
        layers: Sequence[str] | None = None,
        src_slice: Any = None,
        dst_slice: Any = None,
        lease: BlockLease | None = None,
        after: object = None,
        layerwise: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Transfer:
        """Start a `pull_blocks`.

        Args:
            src_cache_key: As in `pull_blocks`, like all that is not listed here.
            dst_cache: As in `pull_blocks`.
            src_blocks: As in `pull_blocks`.
            dst_blocks: As in `pull_blocks`.
            src_layer_range: As in `pull_blocks`.
            dst_layer_range: As in `pull_blocks`.
            tensor_num_per_layer: As in `pull_blocks`.
            layers: As in `pull_blocks`.
            src_slice: As in `pull_blocks`.
            dst_slice: As in `pull_blocks`.
            lease: As in `pull_blocks`. Presented when the transfer starts, not while it waits for a thread.
            after: As in `pull_blocks`; waited for by the thread that moves.
            layerwise: Move layer by layer, in the order of the layers.
            timeout: Seconds from this call on until the transfer gives up.

        Returns:
            The transfer.

        Raises:
            MissingArgumentError, CacheTypeError, CacheValueError, CacheIncompatibleError, OverlapError, NotLinkedError,
                CacheNotFoundError, AddressMovedError: As `pull_blocks`; nothing was started. All else is raised by the
                transfer's `wait`.
        """
        self._enter()
        request = self._pulls.pull_blocks(
            src_cache_key,
            dst_cache,
            frozen(src_blocks),
            frozen(dst_blocks),
            layer_ranges(src_layer_range, dst_layer_range, tensor_num_per_layer),
            arguments.deadline("timeout", timeout),
            layers=layers,
            src_slice=src_slice,
            dst_slice=dst_slice,
            lease=lease,
        )
        return self._started(request, after, layerwise)

    def pull_cache_async(
        self,
        cache_key: CacheKey | CacheKeyByIdAndIndex,
        cache: Cache,
        batch_index: int = 0,
        size: int = -1,
        *,
        src_layer_range: range | None = None,
        dst_layer_range: range | None = None,
        tensor_num_per_layer: int = 2,
        after: object = None,
        layerwise: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Transfer:
        """Start a `pull_cache`; see there and `pull_blocks_async` for the arguments and what is raised."""
        self._enter()
        request = self._pulls.pull_cache(
            cache_key,
            cache,
            batch_index,
            size,
            layer_ranges(src_layer_range, dst_layer_range, tensor_num_per_layer),
            arguments.deadline("timeout", timeout),
        )
        return self._started(request, after, layerwise)

    def push_blocks_async(
        self,
        dst_cache_key: BlocksCacheKey | CacheKeyByIdAndIndex,
        src_cache: Cache | LayersCache,
        src_blocks: Any = (),
        dst_blocks: Any = (),
        src_layer_range: range | None = None,
        dst_layer_range: range | None = None,
        tensor_num_per_layer: int = 2,
        *,
        layers: Sequence[str] | None = None,
        src_slice: Any = None,
        dst_slice: Any = None,
        after: object = None,
        layerwise: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Transfer:
        """Start a `push_blocks`; see there and `pull_blocks_async` for the arguments and what is raised."""
        self._enter()
        request = self._pushes.push_blocks(
            dst_cache_key,
            src_cache,
            frozen(src_blocks),
            frozen(dst_blocks),
            layer_ranges(src_layer_range, dst_layer_range, tensor_num_per_layer),
            arguments.deadline("timeout", timeout),
            layers=layers,
            src_slice=src_slice,
            dst_slice=dst_slice,
        )
        return self._started(request, after, layerwise)

    def push_cache_async(
        self,
        dst_cache_key: CacheKeyByIdAndIndex | CacheKey,
        src_cache: Cache,
        src_batch_index: int = 0,
        src_layer_range: range | None = None,
        dst_layer_range: range | None = None,
        size: int = -1,
        tensor_num_per_layer: int = 2,
        *,
        after: object = None,
        layerwise: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Transfer:
        """Start a `push_cache`; see there and `pull_blocks_async` for the arguments and what is raised."""
        self._enter()
        request = self._pushes.push_cache(
            dst_cache_key,
            src_cache,
            src_batch_index,
            size,
            layer_ranges(src_layer_range, dst_layer_range, tensor_num_per_layer),
            arguments.deadline("timeout", timeout),
        )
        return self._started(request, after, layerwise)

    def _started(self, request: Request, after: object, layerwise: bool) -> Transfer:
        transfer = Transfer(self._transfers, request, after, arguments.boolean("layerwise", layerwise))
        transfer.start(self._pool)
        return transfer
