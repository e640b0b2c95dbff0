"""Plans that address batch entries of contiguous caches: the "blocks" of their geometries are entries.

Part of `cachecore.planning`, from where these functions are imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from cachecore import _arguments as arguments
from cachecore import _core
from cachecore._core import CopyPlan, Geometry

__all__ = ["Side", "plan_copy", "plan_entry", "plan_entry_to_blocks"]

#: The side of a plan that is written: "local" for reads from a peer, "remote" for writes to it.
Side = Literal["local", "remote"]


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


def plan_copy(
    destination: Geometry,
    source: Geometry,
    dst_entry: int,
    src_entry: int,
    dst_offset: int = 0,
    src_offset: int = 0,
    size: int = -1,
    *,
    dst_name: str = "dst_batch_index",
    src_name: str = "src_batch_index",
    dst_offset_name: str = "offset",
    src_offset_name: str = "offset",
    size_name: str = "size",
) -> CopyPlan:
    """Plan a copy within this process: bytes of one batch entry into another, for every tensor pair.

    The destination is the local side of the plan.

    Args:
        destination: Entries of the cache that is written.
        source: Entries of the cache that is read, with as many tensors.
        dst_entry: Index of the entry that is written.
        src_entry: Index of the entry that is read.
        dst_offset: Bytes from the start of that entry.
        src_offset: Bytes from the start of that entry.
        size: Bytes, -1 = from the offset to the end of the source entry.
        dst_name: What the caller's user calls `dst_entry`; for messages, like the names that follow.
        src_name: `src_entry`.
        dst_offset_name: `dst_offset`.
        src_offset_name: `src_offset`.
        size_name: `size`.

    Raises:
        MissingArgumentError, CacheTypeError: A number is not an integer.
        CacheValueError: An entry does not exist; an offset is not within its entry; the size is 0 or more than the
            source entry has from its offset on.
        CacheIncompatibleError: Tensor counts differ; the destination entry has fewer bytes from its offset on.
        OverlapError: Source and destination share bytes.
    """
    nbytes = arguments.integer(size_name, size, -1, 2**64 - 1)
    return _core.plan_entry(
        destination,
        source,
        dst_entry,
        src_entry,
        None if nbytes == -1 else nbytes,
        True,
        dst_name,
        src_name,
        size_name,
        True,
        dst_offset,
        src_offset,
        dst_offset_name,
        src_offset_name,
    )


def plan_entry_to_blocks(
    local: Geometry,
    remote: Geometry,
    blocks: Sequence[int] | Any,
    entry: int,
    *,
    destination: Side = "local",
    blocks_name: str = "dst_blocks",
    entry_name: str = "batch_index of the key",
    same_process: bool = False,
) -> CopyPlan:
    """Plan one batch entry of a contiguous cache -> blocks of a paged cache, for every tensor pair.

    Block `blocks[i]` takes bytes [i * block, (i + 1) * block) of the entry. Where the entry ends within a block, that
    last block takes what is left; nothing behind the entry is read.

    Args:
        local: Tensors of the caller's cache: blocks if `destination` is "local", else entries.
        remote: As many tensors of the other cache: entries, else blocks.
        blocks: Blocks of the destination, as in `plan_blocks`; no more than the entry fills.
        entry: Index of the source's entry.
        destination: The side that is paged and written.
        blocks_name: What the caller's user calls `blocks`; for messages.
        entry_name: What the caller's user calls `entry`; for messages.
        same_process: Both sides are memory of this process: refuse to read a byte that is also written.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError, CacheIncompatibleError, OverlapError: As in
            `plan_blocks`.
    """
    return _core.plan_entry_to_blocks(
        local, remote, blocks, entry, blocks_name, entry_name, same_process, destination == "local"
    )
