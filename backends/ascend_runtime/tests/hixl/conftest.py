"""A double of the vendor's `hixl` module: its names, signatures and status codes, with answers that a test plans.

One process plays both sides: "remote" addresses are memory of this process too, and bytes really move when a transfer
completes. Everything that is called is noted in order.
"""

from __future__ import annotations

import ctypes
import enum
import itertools
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator

import pytest
from cachecore_ascend_runtime import hixl_shared
from cachecore_ascend_runtime.hixl_endpoint import Endpoint, network_name
from cachecore_ascend_runtime.hixl_engine import HixlEngine
from cachecore_ascend_runtime.hixl_options import HixlOptions
from cachecore_ascend_runtime.hixl_profile import EVERY_PAIR, HixlProfile

from cachecore.driver import Capability
from cachecore.engine import Operation, PeerIdentity, Region, RemoteRegion
from cachecore.outcome import Outcome
from cachecore.planning import CopyPlan, Geometry, plan_blocks
from cachecore.testing import _reference_driver
from cachecore.types import Placement

OK, INVALID, TIMEOUT, NOT_CONNECTED, ALREADY, FAILED = 0, 103900, 103901, 103902, 103903, 503900
PEER = PeerIdentity(7, "elsewhere", 4711, "ab" * 16)


class MemType(enum.IntEnum):
    MEM_DEVICE = 0
    MEM_HOST = 1


class TransferOp(enum.IntEnum):
    READ = 0
    WRITE = 1


class TransferStatus(enum.IntEnum):
    WAITING = 0
    COMPLETED = 1
    TIMEOUT = 2
    FAILED = 3


class MemDesc:
    def __init__(self, addr: int, len: int) -> None:
        self.addr, self.len = addr, len


class TransferOpDesc:
    def __init__(self, local_addr: int, remote_addr: int, len: int) -> None:
        self.local_addr, self.remote_addr, self.len = local_addr, remote_addr, len


class Double(types.ModuleType):
    """The module, and what a test may look at and plan.

    Attributes:
        calls: (function, what it was called with, in short), in order; not the polls.
        planned: By function the next answers, a status or an exception each; then the double answers by itself.
        stuck: Whether transfers stay under way until their link is disconnected.
        readers: How many peers are connected to this side.
        taken: Ports on which `initialize` fails.
        bound: Threads whose device is set.
        linked: Addresses with a link.
    """

    MemType, TransferOp, TransferStatus, MemDesc, TransferOpDesc = (
        MemType,
        TransferOp,
        TransferStatus,
        MemDesc,
        TransferOpDesc,
    )

    def __init__(self) -> None:
        super().__init__("hixl")
        self.calls: list[tuple[object, ...]] = []
        self.planned: dict[str, list[object]] = {}
        self.stuck = False
        self.readers = 0
        self.taken: set[int] = set()
        self.bound: set[int] = set()
        self.linked: dict[str, int] = {}
        self.registered: dict[int, tuple[int, int, int]] = {}
        self.requests: dict[int, tuple[str, int, TransferOp, list[TransferOpDesc]]] = {}
        self.numbers = itertools.count(1)
        self.lock = threading.Lock()

    def Hixl(self) -> Engine:  # the vendor's name
        return Engine(self)

    def note(self, function: str, *what: object) -> int:
        """Count a call; returns the planned status."""
        assert threading.get_ident() in self.bound, f"{function} was called in a thread without a device"
        with self.lock:
            self.calls.append((function, *what))
            answers = self.planned.get(function)
            answer = answers.pop(0) if answers else OK
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, int)
        return answer

    def names(self, *functions: str) -> list[str]:
        """The names of the calls so far, of these functions only where some are given."""
        return [str(call[0]) for call in self.calls if not functions or call[0] in functions]


class Engine:
    """An engine object of the double."""

    def __init__(self, double: Double) -> None:
        self.double = double

    def initialize(self, local_engine: str, options: dict[str, str]) -> int:
        status = self.double.note("initialize", local_engine, options)
        taken = int(local_engine.rpartition(":")[2]) in self.double.taken
        return status or (FAILED if taken else OK)

    def finalize(self) -> None:
        self.double.note("finalize")
        self.double.linked.clear()
        self.double.registered.clear()

    def register_mem(self, mem_desc: MemDesc, mem_type: MemType, /) -> tuple[int, int]:
        double, key = self.double, (mem_desc.addr, mem_desc.len, int(mem_type))
        status = double.note("register_mem", *key)
        if status:
            return status, 0
        for handle, known in double.registered.items():
            if known == key:
                return OK, handle
        double.registered[next(double.numbers)] = key
        return OK, max(double.registered)

    def deregister_mem(self, mem_handle: int) -> int:
        double = self.double
        status = double.note("deregister_mem", double.registered[mem_handle][0])
        if status or double.linked or double.readers:
            return status or FAILED
        del double.registered[mem_handle]
        return OK

    def connect(self, remote_engine: str, timeout_in_millis: int = 1000) -> int:
        status = self.double.note("connect", remote_engine)
        if status:
            return status
        if remote_engine in self.double.linked:
            return ALREADY
        self.double.linked[remote_engine] = next(self.double.numbers)
        return OK

    def disconnect(self, remote_engine: str, timeout_in_millis: int = 1000) -> int:
        status = self.double.note("disconnect", remote_engine)
        if status:
            return status
        return OK if self.double.linked.pop(remote_engine, None) else NOT_CONNECTED

    def transfer_async(self, remote_engine: str, op: TransferOp, op_descs: list[TransferOpDesc]) -> tuple[int, int]:
        double = self.double
        status = double.note("transfer_async", remote_engine, len(op_descs))
        link = double.linked.get(remote_engine)
        if status or link is None:
            return status or NOT_CONNECTED, 0
        number = next(double.numbers)
        double.requests[number] = remote_engine, link, op, op_descs
        return OK, number

    def get_transfer_status(self, req_id: int) -> tuple[int, TransferStatus]:
        double = self.double
        remote, link, op, descs = double.requests[req_id]
        if double.linked.get(remote) != link:
            del double.requests[req_id]
            return OK, TransferStatus.FAILED
        with double.lock:
            answers = double.planned.get("get_transfer_status")
            answer = answers.pop(0) if answers else None
        if isinstance(answer, TransferStatus):
            return OK, answer
        if isinstance(answer, int):
            return answer, TransferStatus.FAILED
        if double.stuck:
            return OK, TransferStatus.WAITING
        del double.requests[req_id]
        for desc in descs:
            to, source = (
                (desc.local_addr, desc.remote_addr) if op is TransferOp.READ else (desc.remote_addr, desc.local_addr)
            )
            ctypes.memmove(to, source, desc.len)
        return OK, TransferStatus.COMPLETED


class Driver(_reference_driver.ReferenceDriver):
    """Ordinary memory that passes for a device's."""

    device = 0

    def __init__(self, double: Double) -> None:
        super().__init__()
        self.double = double
        self.profile = HixlProfile(
            "Atlas of tests", "Ascend000", ("hccs:device",), Capability(EVERY_PAIR, "a test"), link_hint="alignment"
        )

    def bind_thread(self) -> None:
        self.double.bound.add(threading.get_ident())

    def hixl_profile(self) -> HixlProfile:
        return self.profile


class World:
    """A driver with memory, engines, and a peer that is only an address."""

    peer = PEER

    def __init__(self, double: Double) -> None:
        self.double, self.driver = double, Driver(double)
        self.engines: list[HixlEngine] = []
        self.addresses: dict[int, bytes] = {}

    def engine(self, **options: object) -> HixlEngine:
        self.engines.append(HixlEngine(self.driver, HixlOptions.checked(options)))
        return self.engines[-1]

    def region(self, nbytes: int = 4096, placement: Placement = Placement.DEVICE) -> Region:
        """Memory of its own, zeroed."""
        return Region(self.driver.allocate(nbytes, placement).address, nbytes, placement)

    @staticmethod
    def endpoint(address: str = "127.0.0.1:999", protocols: tuple[str, ...] = ("hccs:device",)) -> bytes:
        return Endpoint(address, "cd" * 16, 4711, "Ascend000", protocols, False, network_name()).encode()

    def connected(self, chunks: int = 4, nbytes: int = 4096) -> tuple[HixlEngine, Region, RemoteRegion, CopyPlan]:
        """An engine with local memory that is connected, and a plan that reads it backwards in `chunks` chunks."""
        engine, here, there = self.engine(), self.region(nbytes), self.region(nbytes)
        engine.register([here])
        remote = RemoteRegion(there.base, there.nbytes, there.placement, b"")
        ctypes.memmove(there.base, bytes(i * 7 % 251 for i in range(nbytes)), nbytes)
        engine.connect(PEER, self.endpoint(), [remote], soon())
        return engine, here, remote, self.plan(here, remote, chunks)

    @staticmethod
    def soon() -> float:
        return soon()

    def pull(self, engine: HixlEngine, plan: CopyPlan, outcomes: list[Outcome]) -> threading.Thread:
        """Read the plan in a thread of its own, which has been started."""

        def run() -> None:
            self.driver.bind_thread()
            outcomes.append(engine.transfer(self.peer, plan, Operation.READ, soon()))

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    @staticmethod
    def plan(here: Region, there: RemoteRegion, chunks: int) -> CopyPlan:
        size, order = here.nbytes // chunks, list(range(chunks - 1, -1, -1))
        geometries = [Geometry([one.base], blocks=chunks, block_bytes=size) for one in (here, there)]
        return plan_blocks(*geometries, order, order)

    def close(self) -> None:
        self.double.planned.clear()
        self.double.stuck, self.double.readers = False, 0
        for engine in self.engines:
            assert engine.close(soon()) == []
        self.driver.close()
        assert not hixl_shared._engines, "an engine outlives its last user"


def soon() -> float:
    """A deadline that only something stuck reaches."""
    return time.monotonic() + 30.0


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    module = Double()
    monkeypatch.setitem(sys.modules, "hixl", module)
    monkeypatch.delenv("CACHECORE_EMULATE", raising=False)
    return module


@pytest.fixture
def world(double: Double) -> Iterator[World]:
    made = World(double)
    yield made
    made.close()


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Wait for something that another thread does."""

    def wait(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 30.0
        while not condition():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.002)

    return wait
