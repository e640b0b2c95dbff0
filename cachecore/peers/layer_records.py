"""What an owner tells its readers about the tensors of a cache of named layers.

There may be hundreds of tensors of a few kinds: numbers are packed little-endian, kinds are told once.
"""

from __future__ import annotations

import sys
from array import array
from typing import Annotated

import msgspec

from cachecore.layers import MAX_LAYER_TENSORS, MAX_LAYERS, MAX_NAME
from cachecore.shape import BlockKind, LayersShape
from cachecore.types import MAX_RANK, DataType, Placement

__all__ = ["KindRecord", "LayersRecord", "layers_record"]

_Dimension = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
_Group = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
_Numbers32 = Annotated[bytes, msgspec.Meta(max_length=4 * MAX_LAYER_TENSORS)]
_Numbers64 = Annotated[bytes, msgspec.Meta(max_length=8 * MAX_LAYER_TENSORS)]


class KindRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """What the blocks of some tensors look like.

    Attributes:
        data_type: Element type.
        shape: Dimensions of one block; none where a block is one element.
        stride: Bytes from the start of one block to the start of the next.
    """

    data_type: DataType
    shape: Annotated[tuple[_Dimension, ...], msgspec.Meta(max_length=MAX_RANK - 1)]
    stride: _Dimension

    def __post_init__(self) -> None:
        if self.data_type.itemsize == 0:
            raise ValueError(f"data type {self.data_type.name} has no fixed size")
        if self.stride < self.kind.nbytes:
            raise ValueError(f"blocks of {self.kind.nbytes} bytes every {self.stride} bytes")

    @property
    def kind(self) -> BlockKind:
        """The same for `LayersShape`."""
        return BlockKind(self.data_type, self.shape, self.stride)


class LayersRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tensors of a cache of named layers.

    Attributes:
        group: Name of its block list.
        num_blocks: Blocks of every tensor.
        names: Of the layers, in the order of the tensors.
        counts: Tensors of each layer, uint32.
        addrs: Address of block 0 of each tensor at the owner, layer by layer, uint64.
        kinds: What blocks look like.
        kind_of: Which of `kinds` each tensor is, uint32.
    """

    group: _Group
    num_blocks: _Dimension
    names: Annotated[tuple[_Name, ...], msgspec.Meta(min_length=1, max_length=MAX_LAYERS)]
    counts: _Numbers32
    addrs: _Numbers64
    kinds: Annotated[tuple[KindRecord, ...], msgspec.Meta(min_length=1, max_length=MAX_LAYER_TENSORS)]
    kind_of: _Numbers32

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names):
            raise ValueError("two layers have the same name")
        if len(self.counts) != 4 * len(self.names):
            raise ValueError(f"{len(self.counts)} bytes of counts for {len(self.names)} layers")
        counts = _unpacked("I", self.counts)
        if 0 in counts or sum(counts) > MAX_LAYER_TENSORS:
            raise ValueError(f"a layer without a tensor, or more than {MAX_LAYER_TENSORS} tensors")
        if len(self.addrs) != 8 * sum(counts) or len(self.kind_of) != 4 * sum(counts):
            raise ValueError(f"{len(self.addrs)} and {len(self.kind_of)} bytes for {sum(counts)} tensors")
        if max(_unpacked("I", self.kind_of)) >= len(self.kinds):
            raise ValueError(f"a tensor of kind {max(_unpacked('I', self.kind_of))} of {len(self.kinds)}")
        for address, nbytes in self.ranges:
            if not address or address + nbytes > 2**64:
                raise ValueError(f"a tensor of {nbytes} bytes at {address:#x} is not within the address space")

    @property
    def num_tensors(self) -> int:
        """Tensors of all layers."""
        return len(self.addrs) // 8

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """(address, bytes from its first to its last byte) of each tensor."""
        spans = [kind.kind.span(self.num_blocks) for kind in self.kinds]
        kind_of = _unpacked("I", self.kind_of)
        return tuple(zip(_unpacked("Q", self.addrs), (spans[kind] for kind in kind_of), strict=True))

    def shape(self, owner: str, placement: Placement) -> LayersShape:
        """The layout, as planning sees it."""
        return LayersShape(
            owner,
            self.group,
            placement,
            self.num_blocks,
            self.names,
            _unpacked("I", self.counts),
            _unpacked("Q", self.addrs),
            [kind.kind for kind in self.kinds],
            _unpacked("I", self.kind_of),
        )


def layers_record(shape: LayersShape) -> LayersRecord:
    """The record of a layout."""
    return LayersRecord(
        shape.group,
        shape.num_blocks,
        shape.layer_names,
        _packed("I", [len(shape.tensors(layer)) for layer in range(len(shape.layer_names))]),
        _packed("Q", shape.addrs),
        tuple(KindRecord(*kind) for kind in shape.kinds),
        _packed("I", shape.kind_of),
    )


def _packed(code: str, numbers: list[int] | tuple[int, ...]) -> bytes:
    return _little_endian(array(code, numbers)).tobytes()


def _unpacked(code: str, data: bytes) -> list[int]:
    return _little_endian(array(code, data)).tolist()


def _little_endian(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
