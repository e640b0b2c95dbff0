"""Which memory a tensor was cut from: views of one allocation belong together, and others do not.

Looked up where the tensor's library can say; None where it cannot. Nothing is imported for it.
"""

from __future__ import annotations

from typing import Any

from cachecore import _core

__all__ = ["array_storage", "buffer_storage", "torch_storage"]

#: (address, bytes) of an allocation.
Storage = tuple[int, int]


def torch_storage(tensor: Any) -> Storage | None:
    """The untyped storage of a torch tensor."""
    storage = getattr(tensor, "untyped_storage", None)
    if not callable(storage):
        return None
    found = storage()
    return int(found.data_ptr()), int(found.nbytes())


def array_storage(array: Any) -> Storage | None:
    """What the chain of bases of a numpy array ends at: the array that owns the memory, or an object with a buffer."""
    while True:
        base = getattr(array, "base", None)
        if base is None:
            break
        if not hasattr(base, "__array_interface__"):
            return _of_exporter(base)
        array = base
    nbytes = getattr(array, "nbytes", None)
    if nbytes is None:
        return None
    # An array that is nobody's view owns memory without gaps.
    return int(array.__array_interface__["data"][0]), int(nbytes)


def buffer_storage(view: memoryview) -> Storage | None:
    """The whole buffer of the object that a memoryview was made of."""
    return _of_exporter(view)


def _of_exporter(exporter: object) -> Storage | None:
    whole = exporter.obj if isinstance(exporter, memoryview) else exporter
    if hasattr(whole, "__array_interface__"):
        return array_storage(whole)
    try:
        with memoryview(whole) as view:  # type: ignore[arg-type]  # the exception is the check
            return (_core.buffer_address(view), view.nbytes) if view.contiguous and view.nbytes else None
    except (TypeError, BufferError, ValueError):
        return None
