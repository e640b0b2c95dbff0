"""How a cache is laid out, seen the same way for a cache of this manager and for a peer's: what planning needs."""

from __future__ import annotations

import functools
import itertools
import math
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from cachecore.errors import CacheIncompatibleError
from cachecore.planning import Geometry
from cachecore.types import DataType, Placement

__all__ = ["BlockKind", "CacheShape", "LayersShape"]


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


class BlockKind(NamedTuple):
    """What the blocks of one tensor look like; hundreds of tensors share a few.

    Attributes:
        data_type: Element type.
        shape: Dimensions of one block.
        stride: Bytes from the start of one block to the start of the next.
    """

    data_type: DataType
    shape: tuple[int, ...]
    stride: int

    @property
    def nbytes(self) -> int:
        """Bytes of one block."""
        return math.prod(self.shape) * self.data_type.itemsize

    def span(self, blocks: int) -> int:
        """Bytes from the start of the first to the end of the last of so many blocks."""
        return (blocks - 1) * self.stride + self.nbytes


class LayersShape:
    """Layout of a cache of named layers, whose tensors may all be different.

    Args:
        owner: Who it belongs to, for messages.
        group: Name of its block list.
        placement: Where it is.
        num_blocks: Blocks of every tensor.
        layer_names: In the order of the tensors.
        counts: Tensors of each layer.
        addrs: Address of block 0 of each tensor, layer by layer.
        kinds: What blocks look like.
        kind_of: Which of `kinds` each tensor is.

    Attributes:
        starts: Position of the first tensor of each layer, and behind the last one the number of tensors.
        positions: Position of each layer by its name.
        bases: `addrs`, packed native uint64.
        matches: What was found to belong together with other caches, see `layouts.match`.
    """

    is_blocks = True

    def __init__(
        self,
        owner: str,
        group: str,
        placement: Placement,
        num_blocks: int,
        layer_names: Sequence[str],
        counts: Sequence[int],
        addrs: Sequence[int],
        kinds: Sequence[BlockKind],
        kind_of: Sequence[int],
    ) -> None:
        self.owner = owner
        self.group = group
        self.placement = placement
        self.num_blocks = num_blocks
        self.layer_names = tuple(layer_names)
        self.starts = tuple(itertools.accumulate(counts, initial=0))
        self.positions = {name: position for position, name in enumerate(self.layer_names)}
        self.addrs = tuple(addrs)
        self.bases = memoryview(array("Q", self.addrs)).toreadonly()
        self.kinds = tuple(kinds)
        self.kind_of = tuple(kind_of)
        self.matches: dict[object, object] = {}

    @property
    def num_tensors(self) -> int:
        """Tensors of all layers."""
        return len(self.addrs)

    def tensors(self, layer: int) -> range:
        """Positions of the tensors of a layer."""
        return range(self.starts[layer], self.starts[layer + 1])

    def kind(self, tensor: int) -> BlockKind:
        """What the blocks of a tensor look like."""
        return self.kinds[self.kind_of[tensor]]

    def geometry(self, kind: BlockKind, tensors: Sequence[int]) -> Geometry:
        """The blocks of tensors that are all of one kind."""
        return Geometry(
            array("Q", [self.addrs[tensor] for tensor in tensors]).tobytes(),
            blocks=self.num_blocks,
            block_bytes=kind.nbytes,
            block_stride=kind.stride,
        )
