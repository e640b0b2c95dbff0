"""Which tensors of two caches belong together: layers of both sides, and the part of each block that moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from cachecore import _arguments as arguments
from cachecore import slices
from cachecore.engine import Operation
from cachecore.errors import CacheIncompatibleError, CacheValueError
from cachecore.planning import Geometry, Part
from cachecore.registration import rules
from cachecore.shape import CacheShape, LayersShape
from cachecore.slices import BlockSlice
from cachecore.transfers import layouts

if TYPE_CHECKING:
    from cachecore.transfers.ends import End

__all__ = [
    "LayerRanges",
    "Matched",
    "UniformMatch",
    "check_same_type",
    "entries_of",
    "layer_ranges",
    "match_blocks",
    "match_uniform",
    "uniform",
]

#: Most matches that are remembered for two caches; a connector makes the same few again and again.
_REMEMBERED: Final = 32


class Matched(Protocol):
    """Tensors of the caller's cache (local) and of the other end (remote), paired."""

    @property
    def parts(self) -> Sequence[Part]:
        """All layers, tensors of equal geometry together."""

    @property
    def names(self) -> Sequence[object]:
        """The layers: their names, where they have some, else their indexes in the caller's cache."""

    @property
    def tensor_indexes(self) -> Sequence[int]:
        """Index in the caller's cache of each pair of a plan over `parts`."""

    def layer_parts(self, layer: int) -> Sequence[Part]:
        """The same for one layer, counted from 0 among those that move."""

    def layer_tensor_indexes(self, layer: int) -> Sequence[int]:
        """Index in the caller's cache of each pair of a plan over `layer_parts(layer)`."""


class LayerRanges(NamedTuple):
    """The layers a transfer moves, for caches whose tensors are all alike. Made by `layer_ranges`.

    Attributes:
        src: `src_layer_range`: None, or a range.
        dst: `dst_layer_range`, the same.
        tensors_per_layer: `tensor_num_per_layer`.
    """

    src: range | None
    dst: range | None
    tensors_per_layer: int

    def refuse_for(self, shape: LayersShape) -> None:
        """Refuse ranges of layers for a cache whose layers have names.

        Raises:
            CacheValueError: One was given.
        """
        for name, value in (("src_layer_range", self.src), ("dst_layer_range", self.dst)):
            if value is not None:
                raise CacheValueError(
                    f"{name} is {value!r:.80}; the layers of {shape.owner} have names, use layers=[...]"
                )

    def of_source(self, source: CacheShape) -> tuple[int, int]:
        """First tensor of the source, and how many.

        Raises:
            CacheValueError, CacheIncompatibleError: See `rules.check_layers`.
        """
        first, last = rules.check_layers(
            "src_layer_range", self.src, source.num_tensors, self.tensors_per_layer, side="source"
        )
        return first, last - first

    def tensors(self, source: CacheShape, target: CacheShape) -> tuple[int, int, int]:
        """First tensor of the source, first tensor of the target, and how many tensors of each.

        Raises:
            CacheTypeError, CacheValueError, CacheIncompatibleError: See `rules.check_layers`; or the two ranges have
                different lengths.
        """
        per_layer = self.tensors_per_layer
        src = rules.check_layers("src_layer_range", self.src, source.num_tensors, per_layer, side="source")
        dst = rules.check_layers("dst_layer_range", self.dst, target.num_tensors, per_layer, side="destination")
        count = src[1] - src[0]
        if count != dst[1] - dst[0]:
            raise CacheIncompatibleError(
                f"src_layer_range {self.src or 'all'} of {source.owner} has {count // per_layer} layers and "
                f"dst_layer_range {self.dst or 'all'} of {target.owner} has {(dst[1] - dst[0]) // per_layer}; "
                "name as many layers on both sides"
            )
        return src[0], dst[0], count


def layer_ranges(src: object, dst: object, tensors_per_layer: object) -> LayerRanges:
    """What the caller gave for layers.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: It is no range, or no number of tensors.
    """
    if type(tensors_per_layer) is not int or tensors_per_layer < 1:
        tensors_per_layer = arguments.integer("tensor_num_per_layer", tensors_per_layer, 1, 2**32 - 1)
    if src is not None and not isinstance(src, range):
        raise arguments.wrong_type("src_layer_range", src, "a range of layers, for example range(0, 4)")
    if dst is not None and not isinstance(dst, range):
        raise arguments.wrong_type("dst_layer_range", dst, "a range of layers, for example range(0, 4)")
    return LayerRanges(src, dst, tensors_per_layer)


class UniformMatch:
    """`Matched` for two caches whose tensors are all alike: layer i is the tensors [i * n, (i + 1) * n) of each.

    Args:
        local: The caller's cache, as blocks or as entries.
        remote: The other end's.
        local_first: Index of its first tensor.
        remote_first: Index of the other end's first tensor.
        count: How many tensors of each, a multiple of `tensors_per_layer`.
        tensors_per_layer: n.
        local_slices: What moves of each block, for each tensor of a layer; empty = whole blocks.
        remote_slices: The same for the other end.
    """

    __slots__ = (
        "_count",
        "_local",
        "_local_first",
        "_local_slices",
        "_per_layer",
        "_remote",
        "_remote_first",
        "_remote_slices",
        "names",
        "parts",
        "tensor_indexes",
    )

    def __init__(
        self,
        local: Geometry,
        remote: Geometry,
        local_first: int,
        remote_first: int,
        count: int,
        tensors_per_layer: int,
        local_slices: Sequence[BlockSlice | None] = (),
        remote_slices: Sequence[BlockSlice | None] = (),
    ) -> None:
        self._local, self._remote = local, remote
        self._local_first, self._remote_first = local_first, remote_first
        self._count, self._per_layer = count, tensors_per_layer
        none = (None,) * tensors_per_layer
        pairs = (
            set(zip(local_slices or none, remote_slices or none, strict=True)) if local_slices or remote_slices else ()
        )
        #: Empty when every tensor of a layer moves the same bytes of its blocks.
        self._local_slices = tuple(local_slices or none) if len(pairs) > 1 else tuple(local_slices[:1])
        self._remote_slices = tuple(remote_slices or none) if len(pairs) > 1 else tuple(remote_slices[:1])
        first = local_first // tensors_per_layer
        #: See `Matched`; what every transfer needs is made once.
        self.names: range = range(first, first + count // tensors_per_layer)
        self.parts = self._parts(0, count)
        self.tensor_indexes = self._indexes(0, count)

    def layer_parts(self, layer: int) -> Sequence[Part]:
        """See `Matched`."""
        return self._parts(layer * self._per_layer, (layer + 1) * self._per_layer)

    def layer_tensor_indexes(self, layer: int) -> Sequence[int]:
        """See `Matched`."""
        return self._indexes(layer * self._per_layer, (layer + 1) * self._per_layer)

    def _differ(self) -> bool:
        return len(self._local_slices) > 1 or len(self._remote_slices) > 1

    def _parts(self, first: int, last: int) -> Sequence[Part]:
        local, remote, step = self._local, self._remote, self._per_layer
        here, there = self._local_first + first, self._remote_first + first
        count = last - first
        if not self._differ():
            return (
                Part(
                    local if count == local.tensors else local.part(here, here + count),
                    remote if count == remote.tensors else remote.part(there, there + count),
                    self._local_slices[0] if self._local_slices else None,
                    self._remote_slices[0] if self._remote_slices else None,
                ),
            )
        return tuple(
            Part(
                local.part(here + j, here + count, step),
                remote.part(there + j, there + count, step),
                self._local_slices[j] if self._local_slices else None,
                self._remote_slices[j] if self._remote_slices else None,
            )
            for j in range(step)
        )

    def _indexes(self, first: int, last: int) -> Sequence[int]:
        low, high = self._local_first + first, self._local_first + last
        if not self._differ():
            return range(low, high)
        return [index for j in range(self._per_layer) for index in range(low + j, high, self._per_layer)]


def check_same_type(source: CacheShape, target: CacheShape) -> None:
    """Refuse caches of two data types.

    Raises:
        CacheIncompatibleError: They differ.
    """
    if source.data_type is not target.data_type:
        raise CacheIncompatibleError(
            f"{source.owner} holds {source.data_type.name} and {target.owner} holds {target.data_type.name}; "
            "a transfer moves bytes and converts nothing: register both with one data type"
        )


def match_blocks(
    own: CacheShape | LayersShape,
    end: End,
    op: Operation,
    ranges: LayerRanges,
    layers: object,
    own_slice: object,
    other_slice: object,
) -> Matched:
    """Which tensors of two paged caches belong together."""
    plain = layers is own_slice is other_slice is None
    if plain:
        known = end.matches.get((op is Operation.READ, ranges))
        if known is not None:
            return known
    other = end.shape
    names = ("dst_slice", "src_slice") if op is Operation.READ else ("src_slice", "dst_slice")
    if isinstance(own, LayersShape) and isinstance(other, LayersShape):
        ranges.refuse_for(own)
        return layouts.match(own, other, layers, own_slice, other_slice, local_name=names[0], remote_name=names[1])
    own, other = uniform(own), uniform(other)
    if layers is not None:
        raise CacheValueError(
            f"layers is {layers!r:.80}; caches whose tensors are all alike have no layer names, use src_layer_range and "
            "dst_layer_range"
        )
    if plain:
        made = match_uniform(own, other, own.blocks, other.blocks, op, ranges)
        if len(end.matches) >= _REMEMBERED:
            end.matches.clear()
        end.matches[op is Operation.READ, ranges] = made
        return made
    # First: slices are made for as many tensors as a layer has, which must be a number that the caches know.
    ranges.tensors(*((other, own) if op is Operation.READ else (own, other)))
    return match_uniform(
        own,
        other,
        own.blocks,
        other.blocks,
        op,
        ranges,
        slices.checked(names[0], own_slice, ranges.tensors_per_layer),
        slices.checked(names[1], other_slice, ranges.tensors_per_layer),
    )


def match_uniform(
    own: CacheShape | LayersShape,
    other: CacheShape | LayersShape,
    local: Geometry,
    remote: Geometry,
    op: Operation,
    ranges: LayerRanges,
    own_slices: Sequence[BlockSlice | None] = (),
    other_slices: Sequence[BlockSlice | None] = (),
) -> UniformMatch:
    """The tensors of two caches of one shape each.

    Args:
        own: The caller's cache.
        other: The other end's.
        local: The caller's cache as blocks or as entries.
        remote: The other end's.
        op: READ where the other end is the source.
        ranges: Layers of both.
        own_slices: What moves of each block of the caller's cache; empty = whole blocks.
        other_slices: The same for the other end.

    Raises:
        CacheValueError, CacheIncompatibleError: See `LayerRanges.tensors`; or the data types differ.
    """
    mine, theirs = uniform(own), uniform(other)
    source, target = (theirs, mine) if op is Operation.READ else (mine, theirs)
    check_same_type(source, target)
    src, dst, count = ranges.tensors(source, target)
    first, other_first = (dst, src) if op is Operation.READ else (src, dst)
    return UniformMatch(local, remote, first, other_first, count, ranges.tensors_per_layer, own_slices, other_slices)


def uniform(shape: CacheShape | LayersShape) -> CacheShape:
    """The shape of a cache whose tensors are all alike.

    Raises:
        CacheIncompatibleError: It is one of named layers.
    """
    if isinstance(shape, LayersShape):
        raise CacheIncompatibleError(
            f"{shape.owner} was registered by register_layers and the other cache was not; both sides name their layers, or "
            "neither does"
        )
    return shape


def entries_of(shape: CacheShape | LayersShape) -> Geometry:
    """The batch entries of a contiguous cache.

    Raises:
        CacheIncompatibleError: It is paged, or its entries are not contiguous.
    """
    if isinstance(shape, LayersShape) or shape.is_blocks:
        raise CacheIncompatibleError(
            f"the key names {shape.owner}, which is paged and has no entries; use its BlocksCacheKey with pull_blocks or "
            "push_blocks"
        )
    return shape.entries
