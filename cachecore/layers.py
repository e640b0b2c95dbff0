"""Caches of `register_layers`: what a caller gives for memory of which it has only addresses, and what it gets back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cachecore import _arguments as arguments
from cachecore.errors import CacheValueError
from cachecore.types import MAX_RANK, BlocksCacheKey, DataType, Placement

__all__ = ["MAX_LAYERS", "MAX_LAYER_TENSORS", "MAX_NAME", "LayerTensor", "LayersCache", "TensorSpec"]

#: Longest name of a layer or a group, in characters.
MAX_NAME: Final = 200
#: Most layers of one cache.
MAX_LAYERS: Final = 8192
#: Most tensors of one cache.
MAX_LAYER_TENSORS: Final = 32768


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of which the caller has the address and not the object. Not owned: the caller keeps the memory.

    Args:
        address: Of its first element.
        shape: 1 to 32 dimensions, each above 0; the first one counts blocks.
        strides_bytes: Bytes from one index to the next in each dimension; None = C-contiguous.
        data_type: Element type; DT_STRING is refused.
        placement: Where the memory is.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: A field is None, of another type, or out of range.
    """

    address: int
    shape: Sequence[int]
    strides_bytes: Sequence[int] | None
    data_type: DataType
    placement: Placement = Placement.DEVICE

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", arguments.integer("address", self.address, 1, 2**64 - 1))
        object.__setattr__(self, "shape", _integers("shape", self.shape, 1))
        if self.strides_bytes is not None:
            strides = _integers("strides_bytes", self.strides_bytes, -(2**63))
            if len(strides) != len(self.shape):
                raise CacheValueError(
                    f"strides_bytes has {len(strides)} strides and shape {len(self.shape)} dimensions; give one for each"
                )
            object.__setattr__(self, "strides_bytes", strides)
        arguments.member("data_type", self.data_type, DataType)
        arguments.member("placement", self.placement, Placement)
        if self.data_type is DataType.DT_STRING:
            raise CacheValueError("data_type is DT_STRING, which has no fixed size; use DT_UINT8 for raw bytes")


def _integers(name: str, values: object, low: int) -> tuple[int, ...]:
    arguments.not_none(name, values)
    if not isinstance(values, list | tuple):
        raise arguments.wrong_type(name, values, "a list or tuple of integers")
    if not 1 <= len(values) <= MAX_RANK:
        raise CacheValueError(f"{name} has {len(values)} dimensions; a tensor has 1 to {MAX_RANK}")
    return tuple(arguments.integer(f"{name}[{i}]", value, low, 2**63 - 1) for i, value in enumerate(values))


@dataclass(frozen=True)
class LayerTensor:
    """One tensor of a layer as it was registered.

    Attributes:
        address: Of block 0.
        shape: All dimensions; the first one counts blocks, the others are in the order of memory.
        data_type: Element type.
        block_bytes: Bytes of one block.
        block_stride: Bytes from the start of one block to the start of the next, at least `block_bytes`.
    """

    address: int
    shape: tuple[int, ...]
    data_type: DataType
    block_bytes: int
    block_stride: int


class LayersCache:
    """A cache of named layers. Made by `CacheManager.register_layers`, compared by identity.

    Paged: block b of the cache is block b of every tensor of every layer.

    Attributes:
        cache_id: Counts from 1 in each manager, over all caches, and is never used twice.
        group: Name of the block list it belongs to; a model with one block list has one group "".
        key: What peers find it by together with `group`; None for a cache that only its cache id finds.
        layer_names: Names in the order of registration.
        num_blocks: Blocks of every tensor.
        placement: Where the memory is.
        remote_accessible: Whether it takes part in transfers between processes.
        is_blocks_cache: True.
    """

    __slots__ = (
        "__weakref__",
        "_layers",
        "cache_id",
        "group",
        "key",
        "num_blocks",
        "placement",
        "remote_accessible",
    )
    is_blocks_cache = True

    def __init__(
        self,
        cache_id: int,
        key: BlocksCacheKey | None,
        group: str,
        placement: Placement,
        remote_accessible: bool,
        layers: Mapping[str, Sequence[LayerTensor]],
    ) -> None:
        self.cache_id = cache_id
        self.key = key
        self.group = group
        self.placement = placement
        self.remote_accessible = remote_accessible
        self._layers = {name: tuple(tensors) for name, tensors in layers.items()}
        self.num_blocks = next(iter(self._layers.values()))[0].shape[0]

    @property
    def layer_names(self) -> tuple[str, ...]:
        """Names in the order of registration."""
        return tuple(self._layers)

    @property
    def num_tensors(self) -> int:
        """Tensors of all layers."""
        return sum(map(len, self._layers.values()))

    @property
    def tensor_addrs(self) -> list[int]:
        """Address of each tensor, layer by layer, as a new list."""
        return [tensor.address for tensors in self._layers.values() for tensor in tensors]

    def describe(self, layer_name: str) -> tuple[LayerTensor, ...]:
        """The tensors of one layer.

        Raises:
            CacheTypeError, CacheValueError: There is no such layer.
        """
        arguments.instance("layer_name", layer_name, str)
        found = self._layers.get(layer_name)
        if found is None:
            raise CacheValueError(
                f"layer_name is {layer_name!r}; cache {self.cache_id} has {len(self._layers)} layers: "
                f"{', '.join(map(repr, list(self._layers)[:8]))}{', ...' if len(self._layers) > 8 else ''}"
            )
        return found

    def __repr__(self) -> str:
        group = f" group {self.group!r}" if self.group else ""
        return (
            f"<LayersCache {self.cache_id}{group} {len(self._layers)} layers, {self.num_tensors} tensors, "
            f"{self.num_blocks} blocks on {self.placement.name}>"
        )
