"""The conformance suites find planted faults: each mutant must fail the test that is there for its fault."""

import ctypes
import dataclasses
import threading
import time

import pytest

from cachecore.driver import Allocation
from cachecore.engine import Operation
from cachecore.errors import CacheValueError, LinkFailedError
from cachecore.outcome import FailureCause, Outcome, OutcomeState
from cachecore.testing._process_memory import chunks_of, move_bytes, run_plan
from cachecore.testing.driver_conformance import DriverConformance
from cachecore.testing.engine_conformance import EngineConformance
from cachecore.testing.reference import ReferenceDriver, ReferenceEngine
from cachecore.testing.runner import failures

DRIVER = "cachecore.testing.reference:DRIVER"
ENGINE = "cachecore.testing.reference:ENGINE"


class TestReferenceDriver(DriverConformance):
    driver = DRIVER

    def live_allocations(self, driver):
        return driver.live_allocations


class TestReferenceEngine(EngineConformance):
    driver = DRIVER
    engine = ENGINE

    def live_regions(self, engine):
        return engine.live_regions


# --- engines ------------------------------------------------------------------------------------------------------


class Altered(ReferenceEngine):
    """Moves the chunks of a plan after `alter` has changed them, and reports the truth about the plan it was given."""

    def alter(self, chunks):
        return chunks

    def _transfer(self, peer, known, plan, op, deadline, cancel):
        outcome = super()._transfer(peer, None, plan, op, deadline, cancel) if known is None else None
        if outcome is not None:
            return outcome
        for local, remote, nbytes in self.alter(list(chunks_of(plan))):
            move_bytes(known[0], local, remote, nbytes, op)
        return Outcome.done(plan.chunks)


class DropsTheLastRun(Altered):
    def alter(self, chunks):
        return chunks[:-1]


class IsOneByteShort(Altered):
    def alter(self, chunks):
        return [(local, remote, nbytes - 1) for local, remote, nbytes in chunks]


class CountsIn32Bits(Altered):
    def alter(self, chunks):
        bases = [region.base for _, _, _, regions in self._peers.values() for region in regions]
        return [(local, bases[0] + (remote - bases[0]) % 2**32, nbytes) for local, remote, nbytes in chunks]


class IgnoresTheOrderOfBlocks(Altered):
    def alter(self, chunks):
        return [(a[0], b[1], a[2]) for a, b in zip(chunks, sorted(chunks, key=lambda c: c[1]), strict=True)]


class WritesWhenItReads(ReferenceEngine):
    def _transfer(self, peer, known, plan, op, deadline, cancel):
        return super()._transfer(peer, known, plan, Operation.WRITE, deadline, cancel)


class SwallowsErrors(ReferenceEngine):
    def _transfer(self, *args):
        super()._transfer(*args)
        return Outcome.done(args[2].chunks)


class ClaimsThatAllLanded(ReferenceEngine):
    def _transfer(self, *args):
        outcome = super()._transfer(*args)
        if outcome.state is OutcomeState.DONE:
            return outcome
        return Outcome(
            outcome.state, landed=((0, args[2].chunks),), cause=outcome.cause, code=outcome.code, message="x"
        )


class ClaimsThatNothingLanded(ReferenceEngine):
    def _transfer(self, *args):
        outcome = super()._transfer(*args)
        if outcome.state is OutcomeState.DONE:
            return outcome
        return Outcome.untouched_by(outcome.cause, args[2].chunks, code=outcome.code, message="x")


class ForgetsChunks(ReferenceEngine):
    def _transfer(self, *args):
        outcome = super()._transfer(*args)
        if outcome.state is OutcomeState.DONE:
            return outcome
        return Outcome(outcome.state, outcome.landed, cause=outcome.cause, code=outcome.code, message="x")


class Late(ReferenceEngine):
    """Writes the plan again and again after a while, until it is closed."""

    def __init__(self):
        super().__init__()
        self.closing = threading.Event()
        self.threads = []

    def again_later(self, known, plan, op):
        def write():
            while not self.closing.wait(0.05):
                run_plan(plan, known[0], op, time.monotonic() + 60.0, None)

        self.threads.append(threading.Thread(target=write))
        self.threads[-1].start()

    def close(self, deadline):
        self.closing.set()
        for thread in self.threads:
            thread.join()
        return super().close(deadline)


class WritesAfterDone(Late):
    def _transfer(self, peer, known, plan, op, deadline, cancel):
        outcome = super()._transfer(peer, known, plan, op, deadline, cancel)
        if outcome.state is OutcomeState.DONE:
            self.again_later(known, plan, op)
        return outcome


class WritesAfterFailed(Late):
    def _transfer(self, peer, known, plan, op, deadline, cancel):
        outcome = super()._transfer(peer, known, plan, op, deadline, cancel)
        if outcome.state is not OutcomeState.DONE:
            self.again_later(known, plan, op)
        return outcome


class IsQuiescentTooEarly(WritesAfterFailed):
    """Its `quiescent` says True at once."""

    def _transfer(self, *args):
        outcome = super()._transfer(*args)
        if outcome.state is OutcomeState.DONE:
            return outcome
        return dataclasses.replace(outcome, state=OutcomeState.UNKNOWN, ticket=object())


class IgnoresCancel(ReferenceEngine):
    def _transfer(self, peer, known, plan, op, deadline, cancel):
        return super()._transfer(peer, known, plan, op, deadline, None)


class IgnoresDeadlines(ReferenceEngine):
    def _transfer(self, peer, known, plan, op, deadline, cancel):
        return super()._transfer(peer, known, plan, op, deadline + 3600.0, cancel)


class TrustsAProcessId(ReferenceEngine):
    @staticmethod
    def _is(pid, address, nonce):
        found = ctypes.create_string_buffer(16)
        return move_bytes(pid, ctypes.addressof(found), address, 16, Operation.READ) == 16


class ConnectsForever(ReferenceEngine):
    def connect(self, peer, endpoint, regions, deadline):
        try:
            super().connect(peer, endpoint, regions, deadline)
        except LinkFailedError:
            time.sleep(4.0)
            raise


class LeavesRegionsBehind(ReferenceEngine):
    def _roll_back(self, made):
        pass


class DeregistersTwice(ReferenceEngine):
    def deregister(self, registration):
        if registration in self._live:
            super().deregister(self._live[0])


class ForgetsThatMemoryIsGone(ReferenceEngine):
    def update(self, peer, added, removed):
        super().update(peer, added, [])


class ForgetsNewMemory(ReferenceEngine):
    def update(self, peer, added, removed):
        super().update(peer, [], removed)


class DisconnectsNobody(ReferenceEngine):
    def disconnect(self, peer, deadline):
        return True


class DoesNotWaitForTransfers(ReferenceEngine):
    def disconnect(self, peer, deadline):
        super().disconnect(peer, 0.0)
        return True


class StaysOpen(ReferenceEngine):
    def close(self, deadline):
        return []


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (DropsTheLastRun, "test_scattered_blocks"),
        (IsOneByteShort, "test_one_byte"),
        (CountsIn32Bits, "test_offsets_beyond_32_bits"),
        (IgnoresTheOrderOfBlocks, "test_strided_unaligned_tensors"),
        (WritesWhenItReads, "test_merged_blocks"),
        (SwallowsErrors, "test_a_missing_page_of_the_peer"),
        (ClaimsThatAllLanded, "test_a_missing_page_of_the_peer"),
        (ClaimsThatNothingLanded, "test_a_missing_page_here"),
        (ForgetsChunks, "test_a_missing_page_here"),
        (WritesAfterDone, "test_nothing_is_written_after_done"),
        (WritesAfterFailed, "test_a_missing_page_here"),
        (IsQuiescentTooEarly, "test_a_cancelled_token_touches_nothing"),
        (IgnoresCancel, "test_a_cancelled_token_touches_nothing"),
        (IgnoresDeadlines, "test_a_deadline_that_has_passed_touches_nothing"),
        (TrustsAProcessId, "test_an_endpoint_of_somebody_else_fails"),
        (ConnectsForever, "test_a_dead_peer_fails_within_the_deadline"),
        (LeavesRegionsBehind, "test_registration_is_all_or_nothing"),
        (DeregistersTwice, "test_a_second_deregistration_is_refused"),
        (ForgetsThatMemoryIsGone, "test_removed_memory_is_not_reached"),
        (ForgetsNewMemory, "test_memory_registered_after_the_link_is_reached"),
        (DisconnectsNobody, "test_no_transfer_after_disconnect"),
        (DoesNotWaitForTransfers, "test_disconnecting_from_a_running_transfer"),
        (StaysOpen, "test_close_lets_go_of_everything"),
    ],
)
def test_engine_suite_finds(mutant, test):
    class Suite(TestReferenceEngine):
        def make_engine(self, driver):
            return mutant()

    assert test in failures(Suite, test)


# --- drivers ------------------------------------------------------------------------------------------------------


class CopiesAllButTheLastRun(ReferenceDriver):
    def copy(self, plan, deadline):
        for local, remote, nbytes in list(chunks_of(plan))[:-1]:
            ctypes.memmove(local, remote, nbytes)
        return Outcome.done(plan.chunks)


class CopiesOneByteTooMany(ReferenceDriver):
    def copy(self, plan, deadline):
        for local, remote, nbytes in chunks_of(plan):
            ctypes.memmove(local, remote, nbytes + 1)
        return Outcome.done(plan.chunks)


class CopiesTheFirst32MiB(ReferenceDriver):
    def copy(self, plan, deadline):
        for local, remote, nbytes in chunks_of(plan):
            ctypes.memmove(local, remote, min(nbytes, 32 << 20))
        return Outcome.done(plan.chunks)


class CopySwallowsErrors(ReferenceDriver):
    def copy(self, plan, deadline):
        super().copy(plan, deadline)
        return Outcome.done(plan.chunks)


class CopyClaimsThatNothingLanded(ReferenceDriver):
    def copy(self, plan, deadline):
        outcome = super().copy(plan, deadline)
        if outcome.state is OutcomeState.DONE:
            return outcome
        return Outcome.untouched_by(outcome.cause, plan.chunks)


class CopyIgnoresItsDeadline(ReferenceDriver):
    def copy(self, plan, deadline):
        super().copy(plan, deadline + 3600.0)
        return Outcome.untouched_by(FailureCause.DEADLINE, plan.chunks)


class DescribesInOrderOfAddress(ReferenceDriver):
    def describe(self, ranges):
        return super().describe(sorted(ranges))


class DescribeRaises(ReferenceDriver):
    def describe(self, ranges):
        if any(base + nbytes > 2**64 for base, nbytes in ranges):
            raise OverflowError("runs past 2**64")
        return super().describe(ranges)


class DescribesTheFirstByteOnly(ReferenceDriver):
    def describe(self, ranges):
        return super().describe([(base, 1) for base, _ in ranges])


class FreesByAddress(ReferenceDriver):
    def free(self, allocation):
        live = self._live.get(allocation.address)
        if live is None:
            raise CacheValueError("not live")
        token = live[0]
        del live
        super().free(dataclasses.replace(allocation, token=token))


class IgnoresAlignment(ReferenceDriver):
    def allocate(self, nbytes, placement, alignment=0):
        return super().allocate(nbytes, placement, alignment and 1)


class HandsOutTooLittle(ReferenceDriver):
    """Gives the second half of the last allocation away again."""

    last = None

    def allocate(self, nbytes, placement, alignment=0):
        if self.last is not None and self.last.nbytes > 2 * nbytes and not alignment:
            return Allocation(self.last.address + 4096, nbytes, placement)
        self.last = super().allocate(nbytes, placement, alignment)
        return self.last

    def free(self, allocation):
        if allocation.token is not None:
            super().free(allocation)


class KeepsMemoryOpen(ReferenceDriver):
    def close(self):
        pass


class RemembersWhatItRefused(ReferenceDriver):
    def __init__(self):
        super().__init__()
        self.seen = set()

    def check_registration(self, request, infos):
        if request in self.seen:
            return
        self.seen.add(request)
        super().check_registration(request, infos)


class ChangesWhatItIsGiven(ReferenceDriver):
    def check_registration(self, request, infos):
        super().check_registration(request, infos)
        infos.append(infos[0])


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (CopiesAllButTheLastRun, "test_copy_moves_the_plan_and_nothing_else"),
        (CopiesOneByteTooMany, "test_copy_moves_the_plan_and_nothing_else"),
        (CopiesTheFirst32MiB, "test_copy_of_a_large_range_is_complete"),
        (CopySwallowsErrors, "test_copy_over_a_missing_page_is_an_outcome"),
        (CopyClaimsThatNothingLanded, "test_copy_over_a_missing_page_is_an_outcome"),
        (CopyIgnoresItsDeadline, "test_copy_past_its_deadline_touches_nothing"),
        (DescribesInOrderOfAddress, "test_describe_answers_in_order"),
        (DescribeRaises, "test_describe_never_raises_and_gives_a_reason"),
        (DescribesTheFirstByteOnly, "test_describe_never_raises_and_gives_a_reason"),
        (FreesByAddress, "test_a_second_free_is_refused"),
        (IgnoresAlignment, "test_allocations_are_aligned_and_apart"),
        (HandsOutTooLittle, "test_allocations_are_aligned_and_apart"),
        (KeepsMemoryOpen, "test_close_gives_everything_back"),
        (RemembersWhatItRefused, "test_check_registration_is_pure"),
        (ChangesWhatItIsGiven, "test_check_registration_is_pure"),
    ],
)
def test_driver_suite_finds(mutant, test):
    class Suite(TestReferenceDriver):
        def make_driver(self):
            return mutant()

    assert test in failures(Suite, test)
