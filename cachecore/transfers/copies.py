"""Copies within this process: between entries, between blocks, and swaps between host and device memory.

They run in the caller's thread, through `BackendDriver.copy`, and count as transfers of the caches they use.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from cachecore import _arguments as arguments
from cachecore.driver import BackendDriver
from cachecore.entry_plans import plan_copy
from cachecore.errors import (
    CacheIncompatibleError,
    CacheTimeoutError,
    CacheValueError,
    MemoryAccessError,
    OverlapError,
    PlacementError,
    StatusCode,
    TransferError,
    TransferTimeoutError,
)
from cachecore.outcome import FailureCause, Outcome, OutcomeState
from cachecore.planning import CopyPlan, plan_block_map
from cachecore.registration import rules
from cachecore.registration.local_caches import Registered
from cachecore.registration.registry import Registry
from cachecore.shape import CacheShape
from cachecore.tensors import check_unmoved
from cachecore.transfers.failures import failure
from cachecore.transfers.quarantine import Quarantine, has_stopped
from cachecore.types import Cache, Placement

__all__ = ["Copies", "CopyCounters"]

_log = logging.getLogger("cachecore")


class CopyCounters:
    """The part of `Stats` about copies; shared by the threads of one manager."""

    __slots__ = ("_lock", "copies", "copies_failed", "nbytes")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.copies = self.copies_failed = self.nbytes = 0

    def success(self, nbytes: int) -> None:
        """Count a copy that moved everything."""
        with self._lock:
            self.copies += 1
            self.nbytes += nbytes

    def failure(self) -> None:
        """Count a copy that started and did not."""
        with self._lock:
            self.copies_failed += 1


class _Side:
    """One side of a copy: its layout, and its registration where it is registered."""

    __slots__ = ("registered", "shape")

    def __init__(self, shape: CacheShape, registered: Registered | None) -> None:
        self.shape, self.registered = shape, registered


class Copies:
    """Runs the copies of one manager. What is raised is listed at the methods of `CacheManager`."""

    def __init__(self, driver: BackendDriver, registry: Registry, quarantine: Quarantine) -> None:
        self._driver = driver
        self._registry = registry
        self._quarantine = quarantine
        self.counters = CopyCounters()

    def copy_cache(
        self,
        dst: object,
        src: object,
        dst_batch_index: object,
        src_batch_index: object,
        offset: object,
        size: object,
        req_id: object,
        deadline: float,
        after: object,
    ) -> None:
        """See `CacheManager.copy_cache`."""
        target, source = self._registered("dst", dst), self._registered("src", src)
        for name, side in (("dst", target), ("src", source)):
            if side.shape.is_blocks:
                raise CacheIncompatibleError(
                    f"{name} is {side.shape.owner}, which is paged; copy_cache is for contiguous caches, use copy_blocks"
                )
        into = arguments.integer("dst_batch_index", dst_batch_index, 0, 2**32 - 1)
        out_of = arguments.integer("src_batch_index", src_batch_index, 0, 2**32 - 1)
        skipped = arguments.integer("offset", offset, 0, 2**64 - 1)
        nbytes = arguments.integer("size", size, -1, 2**64 - 1)
        what = f"the copy of {source.shape.owner} to {target.shape.owner}"
        if req_id is not None:
            what += f" for request {arguments.integer('req_id', req_id, 0, 2**64 - 1)}"
        _check_alike("dst", target.shape, "src", source.shape)
        plan = plan_copy(
            target.shape.entries,
            source.shape.entries,
            into,
            out_of,
            dst_offset=skipped,
            src_offset=skipped,
            size=nbytes,
        )
        self._run(what, plan, target, source, deadline, after)

    def copy_blocks(self, cache: object, copy_block_info: Any, deadline: float, after: object) -> None:
        """See `CacheManager.copy_blocks`."""
        side = self._registered("cache", cache)
        _check_paged("cache", side.shape, "copy_cache")
        _check_mapping("copy_block_info", copy_block_info, "{src: [dst, ...]}", lists=True)
        blocks = side.shape.blocks
        try:
            plan = plan_block_map(blocks, blocks, copy_block_info, name="copy_block_info")
        except OverlapError as error:
            raise _within_one_cache(copy_block_info, error) from None
        self._run(f"the copy of blocks of {side.shape.owner}", plan, side, side, deadline, after)

    def swap_blocks(self, src: object, dst: object, src_to_dst: Any, deadline: float, after: object) -> None:
        """See `CacheManager.swap_blocks`."""
        source, target = self._given("src_cache", src), self._given("dst_cache", dst)
        for name, side in (("src_cache", source), ("dst_cache", target)):
            _check_paged(name, side.shape, "copy_cache")
        _check_mapping("src_to_dst", src_to_dst, "{src: dst}", lists=False)
        if source.shape.placement is target.shape.placement:
            raise CacheIncompatibleError(
                f"src_cache and dst_cache are both {source.shape.placement.name} memory; swap_blocks moves between HOST "
                "and DEVICE. Within one cache use copy_blocks"
            )
        _check_alike("dst_cache", target.shape, "src_cache", source.shape)
        plan = plan_block_map(target.shape.blocks, source.shape.blocks, src_to_dst, name="src_to_dst")
        self._run(f"the swap from {source.shape.owner} to {target.shape.owner}", plan, target, source, deadline, after)

    # --- the caches --------------------------------------------------------------------------------------------------

    def _registered(self, name: str, cache: object) -> _Side:
        arguments.instance(name, cache, Cache)
        assert isinstance(cache, Cache)
        if cache.cache_id == -1:
            raise CacheValueError(
                f"{name} is {cache!r}, made by create_cpu_cache; only swap_blocks takes it. Register or allocate a cache"
            )
        found = self._registry.get(cache, name)
        if found.tensors:
            check_unmoved(found.tensors)
        assert isinstance(found.shape, CacheShape)
        return _Side(found.shape, found)

    def _given(self, name: str, cache: object) -> _Side:
        """A registered cache, or one of `create_cpu_cache`, whose memory is looked at anew each time."""
        if not isinstance(cache, Cache) or cache.cache_id != -1:
            return self._registered(name, cache)
        desc = cache.cache_desc
        ranges = [(address, desc.size) for address in cache.tensor_addrs]
        labels = [f"{name}.tensor_addrs[{index}]" for index in range(len(ranges))]
        rules.check_no_overlap(
            [rules.OwnedRange(*place, label) for place, label in zip(ranges, labels, strict=True)], []
        )
        self._driver.bind_thread()
        for (base, nbytes), label, info in zip(ranges, labels, self._driver.describe(ranges), strict=True):
            where = info.placements
            if where is not None and not where:
                raise MemoryAccessError(
                    f"{label} is {base:#x} with {nbytes} bytes: {info.reason}. A CPU cache needs memory that is mapped "
                    "readable and writable for its whole length, as long as it is used"
                )
            if where is not None and Placement.HOST not in where:
                raise PlacementError(
                    f"{label} is {base:#x}, memory of the device ({info.origin.value}); a CPU cache is HOST memory. "
                    "Register device memory with register_blocks_cache"
                )
        shape = CacheShape(
            f"the CPU cache {name}",
            memoryview(array("Q", cache.tensor_addrs)),
            desc.shape,
            desc.data_type,
            Placement.HOST,
            desc.batch_dim,
            True,
        )
        return _Side(shape, None)

    # --- running -----------------------------------------------------------------------------------------------------

    def _run(self, what: str, plan: CopyPlan, target: _Side, source: _Side, deadline: float, after: object) -> None:
        """Move source -> target; the plan's local side lies in the target."""
        caches = list(dict.fromkeys(side.registered for side in (target, source) if side.registered is not None))
        self._driver.bind_thread()
        self._quarantine.check(plan, None)
        self._registry.begin(*caches)
        held = False  # whether the counts outlive this call, until the driver is quiescent
        try:
            if after is not None:
                self._wait_for(what, after, deadline)
                for cache in caches:
                    check_unmoved(cache.tensors)
                self._quarantine.check(plan, None)
            outcome = self._copy(plan, deadline)
            if outcome.ticket is not None and not has_stopped(self._quiescent, outcome.ticket):
                held = True
                self._quarantine.add(
                    plan, outcome, None, self._quiescent, lambda: self._registry.end(*caches), local=True
                )
            if outcome.state is not OutcomeState.DONE:
                raise _error(what, plan, outcome)
        except BaseException:
            self.counters.failure()
            raise
        finally:
            if not held:
                self._registry.end(*caches)
        self.counters.success(plan.nbytes)
        _log.debug("%s moved %d bytes", what, plan.nbytes)

    def _copy(self, plan: CopyPlan, deadline: float) -> Outcome:
        try:
            return self._driver.copy(plan, deadline)
        except Exception as error:  # noqa: BLE001
            # A driver reports failures as outcomes. One that raises is broken: nobody knows what it still writes.
            message = f"the driver raised {type(error).__name__}: {error}"
            everything = ((0, plan.chunks),)
            return Outcome(
                OutcomeState.UNKNOWN,
                unknown=everything,
                cause=FailureCause.NATIVE,
                message=message,
                ticket=error,
            )

    def _quiescent(self, ticket: object) -> bool:
        return not isinstance(ticket, Exception) and self._driver.quiescent(ticket)

    def _wait_for(self, what: str, after: object, deadline: float) -> None:
        for event in after if isinstance(after, list | tuple) else (after,):
            try:
                self._driver.wait_event(event, deadline)
            except CacheTimeoutError as error:
                raise TransferTimeoutError(
                    f"{what} did not start: {error}. Nothing moved; give a longer timeout"
                ) from error


def _error(what: str, plan: CopyPlan, outcome: Outcome) -> TransferError:
    error = failure(what, plan, range(plan.pairs), outcome, "LINKED")
    if error.status_code is StatusCode.FAILED:
        error.status_code = StatusCode.COPY_CACHE_FAILED
    if isinstance(outcome.ticket, Exception):
        error.__cause__ = outcome.ticket
    return error


def _check_paged(name: str, shape: CacheShape, other: str) -> None:
    if not shape.is_blocks:
        raise CacheIncompatibleError(f"{name} is {shape.owner}, which is not paged; use {other} for it")


def _check_alike(dst_name: str, dst: CacheShape, src_name: str, src: CacheShape) -> None:
    if dst.num_tensors != src.num_tensors:
        raise CacheIncompatibleError(
            f"{dst_name} has {dst.num_tensors} tensors and {src_name} has {src.num_tensors}; tensors are copied one to one"
        )
    if dst.data_type is not src.data_type:
        raise CacheIncompatibleError(
            f"{dst_name} holds {dst.data_type.name} and {src_name} holds {src.data_type.name}; a copy moves bytes and "
            "converts nothing: use caches of one data type"
        )


def _check_mapping(name: str, value: Any, form: str, *, lists: bool) -> None:
    arguments.not_none(name, value)
    if not isinstance(value, Mapping):
        raise arguments.wrong_type(name, value, f"a mapping {form} of block ids")
    # The kinds of values are looked at, not every value: a mapping may name many thousand blocks.
    for kind in set(map(type, value.values())):
        listed = hasattr(kind, "__len__") and not issubclass(kind, str | bytes)
        if hasattr(kind, "ndim"):
            continue  # an array or tensor is a list or one number; planning looks at it
        if listed is not lists:
            block, wrong = next((block, wrong) for block, wrong in value.items() if type(wrong) is kind)
            expected = "a list of destination blocks, for example [2, 3]" if lists else "the id of one block"
            arguments.not_none(f"{name}[{block!r}]", wrong)
            raise arguments.wrong_type(f"{name}[{block!r}]", wrong, expected)


def _within_one_cache(mapping: Mapping[int, Sequence[int]], error: OverlapError) -> OverlapError:
    for block, destinations in mapping.items():
        if block in destinations:
            return OverlapError(
                f"copy_block_info[{block}] lists {block}: a block cannot be copied onto itself, leave it out of its own list"
            )
    return error
