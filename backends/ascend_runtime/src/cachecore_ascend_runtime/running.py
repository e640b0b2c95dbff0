"""Copies that did not end in time and may still be running: the memory they may touch must not be freed."""

from __future__ import annotations

import threading

from cachecore.errors import CacheBusyError
from cachecore_ascend_runtime import _runtime
from cachecore_ascend_runtime.device import Device

__all__ = ["RunningCopies"]


class RunningCopies:
    """Those of one driver. For many threads.

    Args:
        device: Answers whether a copy has ended.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._copies: list[_runtime.Unsettled] = []

    def add(self, ticket: object) -> None:
        """Remember the ticket of an outcome; None and the tickets of others are nothing to remember."""
        if isinstance(ticket, _runtime.Unsettled):
            with self._lock:
                self._copies.append(ticket)

    def ended(self, ticket: object) -> bool:
        """Whether the copy has stopped touching memory; it is forgotten then. Takes about a millisecond.

        Raises:
            AscendError: The runtime cannot be asked.
        """
        ended = self._device.quiescent(ticket)
        if ended:
            with self._lock:
                self._copies = [copy for copy in self._copies if copy is not ticket]
        return ended

    def left(self) -> list[_runtime.Unsettled]:
        """Those that have not ended; asks each."""
        return [copy for copy in self._remembered() if not self.ended(copy)]

    def check_untouched(self, base: int, nbytes: int) -> None:
        """Refuse to give up memory that one of them may touch.

        Raises:
            CacheBusyError: Names the ranges.
        """
        for copy in self._remembered():
            touches = any(start < base + nbytes and base < start + length for start, length in copy.extents)
            if touches and not self.ended(copy):
                raise self.busy([copy])

    def busy(self, copies: list[_runtime.Unsettled]) -> CacheBusyError:
        """The error that names what must not be freed."""
        ranges = tuple(sorted({extent for copy in copies for extent in copy.extents}))
        shown = ", ".join(f"[{base:#x}, {base + nbytes:#x})" for base, nbytes in ranges[:4])
        return CacheBusyError(
            f"{len(copies)} copies that did not end in time may still be running on device {self._device.index} and touch "
            f"{shown}{' and more' if len(ranges) > 4 else ''}: that memory must not be freed. Try again later",
            ranges=ranges,
        )

    def _remembered(self) -> list[_runtime.Unsettled]:
        with self._lock:
            return list(self._copies)
