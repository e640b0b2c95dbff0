"""How a cache is laid out, seen the same way for a cache of this manager and for a peer's: what planning needs."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from cachecore.errors import CacheIncompatibleError
from cachecore.planning import Geometry
from cachecore.types import DataType, Placement

__all__ = ["CacheShape"]


class CacheShape:
    """Layout of one cache: `num_tensors` tensors of one shape at `bases`.

    Args:
        owner: Who it belongs to, for messages.
        bases: Start addresses, native uint64.
        shape: Dimensions of one tensor.
        data_type: Element type.
        placement: Where it is.
        batch_dim: Dimension that counts batch entries.
        is_blocks: Whether the first dimension counts blocks.
    """

    def __init__(
        self,
        owner: str,
        bases: memoryview,
        shape: Sequence[int],
        data_type: DataType,
        placement: Placement,
        batch_dim: int,
        is_blocks: bool,
    ) -> None:
        self.owner = owner
        self.bases = bases
        self.num_tensors = len(bases)
        self.shape = tuple(shape)
        self.data_type = data_type
        self.placement = placement
        self.batch_dim = batch_dim
        self.is_blocks = is_blocks
        self.tensor_bytes = math.prod(self.shape) * data_type.itemsize
        self.block_bytes = self.tensor_bytes // self.shape[0]

    @functools.cached_property
    def blocks(self) -> Geometry:
        """The tensors as blocks."""
        return Geometry(
            self.bases,
            blocks=self.shape[0],
            block_bytes=self.block_bytes,
            block_stride=self.block_bytes,
            offset=0,
            tensor_bytes=self.tensor_bytes,
        )

    @functools.cached_property
    def entries(self) -> Geometry:
        """The tensors as batch entries.

        Raises:
            CacheIncompatibleError: The entries are not contiguous, because a dimension before the batch one is above 1.
        """
        if math.prod(self.shape[: self.batch_dim]) != 1:
            raise CacheIncompatibleError(
                f"{self.owner} has shape {list(self.shape)} with batch_dim_index {self.batch_dim}: its batch entries "
                "are not contiguous; only a batch dimension with nothing but 1 before it can be moved by entry"
            )
        count = self.shape[self.batch_dim]
        entry = self.tensor_bytes // count
        return Geometry(
            self.bases, blocks=count, block_bytes=entry, block_stride=entry, offset=0, tensor_bytes=self.tensor_bytes
        )
