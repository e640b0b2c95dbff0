"""From blocks and entries of two caches to one `CopyPlan`: bounds-checked on both sides, neighbours merged.

All index arithmetic is native and exact in 64 bits. Planning does not grow with the number of tensors: a plan is
pairs of tensor addresses times runs that all of them share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from cachecore import _arguments as arguments
from cachecore import _core
from cachecore._core import CopyPlan, Geometry

__all__ = ["CopyPlan", "Geometry", "Side", "plan_blocks", "plan_entry", "plan_entry_to_blocks"]

#: The side of a plan that is written: "local" for reads from a peer, "remote" for writes to it.
Side = Literal["local", "remote"]


def plan_blocks(
    local: Geometry,
    remote: Geometry,
    local_blocks: Sequence[int] | Any,
    remote_blocks: Sequence[int] | Any,
    *,
    destination: Side = "local",
    local_name: str = "dst_blocks",
    remote_name: str = "src_blocks",
    local_slice: tuple[int, int] | None = None,
    remote_slice: tuple[int, int] | None = None,
    same_process: bool = False,
) -> CopyPlan:
    """Plan block `remote_blocks[i]` <-> block `local_blocks[i]`, for every tensor pair.

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
        local_slice: (offset, bytes) within each local block; None = the whole block.
        remote_slice: (offset, bytes) within each remote block; None = the whole block.
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
        local_slice,
        remote_slice,
        same_process,
    )


def plan_entry(
    local: Geometry,
    remote: Geometry,
    local_entry: int,
    remote_entry: int,
    *,
    size: int = -1,
    destination: Side = "local",
    local_name: str = "batch_index",
    remote_name: str = "batch_index of the key",
    size_name: str = "size",
    same_process: bool = False,
) -> CopyPlan:
    """Plan the start of one batch entry of a contiguous cache <-> one of another, for every tensor pair.

    Each side is addressed with its own entry bytes: "blocks" of the geometries are batch entries.

    Args:
        local: Entries of the caller's cache.
        remote: Entries of the other cache, with as many tensors.
        local_entry: Index of the caller's entry.
        remote_entry: Index of the other side's entry.
        size: Bytes from the start of the entry, -1 = the whole source entry.
        destination: The side that is written.
        local_name: What the caller's user calls `local_entry`; for messages.
        remote_name: What the caller's user calls `remote_entry`; for messages.
        size_name: What the caller's user calls `size`; for messages.
        same_process: Both sides are memory of this process: refuse to read a byte that is also written.

    Raises:
        MissingArgumentError, CacheTypeError: An index or the size is not an integer.
        CacheValueError: An entry does not exist; the size is 0 or more than the source entry.
        CacheIncompatibleError: Tensor counts differ; the destination entry is smaller than what would be written.
        OverlapError: `same_process`, and source and destination share bytes.
    """
    nbytes = arguments.integer(size_name, size, -1, 2**64 - 1)
    return _core.plan_entry(
        local,
        remote,
        local_entry,
        remote_entry,
        None if nbytes == -1 else nbytes,
        destination == "local",
        local_name,
        remote_name,
        size_name,
        same_process,
    )


def plan_entry_to_blocks(
    local: Geometry,
    remote: Geometry,
    local_blocks: Sequence[int] | Any,
    remote_entry: int,
    *,
    blocks_name: str = "dst_blocks",
    entry_name: str = "batch_index of the key",
    same_process: bool = False,
) -> CopyPlan:
    """Plan one batch entry of a contiguous remote cache -> blocks of a local paged cache, for every tensor pair.

    Local block `local_blocks[i]` takes bytes [i * block, (i + 1) * block) of the entry. Where the entry ends within
    a block, that last block takes what is left; nothing behind the entry is read.

    Args:
        local: Blocks of the caller's cache.
        remote: Entries of the other cache, with as many tensors.
        local_blocks: As in `plan_blocks`; no more blocks than the entry fills.
        remote_entry: Index of the other side's entry.
        blocks_name: What the caller's user calls `local_blocks`; for messages.
        entry_name: What the caller's user calls `remote_entry`; for messages.
        same_process: Both sides are memory of this process: refuse to read a byte that is also written.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError, CacheIncompatibleError, OverlapError: As in
            `plan_blocks`.
    """
    return _core.plan_entry_to_blocks(local, remote, local_blocks, remote_entry, blocks_name, entry_name, same_process)
