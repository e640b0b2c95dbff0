"""Memory for tests and the demo, got, filled and read through a driver.

Host code cannot dereference device memory. Whoever gets memory only from a `MemoryHarness` runs unchanged on every
product: bytes go straight in where the driver says that the memory is the host's, and through `BackendDriver.copy`
and a host staging buffer where it is not.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from cachecore.driver import Allocation, BackendDriver
from cachecore.errors import CacheValueError
from cachecore.outcome import OutcomeState
from cachecore.planning import CopyPlan, Geometry, plan_entry
from cachecore.types import Placement

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MemoryHarness", "plan_bytes"]

_STAGING_BYTES = 16 << 20
_COPY_SECONDS = 60.0
#: Anonymous mappings only count against memory where they are touched.
_NO_RESERVE = 0x4000


def plan_bytes(local: int, remote: int, nbytes: int) -> CopyPlan:
    """The plan that moves `nbytes` bytes between two addresses, in one chunk."""
    return plan_entry(
        Geometry([local], blocks=1, block_bytes=nbytes), Geometry([remote], blocks=1, block_bytes=nbytes), 0, 0
    )


class MemoryHarness:
    """Memory of one driver; everything is given back by `close`.

    Close it after the caches in it are unregistered and before the manager, which closes the driver.

    Args:
        driver: Whose memory.
        foreign: Take ordinary anonymous mappings of the process in place of `driver.allocate`, the way a caller
            brings memory of his own. Only for drivers that accept such memory, see `accepts_foreign`.
    """

    def __init__(self, driver: BackendDriver, *, foreign: bool = False) -> None:
        self.driver = driver
        self.foreign = foreign
        self._allocations: dict[int, Allocation] = {}
        self._mappings: dict[int, tuple[mmap.mmap, ctypes.c_char]] = {}
        self._staging: Allocation | None = None

    @staticmethod
    def accepts_foreign(driver: BackendDriver, placement: Placement) -> bool:
        """Whether the driver lets ordinary memory of the process be registered as `placement`."""
        with MemoryHarness(driver, foreign=True) as harness:
            address = harness.allocate(mmap.PAGESIZE)
            placements = driver.describe([(address, mmap.PAGESIZE)])[0].placements
        return placement is Placement.HOST if placements is None else placement in placements

    def allocate(self, nbytes: int, placement: Placement = Placement.DEVICE, alignment: int = 0) -> int:
        """Get `nbytes` bytes; returns their address. The content is not defined."""
        if self.foreign:
            return self.map(nbytes)
        allocation = self.driver.allocate(nbytes, placement, alignment)
        self._allocations[allocation.address] = allocation
        return allocation.address

    def map(self, nbytes: int) -> int:
        """Map ordinary, sparse memory of the process, whatever `foreign` says; returns its address."""
        mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        first = ctypes.c_char.from_buffer(mapping)
        address = ctypes.addressof(first)
        self._mappings[address] = mapping, first
        return address

    def hide(self, address: int, nbytes: int) -> None:
        """Take all access from whole pages of `map`; they keep their content. For tests of bad memory."""
        _protect(address, nbytes, 0)

    def show(self, address: int, nbytes: int) -> None:
        """Undo `hide`."""
        _protect(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE)

    def free(self, address: int) -> None:
        """Give back memory of `allocate`.

        Raises:
            CacheValueError: The address is not the start of live memory of this harness.
        """
        if address in self._allocations:
            self.driver.free(self._allocations.pop(address))
        elif address in self._mappings:
            self._unmap(address)
        else:
            raise CacheValueError(f"address {address:#x} is not memory of this harness; give what allocate() returned")

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Put `data` at `address`, which may lie anywhere in registered or allocated memory."""
        view = memoryview(data).cast("B")
        if self._is_host(address, len(view)):
            ctypes.memmove(address, data if isinstance(data, bytes) else bytes(view), len(view))
            return
        for offset, staging, part in self._staged(len(view)):
            ctypes.memmove(staging, bytes(view[offset : offset + part]), part)
            self._copy(address + offset, staging, part)

    def read(self, address: int, nbytes: int) -> bytes:
        """The `nbytes` bytes at `address`."""
        if self._is_host(address, nbytes):
            return ctypes.string_at(address, nbytes)
        parts = []
        for offset, staging, part in self._staged(nbytes):
            self._copy(staging, address + offset, part)
            parts.append(ctypes.string_at(staging, part))
        return b"".join(parts)

    def close(self) -> None:
        """Give back everything that is still there."""
        with contextlib.ExitStack() as stack:
            # Each is tried even if one raises.
            for allocation in self._allocations.values():
                stack.callback(self.driver.free, allocation)
            if self._staging is not None:
                stack.callback(self.driver.free, self._staging)
            for address in list(self._mappings):
                stack.callback(self._unmap, address)
            self._allocations.clear()
            self._staging = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _is_host(self, address: int, nbytes: int) -> bool:
        placements = self.driver.describe([(address, nbytes)])[0].placements
        return placements is None or Placement.HOST in placements

    def _unmap(self, address: int) -> None:
        mapping, first = self._mappings.pop(address)
        del first  # the export that kept the address
        mapping.close()

    def _staged(self, nbytes: int) -> Iterator[tuple[int, int, int]]:
        if self._staging is None:
            self._staging = self.driver.allocate(_STAGING_BYTES, Placement.HOST)
        for offset in range(0, nbytes, _STAGING_BYTES):
            yield offset, self._staging.address, min(_STAGING_BYTES, nbytes - offset)

    def _copy(self, destination: int, source: int, nbytes: int) -> None:
        outcome = self.driver.copy(plan_bytes(destination, source, nbytes), time.monotonic() + _COPY_SECONDS)
        if outcome.state is not OutcomeState.DONE:
            raise AssertionError(f"driver.copy of {nbytes} bytes to {destination:#x} ended with {outcome}")


def _protect(address: int, nbytes: int, protection: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), protection) != 0:
        raise OSError(ctypes.get_errno(), "mprotect failed")
