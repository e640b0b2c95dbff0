"""A view cut from a larger tensor lies where the rule wants it, has one length, and keeps its owner."""

import gc
import weakref

import numpy as np
import pytest
from cachecore_ascend_a2a3.alignment import aligned_view
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecore.errors import CacheTypeError, CacheValueError


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([np.uint8, np.float16, np.float32]), st.integers(0, 63), st.sampled_from([64, 4096]))
def test_a_view_is_aligned_wherever_the_tensor_lies(dtype, shift, alignment):
    item = np.dtype(dtype).itemsize
    needed = 1000
    tensor = np.zeros(needed + alignment // item + 64, dtype)[shift : shift + needed + alignment // item]
    view = aligned_view(tensor, alignment=alignment)
    assert view.ctypes.data % alignment == 0
    assert len(view) == needed
    assert np.shares_memory(view, tensor)


def test_a_view_keeps_its_owner_alive():
    tensor = np.zeros(3 << 20, np.uint8)
    alive = weakref.ref(tensor)
    view = aligned_view(tensor)
    del tensor
    gc.collect()
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    ("tensor", "more", "error", "text"),
    [
        (np.zeros(100, np.uint8), {}, CacheValueError, "plus 2097152"),
        (np.zeros((4, 1 << 20), np.uint8), {}, CacheValueError, "flatten"),
        (np.zeros(4096, np.uint8), {"alignment": 48}, CacheValueError, "power of two"),
        (np.zeros(8192, np.uint8)[1:8185].view(np.float32), {"alignment": 64}, CacheValueError, "no element"),
        ("tensor", {}, CacheTypeError, "tensors"),
        (None, {}, AttributeError, "tensors"),
    ],
)
def test_what_cannot_be_aligned_is_refused(tensor, more, error, text):
    with pytest.raises(error, match=text):
        aligned_view(tensor, **more)
