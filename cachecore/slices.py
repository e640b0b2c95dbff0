"""Parts of blocks: what a transfer moves of each block when it does not move the whole."""

from __future__ import annotations

from dataclasses import dataclass

from cachecore import _arguments as arguments
from cachecore.errors import CacheValueError

__all__ = ["BlockSlice", "checked"]

_EXPECTED = (
    "None, (offset, nbytes), (offset, nbytes, count, stride), a BlockSlice, or a list of these with one for each tensor "
    "of a layer"
)
_MAX_BYTES = 2**64 - 1


@dataclass(frozen=True, slots=True)
class BlockSlice:
    """Bytes inside each block: `count` pieces of `nbytes` bytes, piece i from byte `offset + i * stride` of the block.

    In blocks of shape [tokens, heads, dim] heads [first, last) are
    `BlockSlice(first * dim * itemsize, (last - first) * dim * itemsize, tokens, heads * dim * itemsize)`.
    Whether it ends within its block is checked when a transfer is planned.

    Args:
        offset: Bytes from the start of the block to the first piece.
        nbytes: Bytes of one piece.
        count: Number of pieces.
        stride: Bytes from the start of one piece to the start of the next, at least `nbytes`. One piece has no next:
            its stride is kept as 0, so that equal slices are equal.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: A field is None, not an integer, or out of range.
    """

    offset: int
    nbytes: int
    count: int = 1
    stride: int = 0

    def __post_init__(self) -> None:
        fields = _fields("BlockSlice", self.offset, self.nbytes, self.count, self.stride)
        for name, value in zip(self.__slots__, fields, strict=True):
            object.__setattr__(self, name, value)

    @property
    def total(self) -> int:
        """Bytes of all pieces: what one block gives or takes."""
        return self.count * self.nbytes

    @property
    def end(self) -> int:
        """Bytes from the start of the block to the end of the last piece."""
        return self.offset + (self.count - 1) * self.stride + self.nbytes


def checked(name: str, value: object, tensors_per_layer: int) -> tuple[BlockSlice | None, ...]:
    """The slice of each tensor of a layer, from what a caller gives as `src_slice` or `dst_slice`.

    Args:
        name: Name of the parameter, for messages.
        value: None = whole blocks; one slice, which goes for every tensor of a layer; or a list or tuple with one for
            each. A slice is (offset, nbytes), (offset, nbytes, count, stride) or a BlockSlice, in bytes.
        tensors_per_layer: Tensors of one layer.

    Returns:
        One a tensor; None = the whole block.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: Naming parameter and field.
    """
    if value is None or isinstance(value, BlockSlice):
        return (value,) * tensors_per_layer
    if not isinstance(value, list | tuple):
        raise arguments.wrong_type(name, value, _EXPECTED)
    if not value:
        raise CacheValueError(f"{name} is empty; give {_EXPECTED}")
    if value[0] is not None and not isinstance(value[0], list | tuple | BlockSlice):  # integers: one slice
        return (_slice(name, value),) * tensors_per_layer
    if len(value) != tensors_per_layer:
        raise CacheValueError(
            f"{name} has {len(value)} slices and a layer has {tensors_per_layer} tensors; give one slice, which goes for "
            "all of them, or one for each"
        )
    return tuple(
        item if item is None or isinstance(item, BlockSlice) else _slice(f"{name}[{index}]", item)
        for index, item in enumerate(value)
    )


def _slice(name: str, value: object) -> BlockSlice:
    if not isinstance(value, list | tuple):
        raise arguments.wrong_type(name, value, _EXPECTED)
    if len(value) not in (2, 4):
        raise CacheValueError(f"{name} is {value!r:.80} with {len(value)} items; it must be {_EXPECTED}")
    return BlockSlice(*_fields(name, *value))


def _fields(name: str, offset: object, nbytes: object, count: object = 1, stride: object = 0) -> tuple[int, ...]:
    first = arguments.integer(f"{name}: offset", offset, 0, _MAX_BYTES)
    size = arguments.integer(f"{name}: nbytes", nbytes, 1, _MAX_BYTES)
    pieces = arguments.integer(f"{name}: count", count, 1, _MAX_BYTES)
    step = arguments.integer(f"{name}: stride", stride, 0, _MAX_BYTES)
    if pieces == 1:
        return first, size, 1, 0
    if step < size:
        raise CacheValueError(
            f"{name}: stride is {step} bytes and a piece has {size}; it must be at least that, or pieces would overlap"
        )
    if first + (pieces - 1) * step + size > _MAX_BYTES:
        raise CacheValueError(
            f"{name}: count is {pieces} with offset {first}, stride {step} and pieces of {size} bytes; the last piece "
            "must end below 2**64 bytes"
        )
    return first, size, pieces, step
