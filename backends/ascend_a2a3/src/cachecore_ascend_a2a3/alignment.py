"""Cutting an aligned view out of a tensor that was allocated larger than needed."""

from __future__ import annotations

from typing import Any

from cachecore import _arguments as arguments
from cachecore import tensors
from cachecore.errors import CacheValueError
from cachecore_ascend_a2a3.product import HUGE_PAGE

__all__ = ["aligned_view"]


def aligned_view(tensor: Any, *, alignment: int = HUGE_PAGE) -> Any:
    """The part of a tensor from its first aligned address on, `alignment` bytes shorter than the tensor.

    Integrators do this by hand where a framework's allocator does not align: allocate the bytes needed plus 2 MiB, and
    register the view. The view shares the memory and keeps the owner alive.

    Args:
        tensor: One-dimensional numpy array or torch tensor, contiguous, longer than `alignment` bytes.
        alignment: In bytes, a power of two that is a multiple of the element size.

    Returns:
        A slice of the tensor, of the tensor's type; its length does not depend on where the tensor happens to lie.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: A bad argument; the tensor is too short, not
            one-dimensional, or its elements do not divide the distance to the boundary.
    """
    alignment = arguments.integer("alignment", alignment, 1, 1 << 40)
    if alignment & (alignment - 1):
        raise CacheValueError(f"alignment is {alignment}; it must be a power of two")
    (view,) = tensors.infer([tensor])
    item = view.data_type.itemsize
    if len(view.shape) != 1:
        raise CacheValueError(f"tensor has shape {list(view.shape)}; flatten it first, and reshape the view")
    if view.nbytes <= alignment:
        raise CacheValueError(
            f"tensor has {view.nbytes} bytes; allocate the bytes needed plus {alignment} to cut an aligned view"
        )
    distance = -view.address % alignment
    if distance % item or alignment % item:
        raise CacheValueError(
            f"tensor starts at {view.address:#x} and has elements of {item} bytes: no element starts on a boundary of "
            f"{alignment} bytes"
        )
    first = distance // item
    return tensor[first : first + (view.nbytes - alignment) // item]
