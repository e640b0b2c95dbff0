"""What a caller learns when a transfer fails, and that memory stays held while something may still write it."""

import threading
import time
from array import array
from types import SimpleNamespace

import pytest

from cachecore.engine import CancelToken, Operation
from cachecore.errors import (
    AddressMovedError,
    CacheBusyError,
    CacheNotFoundError,
    CacheTimeoutError,
    LinkLostError,
    TransferCancelledError,
    TransferError,
    TransferTimeoutError,
)
from cachecore.outcome import BlockRange, FailureCause, Outcome, OutcomeState
from cachecore.planning import Geometry, plan_blocks
from cachecore.registration.registry import Registry
from cachecore.testing.reference import ReferenceDriver
from cachecore.transfers.ends import RemoteEnd
from cachecore.transfers.requests import Step
from cachecore.transfers.running import Transfers
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
        self.operations = []

    def transfer(self, peer, plan, op, deadline, cancel):
        self.operations.append(op)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome or Outcome.done(plan.chunks)

    def quiescent(self, ticket):
        return self.stopped


class Link:
    """A link that counts."""

    def __init__(self, engine):
        self.identity = SimpleNamespace(cluster_id=9, incarnation="9" * 32)
        self.engine, self.state = engine, "LINKED"
        self.begun = self.ended = self.held = 0
        self.gone = None
        self.leases = []
        self.told = 0

    def will_write(self, deadline):
        self.told += 1

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

    def steps(self, blocks, destination="local"):
        """One step of whole blocks, as if the first tensor were number 10 of the caller's cache."""
        others = list(range(len(blocks)))
        local, remote = (list(blocks), others) if destination == "local" else (others, list(blocks))
        there = geometry([1 << 40, 1 << 41])
        return [
            Step(plan_blocks(self.target.shape.blocks, there, local, remote, destination=destination), range(10, 12))
        ]

    def run(self, steps, op, retiring=False, deadline=FAR, **more):
        remote = SimpleNamespace(shape=None, retiring=retiring)
        end = RemoteEnd(self.driver, self.link, remote, None)
        request = SimpleNamespace(end=end, own=self.target, op=op, deadline=deadline, whole=steps[0])
        request.lease_id = request.consumes = None
        self.transfers.run(request, steps=steps, **more)

    def pull(self, dst=(0, 1, 3), **more):
        self.run(self.steps(dst), Operation.READ, **more)

    def push(self, dst=(0, 1, 3), **more):
        self.run(self.steps(dst, "remote"), Operation.WRITE, **more)

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
    assert (counted.pulls, counted.pulls_failed, counted.blocks, counted.nbytes, counted.chunks) == (1, 0, 6, 6144, 4)
    assert setup.nothing_counted()


CAUSES = {
    FailureCause.DEADLINE: (TransferTimeoutError, TimeoutError),
    FailureCause.PEER_GONE: (LinkLostError, ConnectionError),
    FailureCause.REMOTE_FAULT: (TransferError, RuntimeError),
    FailureCause.NOT_PERMITTED: (TransferError, RuntimeError),
    FailureCause.NATIVE: (TransferError, RuntimeError),
    FailureCause.CANCELLED: (TransferCancelledError, RuntimeError),
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
    assert setup.nothing_counted() and setup.transfers.counters.pulls_failed == 1
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


@pytest.mark.parametrize("what", ["quarantined", "moved"])
def test_what_changed_while_the_owner_was_waited_for_is_looked_at_again(setup, what):
    tensor = SimpleNamespace(name="t", address=1, nbytes=2, extent=(1, 2), now=(1, 2))
    tensor.locate = lambda: tensor.now
    setup.target.tensors = (tensor,)
    plan = setup.steps([1], "remote")[0].plan
    outcome = Outcome(OutcomeState.UNKNOWN, (), (), ((0, 2),), FailureCause.DEADLINE, ticket="ticket")

    def wait(deadline):
        time.sleep(0.01)
        if what == "moved":
            tensor.now = (3, 2)
        else:
            setup.transfers.quarantine.add(plan, outcome, "9" * 32, setup.engine.quiescent, lambda: None, local=False)

    setup.link.will_write = wait
    with pytest.raises(CacheBusyError if what == "quarantined" else AddressMovedError):
        setup.push(dst=[1])
    assert setup.engine.operations == [] and setup.nothing_counted()


def test_an_engine_that_raises_leaves_its_destinations_quarantined(setup):
    setup.engine.outcome = MemoryError("inside the engine")
    with pytest.raises(TransferError, match="MemoryError: inside the engine") as caught:
        setup.pull()
    assert isinstance(caught.value.__cause__, MemoryError)
    setup.engine.outcome = None
    with pytest.raises(CacheBusyError):
        setup.pull()


def test_an_engine_that_fails_to_say_whether_it_has_stopped_has_not(setup, caplog):
    def broken(ticket):
        raise OSError("the device is gone")

    setup.engine.quiescent = broken
    setup.engine.outcome = Outcome(OutcomeState.UNKNOWN, (), (), ((0, 4),), FailureCause.DEADLINE, ticket="ticket")
    with pytest.raises(TransferTimeoutError, match="quarantined"):
        setup.pull()
    assert setup.link.held == 1 and setup.target.running == 1 and "the device is gone" in caplog.text


def test_quarantine_ends_although_no_thread_could_be_started_for_it_at_first(setup, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    setup.engine.outcome = Outcome(OutcomeState.UNKNOWN, (), (), ((0, 4),), FailureCause.DEADLINE, ticket="ticket")
    with monkeypatch.context() as patched, pytest.raises(TransferTimeoutError):
        patched.setattr(threading.Thread, "start", refuse)
        setup.pull()
    setup.engine.stopped = True
    assert setup.transfers.quarantine.wait_empty(time.monotonic() + 30) == []
    assert setup.nothing_counted()


# --- pushes ---------------------------------------------------------------------------------------------------------


def test_a_push_tells_the_owner_before_it_writes_and_is_counted_apart(setup):
    setup.push()
    counted = setup.transfers.counters
    assert setup.link.told == 1 and setup.engine.operations == [Operation.WRITE]
    assert (counted.pulls, counted.pushes, counted.blocks, counted.nbytes) == (0, 1, 6, 6144)
    assert setup.nothing_counted()


def test_nothing_is_written_when_the_owner_does_not_answer_that_it_knows(setup):
    def silent(deadline):
        raise CacheTimeoutError("no answer")

    setup.link.will_write = silent
    with pytest.raises(CacheTimeoutError):
        setup.push()
    assert setup.engine.operations == [] and setup.nothing_counted()


def test_what_was_written_over_a_lost_connection_is_no_success(setup):
    """The lease may still hold: it is about memory, and says nothing of a peer that could use what was written."""
    transfer = setup.engine.transfer

    def lose(*arguments):
        setup.link.state = "LOST"
        return transfer(*arguments)

    setup.engine.transfer = lose
    with pytest.raises(LinkLostError) as caught:
        setup.push()
    assert caught.value.unknown[0] == BlockRange(10, 0, 2) and setup.nothing_counted()


def test_destinations_at_a_peer_stay_quarantined_and_the_source_stays_in_use(setup):
    setup.engine.outcome = Outcome(
        OutcomeState.UNKNOWN, ((0, 2),), ((3, 4),), ((2, 3),), FailureCause.DEADLINE, ticket="ticket"
    )
    with pytest.raises(TransferTimeoutError, match="the push to cluster 9") as caught:
        setup.push()
    assert caught.value.unknown == (BlockRange(11, 0, 2),)
    setup.engine.outcome = None
    with pytest.raises(CacheBusyError, match="of the other side is quarantined") as caught:
        setup.push(dst=[1])
    assert caught.value.ranges == ((1 << 41, 2048),)
    setup.push(dst=[2, 3])
    # The engine may still be reading here: nothing of it may be freed, and it is what close() names.
    assert setup.registry.wait_idle([setup.target], time.monotonic() + 0.05) == [setup.target]
    assert setup.transfers.quarantine.wait_empty(time.monotonic()) == [(setup.target.addrs[1], 2048)]
    setup.link.identity.incarnation = "8" * 32  # the same addresses in another life of the peer are other memory
    setup.push(dst=[1])
    setup.engine.stopped = True
    assert setup.transfers.quarantine.wait_empty(time.monotonic() + 30) == []
    assert setup.nothing_counted()


# --- steps, cancelling, order ----------------------------------------------------------------------------------------


def test_a_failure_at_a_later_step_tells_of_the_earlier_ones(setup):
    """Hole 8: a failure at layer k left the layers before it delivered, and nobody knew."""
    steps = [*setup.steps([0]), *setup.steps([1])]

    def fail_from_now_on(step):
        setup.engine.outcome = Outcome(OutcomeState.FAILED, ((0, 1),), ((1, 2),), (), FailureCause.NATIVE)

    with pytest.raises(TransferError) as caught:
        setup.run(steps, Operation.READ, landed=fail_from_now_on)
    assert caught.value.landed == (BlockRange(10, 0, 1), BlockRange(11, 0, 1), BlockRange(10, 1, 1))


def test_cancelling_stops_before_the_next_step(setup):
    steps, cancel = [*setup.steps([0]), *setup.steps([1])], CancelToken()
    with pytest.raises(TransferCancelledError) as caught:
        setup.run(steps, Operation.READ, cancel=cancel, landed=lambda step: cancel.cancel())
    assert caught.value.landed == (BlockRange(10, 0, 1), BlockRange(11, 0, 1)) and caught.value.unknown == ()
    assert len(setup.engine.operations) == 1 and setup.nothing_counted()


def test_a_barrier_waits_for_what_was_called_for_before_and_for_nothing_else(setup):
    transfers = setup.transfers
    before, other = transfers.called(9), transfers.called(8)
    with pytest.raises(CacheTimeoutError):
        transfers.barrier(9, time.monotonic() + 0.05)
    passed = threading.Event()
    thread = threading.Thread(target=lambda: (transfers.barrier(9, time.monotonic() + 30), passed.set()))
    thread.start()
    assert not passed.wait(0.05)
    after = transfers.called(9)
    transfers.ended(9, before)
    assert passed.wait(10)
    thread.join()
    transfers.ended(9, after)
    transfers.ended(8, other)
    transfers.barrier(9, time.monotonic())
