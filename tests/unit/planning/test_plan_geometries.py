"""Geometries that leave their memory are refused, and parts of them keep the tensors asked for."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecore import errors
from cachecore.planning import Geometry


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
    with pytest.raises(errors.CacheValueError, match="step is 0"):
        geometry.part(0, 4, 0)


@given(st.data())
def test_a_part_of_a_part_is_a_slice_of_a_slice(data: st.DataObject) -> None:
    bases = list(range(100, 100 + data.draw(st.integers(1, 12))))
    geometry = Geometry(bases, blocks=1, block_bytes=1)
    for _ in range(2):
        start = data.draw(st.integers(0, len(bases) - 1))
        stop = data.draw(st.integers(start + 1, len(bases)))
        step = data.draw(st.one_of(st.integers(1, 5), st.just(2**64 - 1)))
        bases, geometry = bases[start:stop][:: min(step, 100)], geometry.part(start, stop, step)
        assert geometry.bases == tuple(bases)
