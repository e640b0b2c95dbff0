"""The driver of `cachecore.testing.reference`."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Sequence

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
from cachecore.engine import Operation
from cachecore.errors import AlignmentError, CacheOutOfMemoryError, CacheValueError
from cachecore.outcome import Outcome
from cachecore.planning import CopyPlan
from cachecore.testing._process_memory import covered, mapped, run_plan
from cachecore.types import Placement

_SOURCE = "cachecore.testing.reference"
_BOTH = frozenset({Placement.HOST, Placement.DEVICE})


class ReferenceDriver(BackendDriver):
    """Memory of the process, in anonymous mappings."""

    name = "reference"
    device = None

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[int, tuple[mmap.mmap, ctypes.c_char]] = {}

    @property
    def live_allocations(self) -> int:
        """Allocations not given back."""
        return len(self._live)

    def capabilities(self) -> Capabilities:
        """Without limits that a test could hit."""
        return Capabilities(
            address_budget=Capability(240, _SOURCE),
            max_registered_device_bytes=Capability(None, _SOURCE),
            max_registered_host_bytes=Capability(None, _SOURCE),
            host_alignment=Capability(mmap.PAGESIZE, _SOURCE),
            device_alignment=Capability(mmap.PAGESIZE, _SOURCE),
            remote_access_optional=Capability(True, _SOURCE),
            allocate_caches=Capability(True, _SOURCE),
            copy_and_swap_blocks=Capability(True, _SOURCE),
            copy_failure_knowledge=Capability(Knowledge.EXACT, _SOURCE),
            two_sided_lifetime=Capability(True, _SOURCE),
            registration_status=Capability(True, _SOURCE),
        )

    def describe(self, ranges: Sequence[tuple[int, int]]) -> list[MemoryInfo]:
        """What /proc/self/maps says."""
        maps = mapped()
        good = MemoryInfo(_BOTH, MemoryOrigin.HOST_PLAIN, mmap.PAGESIZE)
        return [
            good
            if covered(maps, base, nbytes)
            else MemoryInfo(frozenset(), reason=f"{nbytes} bytes at {base:#x} are not mapped readable and writable")
            for base, nbytes in ranges
        ]

    def check_registration(self, request: RegistrationRequest, infos: Sequence[MemoryInfo]) -> None:
        """Wants two-byte alignment, so that there is a rule to test."""
        for index, (base, _) in enumerate(request.ranges):
            if base % 2:
                raise AlignmentError(
                    f"addrs[{index}] is {base:#x}; it must be a multiple of 2: allocate through the driver",
                    tensor_index=index,
                    address=base,
                    alignment=2,
                    origin=infos[index].origin.value,
                )

    def allocate(self, nbytes: int, placement: Placement, alignment: int = 0) -> Allocation:
        """Map enough to find an aligned start in it."""
        if nbytes <= 0 or alignment < 0 or alignment & (alignment - 1):
            raise CacheValueError(f"nbytes is {nbytes} and alignment {alignment}; they must be above 0, a power of two")
        alignment = max(alignment, mmap.PAGESIZE)
        try:
            mapping = mmap.mmap(-1, nbytes + alignment)
        except (OSError, OverflowError) as error:
            raise CacheOutOfMemoryError(f"{nbytes} bytes could not be mapped: {error}") from error
        first = ctypes.c_char.from_buffer(mapping)
        address = -(-ctypes.addressof(first) // alignment) * alignment
        with self._lock:
            self._live[address] = mapping, first
        return Allocation(address, nbytes, placement, mapping)

    def free(self, allocation: Allocation) -> None:
        """Unmap it."""
        with self._lock:
            live = self._live.get(allocation.address)
            if live is None or live[0] is not allocation.token:
                raise CacheValueError(f"allocation at {allocation.address:#x} is not live; it was freed already")
            del self._live[allocation.address]
        mapping, first = live
        del live, first
        mapping.close()

    def copy(self, plan: CopyPlan, deadline: float) -> Outcome:
        """Through the system call too, because it reports a bad address and does not crash on it."""
        return run_plan(plan, os.getpid(), Operation.READ, deadline, None)

    def close(self) -> None:
        """Unmap what is left."""
        with self._lock:
            left = list(self._live.values())
            self._live.clear()
        while left:
            mapping, first = left.pop()
            del first
            mapping.close()
