"""Writing blocks and entries into a peer's caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachecore import _arguments as arguments
from cachecore.api.base import DEFAULT_TIMEOUT, ManagerParts
from cachecore.layers import LayersCache
from cachecore.transfers.matching import layer_ranges
from cachecore.types import BlocksCacheKey, Cache, CacheKey, CacheKeyByIdAndIndex

__all__ = ["PushingMethods"]


class PushingMethods(ManagerParts):
    """`push_blocks` and `push_cache`."""

    def push_blocks(
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
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """Write blocks of a cache of this manager into a paged cache of a peer, or of this manager.

        Args:
            dst_cache_key: Names the destination: its BlocksCacheKey, or its id with `batch_index` 0.
            src_cache: A registered paged cache of this manager.
            src_blocks: Block ids: list, tuple, range, integer array, memoryview or CPU tensor.
            dst_blocks: The same, as many, without repeats: block `src_blocks[i]` goes to block `dst_blocks[i]`.
            src_layer_range: Layers of the source, None = all; range(first, last) with step 1.
            dst_layer_range: Layers of the destination, as many.
            tensor_num_per_layer: Tensors of one layer: 2 for K and V, 1 for a joint latent.
            layers: Names of the layers, for caches of `register_layers`; None = all of the side that holds fewer.
            src_slice: Bytes inside each source block, see `pull_blocks`; None = the whole block.
            dst_slice: The same for destination blocks; both sides name as many bytes a block.
            after: An event, or a list of events, of the device: nothing moves before they have happened.
            timeout: Seconds until it gives up.

        Raises:
            MissingArgumentError, CacheTypeError, CacheValueError, CacheIncompatibleError, OverlapError: A bad
                argument; nothing moved.
            NotLinkedError, CacheNotFoundError: No such link, key or cache; nothing moved.
            NotSupportedError: Memory that the link's engine does not move, or an event that the driver does not know.
            AddressMovedError, CacheBusyError: A registered tensor moved; blocks are quarantined. Nothing moved.
            CacheTimeoutError: The peer did not confirm in time that it knows of writes; nothing moved.
            LinkLostError, TransferTimeoutError, TransferError: It started and did not finish; the error says which
                blocks of the destination landed and which are unknown, with tensor indexes of `src_cache`.
        """
        self._enter()
        request = self._pushes.push_blocks(
            dst_cache_key,
            src_cache,
            src_blocks,
            dst_blocks,
            layer_ranges(src_layer_range, dst_layer_range, tensor_num_per_layer),
            arguments.deadline("timeout", timeout),
            layers=layers,
            src_slice=src_slice,
            dst_slice=dst_slice,
        )
        self._transfers.run(request, after=after)

    def push_cache(
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
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """Write one batch entry of a contiguous cache of this manager into one of a peer's contiguous cache.

        Args:
            dst_cache_key: Names the entry that is written.
            src_cache: A registered contiguous cache of this manager.
            src_batch_index: Its batch entry.
            src_layer_range: As in `push_blocks`.
            dst_layer_range: As in `push_blocks`.
            size: Bytes of each tensor's entry to move, from its start; -1 = the whole source entry. What the
                destination entry has no room for is refused.
            tensor_num_per_layer: As in `push_blocks`.
            after: As in `push_blocks`.
            timeout: Seconds until it gives up.

        Raises:
            As `push_blocks`.
        """
        self._enter()
        request = self._pushes.push_cache(
            dst_cache_key,
            src_cache,
            src_batch_index,
            size,
            layer_ranges(src_layer_range, dst_layer_range, tensor_num_per_layer),
            arguments.deadline("timeout", timeout),
        )
        self._transfers.run(request, after=after)
