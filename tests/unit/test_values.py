"""Descriptors, keys and caches: what they take, what they refuse and with which exception."""

import pickle
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecore.errors import CacheTypeError, CacheValueError, MissingArgumentError
from cachecore.types import (
    NO_ID,
    BlocksCacheKey,
    Cache,
    CacheDesc,
    CacheKey,
    CacheKeyByIdAndIndex,
    DataType,
    Placement,
)

FLOAT16 = DataType.DT_FLOAT16


def test_the_numbers_of_the_vendor_are_kept():
    assert {t.name: (t.value, t.itemsize) for t in DataType} == {
        "DT_FLOAT": (0, 4),
        "DT_FLOAT16": (1, 2),
        "DT_INT8": (2, 1),
        "DT_INT32": (3, 4),
        "DT_UINT8": (4, 1),
        "DT_INT16": (6, 2),
        "DT_UINT16": (7, 2),
        "DT_UINT32": (8, 4),
        "DT_INT64": (9, 8),
        "DT_UINT64": (10, 8),
        "DT_DOUBLE": (11, 8),
        "DT_BOOL": (12, 1),
        "DT_STRING": (13, 0),
        "DT_BF16": (27, 2),
        "DT_FLOAT8_E5M2": (35, 1),
        "DT_FLOAT8_E4M3FN": (36, 1),
    }
    assert (Placement.HOST, Placement.DEVICE) == (0, 1)


def test_a_descriptor_says_what_it_was_given():
    desc = CacheDesc(4, (2, 3, 5), FLOAT16, Placement.HOST, batch_dim_index=1, seq_len_dim_index=2)
    assert (desc.num_tensors, desc.shape, desc.data_type, desc.placement) == (4, [2, 3, 5], FLOAT16, Placement.HOST)
    assert (desc.batch_dim, desc.batch_size, desc.seq_len_dim_index, desc.size) == (1, 3, 2, 60)
    assert desc == CacheDesc(4, [2, 3, 5], FLOAT16, Placement.HOST, 1, 2) != CacheDesc(4, [2, 3, 6], FLOAT16)


@pytest.mark.parametrize("integer", [3, np.int32(3), np.uint64(3), np.array(3)], ids=lambda v: type(v).__name__)
def test_anything_with_an_index_is_an_integer(integer):
    assert CacheDesc(integer, [integer, 2], FLOAT16).shape == [3, 2]
    assert BlocksCacheKey(integer, integer) == BlocksCacheKey(3, 3)


@pytest.mark.parametrize("value", [True, np.True_, 1.0, "1", np.float64(1), [1], np.array([1, 2])], ids=repr)
def test_what_is_no_integer_is_a_type_error(value):
    for make in (
        lambda: CacheDesc(value, [1], FLOAT16),
        lambda: CacheDesc(1, [value], FLOAT16),
        lambda: BlocksCacheKey(value),
        lambda: CacheKeyByIdAndIndex(1, 1, value),
    ):
        with pytest.raises(TypeError, match="it must be an integer") as caught:
            make()
        assert isinstance(caught.value, CacheTypeError)


def test_none_is_an_attribute_error():
    for make in (
        lambda: CacheDesc(None, [1], FLOAT16),
        lambda: CacheDesc(1, None, FLOAT16),
        lambda: CacheDesc(1, [None], FLOAT16),
        lambda: CacheDesc(1, [1], None),
        lambda: CacheDesc(1, [1], FLOAT16, None),
        lambda: BlocksCacheKey(),
        lambda: CacheKey(),
        lambda: CacheKey(1, None),
    ):
        with pytest.raises(AttributeError, match="is None") as caught:
            make()
        assert isinstance(caught.value, MissingArgumentError)


@pytest.mark.parametrize(
    "arguments",
    [
        (0, [1], FLOAT16),
        (2**32, [1], FLOAT16),
        (1, [], FLOAT16),
        (1, [1] * 33, FLOAT16),
        (1, [0], FLOAT16),
        (1, [-1], FLOAT16),
        (1, [2**62, 4], FLOAT16),
        (1, [1], DataType.DT_STRING),
        (1, [1], FLOAT16, Placement.HOST, 1),
        (1, [1], FLOAT16, Placement.HOST, -1),
        (1, [1], FLOAT16, Placement.HOST, 0, 1),
    ],
    ids=repr,
)
def test_a_descriptor_out_of_range_is_a_value_error(arguments):
    with pytest.raises(CacheValueError):
        CacheDesc(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        (1, "12", FLOAT16),
        (1, 12, FLOAT16),
        (1, [1], 1),
        (1, [1], FLOAT16, 1),
        (1, [1], FLOAT16, Placement.HOST, 0, -1, 5),
    ],
    ids=repr,
)
def test_a_descriptor_of_other_types_is_a_type_error(arguments):
    with pytest.raises(CacheTypeError):
        CacheDesc(*arguments)


def test_a_failed_update_of_a_dimension_changes_nothing():
    desc = CacheDesc(1, [2, 3], FLOAT16)
    for index, value in ((0, 0), (0, 2**63), (2, 1)):
        with pytest.raises(CacheValueError):
            desc.update_dim(index, value)
    assert desc.shape == [2, 3]
    assert desc.update_dim(0, 7) is None
    assert desc.shape == [7, 3]


def test_a_cache_keeps_its_own_descriptor():
    desc = CacheDesc(1, [2, 3], FLOAT16, Placement.HOST)
    cache = Cache.create_cpu_cache(desc, [4096])
    desc.update_dim(0, 9)
    cache.cache_desc.update_dim(0, 8)
    cache.tensor_addrs.append(1)
    assert cache.cache_desc.shape == [2, 3]
    assert (cache.cache_id, cache.tensor_addrs, cache.is_blocks_cache) == (-1, [4096], True)


def test_a_cpu_cache_is_checked_like_a_registration():
    host = CacheDesc(2, [2, 3], FLOAT16, Placement.HOST)
    for addrs, error in (
        ([4096], ValueError),
        ([4096, 0], ValueError),
        ([4096, 2**64 - 4], ValueError),
        ([4096, True], TypeError),
        ([4096, 1.5], TypeError),
        (4096, TypeError),
        ("ab", TypeError),
        (None, AttributeError),
        ([4096, None], AttributeError),
    ):
        with pytest.raises(error, match="addrs"):
            Cache.create_cpu_cache(host, addrs)
    with pytest.raises(CacheValueError, match="HOST"):
        Cache.create_cpu_cache(CacheDesc(1, [2], FLOAT16), [4096])
    assert Cache.create_cpu_cache(host, array("Q", [4096, 8192])).tensor_addrs == [4096, 8192]


KEYS = st.one_of(
    st.builds(CacheKey, st.integers(0, NO_ID), st.integers(0, NO_ID), st.integers(0, NO_ID), st.integers(0, NO_ID)),
    st.builds(BlocksCacheKey, st.integers(0, NO_ID), st.integers(0, NO_ID)),
    st.builds(CacheKeyByIdAndIndex, st.integers(0, NO_ID), st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1)),
)


@given(KEYS, KEYS)
def test_keys_are_equal_exactly_when_they_name_the_same(first, second):
    assert (first == second) == (repr(first) == repr(second))
    twin = pickle.loads(pickle.dumps(first))
    assert twin == first and hash(twin) == hash(first)
    with pytest.raises(AttributeError):
        first.cluster_id = 1


def test_both_names_of_the_cluster_id_are_taken():
    assert CacheKey(prompt_cluster_id=3, req_id=4) == CacheKey(3, 4)
    assert BlocksCacheKey(prompt_cluster_id=3).prompt_cluster_id == 3
    with pytest.raises(CacheValueError, match="two names"):
        CacheKey(1, 2, prompt_cluster_id=1)
    assert CacheKey(1).is_placeholder and not CacheKey(1, prefix_id=0).is_placeholder
