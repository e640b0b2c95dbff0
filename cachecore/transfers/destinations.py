"""From the configurations of `transfer_cache_async` to planned pushes, with bounds from the peer's catalogue."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from typing import Any

from cachecore.engine import Operation
from cachecore.errors import CacheIncompatibleError, CacheValueError
from cachecore.layerwise import TransferConfig, TransferWithCacheKeyConfig
from cachecore.planning import Geometry
from cachecore.registration.local_caches import Registered
from cachecore.shape import CacheShape, LayersShape
from cachecore.transfers.ends import End
from cachecore.transfers.finding import Ends
from cachecore.transfers.matching import (
    LayerRanges,
    Matched,
    UniformMatch,
    check_same_type,
    entries_of,
    match_uniform,
    uniform,
)
from cachecore.transfers.pushes import pushed_blocks, pushed_entry, pushed_entry_to_blocks
from cachecore.transfers.requests import Request
from cachecore.types import CacheKeyByIdAndIndex

__all__ = ["Destinations"]


class Destinations:
    """Plans the pushes of one `transfer_cache_async`.

    Args:
        ends: Of the manager.
        own: The source.
        tensors_per_layer: `tensor_num_per_layer`.
        src_blocks: `src_block_indices`; None unless the source is paged.
        dst_blocks: `dst_block_indices`; None unless the destinations are paged.
        block_bytes: `dst_block_memory_size`; None = not said.
        deadline: On `time.monotonic()`.
        count: How many configurations there are.

    Raises:
        CacheIncompatibleError, CacheValueError: Block lists do not go with the kind of the source.
    """

    def __init__(
        self,
        ends: Ends,
        own: Registered,
        tensors_per_layer: int,
        src_blocks: Any,
        dst_blocks: Any,
        block_bytes: int | None,
        deadline: float,
        count: int,
    ) -> None:
        self._ends, self._own, self._deadline = ends, own, deadline
        self._left = count
        self._found_by = deadline  # until when the owner of the next destination may be asked what it has
        if isinstance(own.shape, LayersShape):
            raise CacheIncompatibleError(
                f"src_cache is {own.shape.owner}, which was registered by register_layers; transfer_cache_async takes caches "
                "whose tensors are all alike. Send each layer with push_blocks_async(..., layers=[name], after=event)"
            )
        self._shape: CacheShape = own.shape
        self._per_layer = tensors_per_layer
        self._src_blocks, self._dst_blocks, self._block_bytes = src_blocks, dst_blocks, block_bytes
        if self._shape.is_blocks and (src_blocks is None or dst_blocks is None):
            raise CacheValueError(
                f"src_cache is {own.shape.owner}, which is paged; give src_block_indices and dst_block_indices, as many of "
                "each"
            )
        if not self._shape.is_blocks and src_blocks is not None:
            raise CacheValueError(
                f"src_block_indices is given and src_cache is {own.shape.owner}, which is contiguous; leave it out"
            )

    def request(self, config: TransferConfig | TransferWithCacheKeyConfig) -> tuple[Request, range]:
        """The push for one configuration, and the layers of the source that it moves.

        Raises:
            NotLinkedError, CacheNotFoundError, LinkLostError, CacheTimeoutError: The destination cannot be found.
            CacheValueError, CacheIncompatibleError, NotSupportedError: It cannot be what is meant.
        """
        # An owner that does not answer must leave time for the other destinations, and for the bytes.
        now = time.monotonic()
        self._found_by = now + (self._deadline - now) / (self._left + 1)
        self._left = max(1, self._left - 1)
        if self._shape.is_blocks and config.src_batch_index:
            raise CacheValueError(
                f"src_batch_index is {config.src_batch_index} and src_cache is {self._shape.owner}, which is paged; it must "
                "be 0"
            )
        if isinstance(config, TransferConfig):
            end, matched = self._by_addresses(config)
        else:
            end = self._ends.find(config.cache_key, self._own, self._found_by)
            ranges = LayerRanges(config.src_layer_range, config.dst_layer_range, self._per_layer)
            self._check_kind(end)
            local, remote = self._geometries(end)
            matched = match_uniform(self._shape, end.shape, local, remote, Operation.WRITE, ranges)
        self._check_block_bytes(end)
        first, count = LayerRanges(config.src_layer_range, None, self._per_layer).of_source(self._shape)
        layers = range(first // self._per_layer, (first + count) // self._per_layer)
        return self._planned(end, matched, config.src_batch_index), layers

    def _planned(self, end: End, matched: Matched, batch_index: int) -> Request:
        if self._shape.is_blocks:
            return pushed_blocks(
                end,
                self._own,
                matched,
                self._src_blocks,
                self._dst_blocks,
                self._deadline,
                "src_block_indices",
                "dst_block_indices",
            )
        if end.entry is None:
            return pushed_entry_to_blocks(
                end, self._own, matched, batch_index, self._dst_blocks, self._deadline, "dst_block_indices"
            )
        return pushed_entry(end, self._own, matched, batch_index, -1, self._deadline)

    def _check_kind(self, end: End) -> None:
        owner = end.shape.owner
        if end.entry is None and self._dst_blocks is None:
            raise CacheValueError(f"the destination {owner} is paged; give dst_block_indices")
        if end.entry is not None and self._shape.is_blocks:
            raise CacheIncompatibleError(
                f"src_cache is {self._shape.owner}, which is paged, and the destination {owner} is contiguous; blocks are "
                "sent to paged caches only"
            )
        if end.entry is not None and self._dst_blocks is not None:
            raise CacheValueError(f"dst_block_indices is given and the destination {owner} is contiguous; leave it out")

    def _check_block_bytes(self, end: End) -> None:
        if self._block_bytes is None:
            return
        if end.entry is not None:
            raise CacheValueError(
                f"dst_block_memory_size is {self._block_bytes} and the destination {end.shape.owner} is contiguous; leave "
                "it out"
            )
        have = uniform(end.shape).block_bytes
        if have != self._block_bytes:
            raise CacheIncompatibleError(
                f"dst_block_memory_size is {self._block_bytes} bytes and a block of the destination {end.shape.owner} has "
                f"{have}; leave it out, or give the right size"
            )

    def _geometries(self, end: End) -> tuple[Geometry, Geometry]:
        local = self._shape.blocks if self._shape.is_blocks else self._shape.entries
        return local, uniform(end.shape).blocks if end.entry is None else entries_of(end.shape)

    # --- destinations by address -------------------------------------------------------------------------------------

    def _by_addresses(self, config: TransferConfig) -> tuple[End, Matched]:
        ranges = LayerRanges(config.src_layer_range, None, self._per_layer)
        first, count = ranges.of_source(self._shape)
        addrs = config.dst_addrs
        if len(addrs) != count:
            raise CacheValueError(
                f"dst_addrs has {len(addrs)} addresses and {count // self._per_layer} layers with {self._per_layer} tensors "
                f"each are sent, which makes {count}; give one address for each tensor"
            )
        found = self._ends.find_addresses(config.dst_cluster_id, addrs, self._dst_blocks is not None, self._found_by)
        key = CacheKeyByIdAndIndex(config.dst_cluster_id, found.cache_id, found.entry)
        end = self._ends.find(key, self._own, self._found_by)
        check_same_type(self._shape, uniform(end.shape))
        self._check_kind(end)
        local, remote = self._geometries(end)
        chosen = _chosen(remote, found.tensors)
        return end, UniformMatch(local, chosen, first, 0, count, self._per_layer)


def _chosen(geometry: Geometry, tensors: Sequence[int]) -> Geometry:
    """Some tensors of a cache, in any order."""
    bases = geometry.bases
    return Geometry(
        memoryview(array("Q", [bases[tensor] for tensor in tensors])),
        blocks=geometry.blocks,
        block_bytes=geometry.block_bytes,
        block_stride=geometry.block_stride,
        offset=geometry.offset,
        tensor_bytes=geometry.tensor_bytes,
    )
