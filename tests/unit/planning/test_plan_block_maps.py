"""Maps of blocks to blocks of the same manager: each is copied once to where it should go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_oracle import block_start, geometries, moves_of

from cachecore import errors
from cachecore.planning import Geometry, plan_block_map

LOCAL = Geometry([1 << 20, 1 << 30], blocks=200, block_bytes=64)
REMOTE = Geometry([1 << 40, 1 << 41], blocks=250, block_bytes=64)


@given(st.data())
def test_a_block_map_moves_each_block_to_its_destinations(data: st.DataObject) -> None:
    block_bytes = data.draw(st.integers(1, 5))
    destination, source = (data.draw(geometries(2, block_bytes, lowest)) for lowest in (1, 2**20))
    written = data.draw(st.permutations(range(destination.blocks)))[: data.draw(st.integers(1, destination.blocks))]
    pairs = [(data.draw(st.integers(0, source.blocks - 1)), block) for block in written]
    lists = {read: [block for key, block in pairs if key == read] for read, _ in pairs}
    several = any(len(blocks) > 1 for blocks in lists.values())
    mapping: Any = lists if several or data.draw(st.booleans()) else {read: block for read, [block] in lists.items()}
    plan = plan_block_map(destination, source, mapping)
    assert moves_of(plan) == [
        sorted(
            (block_start(destination, tensor, block) + i, block_start(source, tensor, read) + i)
            for read, block in pairs
            for i in range(block_bytes)
        )
        for tensor in range(2)
    ]


@pytest.mark.parametrize(
    ("mapping", "error", "message"),
    [
        (None, errors.MissingArgumentError, "src_to_dst is None"),
        ([(0, 1)], errors.CacheTypeError, r"src_to_dst is \[\(0, 1\)\] of type list"),
        ({}, errors.CacheValueError, "src_to_dst is empty"),
        ({0: [1], 2: []}, errors.CacheValueError, r"src_to_dst\[2\] is empty"),
        ({0: None}, errors.MissingArgumentError, r"src_to_dst\[0\] is None"),
        ({0: "1"}, errors.CacheTypeError, r"src_to_dst\[0\] is '1' of type str"),
        ({0: 1.0}, errors.CacheTypeError, r"src_to_dst\[0\] is 1.0 of type float"),
        ({0: True}, errors.CacheTypeError, r"src_to_dst\[0\] is True"),
        ({0: [1, -1]}, errors.CacheValueError, r"src_to_dst\[0\]\[1\] is -1"),
        ({"0": 1}, errors.CacheTypeError, "a source block of src_to_dst is '0' of type str"),
        ({250: 1}, errors.CacheValueError, "a source block of src_to_dst is 250; the cache has 250 blocks"),
        ({0: 200}, errors.CacheValueError, "a destination block of src_to_dst is 200; the cache has 200 blocks"),
        ({0: 7, 1: [5, 7]}, errors.CacheValueError, "a destination block of src_to_dst is 7, as another is already"),
    ],
    ids=str,
)
def test_a_map_that_says_no_clear_copy_is_refused(mapping: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        plan_block_map(LOCAL, REMOTE, mapping, name="src_to_dst")


def test_a_map_takes_arrays_and_scalars_of_libraries() -> None:
    expected = plan_block_map(LOCAL, REMOTE, {3: [1, 2], 4: 5}).flat(0, 4)
    mapping: Any = {np.int64(3): np.array([1, 2]), 4: np.array(5)}
    assert plan_block_map(LOCAL, REMOTE, mapping).flat(0, 4) == expected


def test_a_map_that_reads_what_it_writes_is_refused() -> None:
    assert plan_block_map(LOCAL, LOCAL, {0: [1, 2], 3: [4]}).blocks == 6
    for mapping in ({0: 0}, {0: 1, 1: 2}):
        with pytest.raises(errors.OverlapError, match="a destination block of mapping and a source block of mapping"):
            plan_block_map(LOCAL, LOCAL, mapping)
    with pytest.raises(errors.CacheIncompatibleError, match="destination cache gives 64 bytes and one of the source"):
        plan_block_map(LOCAL, Geometry([1, 2], blocks=1, block_bytes=32), {0: 0})


def test_a_mapping_with_items_of_its_own_kind_is_refused_in_words() -> None:
    class Odd(dict[int, int]):
        def items(self) -> Any:
            return [[0, 1]]

    with pytest.raises(errors.CacheTypeError, match=r"mapping has an item \[0, 1\]"):
        plan_block_map(LOCAL, REMOTE, Odd({0: 1}))
