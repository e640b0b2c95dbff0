"""One transfer through the vendor's engine: batches of chunks, one after the other, waited for by polling.

The asynchronous call is used and asked after, because the synchronous one can be neither cancelled nor trusted to
return at a deadline. Giving up means disconnecting, which ends every transfer of the link; so a batch that is under
way gets a moment to finish first, and a transfer whose link was cut by somebody else begins its batch again.

What is known after a failure is a prefix: batches before the failed one landed, nothing is known about that one, and
those after it were not started.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import Any, Final

from cachecore.engine import CancelToken, Operation
from cachecore.outcome import FailureCause, Outcome, OutcomeState
from cachecore.planning import CopyPlan
from cachecore_ascend_runtime.hixl_link import NativeLink, NoLinkError
from cachecore_ascend_runtime.hixl_native import FAILED, NOT_CONNECTED, TIMEOUT, Answer, NativeEngine

__all__ = ["BATCH_CHUNKS", "Running", "Ticket", "Transfer"]

#: Most chunks of a batch: a Python object each, so that the next batch is made while this one moves.
BATCH_CHUNKS: Final = 4096
#: Most bytes of a batch, by the average chunk: some milliseconds of a fast link.
_BATCH_BYTES: Final = 512 << 20
#: Seconds for a batch that is given up to finish by itself, which spares the link.
_GRACE: Final = 0.05
#: Seconds within which a peer whose link failed must answer again, or it counts as gone.
_PROBE_SECONDS: Final = 1.0
_FIRST_PAUSE: Final = 20e-6
_LONGEST_PAUSE: Final = 1e-3
#: Times that a batch is started anew because the native engine says that there is no link.
_MOST_RELINKS: Final = 2


@dataclass(frozen=True)
class Ticket:
    """A transfer that may still be writing, until its link has been cut.

    Attributes:
        link: The link.
        generation: Its generation.
    """

    link: NativeLink
    generation: int

    def quiescent(self) -> bool:
        """Whether it has stopped; tries once more to cut the link."""
        return self.link.is_over(self.generation) or self.link.reset(self.generation, 0.0)


@dataclass
class Running:
    """What others may say to a transfer under way.

    Attributes:
        plan: What it moves.
        closing: Whether its engine is being closed and waits for it.
    """

    plan: CopyPlan
    closing: bool = False


class _Failure(Exception):
    """A batch did not land. `cause` None: it is not this transfer's fault, begin the batch again."""

    def __init__(self, cause: FailureCause | None, answer: Answer, *, started: bool = True) -> None:
        super().__init__(str(answer))
        self.cause, self.answer, self.started = cause, answer, started


class Transfer:
    """One plan on its way.

    Args:
        native: The engine.
        link: The link to the peer.
        running: Seen by those who close the engine.
        op: Direction.
        deadline: On `time.monotonic()`.
        cancel: Looked at between polls.
    """

    def __init__(
        self,
        native: NativeEngine,
        link: NativeLink,
        running: Running,
        op: Operation,
        deadline: float,
        cancel: CancelToken | None,
    ) -> None:
        self._native, self._link, self._op = native, link, op
        self._running, self._plan = running, running.plan
        self._deadline, self._cancel = deadline, cancel
        chunks = max(1, running.plan.chunks)
        average = max(1, running.plan.nbytes // chunks)
        self._batch = max(1, min(BATCH_CHUNKS, _BATCH_BYTES // average))
        self._landed = 0
        #: End of the chunks that were started; up to here nothing is known about those that did not land.
        self._started = 0

    def run(self) -> Outcome:
        """Move everything. Blocking."""
        relinks = 0
        while True:
            cause = self._stopped()
            if cause is not None:
                return self._failed(cause, f"stopped: {cause.value}")
            try:
                generation = self._link.acquire(self._deadline, self._cancelled)
            except NoLinkError as error:
                return self._failed(error.cause, str(error), error.status)
            try:
                self._move(generation)
                return Outcome.done(self._plan.chunks)
            except _Failure as failure:
                if failure.cause is None and failure.answer.status == NOT_CONNECTED and not failure.started:
                    relinks += 1
                    self._link.lost(generation)
                    if relinks > _MOST_RELINKS:
                        return self._failed(FailureCause.PEER_GONE, str(failure.answer), NOT_CONNECTED)
                    continue
                if failure.cause is None:
                    continue
                over = not failure.started or self._link.reset(generation)
                found = failure
            except BaseException:
                # An interrupt in the thread that polls: nobody would ever ask whether the batch under way has stopped.
                self._link.reset(generation)
                raise
            finally:
                self._link.release()
            return self._judge(found, Ticket(self._link, generation), over)

    def _judge(self, failure: _Failure, ticket: Ticket, over: bool) -> Outcome:
        """The outcome of a failure of this transfer itself. A native failure may mean that the peer is gone."""
        assert failure.cause is not None
        cause, text = failure.cause, str(failure.answer)
        if cause is FailureCause.NATIVE and over:
            end = time.monotonic() + _PROBE_SECONDS
            try:
                self._link.acquire(min(self._deadline, end))
                self._link.release()
            except NoLinkError as error:
                text = f"{text}; afterwards {error}"
                if error.status:  # and not: somebody holds the link down
                    cut_short = error.cause is FailureCause.DEADLINE and self._deadline < end
                    cause = FailureCause.DEADLINE if cut_short else FailureCause.PEER_GONE
        return self._failed(cause, text, failure.answer.status, None if over else ticket)

    # --- batches ----------------------------------------------------------------------------------------------------

    def _move(self, generation: int) -> None:
        """Batch after batch, from the first chunk that has not landed.

        Raises:
            _Failure: One did not land.
        """
        elements = self._elements(self._landed)
        while elements:
            cause = self._stopped()
            if cause is not None:
                raise _Failure(cause, Answer(0, detail=f"stopped between batches: {cause.value}"), started=False)
            stop = self._landed + len(elements)
            answer = self._native.submit(self._link.remote, self._op, elements)
            if not answer.ok:
                if answer.status == NOT_CONNECTED:
                    raise _Failure(None, answer, started=False)
                self._started = max(self._started, stop)
                raise _Failure(self._whose(generation), answer)
            self._started = max(self._started, stop)
            elements = self._elements(stop)  # while the batch moves
            self._wait(int(answer.value), generation)
            self._landed = stop

    def _elements(self, start: int) -> list[Any]:
        """What the vendor's call takes for the batch that begins at chunk `start`; empty behind the last one."""
        make, count = self._native.element, min(self._batch, self._plan.chunks - start)
        if count <= 0:
            return []
        return [make(*chunk) for chunk in struct.iter_unpack("QQQ", self._plan.flat(start, count))]

    def _wait(self, request: int, generation: int) -> None:
        native, pause = self._native, 0.0
        cause: FailureCause | None = None
        give_up = 0.0
        while True:
            answer = native.poll(request)
            if answer.ok and answer.value == native.completed:
                return
            if not answer.ok:
                raise _Failure(self._whose(generation), answer)
            if answer.value != native.waiting:
                status = TIMEOUT if answer.value == native.timed_out else FAILED
                raise _Failure(self._whose(generation), Answer(status))
            if cause is None:
                cause = self._stopped()
                give_up = time.monotonic() + _GRACE
            elif time.monotonic() >= give_up:
                raise _Failure(cause, Answer(0, detail=f"given up while a batch moved: {cause.value}"))
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE) or _FIRST_PAUSE

    def _whose(self, generation: int) -> FailureCause | None:
        """NATIVE for a failure of this transfer; None where somebody else cut the link under it."""
        return FailureCause.NATIVE if self._link.blame(generation) else None

    # --- ends -------------------------------------------------------------------------------------------------------

    def _cancelled(self) -> bool:
        return self._running.closing or (self._cancel is not None and self._cancel.cancelled)

    def _stopped(self) -> FailureCause | None:
        if self._cancelled():
            return FailureCause.CANCELLED
        return FailureCause.DEADLINE if time.monotonic() >= self._deadline else None

    def _failed(self, cause: FailureCause, text: str, status: int = 0, ticket: Ticket | None = None) -> Outcome:
        landed, started, chunks = self._landed, max(self._landed, self._started), self._plan.chunks
        verb = "reading from" if self._op is Operation.READ else "writing to"
        return Outcome(
            OutcomeState.FAILED if ticket is None else OutcomeState.UNKNOWN,
            landed=((0, landed),) if landed else (),
            unknown=((landed, started),) if landed < started else (),
            untouched=((started, chunks),) if started < chunks else (),
            cause=cause,
            code=status,
            message=f"{verb} {self._link.remote} by HIXL ended after {landed} of {chunks} chunks: {text}",
            ticket=ticket,
        )
