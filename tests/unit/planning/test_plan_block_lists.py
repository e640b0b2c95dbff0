"""Block lists of every kind give the same plan, and a list that names no block is refused."""

from __future__ import annotations

import array
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecore import _core, errors
from cachecore.planning import Geometry, plan_blocks


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
        (np.array([[1], [2]]), errors.CacheTypeError, "array of 2 dimensions"),  # and not "has 2 ids"
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


def test_a_list_changed_by_its_own_items_is_read_as_it_was() -> None:
    blocks: list[Any] = [0]

    class Clearing:
        def __index__(self) -> int:
            blocks.clear()
            return 1

    blocks += [Clearing(), 2]
    assert plan_blocks(LOCAL, REMOTE, blocks, [0, 1, 2]).blocks == 6


few = st.lists(st.integers(0, 40), max_size=12)
far = st.lists(st.sampled_from([0, 1, 2**40, 2**63, 2**64 - 1]), max_size=6)


@given(st.one_of(few, far), st.one_of(few, far))
def test_the_first_block_that_is_not_allowed_is_found(allowed: list[int], blocks: list[int]) -> None:
    expected = next((i for i, block in enumerate(blocks) if block not in allowed), -1)
    assert _core.first_missing(struct.pack(f"={len(allowed)}Q", *allowed), blocks) == expected
    assert _core.first_missing(allowed, np.array(blocks, np.uint64)) == expected


@given(far)
def test_packed_blocks_are_those_of_the_list(blocks: list[int]) -> None:
    packed = struct.pack(f"={len(blocks)}Q", *blocks)
    assert _core.pack_blocks(blocks, "blocks") == _core.pack_blocks(np.array(blocks, np.uint64), "blocks") == packed
    with pytest.raises(errors.CacheValueError, match=r"table\[0\] is -1"):
        _core.pack_blocks([-1, *blocks], "table")
