"""Where the tensors of a plan lie among regions: `plan_within` and `map_plan` against plain arithmetic."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecore import _core
from cachecore.errors import CacheValueError
from cachecore.planning import Geometry, plan_blocks

LOCAL, REMOTE = 0x10000, 0x900000
BLOCK, BLOCKS = 16, 8


def plan(tensors=1, local=(0, 3), remote=(2, 7), destination="local"):
    step = BLOCK * BLOCKS
    return plan_blocks(
        Geometry([LOCAL + t * step for t in range(tensors)], blocks=BLOCKS, block_bytes=BLOCK),
        Geometry([REMOTE + t * step for t in range(tensors)], blocks=BLOCKS, block_bytes=BLOCK),
        local,
        remote,
        destination=destination,
    )


def pack(*rows):
    return b"".join(struct.pack(f"{len(row)}Q", *row) for row in rows)


def flat(plan):
    return list(struct.iter_unpack("QQQ", plan.flat(0, plan.chunks)))


@given(start=st.integers(-40, 40), nbytes=st.integers(0, 200))
@settings(max_examples=200, deadline=None)
def test_a_tensor_is_within_a_region_only_as_a_whole(start, nbytes):
    first, last = REMOTE + 2 * BLOCK, REMOTE + 8 * BLOCK
    base = REMOTE + start
    expected = base <= first and last <= base + nbytes
    assert _core.plan_within(plan(), pack((base, nbytes)), False) is expected
    assert (_core.map_plan(plan(), pack((base, nbytes, 0x500000))) is not None) is expected


def test_each_tensor_may_lie_in_another_region_in_any_order():
    step = BLOCK * BLOCKS
    rows = [(REMOTE + t * step, step, 0x500000 - t * 0x1000) for t in (2, 0, 1)]
    mapped = flat(_core.map_plan(plan(3), pack(*rows)))
    for (local, remote, nbytes), (same, moved, length) in zip(flat(plan(3)), mapped, strict=True):
        tensor, offset = divmod(remote - REMOTE, step)
        assert (same, length) == (local, nbytes)
        assert moved == 0x500000 - tensor * 0x1000 + offset
    assert _core.map_plan(plan(3), pack(*rows[:2])) is None


def test_swapped_sides_keep_chunks_and_destination_blocks():
    original = plan(2, destination="remote")
    swapped = _core.map_plan(original, pack((REMOTE, 2 * BLOCK * BLOCKS, REMOTE)), True)
    assert flat(swapped) == [(remote, local, nbytes) for local, remote, nbytes in flat(original)]
    ranges = [(0, 1), (2, 4)]
    assert swapped.block_ranges(ranges) == original.block_ranges(ranges)


def test_a_table_of_the_wrong_width_is_refused():
    with pytest.raises(CacheValueError):
        _core.plan_within(plan(), pack((1, 2, 3)), False)
    with pytest.raises(CacheValueError):
        _core.map_plan(plan(), pack((1, 2)))
