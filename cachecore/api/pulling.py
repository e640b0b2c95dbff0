"""Reading blocks and entries of a peer's caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachecore import _arguments as arguments
from cachecore.api.base import DEFAULT_TIMEOUT, ManagerParts
from cachecore.leases import BlockLease
from cachecore.transfers.matching import layer_ranges
from cachecore.types import BlocksCacheKey, Cache, CacheKey, CacheKeyByIdAndIndex

__all__ = ["PullingMethods"]


class PullingMethods(ManagerParts):
    """`pull_blocks` and `pull_cache`."""

    def pull_blocks(
        self,
        src_cache_key: BlocksCacheKey | CacheKey | CacheKeyByIdAndIndex,
        dst_cache: Cache,
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
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """Read blocks of a peer's cache, or of another cache of this manager, into a paged cache.

        Args:
            src_cache_key: With a BlocksCacheKey block `src_blocks[i]` goes to block `dst_blocks[i]`. With another
                key the source is one contiguous entry: `dst_blocks[i]` takes its bytes [i * block, (i + 1) * block).
            dst_cache: A registered blocks cache of this manager.
            src_blocks: Block ids: list, tuple, range, integer array, memoryview or CPU tensor.
            dst_blocks: The same, without repeats.
            src_layer_range: Layers of the source, None = all; range(first, last) with step 1.
            dst_layer_range: Layers of the destination, as many.
            tensor_num_per_layer: Tensors of one layer: 2 for K and V, 1 for a joint latent.
            layers: Names of the layers, for caches of `register_layers`; None = all of the side that holds fewer.
            src_slice: Bytes inside each source block: (offset, nbytes), (offset, nbytes, count, stride) or a
                `BlockSlice`, or a list with one for each tensor of a layer; None = the whole block.
            dst_slice: The same for destination blocks; both sides name as many bytes a block.
            lease: What the owner's `lease` returned for the source blocks: it keeps them until the pull has ended.
            after: An event, or a list of events, of the device: nothing moves before they have happened.
            timeout: Seconds until it gives up.

        Raises:
            MissingArgumentError, CacheTypeError, CacheValueError, CacheIncompatibleError, OverlapError: A bad
                argument; nothing moved.
            NotLinkedError, CacheNotFoundError: No such link, key or cache; nothing moved.
            LeaseExpiredError: The owner does not keep the blocks of the lease any more; nothing moved.
            NotSupportedError: Memory that the link's engine does not move, or an event that the driver does not know.
            AddressMovedError, CacheBusyError: A registered tensor moved; blocks are quarantined. Nothing moved.
            LinkLostError, TransferTimeoutError, TransferError: It started and did not finish; the error says which
                blocks landed and which are unknown.
        """
        self._enter()
        request = self._pulls.pull_blocks(
            src_cache_key,
            dst_cache,
            src_blocks,
            dst_blocks,
            layer_ranges(src_layer_range, dst_layer_range, tensor_num_per_layer),
            arguments.deadline("timeout", timeout),
            layers=layers,
            src_slice=src_slice,
            dst_slice=dst_slice,
            lease=lease,
        )
        self._transfers.run(request, after=after)

    def pull_cache(
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
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """Read one batch entry of a peer's contiguous cache into one of a contiguous cache of this manager.

        Args:
            cache_key: Names the entry.
            cache: A registered contiguous cache of this manager.
            batch_index: Its batch entry that is written.
            size: Bytes of each tensor's entry to move, from its start; -1 = the whole source entry.
            src_layer_range: As in `pull_blocks`.
            dst_layer_range: As in `pull_blocks`.
            tensor_num_per_layer: As in `pull_blocks`.
            after: As in `pull_blocks`.
            timeout: Seconds until it gives up.

        Raises:
            As `pull_blocks`.
        """
        self._enter()
        request = self._pulls.pull_cache(
            cache_key,
            cache,
            batch_index,
            size,
            layer_ranges(src_layer_range, dst_layer_range, tensor_num_per_layer),
            arguments.deadline("timeout", timeout),
        )
        self._transfers.run(request, after=after)
