"""What a caller gives to `register_layers`, looked at tensor by tensor: views, blocks, and what they have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cachecore import _arguments as arguments
from cachecore import tensors
from cachecore.errors import CacheIncompatibleError, CacheValueError
from cachecore.layers import MAX_LAYER_TENSORS, MAX_LAYERS, MAX_NAME, LayerTensor
from cachecore.shape import BlockKind, LayersShape
from cachecore.tensors import TensorView
from cachecore.types import MAX_RANK, Placement

__all__ = ["GivenLayers", "block_shape", "block_stride", "check_group", "look_at_layers"]


@dataclass(frozen=True)
class GivenLayers:
    """The tensors of one call.

    Attributes:
        names: Of the layers.
        counts: Tensors of each layer.
        views: All tensors, layer by layer.
        kinds: What blocks look like.
        kind_of: Which of `kinds` each tensor is.
        num_blocks: Blocks of every tensor.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]
    views: tuple[TensorView, ...]
    kinds: tuple[BlockKind, ...]
    kind_of: tuple[int, ...]
    num_blocks: int

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """(address, bytes from its first to its last byte) of each tensor."""
        spans = [kind.span(self.num_blocks) for kind in self.kinds]
        return tuple((view.address, spans[kind]) for view, kind in zip(self.views, self.kind_of, strict=True))

    def shape(self, owner: str, group: str, placement: Placement) -> LayersShape:
        """The layout, as planning sees it."""
        addrs = [view.address for view in self.views]
        return LayersShape(
            owner, group, placement, self.num_blocks, self.names, self.counts, addrs, self.kinds, self.kind_of
        )

    def described(self) -> dict[str, tuple[LayerTensor, ...]]:
        """The tensors of each layer, for the caller."""
        found = [
            LayerTensor(view.address, (self.num_blocks, *kind.shape), kind.data_type, kind.nbytes, kind.stride)
            for view, kind in zip(self.views, (self.kinds[number] for number in self.kind_of), strict=True)
        ]
        rest = iter(found)
        return {
            name: tuple(next(rest) for _ in range(count)) for name, count in zip(self.names, self.counts, strict=True)
        }


def check_group(group: object) -> str:
    """The name of a group of layers.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: None; no text; too long, or not to be encoded.
    """
    arguments.instance("group", group, str)
    assert isinstance(group, str)
    if len(group) > MAX_NAME:
        raise CacheValueError(f"group is {group[:40]!r}... with {len(group)} characters; it has at most {MAX_NAME}")
    _check_encodable("group", group)
    return group


def look_at_layers(layers: object) -> GivenLayers:
    """Look at every tensor of `layers`.

    Args:
        layers: Names to lists of tensors. The tensors of one layer and of different layers may differ in everything
            but the first dimension, which counts blocks.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: Naming layer and tensor.
        CacheIncompatibleError: Two tensors have different numbers of blocks.
    """
    arguments.not_none("layers", layers)
    if not isinstance(layers, Mapping):
        raise arguments.wrong_type("layers", layers, "a mapping of layer names to lists of tensors")
    if not 1 <= len(layers) <= MAX_LAYERS:
        raise CacheValueError(f"layers has {len(layers)} layers; a cache has 1 to {MAX_LAYERS}")
    views: list[TensorView] = []
    kinds: dict[BlockKind, int] = {}
    kind_of: list[int] = []
    counts: list[int] = []
    for name, given in layers.items():
        where = _check_layer(name, given)
        counts.append(len(given))
        if len(views) + len(given) > MAX_LAYER_TENSORS:
            raise CacheValueError(f"layers has more than {MAX_LAYER_TENSORS} tensors; use several groups")
        for index, tensor in enumerate(given):
            view = tensors.look(f"{where}[{index}]", tensor)
            kind = _kind(view)
            if views and view.shape[0] != views[0].shape[0]:
                raise CacheIncompatibleError(
                    f"{view.name} has {view.shape[0]} blocks (shape {list(view.shape)}) and {views[0].name} has "
                    f"{views[0].shape[0]}; a group has one block list, so that all its tensors have as many blocks: "
                    "register layers with another number of blocks with another group"
                )
            views.append(view)
            kind_of.append(kinds.setdefault(kind, len(kinds)))
    return GivenLayers(tuple(layers), tuple(counts), tuple(views), tuple(kinds), tuple(kind_of), views[0].shape[0])


def _check_layer(name: object, given: object) -> str:
    arguments.instance("a name in layers", name, str)
    assert isinstance(name, str)
    if not 1 <= len(name) <= MAX_NAME:
        raise CacheValueError(f"a layer has the name {name[:40]!r} of {len(name)} characters; it has 1 to {MAX_NAME}")
    _check_encodable("a name in layers", name)
    where = f"layers[{name!r}]"
    arguments.not_none(where, given)
    if not isinstance(given, list | tuple):
        raise arguments.wrong_type(where, given, "a list or tuple of tensors")
    if not given:
        raise CacheValueError(f"{where} is empty; a layer has at least one tensor")
    return where


def _check_encodable(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CacheValueError(
            f"{what} is {text!r}, whose character {error.start} is half of a surrogate pair; peers are told names as UTF-8, "
            "which has no such character: leave it out"
        ) from None


def _kind(view: TensorView) -> BlockKind:
    if len(view.shape) > MAX_RANK:
        raise CacheValueError(
            f"{view.name} has {len(view.shape)} dimensions; a tensor has 1 to {MAX_RANK}: reshape it, the bytes of a block "
            "may have any shape"
        )
    block = block_shape(view.shape, view.strides)
    nbytes = math.prod(block) * view.data_type.itemsize
    stride = block_stride(view.name, view.shape, view.strides, view.data_type.itemsize)
    span = (view.shape[0] - 1) * stride + nbytes
    if view.address + span > 2**64:
        raise CacheValueError(
            f"{view.name} is at {view.address:#x}; its {span} bytes run past the end of the address space"
        )
    return BlockKind(view.data_type, block, stride)


def _in_memory_order(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> list[int]:
    """The dimensions of a block that have more than one index, outermost in memory first."""
    # The stride of a dimension of one index is never used, and may be anything.
    used = [dimension for dimension in range(1, len(shape)) if shape[dimension] != 1]
    return used if strides is None else sorted(used, key=lambda dimension: -abs(strides[dimension]))


def block_shape(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> tuple[int, ...]:
    """The dimensions of one block in the order of memory, such that views of the same bytes look alike.

    Engines show memory with heads first as [blocks, tokens, heads, dim]; what counts for a peer is where the bytes are.
    """
    order = iter(_in_memory_order(shape, strides))
    return tuple(1 if extent == 1 else shape[next(order)] for extent in shape[1:])


def block_stride(name: str, shape: tuple[int, ...], strides: tuple[int, ...] | None, itemsize: int) -> int:
    """Bytes from one block to the next, where each block is contiguous, in whatever order its dimensions are.

    Args:
        name: The tensor, for messages.
        shape: Its dimensions; the first one counts blocks.
        strides: Bytes from one index to the next in each dimension; None = C-contiguous.
        itemsize: Bytes of an element.

    Raises:
        CacheValueError: A block is not contiguous, or blocks overlap; the message says which stride is wrong.
    """
    expected = itemsize
    for dimension in reversed(_in_memory_order(shape, strides)):
        if strides is not None and strides[dimension] != expected:
            raise CacheValueError(
                f"{name} has a stride of {strides[dimension]} bytes in dimension {dimension} (shape {list(shape)}, strides "
                f"{list(strides)} bytes); within a block bytes must be contiguous, which is {expected} there. Register "
                "the parts that are contiguous as tensors of their own"
            )
        expected *= shape[dimension]
    if strides is None or shape[0] == 1:
        return expected
    if strides[0] < expected:
        raise CacheValueError(
            f"{name} has a stride of {strides[0]} bytes in dimension 0 (shape {list(shape)}, strides {list(strides)} "
            f"bytes); a block has {expected} bytes, and the next one starts behind it"
        )
    return strides[0]
