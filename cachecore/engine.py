"""The contract of a transfer engine: one-sided reads and writes between processes.

An engine knows addresses and lengths, nothing about caches. It never calls back, starts no transfer of its own and
keeps no deadlines: waiting, cancelling and asynchrony live in the core, which serialises `register`, `deregister`,
`connect`, `update` and `disconnect` of one engine; `transfer` runs concurrently with everything.
"""

from __future__ import annotations

import abc
import enum
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cachecore.driver import BackendDriver, Capability, Knowledge
from cachecore.outcome import Outcome
from cachecore.planning import CopyPlan
from cachecore.types import Placement

__all__ = [
    "CancelToken",
    "EngineBinding",
    "EngineCapabilities",
    "EngineSpec",
    "Operation",
    "PeerIdentity",
    "Region",
    "Registration",
    "RemoteRegion",
    "TransferEngine",
]


class Operation(enum.Enum):
    """Direction of a transfer, seen from the caller."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True)
class Region:
    """Native memory to register: `nbytes` bytes from `base`."""

    base: int
    nbytes: int
    placement: Placement


@dataclass(frozen=True)
class Registration:
    """A region that an engine has registered.

    Attributes:
        region: The memory.
        descriptor: What a peer's engine needs to reach it; opaque to the core, may be empty.
        token: The engine's own handle.
    """

    region: Region
    descriptor: bytes
    token: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class RemoteRegion:
    """A peer's registration as it came over the link."""

    base: int
    nbytes: int
    placement: Placement
    descriptor: bytes


@dataclass(frozen=True)
class PeerIdentity:
    """One life of one manager: a restarted peer has another `incarnation`.

    Attributes:
        cluster_id: The id it was made with.
        host: Name of its machine, for people; proves nothing.
        pid: Its process id, in its own namespace.
        incarnation: 128 random bits, hexadecimal.
    """

    cluster_id: int
    host: str
    pid: int
    incarnation: str


@dataclass(frozen=True)
class EngineCapabilities:
    """What an engine can do, each with its source.

    Attributes:
        placement_pairs: (local, remote) placements it can move between.
        max_chunks_per_call: Largest batch of flat chunks; None = no limit.
        register_while_linked: Whether memory registered after `connect` becomes reachable over that link.
        deregister_while_linked: Whether `deregister` works while peers are connected.
        deregistration_is_fence: Whether a returned `deregister` stops running transfers of peers.
        can_cancel: Whether `cancel` and `deadline` end a running transfer within 0.1 s.
        failure_knowledge: What an Outcome knows after a failure.
        local_registration_required: Whether the caller's own side of a transfer must be registered too.
    """

    placement_pairs: Capability[frozenset[tuple[Placement, Placement]]]
    max_chunks_per_call: Capability[int | None]
    register_while_linked: Capability[bool]
    deregister_while_linked: Capability[bool]
    deregistration_is_fence: Capability[bool]
    can_cancel: Capability[bool]
    failure_knowledge: Capability[Knowledge]
    local_registration_required: Capability[bool]


@dataclass(frozen=True)
class EngineBinding:
    """One engine of a manager.

    Attributes:
        name: Its short name.
        wire_id: `TransferEngine.wire_id`.
        rank: Preference of this side; the higher wins.
        engine: The engine.
        lock: Held around `register`, `deregister`, `connect`, `update` and `disconnect` of this engine, by everybody.
    """

    name: str
    wire_id: str
    rank: int
    engine: TransferEngine
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)


class CancelToken:
    """Asks a running transfer to stop. Native engines poll `flag` (one byte, not 0 = stop) without the GIL."""

    __slots__ = ("flag",)

    def __init__(self) -> None:
        self.flag = bytearray(1)

    def cancel(self) -> None:
        """Ask; returns at once."""
        self.flag[0] = 1

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked."""
        return self.flag[0] != 0


class TransferEngine(abc.ABC):
    """One way to move bytes between processes. Made by an `EngineSpec.factory`, one for each manager."""

    #: Name and protocol version; two sides can talk when theirs are equal, for example "local/1".
    wire_id: str
    #: Whether an emulator stands in for silicon.
    emulated: bool = False

    @abc.abstractmethod
    def capabilities(self) -> EngineCapabilities:
        """What it can do. Constant for the life of the engine."""

    @abc.abstractmethod
    def register(self, regions: Sequence[Region]) -> list[Registration]:
        """Make regions transferable; all of them or none.

        Raises:
            EngineError: A native call failed; the message names region, address, bytes and code, and the regions
                registered before it in this call are gone again.
        """

    @abc.abstractmethod
    def deregister(self, registration: Registration) -> None:
        """Undo `register`. Returning means that no peer can start to reach the memory through this engine.

        Raises:
            StillReachableError: It cannot be promised; the memory must not be freed.
        """

    @abc.abstractmethod
    def endpoint(self) -> bytes:
        """What a peer's `connect` needs to find this engine."""

    @abc.abstractmethod
    def connect(self, peer: PeerIdentity, endpoint: bytes, regions: Sequence[RemoteRegion], deadline: float) -> None:
        """Grant this side access to a peer's memory. Grants the peer nothing.

        Args:
            peer: Who.
            endpoint: Its `endpoint()`.
            regions: Its registrations so far.
            deadline: On `time.monotonic()`.

        Raises:
            LinkFailedError: The peer cannot be reached by this engine (another machine, no permission).
        """

    @abc.abstractmethod
    def update(self, peer: PeerIdentity, added: Sequence[RemoteRegion], removed: Sequence[RemoteRegion]) -> None:
        """A connected peer registered or deregistered memory.

        Args:
            peer: Which.
            added: Regions that can be reached from now on.
            removed: Regions that are not used any more and are about to be deregistered; some may never have been added.
                Where both are empty, the peer deregisters memory that this side was never told of.
        """

    @abc.abstractmethod
    def disconnect(self, peer: PeerIdentity, deadline: float) -> bool:
        """Give up access. Returns whether everything started towards this peer is quiescent."""

    @abc.abstractmethod
    def transfer(
        self, peer: PeerIdentity, plan: CopyPlan, op: Operation, deadline: float, cancel: CancelToken | None = None
    ) -> Outcome:
        """Move every chunk of the plan. Blocking, in the caller's thread, without the GIL in native code.

        A failure of the transfer is an Outcome, never an exception.

        Args:
            peer: A connected peer.
            plan: READ: remote -> local addresses; WRITE: local -> remote.
            op: Direction.
            deadline: On `time.monotonic()`; past it the transfer stops as soon as the engine can.
            cancel: Polled while moving.
        """

    @abc.abstractmethod
    def quiescent(self, ticket: object) -> bool:
        """Whether the transfer that returned `ticket` has stopped touching local memory."""

    @abc.abstractmethod
    def close(self, deadline: float) -> list[Region]:
        """Stop. Returns the regions that may still be written or read and must not be freed; empty is good."""


@dataclass(frozen=True)
class EngineSpec:
    """What a plugin's `cachecore_engines` hook returns, one for each engine.

    Attributes:
        name: Short name, as given to `CacheManager(engine=...)`.
        wire_id: The `TransferEngine.wire_id` it makes.
        rank: Preference when both sides have several; the higher wins.
        serves: Whether it can work with this driver's memory.
        factory: (driver, options of this engine) -> engine.
        option_names: Option names it takes, without prefix.
    """

    name: str
    wire_id: str
    rank: int
    serves: Callable[[BackendDriver], bool]
    factory: Callable[[BackendDriver, Mapping[str, object]], TransferEngine]
    option_names: tuple[str, ...] = ()
