"""What a caller learns when a transfer fails, and that memory stays held while something may still write it."""

import time
from array import array
from types import SimpleNamespace

import pytest

from cachecore.errors import CacheBusyError, CacheNotFoundError, LinkLostError, TransferError, TransferTimeoutError
from cachecore.outcome import BlockRange, FailureCause, Outcome, OutcomeState
from cachecore.planning import Geometry, plan_blocks
from cachecore.registry import Registry
from cachecore.sources import RemoteSource
from cachecore.testing.reference import ReferenceDriver
from cachecore.transfers import Transfers
from cachecore.types import CacheDesc, DataType, Placement

PAGE = 4096
FAR = time.monotonic() + 3600


def geometry(bases):
    return Geometry(
        memoryview(array("Q", bases)), blocks=4, block_bytes=1024, block_stride=1024, offset=0, tensor_bytes=PAGE
    )


class Engine:
    """Answers what it is told to; a ticket is settled when the test says so."""

    def __init__(self):
        self.outcome = None
        self.stopped = False

    def transfer(self, peer, plan, op, deadline):
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome or Outcome.done(plan.chunks)

    def quiescent(self, ticket):
        return self.stopped


class Link:
    """A link that counts."""

    def __init__(self, engine):
        self.identity = SimpleNamespace(cluster_id=9)
        self.engine, self.state = engine, "LINKED"
        self.begun = self.ended = self.held = 0
        self.gone = None
        self.leases = []

    def begin(self, remote):
        if remote.retiring:
            raise CacheNotFoundError("it is retiring")
        self.begun += 1

    def end(self, remote, quiescent):
        self.ended += 1
        self.held += not quiescent

    def settled(self, remote):
        self.held -= 1

    def lease_holds(self):
        return self.leases.pop(0) if self.leases else True

    def wait_for_lease(self, deadline):
        return self.leases.pop(0)

    def report_gone(self, reason):
        self.gone, self.state = reason, "LOST"


class Setup:
    def __init__(self):
        self.driver = ReferenceDriver()
        base = self.driver.allocate(4 * PAGE, Placement.DEVICE).address
        self.registry = Registry(1, self.driver, [], [])
        self.target = self.registry.register(
            "register_blocks_cache",
            CacheDesc(2, [4, 1024], DataType.DT_INT8),
            (base, base + PAGE),
            is_blocks=True,
            remote_accessible=True,
        )
        self.transfers = Transfers(self.driver, self.registry)
        self.engine = Engine()
        self.link = Link(self.engine)

    def pull(self, dst=(0, 1, 3), retiring=False, deadline=FAR):
        plan = plan_blocks(self.target.shape.blocks, geometry([1 << 40, 1 << 41]), list(dst), list(range(len(dst))))
        remote = SimpleNamespace(shape=None, retiring=retiring)
        source = RemoteSource(self.driver, self.link, remote, None)
        self.transfers.pull(source, self.target, plan, 10, deadline)

    def nothing_counted(self):
        return self.link.begun == self.link.ended and self.link.held == 0 and self.target.running == 0


@pytest.fixture
def setup():
    setup = Setup()
    yield setup
    setup.driver.close()


def test_a_success_is_counted(setup):
    setup.pull()
    counted = setup.transfers.counters
    assert (counted.pulls, counted.failed, counted.blocks, counted.nbytes, counted.chunks) == (1, 0, 6, 6144, 4)
    assert setup.nothing_counted()


CAUSES = {
    FailureCause.DEADLINE: (TransferTimeoutError, TimeoutError),
    FailureCause.PEER_GONE: (LinkLostError, ConnectionError),
    FailureCause.REMOTE_FAULT: (TransferError, RuntimeError),
    FailureCause.NOT_PERMITTED: (TransferError, RuntimeError),
    FailureCause.NATIVE: (TransferError, RuntimeError),
}


@pytest.mark.parametrize("cause", CAUSES, ids=lambda c: c.name)
def test_a_failure_says_which_blocks_landed(setup, cause):
    # 2 tensors x 2 runs (blocks 0-1 merged, block 3): chunks 0 and 1 are the first tensor's.
    setup.engine.outcome = Outcome(
        OutcomeState.FAILED, ((0, 2),), ((3, 4),), ((2, 3),), cause, code=5, message="what happened"
    )
    with pytest.raises(CAUSES[cause][0], match="what happened") as caught:
        setup.pull()
    error = caught.value
    assert isinstance(error, CAUSES[cause][1])
    assert error.outcome is setup.engine.outcome
    assert error.landed == (BlockRange(10, 0, 2), BlockRange(10, 3, 1))
    assert error.unknown == (BlockRange(11, 0, 2),)
    assert setup.nothing_counted() and setup.transfers.counters.failed == 1
    assert (setup.link.gone == "what happened") == (cause is FailureCause.PEER_GONE)


def test_any_failure_on_a_lost_link_is_a_lost_link(setup):
    setup.link.state = "LOST"
    setup.engine.outcome = Outcome.untouched_by(FailureCause.NATIVE, 4)
    with pytest.raises(LinkLostError):
        setup.pull()


def test_bytes_read_after_the_lease_ended_are_not_a_success(setup):
    setup.link.leases = [True, False, False]  # before: holds; after: ended, and not renewed
    setup.link.state = "STALLED"
    with pytest.raises(LinkLostError, match="cannot be trusted") as caught:
        setup.pull()
    assert caught.value.state == "STALLED"
    assert caught.value.landed == () and caught.value.unknown[0] == BlockRange(10, 0, 2)
    assert setup.nothing_counted()


def test_a_lease_renewed_in_time_is_a_success(setup):
    setup.link.leases = [True, False, True]
    setup.pull()
    assert setup.transfers.counters.pulls == 1


def test_nothing_starts_on_what_is_retiring(setup):
    with pytest.raises(CacheNotFoundError):
        setup.pull(retiring=True)
    setup.registry.retire(setup.target)
    with pytest.raises(CacheNotFoundError):
        setup.pull()
    assert setup.nothing_counted()


def test_destinations_stay_quarantined_until_the_engine_has_stopped(setup):
    # The engine gave up on chunk 2 (tensor 1, blocks 0-1) and may still be writing it.
    setup.engine.outcome = Outcome(
        OutcomeState.UNKNOWN, ((0, 2),), ((3, 4),), ((2, 3),), FailureCause.DEADLINE, ticket="ticket"
    )
    with pytest.raises(TransferTimeoutError, match="quarantined"):
        setup.pull()
    setup.engine.outcome = None
    with pytest.raises(CacheBusyError, match="quarantined") as caught:
        setup.pull(dst=[1])
    assert caught.value.ranges == ((setup.target.addrs[1], 2048),)
    setup.pull(dst=[2, 3])  # other blocks are free
    # Neither side may free: our cache counts as in use and the peer is not told that we are done.
    assert setup.registry.wait_idle([setup.target], time.monotonic() + 0.05) == [setup.target]
    assert setup.link.held == 1
    assert setup.transfers.quarantine.wait_empty(time.monotonic()) == [(setup.target.addrs[1], 2048)]
    setup.engine.stopped = True
    assert setup.transfers.quarantine.wait_empty(time.monotonic() + 30) == []
    assert setup.nothing_counted()
    setup.pull(dst=[1])


def test_an_engine_that_raises_leaves_its_destinations_quarantined(setup):
    setup.engine.outcome = MemoryError("inside the engine")
    with pytest.raises(TransferError, match="MemoryError: inside the engine") as caught:
        setup.pull()
    assert isinstance(caught.value.__cause__, MemoryError)
    setup.engine.outcome = None
    with pytest.raises(CacheBusyError):
        setup.pull()
