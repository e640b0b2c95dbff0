"""The driver of a machine without an accelerator: the memory of the process itself.

`describe` reads /proc/self/maps once a call. Memory that cannot be read and written, or that belongs to a device, is
refused, because copies here are made by the processor. HOST and DEVICE are the same memory. `allocate` gives sealed
memory files, which other processes of the user can map and whose owner cannot shrink them under a reader.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from cachecore import _arguments as arguments
from cachecore import _core
from cachecore.driver import (
    Allocation,
    BackendDriver,
    Capabilities,
    Capability,
    Knowledge,
    MemoryInfo,
    MemoryOrigin,
    RegistrationRequest,
)
from cachecore.engine import CancelToken
from cachecore.errors import CacheOutOfMemoryError, CacheValueError, EngineError, ForkedProcessError
from cachecore.host.blocks import BlockTable
from cachecore.host.memory_limit import available_bytes
from cachecore.host.results import outcome_of
from cachecore.host.waiting import wait_event
from cachecore.outcome import Outcome
from cachecore.planning import CopyPlan
from cachecore.types import Placement

__all__ = ["HostDriver", "create_driver"]

#: Options of the driver, as they stand behind "host." in the options of a manager.
OPTION_NAMES: Final = ("prefault", "threads")

_MANUAL: Final = "Ascend LLM-DataDist manual, register_blocks_cache: 240 addresses over both register functions"
_HERE: Final = "cachecore host driver"
_PLACEMENTS: Final = frozenset({Placement.HOST, Placement.DEVICE})
#: What a runtime that maps host memory into a device asks for at least; the host itself needs a page.
_ALIGNMENT: Final = 64 * 1024
#: Allocations from this size on can be backed by huge pages.
_HUGE_PAGE: Final = 2 << 20
_MAX_ALIGNMENT: Final = 1 << 30


class HostDriver(BackendDriver):
    """Memory of this process.

    Args:
        prefault: Make the pages of an allocation present at once, so that too little memory is an error of
            `allocate` and not a crash later, and so that the first transfer does not pay for it.
        threads: Threads of one large copy.
    """

    name = "host"
    device = None

    def __init__(self, *, prefault: bool = True, threads: int = 2) -> None:
        self._pid = os.getpid()
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._prefault = prefault
        self._threads = threads
        self._capabilities = _capabilities(max(_ALIGNMENT, self._page))
        #: What was allocated and not freed; the local engine shares it with peers.
        self.blocks = BlockTable()

    def capabilities(self) -> Capabilities:
        """The vendor's address budget, so that code tested here does not fail there; no limits of its own."""
        return self._capabilities

    def describe(self, ranges: Sequence[tuple[int, int]]) -> list[MemoryInfo]:
        """Say what the ranges are, from one reading of /proc/self/maps."""
        try:
            found = _core.describe_mappings(ranges)
        except EngineError as error:
            # Fail closed: without it nobody knows what a copy would touch.
            reason = f"the memory map of this process cannot be read ({error}); mount /proc"
            return [MemoryInfo(frozenset(), reason=reason) for _ in ranges]
        return [self._info(base, nbytes, mapping) for (base, nbytes), mapping in zip(ranges, found, strict=True)]

    def _info(self, base: int, nbytes: int, mapping: _core.RangeMapping) -> MemoryInfo:
        if mapping.special:
            return MemoryInfo(
                frozenset(),
                reason=f"device memory or memory of the kernel is mapped there ({mapping.path}), which a copy by the "
                "processor must not touch",
            )
        if not mapping.accessible:
            return MemoryInfo(frozenset(), reason=_inaccessible(base, nbytes, mapping))
        owned = self.blocks.find(base, nbytes)
        if owned is not None:
            return MemoryInfo(_PLACEMENTS, MemoryOrigin.HOST_SHARED, self._page, owned.address, owned.nbytes)
        # Pages of a hugetlb file are larger than the system's, and the map does not say by how much.
        page = None if "huge" in mapping.path else self._page
        return MemoryInfo(_PLACEMENTS, MemoryOrigin.HOST_PLAIN, page)

    def check_registration(self, request: RegistrationRequest, infos: Sequence[MemoryInfo]) -> None:
        """Accept: a host has no product rules beyond those of the core (mapped, placement, budget, overlap)."""

    def allocate(self, nbytes: int, placement: Placement, alignment: int = 0) -> Allocation:
        """Allocate zeroed memory that peers of this machine can map; HOST and DEVICE are the same.

        Args:
            nbytes: Size in bytes.
            placement: Noted.
            alignment: In bytes, a power of two up to 1 GiB; at least 64 KiB is given always.

        Raises:
            CacheValueError: An argument is out of range.
            CacheOutOfMemoryError: There is not enough memory.
            EngineError: Another system call failed, for example because all descriptors are in use.
        """
        self._check_process()
        nbytes = arguments.integer("nbytes", nbytes, 1, 2**63 - 1)
        alignment = arguments.integer("alignment", alignment, 0, _MAX_ALIGNMENT)
        if alignment & (alignment - 1):
            raise CacheValueError(f"alignment is {alignment}; it must be a power of two")
        left = available_bytes()
        if left is not None and nbytes > left:
            raise CacheOutOfMemoryError(
                f"nbytes is {nbytes}; this machine, or the limit of this process's control group, has {left} bytes left. "
                "Use fewer or smaller blocks, or free memory"
            )
        least = _HUGE_PAGE if nbytes >= _HUGE_PAGE else _ALIGNMENT
        block = _core.SharedBlock(nbytes, max(alignment, least, self._page), self._prefault)
        owned = self.blocks.add(block)
        return Allocation(owned.address, nbytes, placement, owned)

    def free(self, allocation: Allocation) -> None:
        """Give memory back. Peers that mapped it keep their mapping; no transfer may use it any more."""
        self._check_process()
        self.blocks.remove(allocation.token)

    def copy(self, plan: CopyPlan, deadline: float) -> Outcome:
        """Copy remote -> local addresses of the plan, both in this process.

        A bad address is an Outcome: only memory that this driver mapped itself is copied without the kernel's checks.
        """
        self._check_process()
        if self.owns(plan, local=True) and self.owns(plan, local=False):
            report = _core.memcpy_plan(plan, deadline, threads=self._threads)
        else:
            report = _core.vm_copy(plan, deadline, threads=self._threads)
        return outcome_of(
            report,
            plan,
            "the copy within this process",
            advice="a seccomp filter forbids process_vm_readv; allow it, or copy only memory that cachecore allocated",
        )

    def wait_event(self, event: object, deadline: float, cancel: CancelToken | None = None) -> None:
        """Wait for a `threading.Event`, a `concurrent.futures.Future` or an object with `synchronize()`."""
        wait_event(event, deadline, cancel)

    def owns(self, plan: CopyPlan, *, local: bool) -> bool:
        """Whether one side of a plan lies in memory that this driver allocated, all of it."""
        table = self.blocks.table()
        return bool(table) and _core.plan_within(plan, table, local)

    @property
    def live_allocations(self) -> int:
        """Allocations not freed."""
        return len(self.blocks)

    def close(self) -> None:
        """Free what is left."""
        if os.getpid() == self._pid:
            self.blocks.clear()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedProcessError(
                f"this driver was made by process {self._pid} and used by its fork {os.getpid()}; make one in the child"
            )

    def __repr__(self) -> str:
        return f"<HostDriver {self.live_allocations} allocations>"


def _inaccessible(base: int, nbytes: int, mapping: _core.RangeMapping) -> str:
    at = f"{mapping.fault_address:#x}"
    if nbytes == 0:
        return f"the range at {at} is empty"
    if base + nbytes > 2**64:
        return f"the {nbytes} bytes from {at} run past the address space"
    where = at if mapping.fault_address == base else f"{at} ({mapping.fault_address - base} bytes from the start)"
    if mapping.permissions == "unmapped":
        return f"{where} is not mapped"
    if not mapping.permissions.startswith("r"):
        return f"{where} is mapped without read access ({mapping.permissions})"
    return f"{where} is mapped read-only ({mapping.permissions})"


def _capabilities(alignment: int) -> Capabilities:
    return Capabilities(
        address_budget=Capability(240, _MANUAL),
        max_registered_device_bytes=Capability(None, _HERE),
        max_registered_host_bytes=Capability(None, _HERE),
        host_alignment=Capability(alignment, f"{_HERE}: 64 KiB, or a page where pages are larger"),
        device_alignment=Capability(alignment, f"{_HERE}: 64 KiB, or a page where pages are larger"),
        remote_access_optional=Capability(True, _HERE),
        allocate_caches=Capability(True, _HERE),
        copy_and_swap_blocks=Capability(True, _HERE),
        copy_failure_knowledge=Capability(Knowledge.EXACT, "process_vm_readv(2): a partial count ends at the bad page"),
        two_sided_lifetime=Capability(True, _HERE),
        registration_status=Capability(True, f"{_HERE}: registrations are complete when the call returns"),
    )


def create_driver(device: int | None, options: Mapping[str, object]) -> BackendDriver:
    """Make the driver; the factory of its `DriverSpec`.

    Args:
        device: None or 0: a host has one memory.
        options: `prefault` (True or False) and `threads` (1 to 64).

    Raises:
        CacheTypeError, CacheValueError: A device or an option is out of range.
    """
    if device is not None:
        arguments.integer("device", device, 0, 0)
    prefault = arguments.boolean("options['host.prefault']", options.get("prefault", True))
    threads = arguments.integer("options['host.threads']", options.get("threads", 2), 1, 64)
    return HostDriver(prefault=prefault, threads=threads)
