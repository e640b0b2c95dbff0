"""What a caller gives to `transfer_cache_async`: which destinations get a cache, and when each layer is ready."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass

from cachecore import _arguments as arguments
from cachecore.errors import CacheValueError
from cachecore.types import BlocksCacheKey, CacheKeyByIdAndIndex

__all__ = ["LayerSynchronizer", "TransferConfig", "TransferWithCacheKeyConfig"]


class LayerSynchronizer(abc.ABC):
    """Says when a layer of the source is computed and may be sent. Implemented by the caller."""

    @abc.abstractmethod
    def synchronize_layer(self, layer_index: int, timeout_in_millis: int | None) -> bool:
        """Wait until a layer of the source is ready.

        Called once for each layer that some destination wants, in ascending order, in a thread of its own.

        Args:
            layer_index: Layer of the source cache.
            timeout_in_millis: Milliseconds that are left of the whole transfer.

        Returns:
            Whether it is ready. False, or an exception, ends the destinations that still want this or a later layer.
        """


@dataclass(frozen=True)
class TransferConfig:
    """A destination by the addresses of its tensors.

    Args:
        dst_cluster_id: Whose memory.
        dst_addrs: For each tensor of each layer that is sent its destination: where a tensor of a remotely accessible
            cache of that cluster starts, or where a batch entry of it starts (all of them the same entry).
        src_layer_range: Layers of the source, None = all; range(first, last) with step 1.
        src_batch_index: Batch entry of a contiguous source; 0 for a paged one.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: A field is None, of another type, or out of range.
    """

    dst_cluster_id: int
    dst_addrs: Sequence[int]
    src_layer_range: range | None = None
    src_batch_index: int = 0

    def __post_init__(self) -> None:
        cluster_id = arguments.integer("dst_cluster_id", self.dst_cluster_id, 0, 2**64 - 1)
        arguments.not_none("dst_addrs", self.dst_addrs)
        if not isinstance(self.dst_addrs, list | tuple):
            raise arguments.wrong_type("dst_addrs", self.dst_addrs, "a list of integer addresses")
        if not self.dst_addrs:
            raise CacheValueError("dst_addrs is empty; give one address for each tensor of each layer")
        checked = tuple(
            arguments.integer(f"dst_addrs[{index}]", item, 1, 2**64 - 1) for index, item in enumerate(self.dst_addrs)
        )
        object.__setattr__(self, "dst_cluster_id", cluster_id)
        object.__setattr__(self, "dst_addrs", checked)
        _check_range("src_layer_range", self.src_layer_range)
        index = arguments.integer("src_batch_index", self.src_batch_index, 0, 2**32 - 1)
        object.__setattr__(self, "src_batch_index", index)


@dataclass(frozen=True)
class TransferWithCacheKeyConfig:
    """A destination by its key.

    Args:
        cache_key: Names it: a paged cache by its key or its id, or one entry of a contiguous cache by id and index.
        src_layer_range: Layers of the source, None = all; range(first, last) with step 1.
        dst_layer_range: Layers of the destination, as many; layer `src_layer_range[i]` goes to `dst_layer_range[i]`.
        src_batch_index: Batch entry of a contiguous source; 0 for a paged one.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: A field is None, of another type, or out of range.
    """

    cache_key: BlocksCacheKey | CacheKeyByIdAndIndex
    src_layer_range: range | None = None
    dst_layer_range: range | None = None
    src_batch_index: int = 0

    def __post_init__(self) -> None:
        arguments.instance("cache_key", self.cache_key, (BlocksCacheKey, CacheKeyByIdAndIndex))
        _check_range("src_layer_range", self.src_layer_range)
        _check_range("dst_layer_range", self.dst_layer_range)
        index = arguments.integer("src_batch_index", self.src_batch_index, 0, 2**32 - 1)
        object.__setattr__(self, "src_batch_index", index)


def _check_range(name: str, value: object) -> None:
    if value is not None and not isinstance(value, range):
        raise arguments.wrong_type(name, value, "a range of layers, for example range(0, 4)")
