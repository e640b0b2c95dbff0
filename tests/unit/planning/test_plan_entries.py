"""Plans of batch entries: each side by its own stride, never past an entry."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_oracle import block_start, geometries, moves_of

from cachecore import errors
from cachecore.planning import Geometry, plan_copy, plan_entry, plan_entry_to_blocks


@given(st.data())
def test_entry_into_blocks_never_reads_past_the_entry(data: st.DataObject) -> None:
    entry_bytes, block_bytes = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 5))
    paged = data.draw(geometries(2, block_bytes))
    entries = data.draw(geometries(2, entry_bytes, lowest=2**20))
    entry = data.draw(st.integers(0, entries.blocks - 1))
    filled = min(paged.blocks, -(-entry_bytes // block_bytes))
    blocks = data.draw(st.permutations(range(paged.blocks)))[: data.draw(st.integers(1, filled))]
    destination: Any = data.draw(st.sampled_from(["local", "remote"]))
    sides = (paged, entries) if destination == "local" else (entries, paged)
    plan = plan_entry_to_blocks(*sides, blocks, entry, destination=destination)
    expected = [
        sorted(
            (block_start(paged, tensor, block) + i, block_start(entries, tensor, entry) + position * block_bytes + i)
            for position, block in enumerate(blocks)
            for i in range(min(block_bytes, entry_bytes - position * block_bytes))
        )
        for tensor in range(2)
    ]
    if destination == "remote":
        expected = [sorted((there, here) for here, there in tensor) for tensor in expected]
    assert moves_of(plan) == expected
    found = {(t, b) for t, start, count in plan.block_ranges([(0, plan.chunks)]) for b in range(start, start + count)}
    assert found == {(tensor, block) for tensor in range(2) for block in blocks}


@given(st.data())
def test_a_copy_moves_the_bytes_from_its_offsets_on(data: st.DataObject) -> None:
    source, destination = (data.draw(geometries(2, data.draw(st.integers(1, 12)), lowest)) for lowest in (1, 2**20))
    src_entry = data.draw(st.integers(0, source.blocks - 1))
    dst_entry = data.draw(st.integers(0, destination.blocks - 1))
    src_offset = data.draw(st.integers(0, source.block_bytes))
    dst_offset = data.draw(st.integers(0, destination.block_bytes))
    size = data.draw(st.integers(-1, 13))
    nbytes = source.block_bytes - src_offset if size == -1 else size
    arguments = (destination, source, dst_entry, src_entry, dst_offset, src_offset, size)
    if src_offset == source.block_bytes or dst_offset == destination.block_bytes:
        with pytest.raises(errors.CacheValueError, match=r"offset is \d+ bytes; an entry has"):
            plan_copy(*arguments)
    elif not 1 <= nbytes <= source.block_bytes - src_offset:
        with pytest.raises(errors.CacheValueError, match="size is"):
            plan_copy(*arguments)
    elif nbytes > destination.block_bytes - dst_offset:
        with pytest.raises(errors.CacheIncompatibleError, match="do not fit"):
            plan_copy(*arguments)
    else:
        plan = plan_copy(*arguments)
        assert moves_of(plan) == [
            [
                (
                    block_start(destination, tensor, dst_entry) + dst_offset + i,
                    block_start(source, tensor, src_entry) + src_offset + i,
                )
                for i in range(nbytes)
            ]
            for tensor in range(2)
        ]
        assert plan.block_ranges([(0, 2)]) == [(tensor, dst_entry, 1) for tensor in range(2)]


def test_a_copy_onto_itself_is_refused() -> None:
    cache = Geometry([4096, 8192], blocks=2, block_bytes=64)
    assert plan_copy(cache, cache, 1, 0).nbytes == 128
    assert plan_copy(cache, cache, 0, 0, 32, 0, 32).nbytes == 64
    for offsets_and_size in ((0, 0, -1), (32, 1, 32)):
        with pytest.raises(errors.OverlapError, match="dst_batch_index and src_batch_index share bytes"):
            plan_copy(cache, cache, 0, 0, *offsets_and_size)


def test_blocks_that_an_entry_cannot_fill_are_refused() -> None:
    local = Geometry([4096], blocks=8, block_bytes=16)
    remote = Geometry([8192], blocks=2, block_bytes=40)
    assert plan_entry_to_blocks(local, remote, [0, 1, 2], 1).nbytes == 40
    with pytest.raises(errors.CacheValueError, match=r"dst_blocks has 4 blocks .* which is 3 blocks"):
        plan_entry_to_blocks(local, remote, [0, 1, 2, 3], 1)
    with pytest.raises(errors.CacheValueError, match=r"is 2; the cache has 2 batch entries"):
        plan_entry_to_blocks(local, remote, [0], 2)


def test_each_side_of_an_entry_uses_its_own_stride() -> None:
    local = Geometry([1 << 20], blocks=4, block_bytes=100, block_stride=128, offset=8)
    remote = Geometry([1 << 30], blocks=6, block_bytes=60, block_stride=64)
    plan = plan_entry(local, remote, 3, 5)
    assert struct.unpack("=QQQ", plan.flat(0, 1)) == ((1 << 20) + 8 + 3 * 128, (1 << 30) + 5 * 64, 60)
    assert plan.block_ranges([(0, 1)]) == [(0, 3, 1)]
    written = plan_entry(local, remote, 2, 4, size=7, destination="remote")
    assert struct.unpack("=QQQ", written.flat(0, 1)) == ((1 << 20) + 8 + 2 * 128, (1 << 30) + 4 * 64, 7)
    assert written.block_ranges([(0, 1)]) == [(0, 4, 1)]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"local_entry": 4, "remote_entry": 0}, errors.CacheValueError, "batch_index is 4; the cache has 4 batch"),
        ({"local_entry": 0, "remote_entry": 6}, errors.CacheValueError, "of the key is 6; the cache has 6 batch"),
        ({"local_entry": -1, "remote_entry": 0}, errors.CacheValueError, "batch_index is -1"),
        ({"local_entry": 0, "remote_entry": 0, "size": 0}, errors.CacheValueError, "size is 0 bytes"),
        ({"local_entry": 0, "remote_entry": 0, "size": 61}, errors.CacheValueError, "size is 61 bytes"),
        ({"local_entry": 0, "remote_entry": 0, "size": -2}, errors.CacheValueError, "size is -2"),
        ({"local_entry": 0, "remote_entry": 0, "size": 1.0}, errors.CacheTypeError, "size is 1.0"),
        ({"local_entry": True, "remote_entry": 0}, errors.CacheTypeError, "batch_index is True"),
        ({"local_entry": None, "remote_entry": 0}, errors.MissingArgumentError, "batch_index is None"),
        ({"local_entry": 0, "remote_entry": 0, "destination": "remote"}, errors.CacheIncompatibleError, "100 bytes"),
    ],
)
def test_an_entry_that_does_not_exist_or_fit_is_refused(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    local = Geometry([1 << 20], blocks=4, block_bytes=100)
    remote = Geometry([1 << 30], blocks=6, block_bytes=60)
    with pytest.raises(error, match=message):
        plan_entry(local, remote, **arguments)
