"""What a push means: from keys, layers and block lists to a planned request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachecore import _arguments as arguments
from cachecore.engine import Operation
from cachecore.errors import CacheIncompatibleError
from cachecore.planning import CopyPlan, Part, plan_entry, plan_entry_to_blocks, plan_parts
from cachecore.registration.local_caches import Registered
from cachecore.transfers.ends import End
from cachecore.transfers.finding import Ends
from cachecore.transfers.matching import LayerRanges, Matched, entries_of, match_blocks, match_uniform
from cachecore.transfers.requests import Request, check_key, entry_of, find_entries

__all__ = ["Pushes", "pushed_blocks", "pushed_entry", "pushed_entry_to_blocks"]


class Pushes:
    """Makes the pushes of one manager. What is raised is listed at the methods of `CacheManager`."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends

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
        matched = match_blocks(own.shape, end, Operation.WRITE, ranges, layers, src_slice, dst_slice)
        return pushed_blocks(end, own, matched, src_blocks, dst_blocks, deadline)

    def push_cache(
        self, key: object, cache: object, batch_index: object, size: object, ranges: LayerRanges, deadline: float
    ) -> Request:
        """See `CacheManager.push_cache`."""
        own, end = find_entries(self._ends, "dst_cache_key", key, "src_cache", cache, "push_blocks", deadline)
        matched = match_uniform(
            own.shape, end.shape, entries_of(own.shape), entries_of(end.shape), Operation.WRITE, ranges
        )
        return pushed_entry(end, own, matched, batch_index, size, deadline)


def pushed_blocks(
    end: End,
    own: Registered,
    matched: Matched,
    src_blocks: Any,
    dst_blocks: Any,
    deadline: float,
    src_name: str = "src_blocks",
    dst_name: str = "dst_blocks",
) -> Request:
    """Blocks of the caller's cache -> blocks of the other end."""
    same_process = end.same_process

    def planner(parts: Sequence[Part]) -> CopyPlan:
        return plan_parts(
            parts,
            src_blocks,
            dst_blocks,
            destination="remote",
            local_name=src_name,
            remote_name=dst_name,
            same_process=same_process,
        )

    return Request(end, own, Operation.WRITE, deadline, matched, planner)


def pushed_entry(
    end: End, own: Registered, matched: Matched, batch_index: object, size: object, deadline: float
) -> Request:
    """The first `size` bytes of an entry of the caller's cache -> the entry of the other end."""
    index = arguments.integer("src_batch_index", batch_index, 0, 2**32 - 1)
    nbytes = arguments.integer("size", size, -1, 2**64 - 1)

    def planner(parts: Sequence[Part]) -> CopyPlan:
        (part,) = parts
        return plan_entry(
            part.local,
            part.remote,
            index,
            entry_of(end),
            size=nbytes,
            destination="remote",
            local_name="src_batch_index",
            same_process=end.same_process,
        )

    return Request(end, own, Operation.WRITE, deadline, matched, planner)


def pushed_entry_to_blocks(
    end: End, own: Registered, matched: Matched, batch_index: object, dst_blocks: Any, deadline: float, dst_name: str
) -> Request:
    """An entry of the caller's cache -> blocks of the other end."""
    index = arguments.integer("src_batch_index", batch_index, 0, 2**32 - 1)

    def planner(parts: Sequence[Part]) -> CopyPlan:
        (part,) = parts
        return plan_entry_to_blocks(
            part.local,
            part.remote,
            dst_blocks,
            index,
            destination="remote",
            blocks_name=dst_name,
            entry_name="src_batch_index",
            same_process=end.same_process,
        )

    return Request(end, own, Operation.WRITE, deadline, matched, planner)
