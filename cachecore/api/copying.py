"""Copies within this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cachecore import _arguments as arguments
from cachecore.api.base import DEFAULT_TIMEOUT, ManagerParts
from cachecore.types import Cache

__all__ = ["CopyingMethods"]


class CopyingMethods(ManagerParts):
    """`copy_cache`, `copy_blocks` and `swap_blocks`."""

    def copy_cache(
        self,
        dst: Cache,
        src: Cache,
        dst_batch_index: int = 0,
        src_batch_index: int = 0,
        offset: int = 0,
        size: int = -1,
        req_id: int | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        after: object = None,
    ) -> None:
        """Copy one batch entry of a contiguous cache to one of the same or another cache of this manager.

        Args:
            dst: Where to: a registered or allocated contiguous cache.
            src: Where from, with as many tensors of the same data type.
            dst_batch_index: Batch entry that is written.
            src_batch_index: Batch entry that is read.
            offset: Bytes from the start of each tensor's entry, on both sides, that are left out.
            size: Bytes of each tensor's entry to copy from `offset` on, 1 or more; -1 = to the end of the source entry.
            req_id: Request that the copy is for; it shows in log lines and errors, and does nothing else.
            timeout: Seconds until it gives up.
            after: An event, or a list of events, of the device: nothing moves before they have happened.

        Raises:
            MissingArgumentError, CacheTypeError, CacheValueError: A bad argument: an entry that does not exist, an
                offset or size outside the source entry, a CPU cache.
            CacheIncompatibleError: A paged cache; different tensor counts or data types; it does not fit into the
                destination entry.
            CacheNotFoundError: A cache is not registered with this manager, or is being taken back.
            OverlapError: The bytes read and written overlap.
            AddressMovedError, CacheBusyError: A registered tensor moved; bytes are quarantined. Nothing moved.
            NotSupportedError: An event that the driver does not know.
            TransferTimeoutError, TransferError: It started and did not finish; the error says what landed.
        """
        self._enter()
        deadline = arguments.deadline("timeout", timeout)
        self._copies.copy_cache(dst, src, dst_batch_index, src_batch_index, offset, size, req_id, deadline, after)

    def copy_blocks(
        self,
        cache: Cache,
        copy_block_info: Mapping[int, Sequence[int]],
        *,
        timeout: float = DEFAULT_TIMEOUT,
        after: object = None,
    ) -> None:
        """Copy blocks of a paged cache to other blocks of it, in all tensors.

        A block that is read must not be written by the same call: such copies would depend on their order.

        Args:
            cache: A registered or allocated blocks cache.
            copy_block_info: {source block: [destination blocks]}; no destination twice.
            timeout: As in `copy_cache`.
            after: As in `copy_cache`.

        Raises:
            MissingArgumentError, CacheTypeError, CacheValueError: A bad argument: an empty mapping or list, a block that
                does not exist, a destination that is named twice.
            CacheIncompatibleError: A contiguous cache.
            OverlapError: A block is both read and written, or copied onto itself.
            CacheNotFoundError, AddressMovedError, CacheBusyError, NotSupportedError, TransferTimeoutError,
                TransferError: As `copy_cache`.
        """
        self._enter()
        self._copies.copy_blocks(cache, copy_block_info, arguments.deadline("timeout", timeout), after)

    def swap_blocks(
        self,
        src_cache: Cache,
        dst_cache: Cache,
        src_to_dst: Mapping[int, int],
        *,
        timeout: float = DEFAULT_TIMEOUT,
        after: object = None,
    ) -> None:
        """Copy blocks from host to device memory or back, in all tensors.

        Args:
            src_cache: Where from: a registered or allocated blocks cache, or one of `Cache.create_cpu_cache`.
            dst_cache: Where to: the same, of the other placement, with as many tensors and equal block bytes.
            src_to_dst: {source block: destination block}; no destination twice.
            timeout: As in `copy_cache`.
            after: As in `copy_cache`.

        Raises:
            MissingArgumentError, CacheTypeError, CacheValueError: A bad argument: an empty mapping, a block that does not
                exist, a destination that is named twice.
            CacheIncompatibleError: Both sides are of one placement; a contiguous cache; different tensor counts, data
                types or block bytes.
            MemoryAccessError, PlacementError: Memory of a CPU cache is not mapped (any more), or is the device's.
            OverlapError: Source and destination share bytes.
            CacheNotFoundError, AddressMovedError, CacheBusyError, NotSupportedError, TransferTimeoutError,
                TransferError: As `copy_cache`.
        """
        self._enter()
        self._copies.swap_blocks(src_cache, dst_cache, src_to_dst, arguments.deadline("timeout", timeout), after)
