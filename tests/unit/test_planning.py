"""Plans move exactly the bytes that the blocks name, and bad input is refused before any byte moves."""

from __future__ import annotations

import array
import itertools
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecore import errors
from cachecore.planning import CopyPlan, Geometry, plan_blocks, plan_entry, plan_entry_to_blocks


def block_start(side: Geometry, tensor: int, block: int) -> int:
    return side.bases[tensor] + side.offset + block * side.block_stride


@st.composite
def geometries(draw: st.DrawFn, tensors: int, block_bytes: int, lowest: int = 1) -> Geometry:
    bases = draw(st.lists(st.integers(lowest, lowest + 300), min_size=tensors, max_size=tensors))
    return Geometry(
        bases,
        blocks=draw(st.integers(1, 10)),
        block_bytes=block_bytes,
        block_stride=block_bytes + draw(st.integers(0, 2)),
        offset=draw(st.integers(0, 4)),
    )


@st.composite
def block_transfers(draw: st.DrawFn, lowest: int = 1) -> tuple[Geometry, Geometry, list[int], list[int], str]:
    tensors, block_bytes = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    local, remote = (draw(geometries(tensors, block_bytes, lowest)) for _ in range(2))
    destination = draw(st.sampled_from(["local", "remote"]))
    written, read = (local, remote) if destination == "local" else (remote, local)
    # Ascending stretches are common in block tables and are what merging is about.
    order = draw(st.one_of(st.permutations(range(written.blocks)), st.just(range(written.blocks))))
    written_ids = list(order)[: draw(st.integers(1, written.blocks))]
    first = draw(st.integers(0, read.blocks - 1))
    ascending = [min(first + i, read.blocks - 1) for i in range(len(written_ids))]
    any_ids = st.lists(st.integers(0, read.blocks - 1), min_size=len(written_ids), max_size=len(written_ids))
    read_ids = draw(st.one_of(st.just(ascending), any_ids))
    ids = (written_ids, read_ids) if destination == "local" else (read_ids, written_ids)
    return local, remote, *ids, destination


def expected_moves(
    local: Geometry, remote: Geometry, pairs: list[tuple[int, int]], cut: tuple[int, int, int]
) -> dict[int, list[tuple[int, int]]]:
    local_offset, remote_offset, nbytes = cut
    return {
        tensor: sorted(
            (block_start(local, tensor, a) + local_offset + i, block_start(remote, tensor, b) + remote_offset + i)
            for a, b in pairs
            for i in range(nbytes)
        )
        for tensor in range(local.tensors)
    }


def grouped_moves(plan: CopyPlan) -> dict[int, list[tuple[int, int]]]:
    moves: dict[int, list[tuple[int, int]]] = {}
    for chunk, (local, remote, nbytes) in enumerate(struct.iter_unpack("=QQQ", plan.flat(0, plan.chunks))):
        tensor = chunk // (plan.chunks // plan.pairs)
        moves.setdefault(tensor, []).extend((local + i, remote + i) for i in range(nbytes))
    return {tensor: sorted(items) for tensor, items in moves.items()}


@given(block_transfers(lowest=2**40), st.data())
def test_blocks_plan_moves_exactly_the_named_bytes(
    transfer: tuple[Geometry, Geometry, list[int], list[int], Any], data: st.DataObject
) -> None:
    local, remote, local_ids, remote_ids, destination = transfer
    nbytes = data.draw(st.integers(1, local.block_bytes))
    cut = tuple(data.draw(st.integers(0, local.block_bytes - nbytes)) for _ in range(2))
    sliced = data.draw(st.booleans())
    slices = [(offset, nbytes) if sliced else None for offset in cut]
    plan = plan_blocks(
        local,
        remote,
        local_ids,
        remote_ids,
        destination=destination,
        local_slice=slices[0],
        remote_slice=slices[1],
    )
    span = (cut[0], cut[1], nbytes) if sliced else (0, 0, local.block_bytes)
    assert grouped_moves(plan) == expected_moves(local, remote, list(zip(local_ids, remote_ids, strict=True)), span)
    assert plan.blocks == len(local_ids) * local.tensors
    assert plan.nbytes == plan.blocks * span[2]

    [(bases, runs)] = plan.groups()
    base_rows: Any = bases.tolist()
    run_rows: Any = runs.tolist()
    flat = [(a + run[0], b + run[1], run[2]) for a, b in base_rows for run in run_rows]
    assert flat == list(struct.iter_unpack("=QQQ", plan.flat(0, plan.chunks)))
    for before, after in itertools.pairwise(run_rows):
        contiguous = before[0] + before[2] == after[0] and before[1] + before[2] == after[1]
        assert not contiguous, "neighbours contiguous on both sides must be one run"


@given(block_transfers(), st.data())
def test_block_ranges_name_the_destination_blocks_of_chunks(
    transfer: tuple[Geometry, Geometry, list[int], list[int], Any], data: st.DataObject
) -> None:
    local, remote, local_ids, remote_ids, destination = transfer
    plan = plan_blocks(local, remote, local_ids, remote_ids, destination=destination)
    cuts = sorted(data.draw(st.lists(st.integers(0, plan.chunks), min_size=2, max_size=4)))
    ranges = list(zip(cuts[::2], cuts[1::2], strict=False))

    side = 0 if destination == "local" else 1
    written = local if destination == "local" else remote
    flat = list(struct.iter_unpack("=QQQ", plan.flat(0, plan.chunks)))
    expected = set()
    for start, stop in ranges:
        for chunk in range(start, stop):
            tensor = chunk // (plan.chunks // plan.pairs)
            first, nbytes = flat[chunk][side], flat[chunk][2]
            expected |= {
                (tensor, block)
                for block in range(written.blocks)
                if first <= block_start(written, tensor, block) < first + nbytes
            }
    found = plan.block_ranges(ranges)
    assert {(tensor, block) for tensor, start, count in found for block in range(start, start + count)} == expected
    for (tensor, start, count), (next_tensor, next_start, _) in itertools.pairwise(found):
        assert (tensor, start + count) < (next_tensor, next_start), "sorted, neighbours joined"


@given(block_transfers())
def test_a_byte_both_read_and_written_in_one_process_is_refused(
    transfer: tuple[Geometry, Geometry, list[int], list[int], Any],
) -> None:
    local, remote, local_ids, remote_ids, destination = transfer
    plan = plan_blocks(local, remote, local_ids, remote_ids, destination=destination)
    chunks = list(struct.iter_unpack("=QQQ", plan.flat(0, plan.chunks)))
    local_bytes = {a + i for a, _, nbytes in chunks for i in range(nbytes)}
    remote_bytes = {b + i for _, b, nbytes in chunks for i in range(nbytes)}
    if local_bytes & remote_bytes:
        with pytest.raises(errors.OverlapError, match="share bytes"):
            plan_blocks(local, remote, local_ids, remote_ids, destination=destination, same_process=True)
    else:
        plan_blocks(local, remote, local_ids, remote_ids, destination=destination, same_process=True)


@given(st.data())
def test_entry_into_blocks_never_reads_past_the_entry(data: st.DataObject) -> None:
    entry_bytes, block_bytes = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 5))
    local = data.draw(geometries(2, block_bytes))
    remote = data.draw(geometries(2, entry_bytes, lowest=2**20))
    entry = data.draw(st.integers(0, remote.blocks - 1))
    filled = min(local.blocks, -(-entry_bytes // block_bytes))
    blocks = data.draw(st.permutations(range(local.blocks)))[: data.draw(st.integers(1, filled))]
    plan = plan_entry_to_blocks(local, remote, blocks, entry)
    expected = {
        tensor: sorted(
            (block_start(local, tensor, block) + i, block_start(remote, tensor, entry) + position * block_bytes + i)
            for position, block in enumerate(blocks)
            for i in range(min(block_bytes, entry_bytes - position * block_bytes))
        )
        for tensor in range(2)
    }
    assert grouped_moves(plan) == expected
    found = {(t, b) for t, start, count in plan.block_ranges([(0, plan.chunks)]) for b in range(start, start + count)}
    assert found == {(tensor, block) for tensor in range(2) for block in blocks}


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


class Tensor:
    """What planning uses of a torch tensor."""

    def __init__(self, items: Any, dtype: str = "torch.int64", device: str = "cpu") -> None:
        self._items, self.dtype, self.device = items, dtype, type("device", (), {"type": device})()

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("one call an item is slow: tolist() is there")

    def tolist(self) -> Any:
        return self._items


class Index:
    """An integer only by `__index__`."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


LOCAL = Geometry([1 << 20, 1 << 30], blocks=200, block_bytes=64)
REMOTE = Geometry([1 << 40, 1 << 41], blocks=250, block_bytes=64)
EXPECTED = plan_blocks(LOCAL, REMOTE, [1, 5, 9], [0, 1, 2]).flat(0, 6)


@pytest.mark.parametrize(
    "blocks",
    [
        (1, 5, 9),
        range(1, 10, 4),
        [Index(1), np.int32(5), np.array(9)],
        array.array("i", [1, 5, 9]),
        memoryview(array.array("H", [1, 5, 9])),
        memoryview(array.array("q", [9, 0, 5, 0, 1]))[::-2],
        *(np.array([1, 5, 9], dtype) for dtype in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")),
        np.array([1, 0, 5, 0, 9, 0])[::2],
        np.array([1, 5, 9], "<i4"),
        np.frombuffer(b"\0" + struct.pack("=3i", 1, 5, 9), np.int32, offset=1),
        Tensor([1, 5, 9]),
        Tensor([1, 5, 9], "torch.uint8"),
    ],
    ids=lambda blocks: f"{type(blocks).__name__} {getattr(blocks, 'dtype', getattr(blocks, 'format', ''))}",
)
def test_every_integer_list_gives_the_same_plan(blocks: Any) -> None:
    assert plan_blocks(LOCAL, REMOTE, blocks, [0, 1, 2]).flat(0, 6) == EXPECTED


@pytest.mark.parametrize(
    ("blocks", "error", "message"),
    [
        (None, errors.MissingArgumentError, "dst_blocks is None"),
        ([None], errors.MissingArgumentError, r"dst_blocks\[0\] is None"),
        ([True], errors.CacheTypeError, r"dst_blocks\[0\] is True .* truth value"),
        ([np.True_], errors.CacheTypeError, r"dst_blocks\[0\] is .*True.* truth value"),
        ([1.0], errors.CacheTypeError, r"dst_blocks\[0\] is 1.0 of type float"),
        (["1"], errors.CacheTypeError, r"dst_blocks\[0\] is '1' of type str"),
        ("1", errors.CacheTypeError, "dst_blocks is '1' of type str"),
        (b"\1", errors.CacheTypeError, "dst_blocks is b'.*' of type bytes"),
        ({1}, errors.CacheTypeError, "dst_blocks is .* of type set"),
        (iter([1]), errors.CacheTypeError, "dst_blocks is .* give a list"),
        (1, errors.CacheTypeError, "dst_blocks is 1 of type int"),
        (np.array(1), errors.CacheTypeError, "dst_blocks is .* length"),
        (np.array([1.0]), errors.CacheTypeError, "array of format 'd'"),
        (np.array([True]), errors.CacheTypeError, r"array of format '\?'"),
        (np.array([1], ">i4"), errors.CacheTypeError, "array of format '>i'.*native byte order"),
        (np.array([[1]]), errors.CacheTypeError, "array of 2 dimensions"),
        (np.array([1], "M8[s]"), errors.CacheTypeError, "dst_blocks is .*integer array"),
        (np.array([1], object), errors.CacheTypeError, "array of format 'O'"),
        (Tensor([1], device="npu"), errors.CacheTypeError, r"tensor on npu.*\.cpu\(\)"),
        (Tensor([1], "torch.bool"), errors.CacheTypeError, "tensor of torch.bool"),
        ([-1], errors.CacheValueError, r"dst_blocks\[0\] is -1;.*padding"),
        (np.array([-1], np.int8), errors.CacheValueError, r"dst_blocks\[0\] is -1;.*padding"),
        ([200], errors.CacheValueError, r"dst_blocks\[0\] is 200; the cache has 200 blocks, so ids are 0 to 199"),
        (np.array([2**64 - 1], np.uint64), errors.CacheValueError, r"is 18446744073709551615; the cache has 200"),
        ([2**64], errors.CacheValueError, r"dst_blocks\[0\] is 18446744073709551616"),
        ([10**5000], errors.CacheValueError, r"dst_blocks\[0\] is a value of type int"),
        ([-(2**70)], errors.CacheValueError, r"dst_blocks\[0\] is -1180591620717411303424"),
    ],
)
def test_a_list_that_names_no_block_is_refused(blocks: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        plan_blocks(LOCAL, REMOTE, blocks, [0])


def test_source_ids_are_checked_against_the_source() -> None:
    assert plan_blocks(LOCAL, REMOTE, [0], [249]).blocks == 2
    with pytest.raises(errors.CacheValueError, match=r"src_blocks\[1\] is 250; the cache has 250 blocks"):
        plan_blocks(LOCAL, REMOTE, [0, 1], [0, 250])


@pytest.mark.parametrize(
    ("dst", "message"),
    [
        ([7, 3, 7], r"dst_blocks\[2\] is 7, as dst_blocks\[0\] is already"),
        ([3, 3], r"dst_blocks\[1\] is 3, as dst_blocks\[0\] is already"),
        ([199, 0, 100, 199], r"dst_blocks\[3\] is 199, as dst_blocks\[0\] is already"),
    ],
)
def test_a_destination_block_written_twice_is_refused(dst: list[int], message: str) -> None:
    with pytest.raises(errors.CacheValueError, match=message):
        plan_blocks(LOCAL, REMOTE, dst, list(range(len(dst))))
    # The other direction writes the remote side, so the local list may repeat.
    plan_blocks(LOCAL, REMOTE, dst, list(range(len(dst))), destination="remote")


def test_ids_far_apart_are_still_checked_for_repetition() -> None:
    sparse = Geometry([0], blocks=2**40, block_bytes=1)
    assert plan_blocks(sparse, LOCAL.part(0, 1), [2**39, 0], [0, 1], local_slice=(0, 1), remote_slice=(0, 1)).runs == 2
    with pytest.raises(errors.CacheValueError, match=r"dst_blocks\[2\] is 549755813888, as dst_blocks\[0\]"):
        plan_blocks(sparse, LOCAL.part(0, 1), [2**39, 0, 2**39], [0, 1, 2], remote_slice=(0, 1))


def test_lists_of_unequal_length_or_without_items_are_refused() -> None:
    with pytest.raises(errors.CacheValueError, match="src_blocks has 1 ids and dst_blocks has 2"):
        plan_blocks(LOCAL, REMOTE, [0, 1], [0])
    with pytest.raises(errors.CacheValueError, match="are empty"):
        plan_blocks(LOCAL, REMOTE, [], ())
    with pytest.raises(errors.CacheValueError, match=r"dst_blocks has 1099511627776 ids; the cache has only 200"):
        plan_blocks(LOCAL, REMOTE, range(2**40), range(2**40))


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
        ((1,), "a slice is"),
        ((-1, 2), r"local_slice\[0\] is -1"),
    ],
)
def test_a_slice_outside_its_block_is_refused(cut: Any, message: str) -> None:
    with pytest.raises(errors.CacheValueError, match=message):
        plan_blocks(LOCAL, REMOTE, [0], [0], local_slice=cut)


def test_offsets_above_four_gibibytes_are_exact() -> None:
    big = Geometry([2**40], blocks=2**31, block_bytes=2**20)
    ids = np.array([2**31 - 1, 5000], np.int32)
    plan = plan_blocks(big, big, ids, ids[::-1])
    assert struct.unpack("=6Q", plan.flat(0, 2)) == (
        *(2**40 + (2**31 - 1) * 2**20, 2**40 + 5000 * 2**20, 2**20),
        *(2**40 + 5000 * 2**20, 2**40 + (2**31 - 1) * 2**20, 2**20),
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bases": [], "blocks": 1, "block_bytes": 1}, "bases is empty"),
        ({"bases": [1], "blocks": 0, "block_bytes": 1}, "blocks is 0"),
        ({"bases": [1], "blocks": 1, "block_bytes": 0}, "block_bytes is 0"),
        ({"bases": [1], "blocks": 2, "block_bytes": 8, "block_stride": 7}, "block_stride is 7"),
        ({"bases": [1], "blocks": 3, "block_bytes": 8, "tensor_bytes": 23}, "tensor_bytes is 23"),
        ({"bases": [1], "blocks": 2, "block_bytes": 8, "offset": 1, "tensor_bytes": 16}, "tensor_bytes is 16"),
        ({"bases": [1], "blocks": 2**33, "block_bytes": 2**32}, "end below"),
        ({"bases": [1, 2**64 - 10], "blocks": 1, "block_bytes": 10}, r"bases\[1\] is 18446744073709551606"),
        ({"bases": bytes(9), "blocks": 1, "block_bytes": 10}, "bases has 9 bytes"),
        ({"bases": [-1], "blocks": 1, "block_bytes": 10}, r"bases\[0\] is -1"),
    ],
)
def test_a_geometry_that_leaves_its_memory_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.CacheValueError, match=message):
        Geometry(**arguments)


def test_part_of_a_geometry_keeps_the_tensors_asked_for() -> None:
    geometry = Geometry(struct.pack("=4Q", 10, 20, 30, 40), blocks=1, block_bytes=1)
    assert geometry.part(1, 4).part(1, 3).bases == (30, 40)
    with pytest.raises(errors.CacheValueError, match="range must be within 0 to 3"):
        geometry.part(1, 4).part(1, 4)


def test_a_list_changed_by_its_own_items_is_read_as_it_was() -> None:
    blocks: list[Any] = [0]

    class Clearing:
        def __index__(self) -> int:
            blocks.clear()
            return 1

    blocks += [Clearing(), 2]
    assert plan_blocks(LOCAL, REMOTE, blocks, [0, 1, 2]).blocks == 6


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
