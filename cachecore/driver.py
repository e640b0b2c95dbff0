"""The contract of a backend driver: everything that is specific to a product line, and nothing else.

A driver says what the product can do (`capabilities`, as data), where memory is (`describe`), which registrations
the product accepts (`check_registration`, pure), and allocates and copies within the process. It knows nothing
about caches, blocks, keys or links.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from cachecore.errors import NotSupportedError
from cachecore.outcome import Outcome
from cachecore.planning import CopyPlan
from cachecore.types import Placement

if TYPE_CHECKING:
    from cachecore.engine import CancelToken

__all__ = [
    "UNKNOWN",
    "Allocation",
    "BackendDriver",
    "Capabilities",
    "Capability",
    "DeviceInfo",
    "DriverSpec",
    "Knowledge",
    "MemoryInfo",
    "MemoryOrigin",
    "RegistrationRequest",
    "Unknown",
]

T = TypeVar("T")


class Unknown(enum.Enum):
    """The type of `UNKNOWN`: a capability whose value could not be found out."""

    UNKNOWN = "unknown"

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = Unknown.UNKNOWN


@dataclass(frozen=True)
class Capability(Generic[T]):
    """One fact about a product or engine.

    Attributes:
        value: The fact, or UNKNOWN. For limits, None means that there is none.
        source: Where it comes from: a manual page, a runtime query, a system call.
    """

    value: T | Unknown
    source: str

    @property
    def known(self) -> bool:
        """Whether the value was found out."""
        return self.value is not UNKNOWN

    def value_or(self, fallback: T) -> T:
        """The value, or `fallback` where it is UNKNOWN."""
        return fallback if isinstance(self.value, Unknown) else self.value


class Knowledge(enum.Enum):
    """What can be known after a transfer that failed."""

    EXACT = "exact"
    PREFIX = "prefix"
    NONE = "none"


class MemoryOrigin(enum.Enum):
    """How a range of memory was allocated, as far as the runtime can tell."""

    ACLRT_MALLOC = "aclrtMalloc"
    VMM = "virtual memory mapping (aclrtMapMem)"
    SUB_ALLOCATION = "slice of a larger allocation"
    HOST_PINNED = "page-locked host memory"
    HOST_PLAIN = "ordinary host memory"
    HOST_SHARED = "shared memory of cachecore"
    MANAGED = "managed memory"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class MemoryInfo:
    """What the driver knows about one range.

    Attributes:
        placements: What a descriptor may call this memory. Empty: nothing may be registered there, see `reason`.
            None: the runtime cannot tell; an explicit HOST is accepted.
        origin: How it was allocated.
        page_size: Bytes of the pages behind it, None when not known.
        block_base: Start address of the allocation it lies in, None when not known.
        block_bytes: Bytes of that allocation, None when not known.
        reason: Why something is unknown or refused, empty otherwise.
    """

    placements: frozenset[Placement] | None
    origin: MemoryOrigin = MemoryOrigin.UNKNOWN
    page_size: int | None = None
    block_base: int | None = None
    block_bytes: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Capabilities:
    """Limits and features of a product, each with its source. Data, so that rules and doctor read the same facts.

    Attributes:
        address_budget: Addresses over register_cache and register_blocks_cache together.
        max_registered_device_bytes: Limit of all registered device memory, in bytes; None = no limit.
        max_registered_host_bytes: The same for host memory.
        host_alignment: Alignment in bytes that `allocate` gives host memory at least.
        device_alignment: The same for device memory.
        remote_access_optional: Whether a cache may be registered with remote_accessible=False.
        allocate_caches: Whether the product offers allocated caches.
        copy_and_swap_blocks: Whether the vendor's own manager copies and swaps on this product. cachecore's functions
            need only `copy`, and work also where this is False.
        copy_failure_knowledge: What `copy` knows after a failure.
        two_sided_lifetime: Whether pulls may consume keys (the option manager.remote_cache_accessible=False).
        registration_status: Whether the product answers `query_register_mem_status`.
    """

    address_budget: Capability[int]
    max_registered_device_bytes: Capability[int | None]
    max_registered_host_bytes: Capability[int | None]
    host_alignment: Capability[int]
    device_alignment: Capability[int]
    remote_access_optional: Capability[bool]
    allocate_caches: Capability[bool]
    copy_and_swap_blocks: Capability[bool]
    copy_failure_knowledge: Capability[Knowledge]
    two_sided_lifetime: Capability[bool] = Capability(UNKNOWN, "the driver does not say")
    registration_status: Capability[bool] = Capability(UNKNOWN, "the driver does not say")


@dataclass(frozen=True)
class RegistrationRequest:
    """What `check_registration` judges: one call of a register function, ranges in the order of `addrs`.

    Of `register_layers` the ranges are the regions into which its tensors were merged.

    Attributes:
        function: Name of the public function, for messages.
        ranges: (address, bytes) per tensor.
        placement: What the descriptor says.
        remote_accessible: Whether peers may reach it.
        is_blocks: Whether the cache is paged; the vendor's rules for the two kinds differ.
        labels: What the caller calls each range, where they are no `addrs`; see `label`.
    """

    function: str
    ranges: tuple[tuple[int, int], ...]
    placement: Placement
    remote_accessible: bool
    is_blocks: bool = True
    labels: tuple[str, ...] = ()

    def label(self, index: int) -> str:
        """What the caller calls a range, for messages."""
        return self.labels[index] if self.labels else f"addrs[{index}]"


@dataclass(frozen=True)
class Allocation:
    """Memory handed out by a driver.

    Attributes:
        address: Start.
        nbytes: Usable bytes, as asked for.
        placement: Where it is.
        token: The driver's own handle; opaque to everybody else.
    """

    address: int
    nbytes: int
    placement: Placement
    token: object = field(default=None, repr=False, compare=False)


class BackendDriver(abc.ABC):
    """One product line on one device. Made by a `DriverSpec.factory`, used by many threads at once."""

    #: Short name, as given to `CacheManager(backend=...)`.
    name: str
    #: Device index, None where there are no devices.
    device: int | None
    #: Whether an emulator stands in for silicon; shown wherever the driver is shown.
    emulated: bool = False

    @abc.abstractmethod
    def capabilities(self) -> Capabilities:
        """Limits and features. Constant for the life of the driver."""

    def bind_thread(self) -> None:
        """Make the calling thread use this driver's device. First call on every core or engine thread."""

    @abc.abstractmethod
    def describe(self, ranges: Sequence[tuple[int, int]]) -> list[MemoryInfo]:
        """Say what the (address, bytes) ranges are, in order. One batch, one query of the system.

        Never raises for a bad address: the answer carries the reason.
        """

    @abc.abstractmethod
    def check_registration(self, request: RegistrationRequest, infos: Sequence[MemoryInfo]) -> None:
        """Refuse what the product refuses. Pure: no native call, no state.

        Raises:
            AlignmentError: An address breaks the product's alignment rule.
            CacheValueError: Another product rule is broken.
            NotSupportedError: The product does not have the feature.
        """

    @abc.abstractmethod
    def allocate(self, nbytes: int, placement: Placement, alignment: int = 0) -> Allocation:
        """Allocate memory that the product can register.

        Args:
            nbytes: Size in bytes, above 0.
            placement: Where.
            alignment: In bytes, a power of two; 0 = what the product needs.

        Raises:
            CacheOutOfMemoryError: There is not enough.
        """

    @abc.abstractmethod
    def free(self, allocation: Allocation) -> None:
        """Give back memory of `allocate`. A second free of the same allocation is a CacheValueError."""

    @abc.abstractmethod
    def copy(self, plan: CopyPlan, deadline: float) -> Outcome:
        """Copy remote -> local addresses of the plan, both in this process. Blocking, in the caller's thread.

        Args:
            plan: Its "remote" side is the source, its "local" side the destination.
            deadline: On `time.monotonic()`.
        """

    def wait_event(self, event: object, deadline: float, cancel: CancelToken | None = None) -> None:
        """Wait for an event of the device, or of whatever computes on this driver's memory. Blocking.

        Called in the thread that moves bytes, before the first one. A driver takes the events that its users record.

        Args:
            event: One event.
            deadline: On `time.monotonic()`.
            cancel: A driver that can looks at it while waiting.

        Raises:
            NotSupportedError: The driver knows no such event.
            CacheTimeoutError: It did not happen before the deadline.
            TransferCancelledError: Somebody cancelled.
            CacheError: It will never happen, for example because what it stands for failed.
        """
        raise event_is_no_event(event, f"nothing: the driver {self.name} knows no events; wait before the call")

    def quiescent(self, ticket: object) -> bool:
        """Whether the copy that returned `ticket` has stopped writing."""
        return True

    def remap(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Renew the native mapping of device memory that was repaired after a fault.

        Args:
            ranges: (address, bytes) of each piece.

        Raises:
            NotSupportedError: The product cannot. So do all at present.
        """
        raise NotSupportedError(
            f"remap_registered_memory: {self.name} has no memory whose mapping could be renewed. Unregister the caches "
            "that lie in it, repair or replace the memory, and register them again",
            product=self.name,
            feature="remap_registered_memory",
        )

    def close(self) -> None:
        """Give everything back. The manager calls it once, last."""


def event_is_no_event(event: object, expected: str) -> NotSupportedError:
    """The error for an object given as `after` that a driver cannot wait for."""
    return NotSupportedError(
        f"after is {event!r:.80} of type {type(event).__name__}; it must be {expected}", feature="after"
    )


@dataclass(frozen=True)
class DeviceInfo:
    """One kind of accelerator that a plugin's detection found.

    Attributes:
        kind: Vendor family, for example "ascend".
        soc: Name the runtime reports, for example "Ascend910B4"; empty when not known.
        count: Number of visible devices.
        source: How it was found.
        emulated: Whether an emulator answered.
        unsupported: Why this product cannot be used, with the product line's name; empty when it can.
        install: The extra whose driver serves it, for the error when no driver is installed; empty when not known.
    """

    kind: str
    soc: str
    count: int
    source: str
    emulated: bool = False
    unsupported: str = ""
    install: str = ""


@dataclass(frozen=True)
class DriverSpec:
    """What a plugin's `cachecore_drivers` hook returns, one for each driver.

    Attributes:
        name: Short name.
        description: The product line, for people.
        matches: Whether the driver serves this detected device; called with None for "no accelerator seen".
        factory: (device index or None, options of this driver) -> driver. Options have the prefix "name." cut off.
        known_socs: Names it serves, for error messages.
        option_names: Option names it takes, without prefix.
        servers: The servers the vendor supports this product on; a SoC name alone cannot tell them apart.
    """

    name: str
    description: str
    matches: Callable[[DeviceInfo | None], bool]
    factory: Callable[[int | None, Mapping[str, object]], BackendDriver]
    known_socs: tuple[str, ...] = ()
    option_names: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
