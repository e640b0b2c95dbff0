"""Which native regions a set of views needs: views of one allocation share a region, and no two regions overlap.

Engines register regions, and few of them: hundreds of tensors live in some dozens of allocations, and the tensors of
hybrid models view the same bytes twice. A region reaches from the first byte of its first view to the last byte of its
last one and never beyond, because what lies outside was not given.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Extent", "MergedRegion", "View", "merge"]

#: (start, end) of memory, end exclusive.
Extent = tuple[int, int]


@dataclass(frozen=True)
class View:
    """One tensor as memory.

    Attributes:
        index: Its position in the call.
        start: First byte.
        end: Behind the last byte.
        allocation: Memory it was cut from, None when not known. It need not be the whole allocation: what overlaps is
            taken for one.
    """

    index: int
    start: int
    end: int
    allocation: Extent | None = None


@dataclass
class MergedRegion:
    """One region.

    Attributes:
        start: First byte of its first view.
        end: Behind the last byte of its last view.
        allocation: What its views were cut from, None when not known.
        views: Positions of its views in the call, by address.
    """

    start: int
    end: int
    allocation: Extent | None
    views: list[int] = field(default_factory=list)


def merge(views: Sequence[View], taken: Sequence[Extent]) -> list[MergedRegion]:
    """The regions for the views, by address.

    Views that overlap share a region. Views that do not overlap share one when they were cut from the same allocation;
    where no allocation is known, when they are adjacent. No region includes a byte of `taken`, which may split the
    views of one allocation.

    Args:
        views: None of them overlaps `taken`.
        taken: Memory of other regions, by address, without overlaps.
    """
    taken_starts = [start for start, _ in taken]
    allocations = _joined([view.allocation for view in views if view.allocation is not None])
    starts = [start for start, _ in allocations]
    merged: list[MergedRegion] = []
    for view in sorted(views, key=lambda view: (view.start, view.end)):
        allocation = None
        if view.allocation is not None:
            allocation = allocations[bisect.bisect_right(starts, view.allocation[0]) - 1]
        last = merged[-1] if merged else None
        if last is not None and _together(last, view, allocation, taken_starts):
            last.allocation = last.allocation or allocation
            last.end = max(last.end, view.end)
            last.views.append(view.index)
        else:
            merged.append(MergedRegion(view.start, view.end, allocation, [view.index]))
    return merged


def _together(region: MergedRegion, view: View, allocation: Extent | None, taken_starts: Sequence[int]) -> bool:
    if view.start < region.end:
        return True
    if allocation != region.allocation:
        return False
    if allocation is None:
        return view.start == region.end
    # Nothing that is taken starts in the gap; it cannot reach in from elsewhere, because views and regions do not
    # overlap what is taken.
    return bisect.bisect_left(taken_starts, region.end) == bisect.bisect_left(taken_starts, view.start)


def _joined(extents: Sequence[Extent]) -> list[Extent]:
    """The extents by address, those that overlap as one."""
    joined: list[Extent] = []
    for start, end in sorted(extents):
        if joined and start < joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined
