"""Transfers: batches, what each status comes to, giving up, and neighbours on the same link."""

import ctypes
import time

import pytest
from cachecore_ascend_runtime import hixl_transfer

from cachecore.engine import CancelToken, Operation, RemoteRegion
from cachecore.errors import CacheValueError
from cachecore.outcome import FailureCause, OutcomeState
from cachecore.testing.outcomes import check_coverage

READ, WRITE = Operation.READ, Operation.WRITE
LINKS = ("connect", "disconnect", "transfer_async")
#: Of the double's TransferStatus.
WAITING, COMPLETED, TIMED_OUT, FAILED = range(4)


@pytest.fixture
def small(monkeypatch):
    """Batches of four chunks."""
    monkeypatch.setattr(hixl_transfer, "BATCH_CHUNKS", 4)


def states(double, *values):
    double.planned["get_transfer_status"] = [
        None if value is None else double.TransferStatus(value) for value in values
    ]


@pytest.mark.parametrize("op", Operation)
def test_every_byte_in_batches_one_after_the_other(world, double, small, op):
    engine, here, there, plan = world.connected(chunks=10, nbytes=10 * 512)
    content = bytes(i % 253 for i in range(5120))
    ctypes.memmove(there.base if op is READ else here.base, content, 5120)
    outcome = engine.transfer(world.peer, plan, op, world.soon())
    assert outcome.state is OutcomeState.DONE and outcome.landed == ((0, 10),)
    assert ctypes.string_at(here.base if op is READ else there.base, 5120) == content
    assert [call[2] for call in double.calls if call[0] == "transfer_async"] == [4, 4, 2]


def test_large_chunks_make_small_batches(world, double, monkeypatch):
    monkeypatch.setattr(hixl_transfer, "_BATCH_BYTES", 1024)
    engine, _, _, plan = world.connected(chunks=8, nbytes=4096)
    assert engine.transfer(world.peer, plan, READ, world.soon()).state is OutcomeState.DONE
    assert [call[2] for call in double.calls if call[0] == "transfer_async"] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("submitted", "polled", "code"),
    [
        ([0, 103900], [], 103900),
        ([0, 103901], [], 103901),
        ([0, 103905], [], 103905),
        ([0, 203900], [], 203900),
        ([0, 503900], [], 503900),
        ([0, RuntimeError("bad cast")], [], 503900),
        ([], [COMPLETED, FAILED], 503900),
        ([], [COMPLETED, WAITING, TIMED_OUT], 103901),
        ([], [COMPLETED, 103902], 103902),
    ],
)
def test_a_failure_is_a_prefix_and_costs_the_link(world, double, small, submitted, polled, code):
    """Of three batches the second fails: it is unknown, the first landed, the third is untouched."""
    engine, _, _, plan = world.connected(chunks=12)
    double.planned["transfer_async"] = submitted
    double.planned["get_transfer_status"] = [
        double.TransferStatus(answer) if answer < 4 else answer for answer in polled
    ]
    outcome = engine.transfer(world.peer, plan, READ, world.soon())
    check_coverage(outcome, 12)
    assert (outcome.state, outcome.cause, outcome.code) == (OutcomeState.FAILED, FailureCause.NATIVE, code), outcome
    assert (outcome.landed, outcome.unknown, outcome.untouched) == (((0, 4),), ((4, 8),), ((8, 12),))
    assert outcome.ticket is None and str(code) in outcome.message and "4 of 12 chunks" in outcome.message
    assert double.names(*LINKS) == ["connect", "transfer_async", "transfer_async", "disconnect", "connect"]
    assert engine.transfer(world.peer, plan, READ, world.soon()).state is OutcomeState.DONE


def test_a_peer_that_does_not_answer_after_a_failure_is_gone(world, double):
    engine, _, _, plan = world.connected()
    states(double, FAILED)
    double.planned["connect"] = [503900]
    outcome = engine.transfer(world.peer, plan, READ, world.soon())
    assert outcome.cause is FailureCause.PEER_GONE and outcome.unknown == ((0, 4),)
    assert "could not be made" in outcome.message


def test_a_link_that_vanished_is_made_again_and_nothing_is_lost(world, double, small):
    engine, _, _, plan = world.connected(chunks=12)
    double.planned["transfer_async"] = [0, 103902]
    assert engine.transfer(world.peer, plan, READ, world.soon()).state is OutcomeState.DONE
    double.planned["transfer_async"] = [0, 103902, 103902, 103902]
    outcome = engine.transfer(world.peer, plan, READ, world.soon())
    assert (outcome.cause, outcome.landed) == (FailureCause.PEER_GONE, ((0, 4),))
    assert outcome.untouched == ((4, 12),), "a batch that no link took was reported as begun"


def test_a_link_that_cannot_be_made_when_it_is_needed_touches_nothing(world, double):
    engine, _, _, plan = world.connected()
    engine.register([world.region()])
    double.planned["connect"] = [503900]
    outcome = engine.transfer(world.peer, plan, READ, world.soon())
    assert (outcome.state, outcome.cause, outcome.code) == (OutcomeState.FAILED, FailureCause.NATIVE, 503900)
    assert outcome.untouched == ((0, 4),) and "alignment" in outcome.message
    double.planned["connect"] = [103901]
    assert engine.transfer(world.peer, plan, READ, world.soon()).cause is FailureCause.DEADLINE


# --- giving up --------------------------------------------------------------------------------------------------------


def test_a_deadline_ends_a_stuck_transfer_by_cutting_its_link(world, double):
    engine, _, _, plan = world.connected()
    double.stuck = True
    outcome = engine.transfer(world.peer, plan, READ, time.monotonic() + 0.05)
    assert (outcome.state, outcome.cause, outcome.ticket) == (OutcomeState.FAILED, FailureCause.DEADLINE, None)
    assert outcome.unknown == ((0, 4),) and not double.linked
    double.stuck = False
    assert engine.transfer(world.peer, plan, READ, world.soon()).state is OutcomeState.DONE
    assert double.names(*LINKS)[-2:] == ["connect", "transfer_async"]


def test_cancelling_between_batches_spares_the_link(world, double, small):
    engine, _, _, plan = world.connected(chunks=12)
    token = CancelToken()
    double.planned["get_transfer_status"] = [double.TransferStatus.WAITING] * 3
    real = double.note

    def note(function, *what):
        if function == "transfer_async":
            token.cancel()
        return real(function, *what)

    double.note = note
    outcome = engine.transfer(world.peer, plan, READ, world.soon(), token)
    assert (outcome.cause, outcome.landed, outcome.untouched) == (FailureCause.CANCELLED, ((0, 4),), ((4, 12),))
    assert double.names(*LINKS) == ["connect", "transfer_async"]


def test_what_cannot_be_cut_stays_unknown_until_it_is(world, double):
    engine, _, _, plan = world.connected()
    double.stuck = True
    double.planned["disconnect"] = [103901, 503900]
    outcome = engine.transfer(world.peer, plan, READ, time.monotonic() + 0.01)
    assert (outcome.state, outcome.cause) == (OutcomeState.UNKNOWN, FailureCause.DEADLINE)
    assert not engine.quiescent(outcome.ticket)
    assert engine.quiescent(outcome.ticket) and not double.linked
    assert engine.quiescent(outcome.ticket)
    with pytest.raises(CacheValueError, match="none of this engine"):
        engine.quiescent("ticket")


def test_a_doubtful_link_is_cut_before_it_is_used_again(world, double):
    engine, _, _, plan = world.connected()
    double.stuck = True
    double.planned["disconnect"] = [103901, 103901]
    engine.transfer(world.peer, plan, READ, time.monotonic() + 0.01)
    double.stuck = False
    outcome = engine.transfer(world.peer, plan, READ, world.soon())
    assert outcome.untouched == ((0, 4),) and "could not be ended" in outcome.message
    assert engine.transfer(world.peer, plan, READ, world.soon()).state is OutcomeState.DONE
    assert double.names(*LINKS)[-3:] == ["disconnect", "connect", "transfer_async"]


def test_closing_makes_a_stuck_transfer_give_up(world, double, eventually):
    engine, _, _, plan = world.connected()
    double.stuck, outcomes = True, []
    thread = world.pull(engine, plan, outcomes)
    eventually(lambda: double.requests)
    assert engine.close(time.monotonic() + 0.05) == []
    thread.join(30.0)
    assert outcomes[0].cause is FailureCause.CANCELLED and outcomes[0].unknown == ((0, 4),)
    assert double.names()[-2:] == ["disconnect", "finalize"]


# --- neighbours -------------------------------------------------------------------------------------------------------


def test_a_transfer_whose_link_is_cut_by_a_neighbour_begins_its_batch_again(world, double, eventually):
    engine, here, remote, plan = world.connected()
    double.stuck, outcomes = True, []
    thread = world.pull(engine, plan, outcomes)
    eventually(lambda: double.requests)
    gives_up = engine.transfer(world.peer, plan, READ, time.monotonic() + 0.01)
    assert gives_up.cause is FailureCause.DEADLINE
    eventually(lambda: any(link in double.linked.values() for _, link, _, _ in list(double.requests.values())))
    double.stuck = False
    thread.join(30.0)
    assert outcomes[0].state is OutcomeState.DONE
    assert ctypes.string_at(here.base, 4096) == ctypes.string_at(remote.base, 4096)


def test_one_failure_of_a_link_fails_one_transfer(world, double, eventually):
    """All that run on it see FAILED; the first one is the failure, the others begin again."""
    engine, _, _, plan = world.connected()
    double.stuck, outcomes = True, []
    threads = [world.pull(engine, plan, outcomes) for _ in range(6)]
    eventually(lambda: len(double.requests) == 6)
    double.linked["127.0.0.1:999"] = -1  # every request of the link so far has failed
    double.stuck = False
    for thread in threads:
        thread.join(30.0)
    assert sorted(outcome.state.value for outcome in outcomes) == ["done"] * 5 + ["failed"]


# --- what is refused before --------------------------------------------------------------------------------------------


def test_a_plan_outside_registered_memory_never_reaches_the_module(world, double):
    engine, here, remote, _ = world.connected()
    stranger = world.region()
    outside = RemoteRegion(stranger.base, stranger.nbytes, stranger.placement, b"")
    for plan, cause in (
        (world.plan(here, outside, 4), FailureCause.REMOTE_FAULT),
        (world.plan(stranger, remote, 4), FailureCause.LOCAL_FAULT),
    ):
        outcome = engine.transfer(world.peer, plan, READ, world.soon())
        assert (outcome.state, outcome.cause, outcome.untouched) == (OutcomeState.FAILED, cause, ((0, 4),))
    assert double.names(*LINKS) == ["connect"]


class Interrupt:
    """A cancel token at which an interrupt reaches the thread that polls."""

    def __init__(self, double):
        self.double = double

    @property
    def cancelled(self):
        if "transfer_async" in self.double.names():
            raise KeyboardInterrupt
        return False


def test_an_interrupt_leaves_nothing_under_way(world, double, small):
    engine, _, _, plan = world.connected(chunks=10, nbytes=10 * 512)
    double.stuck = True
    with pytest.raises(KeyboardInterrupt):
        engine.transfer(world.peer, plan, READ, world.soon(), Interrupt(double))
    assert double.names(*LINKS)[-2:] == ["transfer_async", "disconnect"]
    double.stuck = False
    assert engine.transfer(world.peer, plan, READ, world.soon()).state is OutcomeState.DONE
