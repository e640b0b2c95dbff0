"""What a pull or a push means: from keys, layers and block lists to plans. Checked before a byte moves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Final

from cachecore import _arguments as arguments
from cachecore import layouts, slices
from cachecore.ends import End, Ends
from cachecore.engine import Operation
from cachecore.errors import CacheIncompatibleError, CacheValueError
from cachecore.leases import check_blocks
from cachecore.local_caches import Registered
from cachecore.matching import LayerRanges, Matched, UniformMatch, check_same_type
from cachecore.planning import CopyPlan, Geometry, Part, plan_entry, plan_entry_to_blocks, plan_parts
from cachecore.shape import CacheShape, LayersShape
from cachecore.tensors import check_unmoved
from cachecore.types import NO_ID, BlocksCacheKey, CacheKey, CacheKeyByIdAndIndex, TransferKey

__all__ = ["Request", "Requests", "Step", "check_key", "frozen"]

#: Most matches that are remembered for two caches; a connector makes the same few again and again.
_REMEMBERED: Final = 32

#: Makes the plan of some of the parts of a request.
Planner = Callable[[Sequence[Part]], CopyPlan]


class Step:
    """One plan of a transfer: all of it, or one layer.

    Args:
        plan: What moves.
        tensor_indexes: Index in the caller's cache of each tensor of the plan, for what an error reports.
        layers: How many layers it moves.
    """

    __slots__ = ("layers", "plan", "tensor_indexes")

    def __init__(self, plan: CopyPlan, tensor_indexes: Sequence[int], layers: int = 1) -> None:
        self.plan = plan
        self.tensor_indexes = tensor_indexes
        self.layers = layers


class Request:
    """A checked transfer that has not started.

    Attributes:
        end: What the key names.
        own: The caller's cache.
        op: READ for a pull, WRITE for a push.
        deadline: On `time.monotonic()`.
        whole: All of it in one step.
        matched: Which tensors move.
        consumes: The key that its success uses up, where the owner lets pulls do that; None for no key.
        lease_id: The block lease that it is made under, None for none.
    """

    __slots__ = ("_planner", "consumes", "deadline", "end", "lease_id", "matched", "op", "own", "whole")

    def __init__(
        self, end: End, own: Registered, op: Operation, deadline: float, matched: Matched, planner: Planner
    ) -> None:
        self.end, self.own, self.op, self.deadline = end, own, op, deadline
        self.matched = matched
        self.consumes: CacheKey | None = None
        self.lease_id: str | None = None
        self._planner = planner
        self.whole = Step(planner(matched.parts), matched.tensor_indexes, len(matched.names))

    def by_layer(self) -> list[Step]:
        """The same as one step a layer."""
        matched = self.matched
        return [
            Step(self._planner(matched.layer_parts(layer)), matched.layer_tensor_indexes(layer))
            for layer in range(len(matched.names))
        ]

    def check_unmoved(self) -> None:
        """Refuse to go on when a tensor of the caller's cache was resized since the call.

        Raises:
            AddressMovedError: It was.
        """
        if self.own.tensors:
            check_unmoved(self.own.tensors)


class Requests:
    """Makes requests for one manager. What is raised is listed at the methods of `CacheManager`."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends

    def pull_blocks(
        self,
        key: object,
        cache: object,
        src_blocks: Any,
        dst_blocks: Any,
        ranges: LayerRanges,
        deadline: float,
        *,
        layers: object = None,
        src_slice: object = None,
        dst_slice: object = None,
        lease: object = None,
    ) -> Request:
        """See `CacheManager.pull_blocks`."""
        checked = check_key("src_cache_key", key)
        own = self._ends.own("dst_cache", cache)
        end = self._ends.find(checked, own, deadline)
        if not own.shape.is_blocks:
            raise CacheIncompatibleError(f"dst_cache is {own.shape.owner}, which is not paged; use pull_cache for it")
        if lease is not None:
            checked_lease = end.check_lease("lease", lease)
        if end.entry is not None:
            if lease is not None:
                raise CacheValueError(
                    "lease is given and the key names an entry of a contiguous cache; only blocks are leased"
                )
            return self._entry_to_blocks(end, own, src_blocks, dst_blocks, ranges, deadline, src_slice, dst_slice)
        matched = _match_blocks(own.shape, end, Operation.READ, ranges, layers, dst_slice, src_slice)
        same_process = end.same_process

        def planner(parts: Sequence[Part]) -> CopyPlan:
            return plan_parts(parts, dst_blocks, src_blocks, same_process=same_process)

        request = Request(end, own, Operation.READ, deadline, matched, planner)
        if lease is not None:  # after planning, which has checked the ids
            check_blocks(checked_lease, "src_blocks", src_blocks)
            request.lease_id = checked_lease.lease_id
        return request

    def push_blocks(
        self,
        key: object,
        cache: object,
        src_blocks: Any,
        dst_blocks: Any,
        ranges: LayerRanges,
        deadline: float,
        *,
        layers: object = None,
        src_slice: object = None,
        dst_slice: object = None,
    ) -> Request:
        """See `CacheManager.push_blocks`."""
        checked = check_key("dst_cache_key", key)
        own = self._ends.own("src_cache", cache)
        end = self._ends.find(checked, own, deadline)
        if not own.shape.is_blocks:
            raise CacheIncompatibleError(f"src_cache is {own.shape.owner}, which is not paged; use push_cache for it")
        if end.entry is not None:
            raise CacheIncompatibleError(
                f"dst_cache_key names an entry of {end.shape.owner}, which is contiguous; blocks are pushed to paged "
                "caches only: let the other side pull, or give the key of its blocks cache"
            )
        matched = _match_blocks(own.shape, end, Operation.WRITE, ranges, layers, src_slice, dst_slice)
        same_process = end.same_process

        def planner(parts: Sequence[Part]) -> CopyPlan:
            return plan_parts(
                parts,
                src_blocks,
                dst_blocks,
                destination="remote",
                local_name="src_blocks",
                remote_name="dst_blocks",
                same_process=same_process,
            )

        return Request(end, own, Operation.WRITE, deadline, matched, planner)

    def pull_cache(
        self, key: object, cache: object, batch_index: object, size: object, ranges: LayerRanges, deadline: float
    ) -> Request:
        """See `CacheManager.pull_cache`."""
        own, end = self._entries("cache_key", key, "cache", cache, "pull_blocks", deadline)
        matched = _match(own.shape, end.shape, _entries_of(own.shape), _entries_of(end.shape), Operation.READ, ranges)
        index = arguments.integer("batch_index", batch_index, 0, 2**32 - 1)
        nbytes = arguments.integer("size", size, -1, 2**64 - 1)

        def planner(parts: Sequence[Part]) -> CopyPlan:
            (part,) = parts
            return plan_entry(part.local, part.remote, index, _entry(end), size=nbytes, same_process=end.same_process)

        request = Request(end, own, Operation.READ, deadline, matched, planner)
        # Who pulls layer by layer has not taken the entry before the last layer, and only he knows which one that is.
        if isinstance(key, CacheKey) and len(matched.tensor_indexes) == end.shape.num_tensors:
            request.consumes = key
        return request

    def push_cache(
        self, key: object, cache: object, batch_index: object, size: object, ranges: LayerRanges, deadline: float
    ) -> Request:
        """See `CacheManager.push_cache`."""
        own, end = self._entries("dst_cache_key", key, "src_cache", cache, "push_blocks", deadline)
        matched = _match(own.shape, end.shape, _entries_of(own.shape), _entries_of(end.shape), Operation.WRITE, ranges)
        index = arguments.integer("src_batch_index", batch_index, 0, 2**32 - 1)
        nbytes = arguments.integer("size", size, -1, 2**64 - 1)

        def planner(parts: Sequence[Part]) -> CopyPlan:
            (part,) = parts
            return plan_entry(
                part.local,
                part.remote,
                index,
                _entry(end),
                size=nbytes,
                destination="remote",
                local_name="src_batch_index",
                same_process=end.same_process,
            )

        return Request(end, own, Operation.WRITE, deadline, matched, planner)

    def _entries(
        self, key_name: str, key: object, cache_name: str, cache: object, other: str, deadline: float
    ) -> tuple[Registered, End]:
        """Both ends of a transfer from entry to entry."""
        checked = check_key(key_name, key)
        if isinstance(checked, BlocksCacheKey):
            raise arguments.wrong_type(key_name, key, f"a CacheKey or CacheKeyByIdAndIndex; {other} takes it")
        own = self._ends.own(cache_name, cache)
        end = self._ends.find(checked, own, deadline)
        if own.shape.is_blocks:
            raise CacheIncompatibleError(f"{cache_name} is {own.shape.owner}, which is paged; use {other} for it")
        return own, end

    def _entry_to_blocks(
        self,
        end: End,
        own: Registered,
        src_blocks: Any,
        dst_blocks: Any,
        ranges: LayerRanges,
        deadline: float,
        src_slice: object,
        dst_slice: object,
    ) -> Request:
        arguments.not_none("src_blocks", src_blocks)
        if not hasattr(src_blocks, "__len__") or len(src_blocks):
            raise CacheValueError(
                f"src_blocks is {src_blocks!r:.80} and the key names an entry of a contiguous cache, which has no blocks; "
                "leave src_blocks out"
            )
        for name, value in (("src_slice", src_slice), ("dst_slice", dst_slice)):
            if value is not None:
                raise CacheValueError(
                    f"{name} is {value!r:.80} and the key names an entry of a contiguous cache; slices are for transfers "
                    "between two paged caches"
                )
        blocks, entries = _uniform(own.shape).blocks, _entries_of(end.shape)
        matched = _match(own.shape, end.shape, blocks, entries, Operation.READ, ranges)

        def planner(parts: Sequence[Part]) -> CopyPlan:
            (part,) = parts
            return plan_entry_to_blocks(part.local, part.remote, dst_blocks, _entry(end), same_process=end.same_process)

        return Request(end, own, Operation.READ, deadline, matched, planner)


def frozen(blocks: Any) -> Any:
    """A copy of a block list, for a request that is planned again later; what is no list is left to planning."""
    if isinstance(blocks, list):
        return tuple(blocks)
    try:
        if isinstance(blocks, memoryview):
            return memoryview(bytes(blocks)).cast(blocks.format)  # type: ignore[call-overload]  # one of its formats
        clone = getattr(blocks, "clone", None)  # copy.copy of a torch tensor shares its memory
        return clone() if callable(clone) else copy.copy(blocks)
    except Exception:  # noqa: BLE001  # planning says what is wrong with it
        return blocks


def check_key(name: str, key: object) -> TransferKey:
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


def _match_blocks(
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
    own, other = _uniform(own), _uniform(other)
    if layers is not None:
        raise CacheValueError(
            f"layers is {layers!r:.80}; caches whose tensors are all alike have no layer names, use src_layer_range and "
            "dst_layer_range"
        )
    if plain:
        made = _match(own, other, own.blocks, other.blocks, op, ranges)
        if len(end.matches) >= _REMEMBERED:
            end.matches.clear()
        end.matches[op is Operation.READ, ranges] = made
        return made
    return _match(
        own,
        other,
        own.blocks,
        other.blocks,
        op,
        ranges,
        slices.checked(names[0], own_slice, ranges.tensors_per_layer),
        slices.checked(names[1], other_slice, ranges.tensors_per_layer),
    )


def _match(
    own: CacheShape | LayersShape,
    other: CacheShape | LayersShape,
    local: Geometry,
    remote: Geometry,
    op: Operation,
    ranges: LayerRanges,
    own_slices: Sequence[slices.BlockSlice | None] = (),
    other_slices: Sequence[slices.BlockSlice | None] = (),
) -> UniformMatch:
    mine, theirs = _uniform(own), _uniform(other)
    source, target = (theirs, mine) if op is Operation.READ else (mine, theirs)
    check_same_type(source, target)
    src, dst, count = ranges.tensors(source, target)
    first, other_first = (dst, src) if op is Operation.READ else (src, dst)
    return UniformMatch(local, remote, first, other_first, count, ranges.tensors_per_layer, own_slices, other_slices)


def _uniform(shape: CacheShape | LayersShape) -> CacheShape:
    if isinstance(shape, LayersShape):
        raise CacheIncompatibleError(
            f"{shape.owner} was registered by register_layers and the other cache was not; both sides name their layers, or "
            "neither does"
        )
    return shape


def _entries_of(shape: CacheShape | LayersShape) -> Geometry:
    if isinstance(shape, LayersShape) or shape.is_blocks:
        raise CacheIncompatibleError(
            f"the key names {shape.owner}, which is paged and has no entries; use its BlocksCacheKey with pull_blocks or "
            "push_blocks"
        )
    return shape.entries


def _entry(end: End) -> int:
    assert end.entry is not None, "paged caches were refused before"
    return end.entry
