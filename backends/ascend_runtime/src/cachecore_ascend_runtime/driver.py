"""The base class of the drivers for Ascend products: everything that does not depend on the product line.

A product's driver is a subclass in which a reader finds what makes the product different:

    class A2A3Driver(AscendDriver):
        name = "ascend_a2a3"

        def capabilities(self) -> Capabilities: ...                    # the product's limits, with their sources
        def check_registration(self, request, infos) -> None: ...      # the product's rules, pure
        def malloc_policy(self, nbytes: int) -> MallocPolicy: ...      # pages of device memory
        ordinary_host_memory = False                                   # what `allocate` gives for HOST

`self.runtime` and `self.device_handle` are there for the rest: SoC, versions, missing functions, the context of a thread.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from cachecore import _arguments as arguments
from cachecore import _core
from cachecore.driver import Allocation, BackendDriver, Capability, Knowledge, MemoryInfo, MemoryOrigin
from cachecore.engine import CancelToken
from cachecore.errors import CacheOutOfMemoryError, CacheValueError, ForkedProcessError
from cachecore.host.waiting import wait_event
from cachecore.outcome import Outcome
from cachecore.planning import CopyPlan
from cachecore.types import Placement
from cachecore_ascend_runtime.allocations import AllocationTable, Kind, OwnedMemory
from cachecore_ascend_runtime.device import Device, MallocPolicy
from cachecore_ascend_runtime.errors import AscendError
from cachecore_ascend_runtime.loader import load
from cachecore_ascend_runtime.running import RunningCopies
from cachecore_ascend_runtime.runtime import Runtime
from cachecore_ascend_runtime.waiting import EventWait

__all__ = ["HOST_ALIGNMENT", "AscendDriver"]

#: What the runtime asks of the address of host memory that it maps into a device, in bytes.
HOST_ALIGNMENT: Final = 64 * 1024
#: What aclrtMalloc gives, in bytes.
_MALLOC_ALIGNMENT: Final = 64
_MAX_ALIGNMENT: Final = 1 << 30
#: Seconds that `close` waits for copies that did not end in time.
_SETTLE_SECONDS: Final = 5.0


class AscendDriver(BackendDriver):
    """One device of an Ascend product. Abstract: see the module for what a product adds.

    Args:
        device: Index over the visible devices; None = the calling thread's current one, else the only one visible.
        runtime: The runtime, None = the one of this process.
        copy_streams: Most streams for a copy between device addresses, 1 to 64.

    Attributes:
        runtime: The runtime.
        device: Index of the device.
        device_handle: The device.
        emulated: Whether the emulator answers.

    Raises:
        BackendError: The runtime cannot be used, or `device` is None and it is not clear which one is meant.
        CacheTypeError, CacheValueError: There is no such device.
        AscendError: The device cannot be started.
    """

    #: Whether host memory of `allocate` is ordinary; else it is page-locked by aclrtMallocHost.
    ordinary_host_memory: ClassVar[bool] = False

    device: int

    def __init__(self, device: int | None = None, *, runtime: Runtime | None = None, copy_streams: int = 2) -> None:
        self.runtime = load() if runtime is None else runtime
        self.device = self.runtime.choose_device(device)
        self.device_handle: Device = self.runtime.device(self.device)
        self.emulated = self.runtime.emulated
        self._copy_streams = arguments.integer("copy_streams", copy_streams, 1, 64)
        self._pid = os.getpid()
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._table = AllocationTable()
        self._running = RunningCopies(self.device_handle)
        self._events = EventWait(self.device_handle, self.name)

    # --- for subclasses ---------------------------------------------------------------------------------------------

    def malloc_policy(self, nbytes: int) -> MallocPolicy:
        """Pages of an allocation of device memory. Huge ones where they fit, unless the product needs others."""
        return MallocPolicy.HUGE_FIRST

    def host_alignment(self) -> Capability[int]:
        """For `Capabilities.host_alignment`: what the runtime asks of host memory, a page where pages are larger."""
        return Capability(
            max(HOST_ALIGNMENT, self._page),
            "the runtime maps host memory in units of 64 KiB; a page where it is larger",
        )

    def device_alignment(self) -> Capability[int]:
        """For `Capabilities.device_alignment`, where the product asks for no more."""
        return Capability(_MALLOC_ALIGNMENT, "CANN manual, aclrtMalloc: the start is aligned to 64 bytes")

    def copy_knowledge(self) -> Capability[Knowledge]:
        """For `Capabilities.copy_failure_knowledge`."""
        return Capability(
            Knowledge.PREFIX, "copies are waited for window by window; of the failing window nothing is known"
        )

    # --- the contract -----------------------------------------------------------------------------------------------

    def bind_thread(self) -> None:
        """Give the calling thread the device's context; see `Device.bind_thread` for threads of somebody else."""
        self._check_process()
        self.device_handle.bind_thread()

    def describe(self, ranges: Sequence[tuple[int, int]]) -> list[MemoryInfo]:
        """Say what the ranges are: by the runtime, by what was allocated here, by the kernel."""
        self._check_process()
        found = self.device_handle.describe(ranges)
        return [self._enrich(base, nbytes, facts.info()) for (base, nbytes), facts in zip(ranges, found, strict=True)]

    def _enrich(self, base: int, nbytes: int, info: MemoryInfo) -> MemoryInfo:
        """What was allocated here is known also where an old runtime cannot say."""
        if info.origin not in (MemoryOrigin.UNKNOWN, MemoryOrigin.HOST_PLAIN) or nbytes <= 0:
            return info
        owned = self._table.find(base, nbytes)
        if owned is None:
            return info
        origin = owned.memory_origin
        if origin is MemoryOrigin.ACLRT_MALLOC and base != owned.origin:
            origin = MemoryOrigin.SUB_ALLOCATION
        placement = Placement.DEVICE if owned.kind is Kind.DEVICE else Placement.HOST
        return replace(
            info,
            placements=frozenset({placement}),
            origin=origin,
            block_base=owned.origin,
            block_bytes=owned.origin_bytes,
            reason="",
        )

    def allocate(self, nbytes: int, placement: Placement, alignment: int = 0) -> Allocation:
        """Allocate memory that the product can register.

        Args:
            nbytes: Size in bytes.
            placement: DEVICE: aclrtMalloc with `malloc_policy`. HOST: aclrtMallocHost, or ordinary memory where
                the product needs that.
            alignment: In bytes, a power of two up to 1 GiB; at least what `capabilities` says is given.

        Raises:
            CacheValueError: An argument is out of range.
            CacheOutOfMemoryError: There is not enough memory; of the device: AscendOutOfMemoryError.
            AscendError: The runtime refused for another reason.
        """
        self._check_process()
        nbytes = arguments.integer("nbytes", nbytes, 1, 2**63 - 1)
        alignment = arguments.integer("alignment", alignment, 0, _MAX_ALIGNMENT)
        if alignment & (alignment - 1):
            raise CacheValueError(f"alignment is {alignment}; it must be a power of two")
        placement = arguments.member("placement", placement, Placement)
        if placement is Placement.DEVICE:
            owned = self._allocate_device(nbytes, alignment)
        elif self.ordinary_host_memory:
            owned = self._allocate_ordinary(nbytes, alignment)
        else:
            owned = self._allocate_pinned(nbytes, alignment)
        return Allocation(owned.address, nbytes, placement, owned)

    def _allocate_device(self, nbytes: int, alignment: int) -> OwnedMemory:
        self._check_fits(nbytes)
        needed = max(alignment, self.capabilities().device_alignment.value_or(_MALLOC_ALIGNMENT))
        device = self.device_handle
        policy = self.malloc_policy(nbytes)
        return self._aligned(Kind.DEVICE, nbytes, needed, lambda size: device.allocate(size, policy), device.free)

    def _allocate_pinned(self, nbytes: int, alignment: int) -> OwnedMemory:
        physical = self._page * os.sysconf("SC_PHYS_PAGES")
        if nbytes > physical:
            raise CacheOutOfMemoryError(f"nbytes is {nbytes}; this machine has {physical} bytes to page-lock from")
        needed = max(alignment, self.capabilities().host_alignment.value_or(HOST_ALIGNMENT))
        device = self.device_handle
        return self._aligned(Kind.PINNED_HOST, nbytes, needed, device.allocate_host, device.free_host)

    def _allocate_ordinary(self, nbytes: int, alignment: int) -> OwnedMemory:
        needed = max(alignment, self.capabilities().host_alignment.value_or(HOST_ALIGNMENT), self._page)
        block = _core.SharedBlock(nbytes, needed, True)
        return self._table.add(Kind.ORDINARY_HOST, block.address, nbytes, block.address, nbytes, block)

    def _aligned(
        self,
        kind: Kind,
        nbytes: int,
        alignment: int,
        allocate: Callable[[int], int],
        free: Callable[[int], None],
    ) -> OwnedMemory:
        """Memory at an aligned address: as it comes where that is aligned, else cut from more than was asked for."""
        origin, total = allocate(nbytes), nbytes
        if origin % alignment:
            free(origin)
            total = nbytes + alignment
            origin = allocate(total)
        return self._table.add(kind, -(-origin // alignment) * alignment, nbytes, origin, total)

    def _check_fits(self, nbytes: int) -> None:
        """A size that no device has is refused here: runtimes differ in what they make of it."""
        try:
            free, total = self.device_handle.memory_info()
        except AscendError:  # an old runtime; aclrtMalloc will say
            return
        if nbytes > total:
            raise CacheOutOfMemoryError(
                f"nbytes is {nbytes}; device {self.device} has {total} bytes, {free} of them free"
            )

    def free(self, allocation: Allocation) -> None:
        """Give memory back.

        Raises:
            CacheValueError: It is not live in this driver.
            CacheBusyError: A copy that did not end in time may still touch it; nothing was freed.
            AscendError: The runtime refused; it is still allocated.
        """
        self._check_process()
        owned = self._table.take(allocation.token)
        try:
            self._running.check_untouched(owned.origin, owned.origin_bytes)
            self._release(owned)
        except BaseException:
            self._table.put_back(owned)
            raise

    def _release(self, owned: OwnedMemory) -> None:
        if owned.kind is Kind.DEVICE:
            self.device_handle.free(owned.origin)
        elif owned.kind is Kind.PINNED_HOST:
            self.device_handle.free_host(owned.origin)
        elif owned.block is not None:
            owned.block.close()

    def copy(self, plan: CopyPlan, deadline: float, after: object = None) -> Outcome:
        """Copy remote -> local addresses of the plan, each on the host or on a device of this process.

        Args:
            plan: Its "remote" side is the source.
            deadline: On `time.monotonic()`.
            after: Event or events of the device that must have happened before; see `Device.copy`.
        """
        self._check_process()
        outcome = self.device_handle.copy(plan, deadline, after, streams=self._copy_streams)
        self._running.add(outcome.ticket)
        return outcome

    def wait_event(self, event: object, deadline: float, cancel: CancelToken | None = None) -> None:
        """Wait for an event of the device, or for what a host has: a `threading.Event` or a `Future`.

        Args:
            event: A recorded `torch.npu.Event`, the handle of an aclrtEvent as an integer, or an event of the host.
            deadline: On `time.monotonic()`.
            cancel: Looked at for events of the host; the wait for the device's cannot be cut short.

        Raises:
            NotSupportedError: It is none of these.
            CacheTimeoutError: It did not happen before the deadline.
            AscendError: The runtime refused the event.
        """
        self._check_process()
        if isinstance(event, threading.Event | concurrent.futures.Future):
            wait_event(event, deadline, cancel)
            return
        self._events.wait(event, deadline)

    def quiescent(self, ticket: object) -> bool:
        """Whether the copy that returned `ticket` has stopped touching memory. Takes about a millisecond."""
        self._check_process()
        return self._running.ended(ticket)

    @property
    def live_allocations(self) -> int:
        """Allocations not freed."""
        return len(self._table)

    def close(self) -> None:
        """Free what is left. The device's context stays, see `device`. May be called again.

        Raises:
            CacheBusyError: A copy that did not end in time may still be running after 5 s. What it may touch stays
                allocated; the rest is freed.
            AscendError: The runtime refused to free something, which stays allocated; the rest is freed.
        """
        if os.getpid() != self._pid:
            return  # the parent's memory
        end = time.monotonic() + _SETTLE_SECONDS
        while self._running.left() and time.monotonic() < end:
            time.sleep(0.005)
        problems: list[Exception] = []
        for owned in self._table.all():
            try:
                self.free(Allocation(owned.address, owned.nbytes, Placement.HOST, owned))
            except CacheValueError:
                continue  # somebody else freed it meanwhile
            except Exception as error:  # noqa: BLE001  # the others are freed first
                problems.append(error)
        if problems:
            raise problems[0]
        busy = self._running.left()
        if busy:
            raise self._running.busy(busy)
        self.device_handle.trim()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedProcessError(
                f"this driver was made by process {self._pid} and used by its fork {os.getpid()}: device contexts do not survive "
                "a fork. Start the child with the method 'spawn'"
            )

    def __repr__(self) -> str:
        emulated = "emulated " if self.emulated else ""
        return f"<{type(self).__name__} device {self.device} of {emulated}{self.runtime.soc_name}, {self.live_allocations} allocations>"
