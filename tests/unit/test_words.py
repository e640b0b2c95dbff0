"""Content made by fill_words cannot pass when it is in the wrong place, torn or stale."""

from __future__ import annotations

import array
import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecore import _core, errors


@given(st.integers(1, 2000), st.integers(0, 7), st.integers(0, 2**64 - 1), st.data())
def test_one_wrong_byte_is_found_in_its_word(nbytes: int, misalignment: int, seed: int, data: st.DataObject) -> None:
    memory = (ctypes.c_ubyte * (nbytes + 8))()
    address = ctypes.addressof(memory) + misalignment
    _core.fill_words(address, nbytes, seed)
    assert _core.find_mismatch(address, nbytes, seed) == -1
    assert bytes(memory)[misalignment + nbytes :] == bytes(8 - misalignment), "nothing is written behind the end"
    position = data.draw(st.integers(0, nbytes - 1))
    memory[misalignment + position] = memory[misalignment + position] ^ data.draw(st.integers(1, 255))
    assert _core.find_mismatch(address, nbytes, seed) == position // 8


@given(st.integers(0, 2**64 - 1), st.integers(1, 64))
def test_neighbouring_seeds_and_shifted_content_differ_at_once(seed: int, distance: int) -> None:
    memory = (ctypes.c_ubyte * 1024)()
    address = ctypes.addressof(memory)
    _core.fill_words(address, 1024, seed)
    assert _core.find_mismatch(address, 1024, (seed + distance) % 2**64) == 0
    assert _core.find_mismatch(address + 8 * distance, 1024 - 8 * distance, seed) == 0
    words = array.array("Q", bytes(memory))
    assert len(set(words)) == len(words)


def test_many_blocks_are_filled_and_each_wrong_one_is_named() -> None:
    memory = (ctypes.c_ubyte * (10 * 100))()
    addresses = [ctypes.addressof(memory) + 100 * i for i in range(10)]
    seeds = array.array("Q", range(10))
    _core.fill_blocks(addresses, seeds, 100)
    assert [_core.find_mismatch(address, 100, i) for i, address in enumerate(addresses)] == [-1] * 10
    assert _core.find_mismatches(array.array("Q", addresses).tobytes(), seeds, 100) == []
    memory[350] = memory[350] ^ 1
    memory[999] = memory[999] ^ 1
    assert _core.find_mismatches(addresses, seeds, 100) == [(3, 6), (9, 12)]
    with pytest.raises(errors.CacheValueError, match="addresses has 10 items and seeds has 9"):
        _core.fill_blocks(addresses, seeds[:9], 100)
