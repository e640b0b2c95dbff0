"""Set-up and checks that the parts of the engine suite share."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest

from cachecore.driver import BackendDriver
from cachecore.engine import EngineSpec, Operation, RemoteRegion, TransferEngine
from cachecore.outcome import Outcome, OutcomeState
from cachecore.planning import CopyPlan, Geometry, plan_blocks
from cachecore.testing.harness import MemoryHarness
from cachecore.testing.outcomes import check_coverage, chunk_list, settled
from cachecore.testing.side import EngineSide, PeerProcess, SideSpec, load, pattern
from cachecore.types import Placement

#: Seconds a call may take beyond its deadline on a busy machine.
GRACE = 2.0
#: Seconds after which whoever still writes after the end is caught.
_QUIET = 0.25


def soon() -> float:
    """A deadline that only something stuck reaches."""
    return time.monotonic() + 60.0


@dataclass(frozen=True)
class Exchange:
    """Memory on both sides, filled, registered and linked.

    Attributes:
        peer: Whose memory the remote side is.
        local: Address here.
        remote: Address there.
        nbytes: Bytes of each side.
        ours: Content put here.
        theirs: Content put there.
        region: What the peer registered.
    """

    peer: PeerProcess
    local: int
    remote: int
    nbytes: int
    ours: bytes
    theirs: bytes
    region: RemoteRegion

    def plan(self, op: Operation, blocks: int, order: list[int] | None = None) -> CopyPlan:
        """All bytes in `blocks` equal blocks (nbytes must divide); `order` is a permutation of them."""
        ids = list(range(blocks)) if order is None else order
        size = self.nbytes // blocks
        return plan_blocks(
            Geometry([self.local], blocks=blocks, block_bytes=size),
            Geometry([self.remote], blocks=blocks, block_bytes=size),
            ids,
            ids,
            destination="local" if op is Operation.READ else "remote",
        )


class EngineCase:
    """Set-up of one test of an engine.

    Attributes:
        driver: `package.module:name` of a `DriverSpec`.
        engine: The same of the `EngineSpec` under test.
        device: Given to the driver's factory here.
        peer_device: Given to the driver's factory in the peer process.
        driver_options: Options of the driver, without prefix.
        engine_options: Options of the engine, without prefix.
        foreign: Test with ordinary memory of the process in place of memory that the driver allocated.
    """

    driver: ClassVar[str]
    engine: ClassVar[str]
    device: ClassVar[int | None] = None
    peer_device: ClassVar[int | None] = None
    driver_options: ClassVar[Mapping[str, object]] = {}
    engine_options: ClassVar[Mapping[str, object]] = {}
    foreign: ClassVar[bool] = False
    _shared_peer: ClassVar[PeerProcess | None] = None

    def make_engine(self, driver: BackendDriver) -> TransferEngine:
        """The engine under test; the peer process always makes what `engine` names."""
        spec: EngineSpec = load(self.engine)
        return spec.factory(driver, self.engine_options)

    def live_regions(self, engine: TransferEngine) -> int | None:
        """Registrations the engine holds; None where it cannot tell."""
        return None

    def setup_method(self, method: Callable[..., None]) -> None:
        """Make this side."""
        self.random = random.Random(method.__name__)
        self._cleanup = contextlib.ExitStack()
        self.side = EngineSide(self._spec(self.device), 2, self.make_engine)
        self._cleanup.callback(self.side.close)
        self.subject = self.side.engine
        self.facts = self.subject.capabilities()
        pairs = sorted(self.facts.placement_pairs.value_or(frozenset()), reverse=True)
        self.here, self.there = pairs[0] if pairs else (Placement.DEVICE, Placement.DEVICE)
        if self.foreign and not self.accepts_foreign():
            self._cleanup.close()
            pytest.skip("the driver accepts no ordinary memory")

    def teardown_method(self, method: Callable[..., None]) -> None:
        """Give everything back; the shared peer forgets what it had."""
        shared = type(self)._shared_peer
        try:
            self._cleanup.close()
        finally:
            # Last: an engine may not be able to deregister what is linked.
            if shared is not None:
                shared.call("reset")

    @classmethod
    def teardown_class(cls) -> None:
        """End the shared peer."""
        if cls._shared_peer is not None:
            cls._shared_peer.close()
            cls._shared_peer = None

    def _spec(self, device: int | None) -> SideSpec:
        return SideSpec(self.driver, self.engine, device, self.driver_options, self.engine_options, self.foreign)

    @property
    def peer(self) -> PeerProcess:
        """A peer process that the tests of a class share; not to be killed."""
        cls = type(self)
        if cls._shared_peer is None:
            cls._shared_peer = PeerProcess(self._spec(self.peer_device), 1)
        return cls._shared_peer

    def own_peer(self) -> PeerProcess:
        """A peer process of this test alone."""
        return self._cleanup.enter_context(PeerProcess(self._spec(self.peer_device), 1))

    def accepts_foreign(self) -> bool:
        """Whether ordinary memory can be used on both sides with this driver."""
        return all(MemoryHarness.accepts_foreign(self.side.driver, one) for one in {self.here, self.there})

    def connect(self, peer: PeerProcess, *regions: RemoteRegion) -> None:
        """Connect to a peer that is expected to be there."""
        self.subject.connect(peer.identity, peer.endpoint, regions, soon())
        self._cleanup.callback(self.subject.disconnect, peer.identity, soon())

    def local_memory(self, nbytes: int) -> int:
        """Memory here, registered where the engine needs it."""
        address = self.side.allocate(nbytes, self.here)
        self.register_local(address, nbytes)
        return address

    def register_local(self, address: int, nbytes: int) -> None:
        """Register memory here where the engine needs it."""
        if self.facts.local_registration_required.value_or(True):
            self.side.register([(address, nbytes)], self.here)

    def exchange(self, nbytes: int, peer: PeerProcess | None = None) -> Exchange:
        """Memory on both sides, filled, registered and linked."""
        peer = self.peer if peer is None else peer
        remote = peer.allocate(nbytes, self.there)
        peer.call("fill", remote, nbytes, 1)
        (region,) = peer.register([(remote, nbytes)], self.there)
        local = self.local_memory(nbytes)
        self.side.fill(local, nbytes, 2)
        self.connect(peer, region)
        return Exchange(peer, local, remote, nbytes, pattern(2, nbytes), pattern(1, nbytes), region)

    def move(self, exchange: Exchange, plan: CopyPlan, op: Operation, deadline: float | None = None) -> Outcome:
        """Transfer, and wait until nothing writes any more."""
        deadline = soon() if deadline is None else deadline
        return settled(self.subject.quiescent, self.subject.transfer(exchange.peer.identity, plan, op, deadline))

    def verify(self, exchange: Exchange, plan: CopyPlan, op: Operation, outcome: Outcome) -> None:
        """Compare all memory of the destination, byte by byte, with what the outcome claims."""
        check_coverage(outcome, plan.chunks)
        reading = op is Operation.READ
        old, new = (exchange.ours, exchange.theirs) if reading else (exchange.theirs, exchange.ours)
        if reading:
            found = self.side.memory.read(exchange.local, exchange.nbytes)
        else:
            found = exchange.peer.read(exchange.remote, exchange.nbytes)
        expected = bytearray(old)
        for state, _, (local, remote, nbytes) in chunk_list(plan, outcome):
            here, there = local - exchange.local, remote - exchange.remote
            to, origin = (here, there) if reading else (there, here)
            if state == "landed":
                expected[to : to + nbytes] = new[origin : origin + nbytes]
            elif state == "unknown":
                expected[to : to + nbytes] = found[to : to + nbytes]
        if found != expected:
            at = next(i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
            raise AssertionError(f"byte {at} of {exchange.nbytes} is not what {op} with {outcome!r:.300} left there")

    def verify_done(self, exchange: Exchange, plan: CopyPlan, op: Operation) -> None:
        """Transfer everything and compare."""
        outcome = self.move(exchange, plan, op)
        assert outcome.state is OutcomeState.DONE, outcome
        self.verify(exchange, plan, op, outcome)

    def verify_quiet(self, exchange: Exchange, op: Operation) -> None:
        """Use the destination for something new, the way its owner would, and see that nobody writes there."""
        fresh = pattern(3, exchange.nbytes)
        if op is Operation.READ:
            self.side.memory.write(exchange.local, fresh)
        else:
            exchange.peer.call("fill", exchange.remote, exchange.nbytes, 3)
        time.sleep(_QUIET)
        if op is Operation.READ:
            found = self.side.memory.read(exchange.local, exchange.nbytes)
        else:
            found = exchange.peer.read(exchange.remote, exchange.nbytes)
        assert found == fresh, "something still wrote after the transfer was reported as over"
