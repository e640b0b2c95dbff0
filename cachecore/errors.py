"""Status codes and the exception tree.

Every error is a `CacheError` with a `status_code`; leaves also inherit the built-in exception a caller would
catch (`ValueError`, `TimeoutError`, ...). A message names the argument, its value, the rule and the way out.
All errors pickle, so that they cross process boundaries intact.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cachecore.outcome import BlockRange, Outcome

__all__ = [
    "AddressBudgetError",
    "AddressMovedError",
    "AlignmentError",
    "AlreadyLinkedError",
    "AuthenticationError",
    "BackendError",
    "CacheBusyError",
    "CacheError",
    "CacheIncompatibleError",
    "CacheKeyExistsError",
    "CacheNotFoundError",
    "CacheOutOfMemoryError",
    "CacheTimeoutError",
    "CacheTypeError",
    "CacheValueError",
    "EngineError",
    "ForkedProcessError",
    "LeaseExpiredError",
    "LinkBusyError",
    "LinkFailedError",
    "LinkLostError",
    "ManagerClosedError",
    "MemoryAccessError",
    "MissingArgumentError",
    "NotLinkedError",
    "NotSupportedError",
    "OverlapError",
    "PlacementError",
    "RegistrationRefusedError",
    "StatusCode",
    "StillReachableError",
    "TransferCancelledError",
    "TransferError",
    "TransferTimeoutError",
]

_BASE = 0x5010B000


class StatusCode(enum.IntEnum):
    """Numeric results, equal to those of Ascend LLM-DataDist so that tools keep recognising them."""

    SUCCESS = 0
    WAIT_PROC_TIMEOUT = _BASE + 1
    KV_CACHE_NOT_EXIST = _BASE + 2
    REPEAT_REQUEST = _BASE + 3
    REQUEST_ALREADY_COMPLETED = _BASE + 4
    PARAM_INVALID = _BASE + 5
    ENGINE_FINALIZED = _BASE + 6
    NOT_YET_LINK = _BASE + 7
    ALREADY_LINK = _BASE + 8
    LINK_FAILED = _BASE + 9
    UNLINK_FAILED = _BASE + 10
    NOTIFY_PROMPT_UNLINK_FAILED = _BASE + 11
    CLUSTER_NUM_EXCEED_LIMIT = _BASE + 12
    PROCESSING_LINK = _BASE + 13
    DEVICE_OUT_OF_MEMORY = _BASE + 14
    PREFIX_ALREADY_EXIST = _BASE + 15
    PREFIX_NOT_EXIST = _BASE + 16
    SEQ_LEN_OVER_LIMIT = _BASE + 17
    NO_FREE_BLOCK = _BASE + 18
    BLOCKS_OUT_OF_MEMORY = _BASE + 19
    CACHE_INCOMPATIBLE = _BASE + 20
    CACHE_KEY_ALREADY_EXIST = _BASE + 21
    COPY_CACHE_FAILED = _BASE + 22
    CACHE_ID_ALREADY_EXIST = _BASE + 23
    EXIST_LINK = _BASE + 24
    FEATURE_NOT_ENABLED = _BASE + 25
    TIMEOUT = _BASE + 26
    LINK_BUSY = _BASE + 27
    OUT_OF_MEMORY = _BASE + 28
    FAILED = 0xFFFFFFFF


class CacheError(RuntimeError):
    """Base of everything cachecore raises.

    Attributes:
        status_code: The `StatusCode` of the failure.
    """

    default_status = StatusCode.FAILED

    def __init__(self, message: str, *, status_code: StatusCode | None = None) -> None:
        super().__init__(message)
        self.status_code = self.default_status if status_code is None else StatusCode(status_code)

    def __str__(self) -> str:
        # KeyError.__str__ would print the repr of the message.
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, dict(self.__dict__))


def _restore(cls: type[CacheError], args: tuple[Any, ...], state: dict[str, Any]) -> CacheError:
    # `cls(*args)` would miss keyword-only arguments, and `cls.__new__` finds RuntimeError's, which refuses leaves whose
    # layout comes from OSError or AttributeError. The built-in with the layout makes the object.
    layout = (
        OSError if issubclass(cls, OSError) else AttributeError if issubclass(cls, AttributeError) else RuntimeError
    )
    error: CacheError = layout.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


# --- arguments ---------------------------------------------------------------------------------------------------


class CacheTypeError(CacheError, TypeError):
    """An argument has the wrong type: a float or a bool where an integer must be, text for a descriptor."""

    default_status = StatusCode.PARAM_INVALID


class CacheValueError(CacheError, ValueError):
    """An argument has the right type and a value no rule allows."""

    default_status = StatusCode.PARAM_INVALID


class MissingArgumentError(CacheError, AttributeError):
    """None was given for a parameter that must not be None (the vendor's manual promises AttributeError)."""

    default_status = StatusCode.PARAM_INVALID


class AddressBudgetError(CacheValueError):
    """More addresses than the product can register.

    Attributes:
        used: Addresses registered now.
        asked: Addresses this call wanted to add.
        limit: The budget of the driver.
    """

    def __init__(self, message: str, *, used: int, asked: int, limit: int) -> None:
        super().__init__(message)
        self.used, self.asked, self.limit = used, asked, limit


class OverlapError(CacheValueError):
    """Two tensors, of one call or of live registrations, share bytes."""


class AlignmentError(CacheValueError):
    """An address violates the product's alignment rule.

    Attributes:
        tensor_index: Position in `addrs`.
        address: The address refused.
        alignment: Required alignment in bytes.
        origin: Where the memory came from, as far as the runtime knows.
    """

    def __init__(self, message: str, *, tensor_index: int, address: int, alignment: int, origin: str) -> None:
        super().__init__(message)
        self.tensor_index, self.address, self.alignment, self.origin = tensor_index, address, alignment, origin


class MemoryAccessError(CacheValueError):
    """An address range is not mapped readable and writable in this process, or is not this kind of memory."""


class PlacementError(CacheValueError):
    """Memory is not where the descriptor says it is."""


class AddressMovedError(CacheValueError):
    """A registered tensor no longer starts at the address it was registered with (it was resized or reassigned)."""


class RegistrationRefusedError(CacheValueError):
    """A policy plugin refused the registration, or failed while it was asked."""


# --- caches ------------------------------------------------------------------------------------------------------


class CacheNotFoundError(CacheError, KeyError):
    """No such cache or key: never registered, or unregistered since."""

    default_status = StatusCode.KV_CACHE_NOT_EXIST


class LeaseExpiredError(CacheNotFoundError):
    """A block lease has expired, was released, or ended with the manager that granted it; nothing was moved."""


class CacheKeyExistsError(CacheValueError):
    """The key names another live cache already."""

    default_status = StatusCode.CACHE_KEY_ALREADY_EXIST


class CacheIncompatibleError(CacheValueError):
    """The two caches of a transfer do not fit together (block bytes, tensor count, data type, kind)."""

    default_status = StatusCode.CACHE_INCOMPATIBLE


class CacheBusyError(CacheError):
    """Memory is still in use by a transfer; nothing was freed and the call can be repeated.

    Attributes:
        peers: Cluster ids that may still use the memory.
        ranges: (address, bytes) that must not be freed.
    """

    default_status = StatusCode.LINK_BUSY

    def __init__(self, message: str, *, peers: tuple[int, ...] = (), ranges: tuple[tuple[int, int], ...] = ()) -> None:
        super().__init__(message)
        self.peers, self.ranges = peers, ranges


class CacheOutOfMemoryError(CacheError, MemoryError):
    """Memory for a cache could not be had."""

    default_status = StatusCode.OUT_OF_MEMORY


# --- links -------------------------------------------------------------------------------------------------------


class NotLinkedError(CacheError, ConnectionError):
    """The cluster id of a key has no link: call `link()` first."""

    default_status = StatusCode.NOT_YET_LINK


class AlreadyLinkedError(CacheError, ConnectionError):
    """A live link to this cluster id exists already."""

    default_status = StatusCode.ALREADY_LINK


class LinkFailedError(CacheError, ConnectionError):
    """A link could not be made; the message says at which step and why."""

    default_status = StatusCode.LINK_FAILED


class AuthenticationError(LinkFailedError, PermissionError):
    """The two sides do not share keys, or no keys were given where they must be."""


class LinkBusyError(CacheError, ConnectionError):
    """The peer has no room for a message now: nothing was delivered and the call can be repeated."""

    default_status = StatusCode.LINK_BUSY


class CacheTimeoutError(CacheError, TimeoutError):
    """A deadline passed while waiting; nothing was changed by the wait."""

    default_status = StatusCode.TIMEOUT


# --- transfers ---------------------------------------------------------------------------------------------------


class TransferError(CacheError):
    """A transfer ended without moving everything.

    Attributes:
        outcome: What the engine knows (`cachecore.Outcome`), None when nothing was started. Of a transfer that goes
            layer by layer it is about the layer that failed.
        landed: Destination blocks that hold the new content. Tensor indexes are those of the cache that the caller
            gave: the destination of a pull, the source of a push.
        unknown: Destination blocks that may hold old, new or mixed content. They stay quarantined while the
            engine can still write them.
    """

    def __init__(
        self,
        message: str,
        *,
        outcome: Outcome | None = None,
        landed: tuple[BlockRange, ...] = (),
        unknown: tuple[BlockRange, ...] = (),
        status_code: StatusCode | None = None,
    ) -> None:
        super().__init__(message, status_code=status_code)
        self.outcome, self.landed, self.unknown = outcome, landed, unknown


class TransferTimeoutError(TransferError, TimeoutError):
    """The deadline passed before everything had moved."""

    default_status = StatusCode.TIMEOUT


class TransferCancelledError(TransferError):
    """Somebody cancelled the transfer, or the manager was closed before it started."""


class LinkLostError(TransferError, ConnectionError):
    """The peer is gone, or silent for so long that nothing it serves can be trusted any more.

    Attributes:
        state: "LOST" when the connection ended, "STALLED" when the peer's process is there but does not answer.
    """

    default_status = StatusCode.LINK_FAILED

    def __init__(
        self,
        message: str,
        *,
        state: str = "LOST",
        outcome: Outcome | None = None,
        landed: tuple[BlockRange, ...] = (),
        unknown: tuple[BlockRange, ...] = (),
    ) -> None:
        super().__init__(message, outcome=outcome, landed=landed, unknown=unknown)
        self.state = state


# --- backends and engines ------------------------------------------------------------------------------------------


class BackendError(CacheError):
    """No backend could be chosen or started; the message says what was seen and what to install."""

    default_status = StatusCode.FEATURE_NOT_ENABLED


class NotSupportedError(CacheError, NotImplementedError):
    """The product or engine does not have this feature.

    Attributes:
        product: Product line or engine.
        feature: What was asked for.
    """

    default_status = StatusCode.FEATURE_NOT_ENABLED

    def __init__(self, message: str, *, product: str = "", feature: str = "") -> None:
        super().__init__(message)
        self.product, self.feature = product, feature


class EngineError(CacheError):
    """A native library answered with an error.

    Attributes:
        operation: The native call.
        code: Its error code, as the library numbers them (an errno for system calls).
    """

    def __init__(self, message: str, *, operation: str = "", code: int = 0) -> None:
        super().__init__(message)
        self.operation, self.code = operation, code


class StillReachableError(EngineError):
    """Deregistration could not make the memory unreachable; it must not be freed."""

    default_status = StatusCode.LINK_BUSY


class ManagerClosedError(CacheError):
    """The manager was closed."""

    default_status = StatusCode.ENGINE_FINALIZED


class ForkedProcessError(CacheError):
    """The manager was made before fork(); device contexts, threads and sockets do not survive into the child."""

    default_status = StatusCode.ENGINE_FINALIZED
