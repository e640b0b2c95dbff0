"""Regions for views: few, disjoint, and never a byte beyond what was given."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecore.registration.merging import View, merge


def regions(views, taken=()):
    return [(one.start, one.end, one.views) for one in merge(views, list(taken))]


A, B = (100, 200), (300, 400)


@pytest.mark.parametrize(
    ("views", "taken", "expected"),
    [
        # one allocation, one region, which starts and ends with its views
        ([(110, 120, A), (150, 160, A), (390, 400, B)], [], [(110, 160), (390, 400)]),
        # the same bytes twice, and partly
        ([(110, 120, A), (110, 120, A), (115, 130, A)], [], [(110, 130)]),
        # nothing known: adjacent and overlapping views belong together, others do not
        ([(10, 20, None), (20, 30, None), (31, 40, None), (35, 50, None)], [], [(10, 30), (31, 50)]),
        # allocations that touch stay apart
        ([(190, 200, A), (200, 210, (200, 300))], [], [(190, 200), (200, 210)]),
        # what a driver knows of one allocation may grow from view to view
        ([(100, 110, (100, 200)), (250, 260, (100, 300))], [], [(100, 260)]),
        # registered memory in between splits an allocation
        ([(110, 120, A), (150, 160, A)], [(130, 140)], [(110, 120), (150, 160)]),
        ([(110, 120, A), (150, 160, A)], [(120, 150)], [(110, 120), (150, 160)]),
    ],
)
def test_views_share_a_region_by_allocation(views, taken, expected):
    found = regions([View(i, *view) for i, view in enumerate(views)], taken)
    assert [(start, end) for start, end, _ in found] == expected
    assert sorted(index for _, _, indexes in found for index in indexes) == list(range(len(views)))


@st.composite
def layouts(draw):
    """Allocations with views and registered memory in them, and views of unknown memory."""
    views, taken = [], []
    for number in range(draw(st.integers(1, 4))):
        known, low = draw(st.booleans()), 1000 * number
        allocation = (low, low + 60) if known else None
        if known and draw(st.booleans()):
            start = draw(st.integers(low, low + 50))
            taken.append((start, start + draw(st.integers(1, 10))))
        for _ in range(draw(st.integers(1, 6))):
            start = draw(st.integers(low, low + 50))
            end = draw(st.integers(start + 1, low + 60))
            if all(end <= first or last <= start for first, last in taken):
                views.append(View(len(views), start, end, allocation))
    return views, taken


@given(layouts())
@settings(max_examples=300, deadline=None)
def test_merging_agrees_with_a_plain_search_for_what_belongs_together(layout):
    views, taken = layout

    def together(one, other):
        low, high = min(one.start, other.start), max(one.end, other.end)
        if one.start < other.end and other.start < one.end:
            return True
        if one.allocation != other.allocation:
            return False
        if one.allocation is None:
            return one.end == other.start or other.end == one.start
        return not any(first < high and low < last for first, last in taken)

    groups = [{view.index} for view in views]
    for one, other in itertools.combinations(views, 2):
        if together(one, other):
            mine, theirs = (next(group for group in groups if view.index in group) for view in (one, other))
            if mine is not theirs:
                groups.remove(theirs)
                mine |= theirs
    expected = sorted(
        (min(views[i].start for i in group), max(views[i].end for i in group), sorted(group)) for group in groups
    )
    assert sorted((start, end, sorted(indexes)) for start, end, indexes in regions(views, taken)) == expected
