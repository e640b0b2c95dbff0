"""What callers may give as `src_slice` and `dst_slice`, and what is refused before anything is planned."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from cachecore import errors
from cachecore.slices import BlockSlice, checked


@pytest.mark.parametrize(
    ("value", "tensors", "expected"),
    [
        (None, 2, (None, None)),
        ((8, 4), 2, (BlockSlice(8, 4), BlockSlice(8, 4))),
        ([8, 4, 3, 16], 1, (BlockSlice(8, 4, 3, 16),)),
        (BlockSlice(8, 4), 1, (BlockSlice(8, 4),)),
        ([None, (8, 4)], 2, (None, BlockSlice(8, 4))),
        (((0, 1), BlockSlice(1, 1)), 2, (BlockSlice(0, 1), BlockSlice(1, 1))),
        ((np.int64(8), np.uint8(4)), 1, (BlockSlice(8, 4),)),
        ((8, 4, 1, 16), 1, (BlockSlice(8, 4),)),
    ],
)
def test_every_way_to_give_a_slice(value: Any, tensors: int, expected: tuple[BlockSlice | None, ...]) -> None:
    assert checked("src_slice", value, tensors) == expected


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("ab", errors.CacheTypeError, "src_slice is 'ab' of type str; it must be None, "),
        (8, errors.CacheTypeError, "src_slice is 8 of type int"),
        ([], errors.CacheValueError, "src_slice is empty"),
        ((8,), errors.CacheValueError, r"src_slice is \(8,\) with 1 items"),
        ((8, 4, 2), errors.CacheValueError, r"src_slice is \(8, 4, 2\) with 3 items"),
        ([(8, 4)], errors.CacheValueError, "src_slice has 1 slices and a layer has 2 tensors"),
        ([None, 8], errors.CacheTypeError, r"src_slice\[1\] is 8 of type int"),
        ([None, (8, 0)], errors.CacheValueError, r"src_slice\[1\]: nbytes is 0"),
        ((-1, 4), errors.CacheValueError, "src_slice: offset is -1"),
        ((8, None), errors.MissingArgumentError, "src_slice: nbytes is None"),
        ((8, 4.0), errors.CacheTypeError, "src_slice: nbytes is 4.0"),
        ((8, 4, 0, 8), errors.CacheValueError, "src_slice: count is 0"),
        ((8, 4, 2, 3), errors.CacheValueError, "src_slice: stride is 3 bytes and a piece has 4"),
        ((0, 1, 2**33, 2**32), errors.CacheValueError, "src_slice: count is 8589934592 .* below"),
    ],
)
def test_what_is_no_slice_is_refused(value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        checked("src_slice", value, 2)


def test_a_slice_knows_its_bytes_and_where_it_ends() -> None:
    cut = BlockSlice(8, 4, 3, 16)
    assert (cut.total, cut.end) == (12, 44)
    assert pickle.loads(pickle.dumps(cut)) == cut
    with pytest.raises(errors.CacheValueError, match="BlockSlice: stride is 3 bytes"):
        BlockSlice(8, 4, 3, 3)
