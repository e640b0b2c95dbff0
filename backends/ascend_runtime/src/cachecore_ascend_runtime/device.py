"""One device of the runtime: its context in each thread, memory, copies.

    device = load().device(0)
    device.bind_thread()                          # a worker thread of ours, once
    with device.bound(): vendor_library_call()    # a thread that may belong to somebody else
    facts = device.describe([(address, nbytes)])
    outcome = device.copy(plan, deadline, after=event)

The default context of the device is used, the one that torch_npu uses too. It is never reset here: the process's end
gives everything back, and somebody else may have started to use it. A thread that has the context of another device,
given by somebody else, gets it back after each call; a thread that had none keeps ours, because the runtime has no way
to take it away.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import struct
import threading
from collections.abc import Iterator, Sequence

from cachecore import _core
from cachecore.errors import EngineError, ForkedProcessError
from cachecore.outcome import Outcome
from cachecore.planning import CopyPlan
from cachecore_ascend_runtime import _runtime
from cachecore_ascend_runtime.copies import copy_on_host, event_handles, outcome_of
from cachecore_ascend_runtime.errors import AscendError
from cachecore_ascend_runtime.memory import Location, MemoryFacts, judge, needs_mapping

__all__ = ["Device", "MallocPolicy"]

_log = logging.getLogger("cachecore")
_END = 2**64
#: Smallest allocation that the runtime rounds nothing up for.
_PROBE_BYTES = 64


class MallocPolicy(enum.IntEnum):
    """Pages of an allocation, with the runtime's numbers: exactly one is given, they are never added."""

    HUGE_FIRST = 0
    HUGE_ONLY = 1
    NORMAL_ONLY = 2
    HUGE_FIRST_P2P = 3
    HUGE_ONLY_P2P = 4
    NORMAL_ONLY_P2P = 5
    HUGE1G_ONLY = 6
    HUGE1G_ONLY_P2P = 7


class Device:
    """Made by `Runtime.device`, one for each index and process. For many threads.

    Attributes:
        index: The device, counted over the visible ones.
        soc_name: Name of the SoC.
        emulated: Whether the emulator answers.
    """

    def __init__(self, library: _runtime.Library, index: int, soc_name: str, *, emulated: bool) -> None:
        self._native = _runtime.Device(library, index)
        self._pid = os.getpid()
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._lock = threading.Lock()
        self._own_number: int | None = None
        #: Streams that wait for an event for nothing: no memory depends on them.
        self._stray: list[_runtime.Unsettled] = []
        self.index = index
        self.soc_name = soc_name
        self.emulated = emulated

    # --- threads ----------------------------------------------------------------------------------------------------

    def bind_thread(self) -> bool:
        """Give the calling thread the device's context for good. Cheap when it has it.

        Returns:
            False where the thread has the context of somebody else, for example of torch on another device: that one
            stays, and calls here switch for their own duration. Use `bound` around calls into other libraries.
        """
        self._check_process()
        return self._native.bind_thread()

    @contextlib.contextmanager
    def bound(self) -> Iterator[None]:
        """Within it the context is current in the calling thread; afterwards the former one is again."""
        self._check_process()
        former = self._native.enter()
        try:
            yield
        finally:
            self._native.leave(former)

    # --- memory -----------------------------------------------------------------------------------------------------

    def describe(self, ranges: Sequence[tuple[int, int]]) -> list[MemoryFacts]:
        """Say what (address, bytes) ranges are, in order; never raises for a bad one. See `memory`.

        The runtime is asked in one call, the kernel once and only for what the runtime does not know.
        """
        self._check_process()
        answers: list[MemoryFacts | None] = [_senseless(base, nbytes) for base, nbytes in ranges]
        asked = [index for index, answer in enumerate(answers) if answer is None]
        if not asked:
            return [answer for answer in answers if answer is not None]
        packed = struct.pack(f"{2 * len(asked)}Q", *(value for index in asked for value in ranges[index]))
        facts = dict(zip(asked, self._native.query(packed), strict=True))
        mappings = self._mappings(ranges, [index for index in asked if needs_mapping(facts[index])])
        own = self.index
        if any(entry.attributes_code == 0 and entry.location == Location.DEVICE for entry in facts.values()):
            own = self._number()
        for index in asked:
            base, nbytes = ranges[index]
            answers[index] = judge(base, nbytes, facts[index], mappings.get(index), self.index, own, self._page)
        return [answer for answer in answers if answer is not None]

    def _mappings(
        self, ranges: Sequence[tuple[int, int]], wanted: list[int]
    ) -> dict[int, _core.RangeMapping] | dict[int, str]:
        if not wanted:
            return {}
        try:
            return dict(zip(wanted, _core.describe_mappings([ranges[index] for index in wanted]), strict=True))
        except EngineError as error:
            return dict.fromkeys(wanted, f"the memory map of this process cannot be read ({error}); mount /proc")

    def _number(self) -> int:
        """How the runtime numbers this device in what it says about memory; visible devices may be numbered anew."""
        with self._lock:
            if self._own_number is None:
                try:
                    address = self._native.allocate(_PROBE_BYTES, MallocPolicy.HUGE_FIRST)
                except AscendError as error:
                    _log.debug("device %d: no memory to find its number with: %s", self.index, error)
                    return self.index
                try:
                    facts = self._native.query(struct.pack("2Q", address, 1))[0]
                finally:
                    self._native.free(address)
                known = facts.attributes_code == 0 and facts.location == Location.DEVICE
                self._own_number = facts.device if known else self.index
            return self._own_number

    def allocate(self, nbytes: int, policy: MallocPolicy = MallocPolicy.HUGE_FIRST) -> int:
        """Allocate device memory; returns its address, aligned to 64 bytes at least.

        Raises:
            AscendOutOfMemoryError: There is not enough.
            AscendError: The runtime refused for another reason.
        """
        self._check_process()
        return self._native.allocate(nbytes, policy)

    def free(self, address: int) -> None:
        """Give back memory of `allocate`.

        Raises:
            AscendError: The runtime refused; the memory still counts as allocated.
        """
        self._check_process()
        self._native.free(address)

    def allocate_host(self, nbytes: int) -> int:
        """Allocate page-locked host memory; returns its address. Errors as `allocate`."""
        self._check_process()
        return self._native.allocate_host(nbytes)

    def free_host(self, address: int) -> None:
        """Give back memory of `allocate_host`. Errors as `free`."""
        self._check_process()
        self._native.free_host(address)

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of high-bandwidth memory.

        Raises:
            AscendError: The runtime cannot say.
        """
        self._check_process()
        return self._native.memory_info()

    # --- copies -----------------------------------------------------------------------------------------------------

    def copy(self, plan: CopyPlan, deadline: float, after: object = None, *, streams: int = 2) -> Outcome:
        """Copy remote -> local addresses of a plan, each on the host or on a device. Blocking, without the GIL.

        Args:
            plan: What to move; each pair lies in one piece of memory per side.
            deadline: On `time.monotonic()`.
            after: What must have happened before the first byte moves: an event of the device (torch.npu.Event, or
                the handle of an aclrtEvent as an integer), or several in a list or tuple.
            streams: Most streams for a copy between device addresses, 1 to 64.

        Returns:
            DONE, FAILED, or UNKNOWN with a ticket for `quiescent` where something may still be written. A window of
            pieces that failed counts as unknown, those before it as landed, those behind it as untouched.

        Raises:
            CacheTypeError: `after` is no event.
        """
        self._check_process()
        events = event_handles(after)
        try:
            report = _runtime.copy(self._native, plan.groups(), deadline, events, streams)
        except AscendError as error:  # the thread could not be prepared
            return outcome_of(error, plan)
        if report.restore_function:
            _log.error(
                "after a copy on device %d the thread's former state could not be put back: %s failed with %d",
                self.index, report.restore_function, report.restore_code,
            )  # fmt: skip
        if report.host_only:
            return copy_on_host(plan, deadline)
        if report.unsettled is not None and not report.unknown:
            with self._lock:
                self._stray.append(report.unsettled)
        return outcome_of(report, plan)

    def quiescent(self, ticket: object) -> bool:
        """Whether the copy that returned `ticket` has stopped touching memory. Takes about a millisecond.

        Raises:
            AscendError: The runtime cannot be asked.
        """
        self._check_process()
        return not isinstance(ticket, _runtime.Unsettled) or ticket.settled()

    def trim(self) -> None:
        """Destroy streams that nobody uses.

        Raises:
            AscendError: One could not be destroyed.
        """
        self._check_process()
        with self._lock:
            self._stray = [copy for copy in self._stray if not copy.settled()]
        self._native.trim()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedProcessError(
                f"device {self.index} was opened by process {self._pid} and used by its fork {os.getpid()}: device contexts do "
                "not survive a fork. Start the child with the method 'spawn'"
            )

    def __repr__(self) -> str:
        emulated = "emulated " if self.emulated else ""
        return f"<Device {self.index} of {emulated}{self.soc_name}>"


def _senseless(base: int, nbytes: int) -> MemoryFacts | None:
    """The refusal of a range that cannot be one of memory, None for one that can."""
    reason = ""
    if not 0 <= base < _END or not 0 <= nbytes < _END:
        reason = f"{base} with {nbytes} bytes is no range of a 64-bit address space"
    elif nbytes == 0:
        reason = f"the range at {base:#x} is empty"
    elif base + nbytes > _END:
        reason = f"the {nbytes} bytes from {base:#x} run past the address space"
    return MemoryFacts(Location.UNKNOWN, frozenset(), reason=reason) if reason else None
