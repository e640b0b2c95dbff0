"""What a pull means: which tensors and which bytes of both caches, from keys, layer ranges and block lists."""

from __future__ import annotations

from cachecore import _arguments as arguments
from cachecore import rules
from cachecore.errors import CacheIncompatibleError, CacheValueError
from cachecore.planning import CopyPlan, Geometry, plan_blocks, plan_entry, plan_entry_to_blocks
from cachecore.shape import CacheShape
from cachecore.sources import Source
from cachecore.types import NO_ID, BlocksCacheKey, CacheKey, CacheKeyByIdAndIndex

__all__ = ["Layers", "check_key", "plan_pull_blocks", "plan_pull_cache"]


class Layers:
    """The layers a transfer moves, as given by the caller.

    Args:
        src: `src_layer_range`.
        dst: `dst_layer_range`.
        tensors_per_layer: `tensor_num_per_layer`.
    """

    __slots__ = ("dst", "src", "tensors_per_layer")

    def __init__(self, src: object, dst: object, tensors_per_layer: object) -> None:
        self.src = src
        self.dst = dst
        self.tensors_per_layer = arguments.integer("tensor_num_per_layer", tensors_per_layer, 1, 2**32 - 1)

    def tensors(self, source: CacheShape, target: CacheShape) -> tuple[tuple[int, int], tuple[int, int]]:
        """The tensors [first, last) of source and target.

        Raises:
            CacheTypeError, CacheValueError, CacheIncompatibleError: See `rules.check_layers`; or the two ranges have
                different lengths.
        """
        per_layer = self.tensors_per_layer
        src = rules.check_layers("src_layer_range", self.src, source.num_tensors, per_layer, side="source")
        dst = rules.check_layers("dst_layer_range", self.dst, target.num_tensors, per_layer, side="destination")
        if src[1] - src[0] != dst[1] - dst[0]:
            raise CacheIncompatibleError(
                f"src_layer_range {self.src or 'all'} of {source.owner} has {(src[1] - src[0]) // per_layer} layers and "
                f"dst_layer_range {self.dst or 'all'} of {target.owner} has {(dst[1] - dst[0]) // per_layer}; "
                "name as many layers on both sides"
            )
        return src, dst


def check_key(name: str, key: object) -> CacheKey | BlocksCacheKey | CacheKeyByIdAndIndex:
    """A key of a known kind that names something.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: None; another type; a CacheKey with none or both of
            `req_id` and `prefix_id`.
    """
    arguments.instance(name, key, (CacheKey, BlocksCacheKey, CacheKeyByIdAndIndex))
    assert isinstance(key, CacheKey | BlocksCacheKey | CacheKeyByIdAndIndex)
    if isinstance(key, CacheKey):
        if key.is_placeholder:
            raise CacheValueError(f"{name} is {key}, a placeholder that names nothing; give req_id or prefix_id")
        if key.req_id != NO_ID and key.prefix_id != NO_ID:
            raise CacheValueError(f"{name} is {key}; give exactly one of req_id and prefix_id")
    return key


def plan_pull_blocks(
    source: Source, target: CacheShape, src_blocks: object, dst_blocks: object, layers: Layers
) -> tuple[CopyPlan, int]:
    """Plan a `pull_blocks`.

    Args:
        source: What the key names.
        target: The destination cache.
        src_blocks: Blocks of the source; empty unless it is paged.
        dst_blocks: Blocks of the target.
        layers: Layers of both.

    Returns:
        The plan and the tensor index of its first pair in the target.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError, CacheIncompatibleError, OverlapError: What is wrong.
    """
    if not target.is_blocks:
        raise CacheIncompatibleError(f"dst_cache is {target.owner}, which is not paged; use pull_cache for it")
    _check_same_type(source.shape, target)
    (src_first, src_last), (dst_first, dst_last) = layers.tensors(source.shape, target)
    local = _part(target.blocks, target, dst_first, dst_last)
    if source.entry is None:
        remote = _part(source.shape.blocks, source.shape, src_first, src_last)
        return plan_blocks(local, remote, dst_blocks, src_blocks, same_process=source.same_process), dst_first
    arguments.not_none("src_blocks", src_blocks)
    if not hasattr(src_blocks, "__len__") or len(src_blocks):
        raise CacheValueError(
            f"src_blocks is {src_blocks!r:.80} and the key names an entry of a contiguous cache, which has no blocks; "
            "leave src_blocks out"
        )
    remote = _entries(source.shape, src_first, src_last)
    return plan_entry_to_blocks(local, remote, dst_blocks, source.entry, same_process=source.same_process), dst_first


def plan_pull_cache(
    source: Source, target: CacheShape, batch_index: object, size: object, layers: Layers
) -> tuple[CopyPlan, int]:
    """Plan a `pull_cache`: the first `size` bytes of one batch entry; see `plan_pull_blocks`."""
    if target.is_blocks:
        raise CacheIncompatibleError(f"cache is {target.owner}, which is paged; use pull_blocks for it")
    _check_same_type(source.shape, target)
    (src_first, src_last), (dst_first, dst_last) = layers.tensors(source.shape, target)
    assert source.entry is not None, "a BlocksCacheKey was refused before"
    plan = plan_entry(
        _part(target.entries, target, dst_first, dst_last),
        _entries(source.shape, src_first, src_last),
        arguments.integer("batch_index", batch_index, 0, 2**32 - 1),
        source.entry,
        size=arguments.integer("size", size, -1, 2**64 - 1),
        same_process=source.same_process,
    )
    return plan, dst_first


def _part(geometry: Geometry, shape: CacheShape, first: int, last: int) -> Geometry:
    if last - first == shape.num_tensors:
        return geometry
    return geometry.part(first, last)


def _entries(source: CacheShape, first: int, last: int) -> Geometry:
    if source.is_blocks:
        raise CacheIncompatibleError(
            f"the key names {source.owner}, which is paged and has no entries; use pull_blocks with its BlocksCacheKey"
        )
    return _part(source.entries, source, first, last)


def _check_same_type(source: CacheShape, target: CacheShape) -> None:
    if source.data_type is not target.data_type:
        raise CacheIncompatibleError(
            f"{source.owner} holds {source.data_type.name} and {target.owner} holds {target.data_type.name}; "
            "a transfer moves bytes and converts nothing: register both with one data type"
        )
