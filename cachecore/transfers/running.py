"""Running planned transfers: counting who uses what, judging outcomes, and quarantine for what may still write.

Everything happens in the caller's thread. A transfer that ended in DONE counts only if the peer's lease still holds
after the last byte: until then the peer keeps the memory, afterwards it may have given it to another request.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence

from cachecore.driver import BackendDriver
from cachecore.engine import CancelToken, Operation
from cachecore.errors import (
    CacheError,
    CacheTimeoutError,
    LinkLostError,
    TransferCancelledError,
    TransferError,
    TransferTimeoutError,
)
from cachecore.outcome import BlockRange, FailureCause, Outcome, OutcomeState
from cachecore.planning import CopyPlan
from cachecore.registration.registry import Registry
from cachecore.stats import TransferCounters
from cachecore.tensors import check_unmoved
from cachecore.transfers.ends import Moved
from cachecore.transfers.failures import blocks_of, failure
from cachecore.transfers.quarantine import Quarantine, has_stopped
from cachecore.transfers.requests import Request, Step

__all__ = ["Run", "Transfers"]


class Transfers:
    """Runs transfers of one manager."""

    def __init__(self, driver: BackendDriver, registry: Registry) -> None:
        self.driver = driver
        self.registry = registry
        self.counters = TransferCounters()
        self.quarantine = Quarantine()
        self._ended = threading.Condition()
        self._numbers = itertools.count(1)
        #: Numbers of the transfers with each cluster that were called for and have not ended. Changed without a lock, by
        #: operations that no other thread can interrupt: this is on the path of every transfer.
        self._pending: dict[int, dict[int, None]] = {}
        self._waiting = 0

    def run(
        self,
        request: Request,
        *,
        steps: Sequence[Step] | None = None,
        cancel: CancelToken | None = None,
        after: object = None,
        before: Callable[[int], None] | None = None,
        landed: Callable[[Step], None] | None = None,
        number: int | None = None,
    ) -> None:
        """Run a request in the calling thread.

        Args:
            request: What moves.
            steps: The same in steps, which are moved one after the other; None = in one.
            cancel: Looked at between steps, and within a step by engines that can.
            after: Event or events that must have happened before the first byte moves.
            before: Called before each step with its position; may wait, and end the transfer by raising a CacheError,
                which the caller of this one gets as a TransferError with what landed.
            landed: Called after each step, when its bytes are where they belong and can be trusted.
            number: What `called` returned for it, where the caller counts; None = count here.

        Raises:
            CacheNotFoundError: A cache is being unregistered; nothing moved. Or the key was consumed or removed meanwhile.
            CacheBusyError: Source or destination is quarantined; nothing moved.
            LeaseExpiredError: The blocks are not kept any more; nothing moved.
            LinkLostError, TransferTimeoutError, TransferCancelledError, TransferError: With what landed.
        """
        end = request.end
        counted = self.called(end.cluster_id) if number is None else None
        try:
            run = Run(self, request, cancel)
            steps = (request.whole,) if steps is None else steps
            run.start(steps, after)
            try:
                try:
                    for position, step in enumerate(steps):
                        if before is not None:
                            run.wait(before, position, step)
                        run.move(step)
                        if landed is not None:
                            landed(step)
                finally:
                    run.finish()
                if request.consumes is not None:
                    end.consume(request.consumes, request.deadline)
            except BaseException:
                run.count(None)
                raise
            run.count(steps)
        finally:
            if counted is not None:
                self.ended(end.cluster_id, counted)

    # --- what is under way -----------------------------------------------------------------------------------------

    def called(self, cluster_id: int) -> int:
        """A transfer with this cluster was called for: its number, for `ended`."""
        pending = self._pending.get(cluster_id)
        if pending is None:
            pending = self._pending.setdefault(cluster_id, {})
        number = next(self._numbers)
        pending[number] = None
        return number

    def ended(self, cluster_id: int, number: int) -> None:
        """It has ended, whatever way."""
        self._pending[cluster_id].pop(number, None)
        if self._waiting:
            with self._ended:
                self._ended.notify_all()

    def barrier(self, cluster_id: int, deadline: float) -> None:
        """Wait until every transfer with a cluster that was called for before this call has ended.

        Raises:
            CacheTimeoutError: One has not at the deadline (on `time.monotonic()`).
        """
        pending = self._pending.get(cluster_id)
        if not pending:
            return
        with self._ended:
            self._waiting += 1  # from now on `ended` notifies
            before = set(pending)
            try:
                while True:
                    before.intersection_update(list(pending))
                    if not before:
                        return
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise CacheTimeoutError(
                            f"a transfer with cluster {cluster_id} that was started before has not ended before the "
                            "deadline; give a longer timeout, or cancel the transfer"
                        )
                    self._ended.wait(min(left, threading.TIMEOUT_MAX))
            finally:
                self._waiting -= 1


#: Seconds before the first byte from which on the link is taken to have been waited for: it does not say so.
_A_WAIT = 0.001


class Run:
    """One transfer on its way: what it counts, and what has landed. Used by one thread."""

    __slots__ = (
        "_began",
        "_cancel",
        "_deadline",
        "_done",
        "_end",
        "_held",
        "_lease_id",
        "_op",
        "_own",
        "_release",
        "_transfers",
    )

    def __init__(self, transfers: Transfers, request: Request, cancel: CancelToken | None) -> None:
        self._transfers = transfers
        self._end = request.end
        self._own = request.own
        self._op = request.op
        self._deadline = request.deadline
        self._lease_id = request.lease_id
        self._release: Callable[[], None] | None = None
        self._cancel = cancel
        self._done: list[Step] = []
        self._held = False  # whether the counts outlive this run, until the engine is quiescent
        self._began = 0.0

    def start(self, steps: Sequence[Step], after: object = None) -> None:
        """Count the transfer as running and wait for what must be true before the first byte.

        `finish` and `count` must follow a success.
        """
        transfers, end = self._transfers, self._end
        transfers.driver.bind_thread()
        for step in steps:
            transfers.quarantine.check(step.plan, end.space)
        end.begin()
        try:
            transfers.registry.begin(self._own)
        except BaseException:
            end.end(True)
            raise
        self._began = time.monotonic()
        try:
            if self._lease_id is not None:
                self._release = end.claim(self._lease_id, self._deadline)
            if after is not None:
                self._wait_after(after)
            end.prepare(self._op, self._deadline)
            if after is not None or self._release is not None or time.monotonic() - self._began > _A_WAIT:
                self._look_again(steps)
        except BaseException:
            self.finish()
            self.count(None)
            raise

    def _look_again(self, steps: Sequence[Step]) -> None:
        """What was true before a wait must be true after it: tensors where they were, nothing quarantined."""
        check_unmoved(self._own.tensors)
        for step in steps:
            self._transfers.quarantine.check(step.plan, self._end.space)

    def wait(self, before: Callable[[int], None], position: int, step: Step) -> None:
        """Wait until a step may be moved. What ends the transfer here says what earlier steps have moved."""
        try:
            before(position)
            self._look_again((step,))
        except CacheError as error:
            kind = TransferError
            if isinstance(error, CacheTimeoutError):
                kind = TransferTimeoutError
            elif isinstance(error, TransferCancelledError):
                kind = TransferCancelledError
            text = f"{self} did not finish: {error} ({position} of its layers had landed)"
            raise kind(text, landed=self._landed(), status_code=error.status_code) from error.__cause__ or error

    def move(self, step: Step) -> None:
        """Move one step; returns when its bytes are where they belong and can be trusted."""
        end, plan = self._end, step.plan
        if self._cancel is not None and self._cancel.cancelled:
            outcome = Outcome.untouched_by(FailureCause.CANCELLED, plan.chunks)
        else:
            outcome, poll = self._move(plan)
            if outcome.ticket is not None and not has_stopped(poll, outcome.ticket):
                self._hold(plan, outcome, poll)
        if outcome.state is not OutcomeState.DONE:
            error = failure(str(self), plan, step.tensor_indexes, outcome, end.state_after(outcome), self._landed())
            raise error from (outcome.ticket if isinstance(outcome.ticket, Exception) else None)
        try:
            end.confirm(self._op, self._deadline)
        except LinkLostError as error:
            error.outcome = outcome
            error.landed = self._landed()
            error.unknown = blocks_of(plan, step.tensor_indexes, outcome.landed)
            raise
        self._done.append(step)

    def finish(self) -> None:
        """It does not run any more, unless something may still be moving."""
        if not self._held:
            self._transfers.registry.end(self._own)
            self._end.end(True)
            if self._release is not None:
                self._release()

    def count(self, done: Sequence[Step] | None) -> None:
        """Add it to the counters: the steps of a success, None for a failure."""
        push = self._op is Operation.WRITE
        if done is not None:
            self._transfers.counters.success(push, done, time.monotonic() - self._began)
        else:
            self._transfers.counters.failure(push)

    def _landed(self) -> tuple[BlockRange, ...]:
        return tuple(
            found
            for step in self._done
            for found in blocks_of(step.plan, step.tensor_indexes, ((0, step.plan.chunks),))
        )

    def __str__(self) -> str:
        return f"the pull from {self._end}" if self._op is Operation.READ else f"the push to {self._end}"

    def _wait_after(self, after: object) -> None:
        events = after if isinstance(after, list | tuple) else (after,)
        for event in events:
            try:
                self._transfers.driver.wait_event(event, self._deadline, self._cancel)
            except CacheTimeoutError as error:
                if self._cancel is not None and self._cancel.cancelled:
                    raise TransferCancelledError(f"{self} was cancelled while it waited for an event") from error
                raise TransferTimeoutError(
                    f"{self} did not start: {error}. Nothing moved; give a longer timeout"
                ) from error

    def _move(self, plan: CopyPlan) -> Moved:
        try:
            return self._end.move(plan, self._op, self._deadline, self._cancel)
        except Exception as error:  # noqa: BLE001
            # An engine reports failures as outcomes. One that raises is broken: nobody knows what it still writes.
            message = f"the engine raised {type(error).__name__}: {error}"
            outcome = Outcome(
                OutcomeState.UNKNOWN,
                unknown=((0, plan.chunks),),
                cause=FailureCause.NATIVE,
                message=message,
                ticket=error,
            )
            return outcome, lambda ticket: False

    def _hold(self, plan: CopyPlan, outcome: Outcome, poll: Callable[[object], bool]) -> None:
        self._held = True
        end, own, registry, unclaim = self._end, self._own, self._transfers.registry, self._release
        end.end(False)

        def release() -> None:
            registry.end(own)
            end.settled()
            if unclaim is not None:
                unclaim()

        self._transfers.quarantine.add(plan, outcome, end.space, poll, release, local=self._op is Operation.READ)
