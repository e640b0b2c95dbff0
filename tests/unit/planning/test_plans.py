"""Plans move exactly the bytes that the blocks name, and bad input is refused before any byte moves."""

from __future__ import annotations

import dataclasses
import itertools
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_oracle import Transfer, addresses, block_start, chunks_of, moves_of, transfers

from cachecore import errors
from cachecore.planning import CopyPlan, Geometry, Part, plan_blocks, plan_parts
from cachecore.slices import BlockSlice

LOCAL = Geometry([1 << 20, 1 << 30], blocks=200, block_bytes=64)
REMOTE = Geometry([1 << 40, 1 << 41], blocks=250, block_bytes=64)


@given(transfers(lowest=2**40))
def test_a_plan_moves_exactly_the_named_bytes(transfer: Transfer) -> None:
    plan = transfer.plan()
    assert moves_of(plan) == transfer.moves()
    assert plan.blocks == len(transfer.local) * plan.pairs
    assert plan.nbytes == sum(map(len, transfer.moves()))
    assert len(plan.groups()) == len(transfer.parts)

    chunks = iter(chunks_of(plan))
    for bases, runs in plan.groups():
        base_rows: Any = bases.tolist()
        run_rows: Any = runs.tolist()
        for a, b in base_rows:
            for run in run_rows:
                assert next(chunks)[1:] == (a + run[0], b + run[1], run[2])
        for before, after in itertools.pairwise(run_rows):
            contiguous = before[0] + before[2] == after[0] and before[1] + before[2] == after[1]
            assert not contiguous, "neighbours contiguous on both sides must be one run"


@given(transfers())
def test_plan_blocks_is_a_plan_of_one_part(transfer: Transfer) -> None:
    part = transfer.parts[0]
    one = transfer._replace(parts=[part])
    plan = plan_blocks(
        part.local,
        part.remote,
        transfer.local,
        transfer.remote,
        destination=transfer.destination,
        local_slice=part.local_slice,
        remote_slice=part.remote_slice and dataclasses.astuple(part.remote_slice),
    )
    assert chunks_of(plan) == chunks_of(one.plan())
    assert plan.block_ranges([(0, plan.chunks)]) == one.plan().block_ranges([(0, plan.chunks)])


@st.composite
def chunk_ranges(draw: st.DrawFn, chunks: int) -> list[tuple[int, int]]:
    cuts = sorted(draw(st.lists(st.integers(0, chunks), min_size=2, max_size=4)))
    return list(zip(cuts[::2], cuts[1::2], strict=False))


@given(transfers(), st.data())
def test_block_ranges_name_the_destination_blocks_that_chunks_touch(transfer: Transfer, data: st.DataObject) -> None:
    plan = transfer.plan()
    ranges = data.draw(chunk_ranges(plan.chunks))
    side = 1 if transfer.destination == "local" else 2
    tensors = [(transfer.written(part), t) for part in transfer.parts for t in range(part.local.tensors)]
    chunks = chunks_of(plan)
    expected = set()
    for start, stop in ranges:
        for chunk in chunks[start:stop]:
            written, tensor = tensors[chunk.tensor]
            touched = range(chunk[side], chunk[side] + chunk.nbytes)
            for block in range(written.blocks):
                first = block_start(written, tensor, block)
                if touched.start < first + written.block_bytes and first < touched.stop:
                    expected.add((chunk.tensor, block))
    found = plan.block_ranges(ranges)
    assert {(tensor, block) for tensor, start, count in found for block in range(start, start + count)} == expected
    for (tensor, start, count), (next_tensor, next_start, _) in itertools.pairwise(found):
        assert (tensor, start + count) < (next_tensor, next_start), "sorted, neighbours joined"


@given(transfers())
def test_a_byte_both_read_and_written_in_one_process_is_refused(transfer: Transfer) -> None:
    plan = transfer.plan()
    if addresses(plan, True) & addresses(plan, False):
        with pytest.raises(errors.OverlapError, match="share bytes"):
            transfer.plan(same_process=True)
    else:
        transfer.plan(same_process=True)


@given(transfers(), st.booleans(), st.data())
def test_addresses_that_chunks_touch_are_named_and_found_again(
    transfer: Transfer, local: bool, data: st.DataObject
) -> None:
    plan = transfer.plan()
    ranges = data.draw(chunk_ranges(plan.chunks))
    packed = plan.intervals(ranges, local=local)
    intervals = list(struct.iter_unpack("=QQ", packed))
    touched = addresses(plan, local, ranges) if any(a != b for a, b in ranges) else set()
    assert {address for start, end in intervals for address in range(start, end)} == touched
    assert all(before[1] < after[0] for before, after in itertools.pairwise(intervals)), "sorted, neighbours joined"
    assert plan.overlaps(packed, local=local) == (None if not touched else next(iter(hits(plan, intervals, local))))


@given(transfers(), st.booleans(), st.lists(st.integers(1, 450), max_size=8, unique=True).map(sorted))
def test_the_first_interval_that_a_plan_touches_is_found(transfer: Transfer, local: bool, ends: list[int]) -> None:
    intervals = list(zip(ends[::2], ends[1::2], strict=False))
    plan = transfer.plan()
    packed = struct.pack(f"={2 * len(intervals)}Q", *itertools.chain(*intervals))
    assert plan.overlaps(packed, local=local) == next(iter(hits(plan, intervals, local)), None)


def hits(plan: CopyPlan, intervals: list[tuple[int, int]], local: bool) -> Iterator[tuple[int, int]]:
    for chunk in chunks_of(plan):
        first = chunk.local if local else chunk.remote
        yield from ((start, end) for start, end in intervals if start < first + chunk.nbytes and first < end)


@pytest.mark.parametrize("bad", [(5, 5), (6, 5), (5, 7, 6, 8), (5, 7, 1, 2), (5,)])
def test_intervals_out_of_order_are_refused(bad: tuple[int, ...]) -> None:
    with pytest.raises(errors.CacheValueError, match="intervals has"):
        plan_blocks(LOCAL, REMOTE, [0], [0]).overlaps(bad, local=True)


def test_sides_that_do_not_fit_together_are_refused() -> None:
    wide = Geometry([1 << 40, 1 << 41], blocks=10, block_bytes=128)
    with pytest.raises(
        errors.CacheIncompatibleError, match="local cache gives 64 bytes and one of the remote cache 128"
    ):
        plan_blocks(LOCAL, wide, [0], [0])
    assert plan_blocks(LOCAL, wide, [0], [0], remote_slice=(64, 64)).nbytes == 128
    with pytest.raises(errors.CacheIncompatibleError, match="local side has 2 tensors and the remote side 1"):
        plan_blocks(LOCAL, REMOTE.part(0, 1), [0], [0])


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        ((0, 65), r"local_slice is \(0, 65\)"),
        ((1, 64), r"local_slice is \(1, 64\)"),
        ((2**64 - 1, 2), r"local_slice is \(18446744073709551615, 2\)"),
        ((0, 0), r"local_slice is \(0, 0\)"),
        ((0, 8, 8, 9), r"local_slice is \(0, 8, 8, 9\); a slice has at least 1 byte and ends within its block of 64"),
        ((1, 8, 8, 8), r"local_slice is \(1, 8, 8, 8\)"),
        ((0, 8, 2, 7), "the stride must be at least the 8 bytes of a piece"),
        ((0, 8, 0, 8), r"local_slice is \(0, 8, 0, 8\)"),
        ((0, 1, 2**33, 2**32), r"local_slice is \(0, 1, 8589934592, 4294967296\)"),
        ((1,), "a slice is"),
        ((1, 2, 3), "a slice is"),
        ((-1, 2), r"local_slice\[0\] is -1"),
    ],
)
def test_a_slice_outside_its_block_is_refused(cut: Any, message: str) -> None:
    with pytest.raises(errors.CacheValueError, match=message):
        plan_blocks(LOCAL, REMOTE, [0], [0], local_slice=cut)


def test_a_slice_that_is_contiguous_in_pieces_is_one_piece() -> None:
    pieces = plan_blocks(LOCAL, REMOTE, [1, 2], [3, 4], local_slice=(0, 8, 8, 8), remote_slice=(0, 16, 4, 16))
    assert chunks_of(pieces) == chunks_of(plan_blocks(LOCAL, REMOTE, [1, 2], [3, 4]))


def test_more_pieces_than_memory_can_hold_are_refused() -> None:
    huge = Geometry([0], blocks=4, block_bytes=2**40)
    halves = BlockSlice(0, 1, 2**39, 2)
    with pytest.raises(errors.CacheValueError, match="cut each of 2 blocks into 549755813888 pieces"):
        plan_parts([Part(huge, huge, halves, BlockSlice(0, 2**39))], [0, 1], [0, 1])
    # Parts count together.
    large = Geometry([0], blocks=1, block_bytes=2**26)
    part = Part(large, large, BlockSlice(0, 1, 2**25, 2), BlockSlice(0, 2**25))
    with pytest.raises(errors.CacheValueError, match="at most 67108864 pieces"):
        plan_parts([part] * 3, [0], [0])


def test_blocks_must_exist_in_every_part() -> None:
    small = Part(Geometry([1], blocks=5, block_bytes=64), Geometry([2], blocks=6, block_bytes=64))
    parts = [Part(LOCAL, REMOTE), small]
    assert plan_parts(parts, [4], [5]).blocks == 3
    with pytest.raises(errors.CacheValueError, match=r"dst_blocks\[0\] is 5; the cache has 5 blocks"):
        plan_parts(parts, [5], [0])
    with pytest.raises(errors.CacheValueError, match=r"src_blocks\[0\] is 6; the cache has 6 blocks"):
        plan_parts(parts, [0], [6])
    with pytest.raises(errors.CacheValueError, match="dst_blocks has 6 ids; the cache has only 5 blocks"):
        plan_parts([Part(part.remote, part.local) for part in parts], range(6), range(6), destination="remote")
    with pytest.raises(errors.CacheValueError, match="parts is empty"):
        plan_parts([], [0], [0])


def test_slices_of_parts_are_named_by_what_the_caller_gave() -> None:
    part = Part(LOCAL, REMOTE, BlockSlice(60, 8))
    for destination, name in (("local", "dst_slice"), ("remote", "src_slice")):
        with pytest.raises(errors.CacheValueError, match=rf"{name} is \(60, 8\)"):
            plan_parts([part], [0], [0], destination=destination)  # type: ignore[arg-type]  # both are sides
    with pytest.raises(errors.CacheIncompatibleError, match="gives 8 bytes and one of the remote cache 64"):
        plan_parts([Part(LOCAL, REMOTE, BlockSlice(0, 8))], [0], [0])


def test_offsets_above_four_gibibytes_are_exact() -> None:
    big = Geometry([2**40], blocks=2**31, block_bytes=2**20)
    ids = np.array([2**31 - 1, 5000], np.int32)
    plan = plan_blocks(big, big, ids, ids[::-1])
    assert struct.unpack("=6Q", plan.flat(0, 2)) == (
        *(2**40 + (2**31 - 1) * 2**20, 2**40 + 5000 * 2**20, 2**20),
        *(2**40 + 5000 * 2**20, 2**40 + (2**31 - 1) * 2**20, 2**20),
    )


def test_tables_of_a_plan_outlive_it() -> None:
    plan = plan_blocks(LOCAL, REMOTE, [1, 5, 9], [0, 1, 2])
    [(bases, runs)] = plan.groups()
    del plan
    assert (bases.readonly, bases.shape, runs.shape) == (True, (2, 2), (3, 3))
    run_rows: Any = runs.tolist()
    base_rows: Any = bases.tolist()
    assert run_rows == [[64, 0, 64], [320, 64, 64], [576, 128, 64]]
    assert base_rows == [[1 << 20, 1 << 40], [1 << 30, 1 << 41]]


def test_chunks_that_a_plan_does_not_have_are_refused() -> None:
    plan = plan_blocks(LOCAL, REMOTE, [1, 5], [0, 1])
    assert plan.flat(4, 0) == b""
    for start, count in ((0, 5), (5, 0), (1, 2**64 - 1)):
        with pytest.raises(errors.CacheValueError, match="the plan has 4"):
            plan.flat(start, count)
    for bad in ((0, 5), (3, 2)):
        with pytest.raises(errors.CacheValueError, match="the plan has 4 chunks"):
            plan.block_ranges([bad])
