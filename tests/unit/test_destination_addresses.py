"""Raw addresses as destinations: what they name among the caches of a peer."""

from array import array

import pytest

from cachecore.errors import CacheIncompatibleError
from cachecore.shape import CacheShape
from cachecore.transfers.addresses import FoundTensors, find_tensors
from cachecore.types import DataType, Placement


def contiguous(base, shape, batch_dim):
    bases = memoryview(array("Q", [base]))
    return CacheShape("a cache", bases, shape, DataType.DT_INT8, Placement.DEVICE, batch_dim, False)


def test_a_cache_whose_entries_cannot_be_addressed_does_not_hide_the_others():
    odd, plain = contiguous(1 << 20, [2, 4, 8], 1), contiguous(1 << 30, [4, 16], 0)
    caches = [(1, odd), (2, plain)]
    assert find_tensors([(1 << 30) + 16], caches, paged=False) == FoundTensors(2, 1, (0,))
    with pytest.raises(CacheIncompatibleError, match="not contiguous"):
        find_tensors([1 << 20], caches, paged=False)
