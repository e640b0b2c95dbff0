"""The part of the engine suite about transfers that fail: what they claim is true, and over means over."""

from __future__ import annotations

import mmap
import struct
import threading
import time

import pytest

from cachecore.driver import Knowledge
from cachecore.engine import CancelToken, Operation
from cachecore.outcome import FailureCause, Outcome, OutcomeState
from cachecore.planning import CopyPlan
from cachecore.testing._engine_case import GRACE, EngineCase, Exchange, soon
from cachecore.testing.outcomes import settled
from cachecore.testing.side import pattern

#: Enough that a transfer is still running when it is interrupted.
_LONG = 24 << 20
_LONG_BLOCKS = 3072
#: Seconds after which it is.
_SOON = 0.002


class EngineFailures(EngineCase):
    """`TransferEngine.transfer` when something is wrong."""

    def _untouched(self, exchange: Exchange, plan: CopyPlan, op: Operation, outcome: Outcome) -> None:
        assert outcome.state is OutcomeState.FAILED
        assert outcome.untouched == ((0, plan.chunks),)
        assert outcome.message, "a failure without a sentence about it"
        self.verify(exchange, plan, op, outcome)
        self.verify_quiet(exchange, op)

    def _shuffled(self, exchange: Exchange, op: Operation) -> CopyPlan:
        order = list(range(_LONG_BLOCKS))
        self.random.shuffle(order)
        return exchange.plan(op, _LONG_BLOCKS, order)

    # --- deadline and cancel ----------------------------------------------------------------------------------------

    def test_a_deadline_that_has_passed_touches_nothing(self) -> None:
        """DEADLINE, all untouched."""
        for op in Operation:
            exchange = self.exchange(64 * 1024)
            plan = exchange.plan(op, 4)
            outcome = self.move(exchange, plan, op, time.monotonic() - 1.0)
            assert outcome.cause is FailureCause.DEADLINE
            self._untouched(exchange, plan, op, outcome)
            self.subject.disconnect(self.peer.identity, soon())

    def test_a_cancelled_token_touches_nothing(self) -> None:
        """CANCELLED, all untouched."""
        if not self.facts.can_cancel.value_or(False):
            pytest.skip("the engine cannot cancel")
        token = CancelToken()
        token.cancel()
        exchange = self.exchange(64 * 1024)
        plan = exchange.plan(Operation.READ, 4)
        outcome = self.subject.transfer(self.peer.identity, plan, Operation.READ, soon(), token)
        outcome = settled(self.subject.quiescent, outcome)
        assert outcome.cause is FailureCause.CANCELLED
        self._untouched(exchange, plan, Operation.READ, outcome)

    def test_cancelling_a_running_transfer(self) -> None:
        """It ends soon, tells the truth about every chunk, and writes nothing afterwards."""
        if not self.facts.can_cancel.value_or(False):
            pytest.skip("the engine cannot cancel")
        for op in Operation:
            token, exchange = CancelToken(), self.exchange(_LONG)
            plan = self._shuffled(exchange, op)
            timer = threading.Timer(_SOON, token.cancel)
            timer.start()
            outcome = settled(
                self.subject.quiescent, self.subject.transfer(self.peer.identity, plan, op, soon(), token)
            )
            timer.join()
            assert outcome.cause in (FailureCause.CANCELLED, FailureCause.NONE), outcome
            assert (outcome.state is OutcomeState.DONE) == (outcome.cause is FailureCause.NONE)
            self.verify(exchange, plan, op, outcome)
            self.verify_quiet(exchange, op)
            self._finish(exchange)

    def test_a_deadline_in_a_running_transfer(self) -> None:
        """It ends, tells the truth about every chunk, and writes nothing afterwards."""
        for op in Operation:
            exchange = self.exchange(_LONG)
            plan = self._shuffled(exchange, op)
            outcome = self.move(exchange, plan, op, time.monotonic() + _SOON)
            assert outcome.cause in (FailureCause.DEADLINE, FailureCause.NONE), outcome
            self.verify(exchange, plan, op, outcome)
            self.verify_quiet(exchange, op)
            self._finish(exchange)

    # --- memory that is not there -----------------------------------------------------------------------------------

    def test_memory_outside_the_regions_of_the_peer_is_not_reached(self) -> None:
        """The page behind a registered region, although it is there."""
        page = mmap.PAGESIZE
        remote, local = self.peer.allocate(4 * page, self.there), self.local_memory(4 * page)
        self.peer.call("fill", remote, 4 * page, 1)
        self.side.fill(local, 4 * page, 2)
        (region,) = self.peer.register([(remote, 3 * page)], self.there)
        self.connect(self.peer, region)
        exchange = Exchange(self.peer, local, remote, 4 * page, pattern(2, 4 * page), pattern(1, 4 * page), region)
        for op in Operation:
            plan = exchange.plan(op, 2)
            outcome = self.move(exchange, plan, op)
            assert outcome.state is OutcomeState.FAILED, outcome
            self.verify(exchange, plan, op, outcome)
            assert outcome.landed in ((), ((0, 1),)), "the chunk that leaves the region is reported as landed"

    def test_a_missing_page_of_the_peer(self) -> None:
        """REMOTE_FAULT; chunks that landed are told from those that did not."""
        for op in Operation:
            self._hole(op, FailureCause.REMOTE_FAULT, there=True)

    def test_a_missing_page_here(self) -> None:
        """LOCAL_FAULT, as an Outcome and not a crash."""
        if self.facts.local_registration_required.value_or(True):
            pytest.skip("memory with a hole cannot be registered")
        for op in Operation:
            self._hole(op, FailureCause.LOCAL_FAULT, there=False)

    def _hole(self, op: Operation, cause: FailureCause, *, there: bool) -> None:
        if not self.accepts_foreign():
            pytest.skip("the driver accepts no ordinary memory, and its own has no holes")
        page, pages, hole = mmap.PAGESIZE, 2500, 1700
        nbytes = pages * page
        remote, local = self.peer.call("memory.map", nbytes), self.side.memory.map(nbytes)
        self.peer.call("fill", remote, nbytes, 1)
        self.side.fill(local, nbytes, 2)
        (region,) = self.peer.register([(remote, nbytes)], self.there)
        self.register_local(local, nbytes)
        self.connect(self.peer, region)
        exchange = Exchange(self.peer, local, remote, nbytes, pattern(2, nbytes), pattern(1, nbytes), region)
        order = list(range(pages))
        self.random.shuffle(order)
        plan = exchange.plan(op, pages, order)
        side, address = (self.peer.call, remote) if there else (self.side.call, local)
        side("memory.hide", address + hole * page, page)
        outcome = self.move(exchange, plan, op)
        # Nothing was lost: the page comes back with what was in it.
        side("memory.show", address + hole * page, page)
        assert (outcome.state, outcome.cause) == (OutcomeState.FAILED, cause), outcome
        assert outcome.code != 0 and outcome.message
        self.verify(exchange, plan, op, outcome)
        missing = order.index(hole)
        assert not any(start <= missing < stop for start, stop in outcome.landed), "a missing page landed"
        if self.facts.failure_knowledge.value is Knowledge.EXACT:
            assert not outcome.unknown, f"an engine that knows exactly does not know {outcome.unknown}"
        self.verify_quiet(exchange, op)
        self._finish(exchange)

    # --- a peer that goes -------------------------------------------------------------------------------------------

    def test_a_peer_that_is_dead_already(self) -> None:
        """Never DONE, as a zombie and when reaped, and disconnecting from it ends."""
        exchange = self.exchange(64 * 1024, self.own_peer())
        plan = exchange.plan(Operation.READ, 16)
        exchange.peer.kill(reap=False)
        for _ in range(2):
            start = time.monotonic()
            outcome = self.move(exchange, plan, Operation.READ, start + 5.0)
            assert time.monotonic() - start < 5.0 + GRACE
            assert outcome.state is OutcomeState.FAILED
            assert outcome.cause in (FailureCause.PEER_GONE, FailureCause.DEADLINE), outcome
            self.verify(exchange, plan, Operation.READ, outcome)
            exchange.peer.kill()
        assert self.subject.disconnect(exchange.peer.identity, time.monotonic() + 5.0)

    def test_a_peer_that_dies_meanwhile(self) -> None:
        """Whatever had landed by then is told truly, and nothing is written afterwards."""
        exchange = self.exchange(_LONG, self.own_peer())
        plan = self._shuffled(exchange, Operation.READ)
        killer = threading.Timer(_SOON, exchange.peer.kill, kwargs={"reap": False})
        killer.start()
        outcome = self.move(exchange, plan, Operation.READ, time.monotonic() + 10.0)
        killer.join()
        assert outcome.cause in (FailureCause.PEER_GONE, FailureCause.DEADLINE, FailureCause.NONE), outcome
        self.verify(exchange, plan, Operation.READ, outcome)
        self.verify_quiet(exchange, Operation.READ)

    def test_a_stopped_peer_does_not_hold_up_a_transfer(self) -> None:
        """It ends within its deadline and tells the truth."""
        exchange = self.exchange(64 * 1024, self.own_peer())
        plan = exchange.plan(Operation.READ, 16)
        exchange.peer.stop()
        start = time.monotonic()
        outcome = self.subject.transfer(exchange.peer.identity, plan, Operation.READ, start + 1.0)
        assert time.monotonic() - start < 1.0 + GRACE, "transfer() did not keep its deadline"
        exchange.peer.resume()
        self.verify(exchange, plan, Operation.READ, settled(self.subject.quiescent, outcome))

    def test_disconnecting_from_a_running_transfer(self) -> None:
        """disconnect() says True only when the transfer is over; then nothing writes."""
        exchange = self.exchange(_LONG)
        plan = self._shuffled(exchange, Operation.READ)
        token, outcomes = CancelToken(), list[Outcome]()

        def run() -> None:
            self.side.driver.bind_thread()
            outcomes.append(self.subject.transfer(self.peer.identity, plan, Operation.READ, soon(), token))

        worker = threading.Thread(target=run)
        worker.start()
        while worker.is_alive() and self._equals_before(exchange, plan):
            time.sleep(0.0005)
        while not self.subject.disconnect(self.peer.identity, time.monotonic() + 0.01):
            token.cancel()
        self.verify_quiet(exchange, Operation.READ)
        worker.join(60.0)
        assert outcomes, "the transfer did not end"

    def _equals_before(self, exchange: Exchange, plan: CopyPlan) -> bool:
        """Whether the first chunk of a read has not begun to land."""
        (local, _, nbytes), at = next(struct.iter_unpack("QQQ", plan.flat(0, 1))), exchange.local
        return self.side.memory.read(local, nbytes) == exchange.ours[local - at : local - at + nbytes]

    def _finish(self, exchange: Exchange) -> None:
        assert self.subject.disconnect(exchange.peer.identity, soon())
