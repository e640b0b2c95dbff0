"""Running a planned transfer: counting who uses what, judging the outcome, and quarantine for what may still write.

Everything happens in the caller's thread. A transfer that ended in DONE counts only if the peer's lease still holds
after the last byte: until then the peer keeps the memory, afterwards it may have given it to another request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from cachecore.driver import BackendDriver
from cachecore.errors import (
    CacheError,
    LinkLostError,
    TransferError,
    TransferTimeoutError,
)
from cachecore.outcome import BlockRange, FailureCause, Outcome, OutcomeState
from cachecore.planning import CopyPlan
from cachecore.quarantine import Quarantine
from cachecore.registry import LocalCache, Registry
from cachecore.sources import Source
from cachecore.stats import PullCounters

__all__ = ["Transfers"]


class Transfers:
    """Runs plans for one manager."""

    def __init__(self, driver: BackendDriver, registry: Registry) -> None:
        self._driver = driver
        self._registry = registry
        self.counters = PullCounters()
        self.quarantine = Quarantine()

    def pull(self, source: Source, target: LocalCache, plan: CopyPlan, first_tensor: int, deadline: float) -> None:
        """Move a plan from `source` into `target`.

        Args:
            source: Where from.
            target: The destination cache.
            plan: Its local side lies in `target`.
            first_tensor: Tensor index of the plan's first pair in `target`, for what an error reports.
            deadline: On `time.monotonic()`.

        Raises:
            CacheNotFoundError: Source or target is being unregistered; nothing moved.
            CacheBusyError: Destination blocks are quarantined; nothing moved.
            LinkLostError, TransferTimeoutError, TransferError: With what landed.
        """
        self._driver.bind_thread()
        self.quarantine.check(plan)
        source.begin()
        try:
            self._registry.begin(target)
        except BaseException:
            source.end(True)
            raise
        held = False  # whether the counts outlive this call, until the engine is quiescent
        started = time.monotonic()
        try:
            source.ready(deadline)
            outcome, poll = self._read(source, plan, deadline)
            if outcome.ticket is not None and not poll(outcome.ticket):
                held = True
                self._hold(source, target, plan, outcome, poll)
            if outcome.state is not OutcomeState.DONE:
                self._fail(source, plan, first_tensor, outcome)
            self._confirm(source, plan, first_tensor, deadline, outcome)
        except BaseException:
            self.counters.failure()
            raise
        finally:
            if not held:
                self._registry.end(target)
                source.end(True)
        self.counters.success(plan.blocks, plan.nbytes, plan.chunks, time.monotonic() - started)

    def _read(self, source: Source, plan: CopyPlan, deadline: float) -> tuple[Outcome, Callable[[object], bool]]:
        try:
            return source.read(plan, deadline)
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

    def _hold(
        self,
        source: Source,
        target: LocalCache,
        plan: CopyPlan,
        outcome: Outcome,
        poll: Callable[[object], bool],
    ) -> None:
        source.end(False)

        def release() -> None:
            self._registry.end(target)
            source.settled()

        self.quarantine.add(plan, outcome, poll, release)

    def _confirm(self, source: Source, plan: CopyPlan, first_tensor: int, deadline: float, outcome: Outcome) -> None:
        try:
            source.ready(deadline)
        except LinkLostError as error:
            error.outcome = outcome
            error.unknown = _blocks(plan, first_tensor, outcome.landed)
            raise

    def _fail(self, source: Source, plan: CopyPlan, first_tensor: int, outcome: Outcome) -> NoReturn:
        state = source.state_after(outcome)
        landed = _blocks(plan, first_tensor, outcome.landed)
        unknown = _blocks(plan, first_tensor, outcome.unknown)
        error: CacheError
        text = (
            f"the pull from {source} did not finish: {outcome.cause.value}"
            f"{': ' + outcome.message if outcome.message else ''} "
            f"(code {outcome.code}; of {plan.chunks} pieces {_count(outcome.landed)} landed, "
            f"{_count(outcome.untouched)} are untouched, {_count(outcome.unknown)} unknown)"
        )
        if outcome.ticket is not None:
            text += "; the unknown blocks are quarantined until the engine has stopped"
        if outcome.cause is FailureCause.DEADLINE:
            error = TransferTimeoutError(
                f"{text}. Give a longer timeout or fewer blocks", outcome=outcome, landed=landed, unknown=unknown
            )
        elif outcome.cause is FailureCause.PEER_GONE or state == "LOST":
            error = LinkLostError(
                f"{text}. link() again when the peer is back",
                state="LOST",
                outcome=outcome,
                landed=landed,
                unknown=unknown,
            )
        else:
            error = TransferError(text, outcome=outcome, landed=landed, unknown=unknown)
        cause = outcome.ticket if isinstance(outcome.ticket, Exception) else None
        raise error from cause


def _count(ranges: Sequence[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in ranges)


def _blocks(plan: CopyPlan, first_tensor: int, ranges: Sequence[tuple[int, int]]) -> tuple[BlockRange, ...]:
    return tuple(
        BlockRange(first_tensor + tensor, start, count) for tensor, start, count in plan.block_ranges(list(ranges))
    )
