"""Tensors of other libraries: where their memory is, which shape and type it has, and whether it moved since.

numpy arrays, torch tensors (by duck type, torch is never imported) and anything with the buffer protocol.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cachecore import _arguments as arguments
from cachecore import _core
from cachecore.errors import AddressMovedError, CacheTypeError, CacheValueError
from cachecore.layers import TensorSpec
from cachecore.registration.storage import array_storage, buffer_storage, torch_storage
from cachecore.types import DataType, Placement

__all__ = ["TensorView", "check_unmoved", "infer", "look", "same_geometry"]

_BY_NAME = {
    "float32": DataType.DT_FLOAT,
    "float": DataType.DT_FLOAT,
    "float16": DataType.DT_FLOAT16,
    "half": DataType.DT_FLOAT16,
    "bfloat16": DataType.DT_BF16,
    "float64": DataType.DT_DOUBLE,
    "double": DataType.DT_DOUBLE,
    "int8": DataType.DT_INT8,
    "int16": DataType.DT_INT16,
    "int32": DataType.DT_INT32,
    "int64": DataType.DT_INT64,
    "uint8": DataType.DT_UINT8,
    "uint16": DataType.DT_UINT16,
    "uint32": DataType.DT_UINT32,
    "uint64": DataType.DT_UINT64,
    "bool": DataType.DT_BOOL,
    "float8_e5m2": DataType.DT_FLOAT8_E5M2,
    "float8_e4m3fn": DataType.DT_FLOAT8_E4M3FN,
}
_SIGNED = {1: DataType.DT_INT8, 2: DataType.DT_INT16, 4: DataType.DT_INT32, 8: DataType.DT_INT64}
_UNSIGNED = {1: DataType.DT_UINT8, 2: DataType.DT_UINT16, 4: DataType.DT_UINT32, 8: DataType.DT_UINT64}
_BY_CODE = {
    "e": DataType.DT_FLOAT16,
    "f": DataType.DT_FLOAT,
    "d": DataType.DT_DOUBLE,
    "?": DataType.DT_BOOL,
    "c": DataType.DT_UINT8,
}


@dataclass(frozen=True)
class TensorView:
    """One tensor of another library.

    Attributes:
        owner: The object; holding it keeps the memory alive.
        address: Where its first element is.
        shape: Its dimensions.
        data_type: Its element type.
        locate: Returns the address of the first element and the bytes now. `torch.Tensor.resize_` and `set_` move the
            data while the object stays, so that holding it does not pin the address, and `numpy.ndarray.resize` may give
            back its end in place.
        name: What the caller calls it; for messages.
        strides: Bytes from one index to the next in each dimension; None = C-contiguous.
        storage: (address, bytes) of the memory it was cut from, None when not known.
        placement: Where the caller says it is, None when he does not.
    """

    owner: object
    address: int
    shape: tuple[int, ...]
    data_type: DataType
    locate: Callable[[], tuple[int, int]]
    name: str = ""
    strides: tuple[int, ...] | None = None
    storage: tuple[int, int] | None = None
    placement: Placement | None = None

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return _nbytes(self.shape, self.data_type)

    @functools.cached_property
    def extent(self) -> tuple[int, int]:
        """Where `locate` found it when it was registered."""
        return self.address, self.nbytes


def _nbytes(shape: Sequence[int], data_type: DataType) -> int:
    return math.prod(shape) * data_type.itemsize


def infer(tensors: object) -> list[TensorView]:
    """Look at every tensor of a list.

    Args:
        tensors: A list or tuple; each item C-contiguous, writable and not empty.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: Naming the tensor index.
    """
    arguments.not_none("tensors", tensors)
    if not isinstance(tensors, list | tuple):
        raise arguments.wrong_type("tensors", tensors, "a list or tuple of tensors")
    if not tensors:
        raise CacheValueError("tensors is empty; a cache has at least one tensor")
    return [_view(f"tensors[{index}]", tensor) for index, tensor in enumerate(tensors)]


def same_geometry(views: Sequence[TensorView]) -> None:
    """Refuse tensors of different shapes or types: a cache of the raw-address functions has one of each.

    Raises:
        CacheValueError: Names the first tensor that differs from tensors[0].
    """
    first = views[0]
    for index, view in enumerate(views):
        if (view.shape, view.data_type) != (first.shape, first.data_type):
            raise CacheValueError(
                f"tensors[{index}] is {view.data_type.name} {list(view.shape)} and tensors[0] is "
                f"{first.data_type.name} {list(first.shape)}; all tensors of one cache have one shape and data type"
            )


def check_unmoved(views: Sequence[TensorView]) -> None:
    """Refuse to go on when a tensor no longer starts where it was registered.

    Raises:
        AddressMovedError: Names tensor index and both addresses.
    """
    for view in views:
        now = view.locate()
        if now != view.extent:
            raise AddressMovedError(
                f"{view.name} was registered at {view.address:#x} with {view.nbytes} bytes and is at {now[0]:#x} with "
                f"{now[1]} now (it was resized or its storage replaced); unregister the cache and register the tensors again"
            )


def look(name: str, tensor: object) -> TensorView:
    """Look at one tensor that may be strided; where its memory was cut from is looked up too.

    Args:
        name: What the caller calls it.
        tensor: numpy array, torch tensor, object with a buffer, or a `TensorSpec`.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: Naming the tensor.
    """
    if not isinstance(tensor, TensorSpec):
        return _view(name, tensor, strided=True)
    address, strides = tensor.address, tensor.strides_bytes
    extent = address, _nbytes(tensor.shape, tensor.data_type)
    return TensorView(
        tensor,
        address,
        tuple(tensor.shape),
        tensor.data_type,
        lambda: extent,
        name,
        None if strides is None else tuple(strides),
        placement=tensor.placement,
    )


def _view(name: str, tensor: object, strided: bool = False) -> TensorView:
    arguments.not_none(name, tensor)
    if callable(getattr(tensor, "data_ptr", None)):
        return _from_torch(name, tensor, strided)
    interface = getattr(tensor, "__array_interface__", None)
    # Without an address in the interface the object's buffer is what holds the data.
    if isinstance(interface, dict) and hasattr(tensor, "dtype") and isinstance(interface.get("data"), tuple):
        return _from_array(name, tensor, interface, strided)
    return _from_buffer(name, tensor, strided)


def _check_layout(name: str, contiguous: bool, writable: bool, shape: tuple[int, ...]) -> None:
    if not contiguous:
        raise CacheValueError(f"{name} is not C-contiguous; register the base tensor, or a contiguous copy of it")
    if not writable:
        raise CacheValueError(f"{name} is read-only; a cache must be writable")
    if not shape or 0 in shape:
        raise CacheValueError(f"{name} has shape {list(shape)}; a tensor has at least one dimension, each above 0")


def _by_name(name: str, dtype: object) -> DataType:
    text = str(dtype).rpartition(".")[2]
    found = _BY_NAME.get(text)
    if found is None:
        raise CacheTypeError(f"{name} has dtype {dtype}, which no DataType names; view it as an integer type")
    return found


def _from_torch(name: str, tensor: Any, strided: bool) -> TensorView:
    if str(getattr(tensor, "layout", "torch.strided")).rpartition(".")[2] != "strided":
        raise CacheTypeError(f"{name} has layout {tensor.layout}; only dense (strided) tensors can be registered")
    shape = tuple(int(dim) for dim in tensor.shape)
    contiguous = bool(tensor.is_contiguous())
    _check_layout(name, strided or contiguous, True, shape)
    data_type = _by_name(name, tensor.dtype)
    nbytes = _nbytes(shape, data_type)
    return TensorView(
        tensor,
        int(tensor.data_ptr()),
        shape,
        data_type,
        lambda: (tensor.data_ptr(), nbytes),  # torch gives nothing back in place
        name,
        None if contiguous else tuple(int(stride) * data_type.itemsize for stride in tensor.stride()),
        torch_storage(tensor) if strided else None,
    )


def _from_array(name: str, array: Any, interface: dict[str, Any], strided: bool) -> TensorView:
    if interface["typestr"][0] == ">":
        raise CacheTypeError(f"{name} has byte-swapped dtype {interface['typestr']}; use the machine's byte order")
    address, read_only = interface["data"]
    shape = tuple(int(dim) for dim in interface["shape"])
    strides = interface.get("strides")
    _check_layout(name, strided or strides is None, not read_only, shape)
    data_type = _by_name(name, array.dtype)
    return TensorView(
        array,
        int(address),
        shape,
        data_type,
        _locator(array, (int(address), _nbytes(shape, data_type))),
        name,
        None if strides is None else tuple(map(int, strides)),
        array_storage(array) if strided else None,
    )


def _locator(array: Any, extent: tuple[int, int]) -> Callable[[], tuple[int, int]]:
    """What finds address and bytes of an array again; before every transfer, so that the fastest way counts."""
    try:
        if _core.buffer_extent(array) == extent:  # twenty times as fast
            return functools.partial(_core.buffer_extent, array)
    except (TypeError, BufferError, ValueError):
        pass  # a data type that buffers do not have
    return lambda: (int(array.__array_interface__["data"][0]), getattr(array, "nbytes", extent[1]))


def _from_buffer(name: str, exporter: object, strided: bool) -> TensorView:
    try:
        # The export is held: bytearray and mmap then refuse to resize or close.
        view = memoryview(exporter)  # type: ignore[arg-type]  # the exception is the check
    except TypeError:
        expected = "a numpy array, a torch tensor or an object with a buffer"
        raise arguments.wrong_type(name, exporter, f"{expected}, or a TensorSpec" if strided else expected) from None
    shape = tuple(view.shape or ())
    _check_layout(name, strided or view.c_contiguous, not view.readonly, shape)
    address, nbytes = _core.buffer_extent(view)
    return TensorView(
        (exporter, view),
        address,
        shape,
        _by_format(name, view.format),
        lambda: (address, nbytes),
        name,
        None if view.c_contiguous else tuple(view.strides or ()),
        buffer_storage(view) if strided else None,
    )


def _by_format(name: str, text: str) -> DataType:
    code = text.lstrip("@=<")
    if code in _BY_CODE:
        return _BY_CODE[code]
    if len(code) == 1 and code in "bhilqnBHILQN" and text[0] != ">":
        sizes = _UNSIGNED if code.isupper() else _SIGNED
        return sizes[struct.calcsize(text)]
    raise CacheTypeError(f"{name} has buffer format {text!r}, which no DataType names; cast it, for example to 'B'")
