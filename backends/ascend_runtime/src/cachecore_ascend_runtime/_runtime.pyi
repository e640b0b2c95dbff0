# ruff: noqa: PYI021  # the place where native functions are documented
"""Binding of the Ascend runtime library, which is loaded when it is used.

Nothing here holds the GIL while it calls the library. A function of the library that fails is a
`cachecore_ascend_runtime.errors.AscendError`. Internal: use `cachecore_ascend_runtime.runtime` and `.device`.
"""

from collections.abc import Sequence
from typing import Any, final

@final
class Library:
    """A libascendcl, opened with RTLD_NOW and RTLD_LOCAL and never closed. Each function is resolved on its own."""

    def __init__(self, name: str) -> None:
        """Open a file, or a name that the dynamic loader looks for. Initialises nothing.

        Raises:
            OSError: It cannot be loaded, or lacks a function without which nothing works; the text is the loader's.
        """

    @property
    def path(self) -> str:
        """Where the loader found it."""

    @property
    def missing(self) -> list[str]:
        """Optional functions that it does not have."""

    def initialise(self) -> bool:
        """Call aclInit; False when somebody else had, which is no error. Nothing is ever finalised.

        Raises:
            AscendError: It failed.
        """

    def soc_name(self) -> str:
        """Name of the SoC, empty when the runtime does not say."""

    def device_count(self) -> int:
        """Number of visible devices.

        Raises:
            AscendError: It failed.
        """

    def current_device(self) -> int | None:
        """The calling thread's device, None when the thread has no context.

        Raises:
            AscendError: It failed.
        """

    def package_version(self, package: str) -> str | None:
        """Version of an installed package ("runtime", "driver"), None when the runtime cannot say."""

    def interface_version(self) -> str | None:
        """Version of the interface, None when the runtime cannot say."""

    @property
    def batches_refused(self) -> bool:
        """Whether the driver was found to refuse batches of copies."""

    @property
    def capture_mode_refused(self) -> bool:
        """Whether the driver was found to refuse the exchange of the capture mode."""

def loaded_library(name: str) -> str | None:
    """Path of a library that this process has loaded already, None otherwise. Loads nothing."""

@final
class MemoryFacts:
    """What the runtime said about one range of memory. -1 as a code: the runtime does not have the function."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Not for callers: raises TypeError."""

    @property
    def attributes_code(self) -> int:
        """Answer of aclrtPointerGetAttributes for the first byte. Not 0: nothing else is known."""

    @property
    def location(self) -> int:
        """Where the first byte is: 0 host, 1 device, 2 not known to the runtime, 3 managed, 4 host by NUMA node."""

    @property
    def device(self) -> int:
        """Device of the first byte, as the runtime numbers it."""

    @property
    def page_bytes(self) -> int:
        """Largest page behind the range, 0 when not known."""

    @property
    def range_code(self) -> int:
        """Answer of aclrtMemGetAddressRange for the first block."""

    @property
    def block_base(self) -> int:
        """Start of the first block; 0 when `blocks` is 0."""

    @property
    def block_bytes(self) -> int:
        """Bytes of all blocks that were walked, from `block_base` on."""

    @property
    def blocks(self) -> int:
        """Number of blocks that were walked."""

    @property
    def handle_code(self) -> int:
        """Answer of aclrtMemRetainAllocationHandle where it was neither yes nor no; 0: it answered."""

    @property
    def mapped(self) -> str:
        """Whether the blocks were mapped by aclrtMapMem: "yes", "no", "partly", "unknown"."""

    @property
    def covered(self) -> int:
        """Bytes from the start of the range on that are memory of this location and device."""

@final
class Device:
    """One device: its default context, shared with everybody in the process and never reset here.

    For many threads. Every function makes the context current in the calling thread, exchanges the thread's mode of
    graph capture to RELAXED, and puts both back. A thread that had no context keeps this one.
    """

    def __init__(self, library: Library, index: int) -> None:
        """Make the context on first use of the device in this process.

        Raises:
            AscendError: There is no such device, or it cannot be started.
        """

    @property
    def index(self) -> int:
        """The device, counted over the visible ones."""

    def bind_thread(self) -> bool:
        """Make the context the thread's for good; False when the thread has another one that is not of this library."""

    def enter(self) -> int:
        """Make the context current; returns what `leave` needs."""

    def leave(self, former: int) -> None:
        """Put back the context that was current before `enter`."""

    def allocate(self, nbytes: int, policy: int) -> int:
        """Call aclrtMalloc; returns the address."""

    def free(self, address: int) -> None:
        """Call aclrtFree. After a failure the memory still counts as allocated."""

    def allocate_host(self, nbytes: int) -> int:
        """Call aclrtMallocHost; returns the address."""

    def free_host(self, address: int) -> None:
        """Call aclrtFreeHost. After a failure the memory still counts as allocated."""

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of high-bandwidth memory."""

    def query(self, ranges: Any) -> list[MemoryFacts]:
        """Ask about (address, bytes) ranges, a buffer of native uint64 pairs. Walks blocks until a range is covered.

        Raises:
            CacheValueError: The buffer does not hold pairs.
            AscendError: A handle could not be given back.
        """

    def trim(self) -> None:
        """Destroy the streams that nobody uses."""

@final
class Unsettled:
    """A copy that may still be running."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Not for callers: raises TypeError."""

    def settled(self) -> bool:
        """Ask, for about a millisecond a stream; True when nothing runs any more, and from then on."""

    @property
    def extents(self) -> tuple[tuple[int, int], ...]:
        """(address, bytes) that must not be freed before."""

@final
class CopyReport:
    """What became of a copy. The three lists of half-open chunk ranges are disjoint and cover the plan."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Not for callers: raises TypeError."""

    @property
    def cause(self) -> str:
        """One of "none", "deadline", "source fault", "destination fault" (host memory is not there), "native"."""

    @property
    def function(self) -> str:
        """What failed: a function of the runtime or a system call; empty for "none" and a deadline that passed before."""

    @property
    def code(self) -> int:
        """Its code, an errno for system calls."""

    @property
    def detail(self) -> str:
        """Text of aclGetRecentErrMsg."""

    @property
    def landed(self) -> tuple[tuple[int, int], ...]:
        """Chunks whose every byte was written."""

    @property
    def untouched(self) -> tuple[tuple[int, int], ...]:
        """Chunks of which no byte was written."""

    @property
    def unknown(self) -> tuple[tuple[int, int], ...]:
        """Chunks that may hold old, new or mixed bytes."""

    @property
    def host_only(self) -> bool:
        """Every pair has ordinary host memory on both sides: nothing was done, and the lists are empty."""

    @property
    def restore_function(self) -> str:
        """What failed when the thread's own context or capture mode was put back, empty when nothing did."""

    @property
    def restore_code(self) -> int:
        """Its code."""

    @property
    def unsettled(self) -> Unsettled | None:
        """Set when something may still run."""

def copy(
    device: Device,
    groups: Sequence[Any],
    deadline: float,
    events: Sequence[int] = ...,
    streams: int = 2,
    window_items: int = 1024,
    window_bytes: int = 268435456,
    plain_window_bytes: int = 33554432,
) -> CopyReport:
    """Move remote -> local addresses of a plan. Blocking, without the GIL.

    The plan is moved window by window; what a window before the failing one moved has landed. Between host and device
    a window is one batch where the runtime has batches, else one aclrtMemcpyAsync a piece; between device addresses
    pieces go round over the streams. A window that does not end in time is aborted.

    Args:
        device: Whose context and streams.
        groups: What `CopyPlan.groups()` returns.
        deadline: On `time.monotonic()`; may be infinite.
        events: Handles of events that must have happened before the first byte moves.
        streams: Most streams for pieces between device addresses.
        window_items: Most pieces of a window.
        window_bytes: Most bytes of a window.
        plain_window_bytes: The same where ordinary host memory is a side.

    Raises:
        CacheValueError: An argument is out of range, or a table of the plan is malformed.
        AscendError: The thread could not be prepared; nothing was moved.
    """
