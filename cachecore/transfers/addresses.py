"""Which cache raw addresses belong to: they are looked up in what its owner offers and never believed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cachecore.errors import CacheValueError
from cachecore.shape import CacheShape, LayersShape

__all__ = ["FoundTensors", "find_tensors"]


class FoundTensors(NamedTuple):
    """What addresses name.

    Attributes:
        cache_id: The cache.
        entry: The batch entry at which they point, 0 for a paged cache.
        tensors: Positions of the tensors, in the order of the addresses.
    """

    cache_id: int
    entry: int
    tensors: tuple[int, ...]


def find_tensors(
    addrs: Sequence[int], caches: Iterable[tuple[int, CacheShape | LayersShape]], paged: bool
) -> FoundTensors | None:
    """The cache in which every address is the start of a tensor, or of the same batch entry of one.

    Args:
        addrs: At least one address.
        caches: (cache id, shape) of the caches that count.
        paged: Look at paged caches only, else at contiguous ones.

    Returns:
        None when there is no cache with the first address.

    Raises:
        CacheValueError: The first address is in a cache, and another one is not, or is twice in the list.
        CacheIncompatibleError: It is in a cache whose entries are not contiguous.
    """
    problem: CacheValueError | None = None
    for cache_id, shape in caches:
        if isinstance(shape, LayersShape) or shape.is_blocks is not paged:
            continue
        offset = _offset(addrs[0], shape)
        if offset is None:
            continue
        stride = shape.tensor_bytes if paged else shape.entries.block_bytes
        if offset % stride:
            problem = CacheValueError(
                f"dst_addrs[0] is {addrs[0]:#x}, {offset} bytes behind the start of a tensor of {shape.owner}; it must be "
                f"{'its start' if paged else f'the start of an entry, a multiple of {stride} bytes behind it'}"
            )
            continue
        positions = {base + offset: position for position, base in enumerate(shape.bases)}
        try:
            return FoundTensors(cache_id, offset // stride, _positions(addrs, positions, shape.owner))
        except CacheValueError as error:
            problem = error
    if problem is not None:
        raise problem
    return None


def _offset(address: int, shape: CacheShape) -> int | None:
    """Bytes from the start of the tensor that the address lies in."""
    for base in shape.bases:
        if base <= address < base + shape.tensor_bytes:
            return address - base
    return None


def _positions(addrs: Sequence[int], positions: dict[int, int], owner: str) -> tuple[int, ...]:
    seen: dict[int, int] = {}
    for index, address in enumerate(addrs):
        if address not in positions:
            raise CacheValueError(
                f"dst_addrs[{index}] is {address:#x}, which is not where a tensor of {owner} starts, as dst_addrs[0] is; all "
                "addresses name tensors, or the same entry, of one cache"
            )
        if address in seen:
            raise CacheValueError(
                f"dst_addrs[{index}] is {address:#x}, as dst_addrs[{seen[address]}] is; each tensor is written once"
            )
        seen[address] = index
    return tuple(positions[address] for address in addrs)
