"""What a pull means: from keys, layers and block lists to a planned request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachecore import _arguments as arguments
from cachecore.engine import Operation
from cachecore.errors import CacheIncompatibleError, CacheValueError
from cachecore.leases import check_blocks
from cachecore.planning import CopyPlan, Part, plan_entry, plan_entry_to_blocks, plan_parts
from cachecore.registration.local_caches import Registered
from cachecore.transfers.ends import End
from cachecore.transfers.finding import Ends
from cachecore.transfers.matching import LayerRanges, entries_of, match_blocks, match_uniform, uniform
from cachecore.transfers.requests import Request, check_key, entry_of, find_entries, frozen
from cachecore.types import CacheKey

__all__ = ["Pulls"]


class Pulls:
    """Makes the pulls of one manager. What is raised is listed at the methods of `CacheManager`."""

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
            src_blocks = frozen(src_blocks)  # what is planned is what is held against the lease
        if end.entry is not None:
            if lease is not None:
                raise CacheValueError(
                    "lease is given and the key names an entry of a contiguous cache; only blocks are leased"
                )
            return self._entry_to_blocks(end, own, src_blocks, dst_blocks, ranges, deadline, src_slice, dst_slice)
        matched = match_blocks(own.shape, end, Operation.READ, ranges, layers, dst_slice, src_slice)
        same_process = end.same_process

        def planner(parts: Sequence[Part]) -> CopyPlan:
            return plan_parts(parts, dst_blocks, src_blocks, same_process=same_process)

        request = Request(end, own, Operation.READ, deadline, matched, planner)
        if lease is not None:  # after planning, which has checked the ids
            check_blocks(checked_lease, "src_blocks", src_blocks)
            request.lease_id = checked_lease.lease_id
        return request

    def pull_cache(
        self, key: object, cache: object, batch_index: object, size: object, ranges: LayerRanges, deadline: float
    ) -> Request:
        """See `CacheManager.pull_cache`."""
        own, end = find_entries(self._ends, "cache_key", key, "cache", cache, "pull_blocks", deadline)
        matched = match_uniform(
            own.shape, end.shape, entries_of(own.shape), entries_of(end.shape), Operation.READ, ranges
        )
        index = arguments.integer("batch_index", batch_index, 0, 2**32 - 1)
        nbytes = arguments.integer("size", size, -1, 2**64 - 1)

        def planner(parts: Sequence[Part]) -> CopyPlan:
            (part,) = parts
            return plan_entry(part.local, part.remote, index, entry_of(end), size=nbytes, same_process=end.same_process)

        request = Request(end, own, Operation.READ, deadline, matched, planner)
        # Who pulls layer by layer has not taken the entry before the last layer, and only he knows which one that is.
        if isinstance(key, CacheKey) and len(matched.tensor_indexes) == end.shape.num_tensors:
            request.consumes = key
        return request

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
        blocks, entries = uniform(own.shape).blocks, entries_of(end.shape)
        matched = match_uniform(own.shape, end.shape, blocks, entries, Operation.READ, ranges)

        def planner(parts: Sequence[Part]) -> CopyPlan:
            (part,) = parts
            return plan_entry_to_blocks(
                part.local, part.remote, dst_blocks, entry_of(end), same_process=end.same_process
            )

        return Request(end, own, Operation.READ, deadline, matched, planner)
