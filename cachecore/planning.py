"""From blocks and entries of two caches to one `CopyPlan`: bounds-checked on both sides, neighbours merged.

All index arithmetic is native and exact in 64 bits. Planning does not grow with the number of tensors: a plan is
pairs of tensor addresses times runs that all of them share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cachecore import _arguments as arguments
from cachecore import _core
from cachecore._core import CopyPlan, Geometry
from cachecore.entry_plans import Side, plan_copy, plan_entry, plan_entry_to_blocks
from cachecore.slices import BlockSlice

__all__ = [
    "CopyPlan",
    "Geometry",
    "Part",
    "Side",
    "plan_block_map",
    "plan_blocks",
    "plan_copy",
    "plan_entry",
    "plan_entry_to_blocks",
    "plan_parts",
]


class Part(NamedTuple):
    """Tensors of one geometry on each side, of which the same bytes of each block move.

    Attributes:
        local: Tensors of the caller's cache.
        remote: As many of the other cache.
        local_slice: What moves of each local block; None = the whole block.
        remote_slice: The same for each remote block. Both name as many bytes, in order; the pieces may be cut otherwise.
    """

    local: Geometry
    remote: Geometry
    local_slice: BlockSlice | None = None
    remote_slice: BlockSlice | None = None


def plan_parts(
    parts: Sequence[Part],
    local_blocks: Sequence[int] | Any,
    remote_blocks: Sequence[int] | Any,
    *,
    destination: Side = "local",
    local_name: str | None = None,
    remote_name: str | None = None,
    same_process: bool = False,
) -> CopyPlan:
    """Plan block `remote_blocks[i]` <-> block `local_blocks[i]`, for every tensor pair of every part.

    The lists are read and checked once; the plan has one group for each part, in order. Pieces that are contiguous on
    both sides become one run, within a block and across neighbouring blocks.

    Args:
        parts: At least one.
        local_blocks: As in `plan_blocks`; valid in every part.
        remote_blocks: As in `plan_blocks`; valid in every part.
        destination: The side that is written.
        local_name: What the caller's user calls `local_blocks`, for messages; None = "dst_blocks" or "src_blocks".
        remote_name: The same for `remote_blocks`.
        same_process: Both sides are memory of this process: refuse to read a byte that is also written, by whatever
            part.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError, CacheIncompatibleError, OverlapError: As in
            `plan_blocks`; slices are called `src_slice` and `dst_slice`. CacheValueError also for slices that cut the
            blocks into more than 2**26 pieces.
    """
    to_local = destination == "local"
    return _core.plan_parts(
        tuple((local, remote, _fields(cut), _fields(other)) for local, remote, cut, other in parts),
        local_blocks,
        remote_blocks,
        to_local,
        local_name or ("dst_blocks" if to_local else "src_blocks"),
        remote_name or ("src_blocks" if to_local else "dst_blocks"),
        same_process,
    )


def plan_blocks(
    local: Geometry,
    remote: Geometry,
    local_blocks: Sequence[int] | Any,
    remote_blocks: Sequence[int] | Any,
    *,
    destination: Side = "local",
    local_name: str = "dst_blocks",
    remote_name: str = "src_blocks",
    local_slice: BlockSlice | tuple[int, ...] | None = None,
    remote_slice: BlockSlice | tuple[int, ...] | None = None,
    same_process: bool = False,
) -> CopyPlan:
    """Plan block `remote_blocks[i]` <-> block `local_blocks[i]`, for every tensor pair: `plan_parts` with one part.

    Neighbours in the lists whose bytes are contiguous on both sides become one run.

    Args:
        local: Blocks of the caller's cache.
        remote: Blocks of the other cache, with as many tensors.
        local_blocks: Block ids: list, tuple, range, one-dimensional integer array or tensor on the CPU. Copied
            before it is checked.
        remote_blocks: The same for the other side, equally long. May repeat a block only when it is the source.
        destination: The side that is written.
        local_name: What the caller's user calls `local_blocks`; for messages.
        remote_name: What the caller's user calls `remote_blocks`; for messages.
        local_slice: What moves of each local block, a BlockSlice or its fields; None = the whole block.
        remote_slice: The same for each remote block.
        same_process: Both sides are memory of this process: refuse to read a byte that is also written.

    Raises:
        MissingArgumentError: A list is None.
        CacheTypeError: A list or an item is not made of integers; a list is on a device.
        CacheValueError: A list is empty, unlike the other in length, or names a block that does not exist or that
            is written twice; a slice leaves its block.
        CacheIncompatibleError: Tensor counts or block sizes of the two sides differ.
        OverlapError: `same_process`, and source and destination share bytes.
    """
    return _core.plan_blocks(
        local,
        remote,
        local_blocks,
        remote_blocks,
        destination == "local",
        local_name,
        remote_name,
        None if local_slice is None else _fields(local_slice),
        None if remote_slice is None else _fields(remote_slice),
        same_process,
    )


def plan_block_map(
    destination: Geometry,
    source: Geometry,
    mapping: Mapping[int, int] | Mapping[int, Sequence[int]],
    *,
    name: str = "mapping",
    same_process: bool = True,
) -> CopyPlan:
    """Plan source block -> destination block or blocks, for every tensor pair.

    The destination is the local side of the plan. Runs follow the order of the mapping.

    Args:
        destination: Blocks of the cache that is written.
        source: Blocks of the cache that is read, with as many tensors.
        mapping: Source block -> one destination block, or a list of them as in `plan_blocks`.
        name: What the caller's user calls `mapping`; for messages.
        same_process: Refuse to read a byte that is also written.

    Raises:
        MissingArgumentError: The mapping or a block is None.
        CacheTypeError: It is no mapping; a block is not an integer.
        CacheValueError: The mapping or one of its lists is empty; a block does not exist; a destination block is
            written twice.
        CacheIncompatibleError: Tensor counts or block sizes of the two sides differ.
        OverlapError: `same_process`, and source and destination share bytes.
    """
    arguments.instance(name, mapping, Mapping)
    return _core.plan_block_map(destination, source, mapping, name, same_process)


def _fields(cut: BlockSlice | tuple[int, ...] | None) -> tuple[int, ...] | None:
    return (cut.offset, cut.nbytes, cut.count, cut.stride) if isinstance(cut, BlockSlice) else cut
