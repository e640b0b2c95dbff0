"""From what native code reports about a copy to an `Outcome`, and what else surrounds a copy."""

from __future__ import annotations

import operator
from typing import Final

from cachecore import _core
from cachecore.errors import CacheTypeError
from cachecore.host.results import outcome_of as host_outcome
from cachecore.outcome import FailureCause, Outcome, OutcomeState
from cachecore.planning import CopyPlan
from cachecore_ascend_runtime import _runtime
from cachecore_ascend_runtime.errors import AscendError, describe_failure

__all__ = ["copy_on_host", "event_handles", "outcome_of"]

#: The remote side of a copy is its source.
_CAUSES: Final = {
    "deadline": FailureCause.DEADLINE,
    "source fault": FailureCause.REMOTE_FAULT,
    "destination fault": FailureCause.LOCAL_FAULT,
    "native": FailureCause.NATIVE,
}


def copy_on_host(plan: CopyPlan, deadline: float) -> Outcome:
    """Copy between ordinary memory of the process: the core's way, on two threads, with exact results."""
    return host_outcome(
        _core.vm_copy(plan, deadline),
        plan,
        "the copy within this process",
        advice="a seccomp filter forbids process_vm_readv; allow it",
    )


def outcome_of(report: _runtime.CopyReport | AscendError, plan: CopyPlan) -> Outcome:
    """The outcome of a copy, or of one that ended with an error before it began."""
    if isinstance(report, AscendError):
        return Outcome.untouched_by(FailureCause.NATIVE, plan.chunks, code=report.code, message=str(report))
    if report.cause == "none":
        return Outcome.done(plan.chunks)
    if report.function:
        message = describe_failure(report.function, report.code, report.detail)
    else:
        message = "the deadline passed before the next piece was started"
    # A stream that only waits for an event touches no memory: see `Device.copy`.
    running = report.unsettled if report.unknown else None
    if running is not None:
        message += ". What was started could not be proven to have ended"
    return Outcome(
        OutcomeState.FAILED if running is None else OutcomeState.UNKNOWN,
        landed=report.landed,
        untouched=report.untouched,
        unknown=report.unknown,
        cause=_CAUSES[report.cause],
        code=report.code,
        message=message,
        ticket=running,
    )


def event_handles(after: object) -> list[int]:
    """Handles of the events that a copy comes after.

    Args:
        after: None, an event, or a list or tuple of events. An event is a `torch.npu.Event` (any object with an
            attribute `npu_event`) that was recorded, or the handle of an aclrtEvent as an integer.

    Raises:
        CacheTypeError: Something is neither, or a torch event that was never recorded.
    """
    if after is None:
        return []
    events = after if isinstance(after, list | tuple) else [after]
    return [_handle(event) for event in events]


def _handle(event: object) -> int:
    handle = getattr(event, "npu_event", event)
    try:
        value = None if isinstance(handle, bool) else operator.index(handle)  # type: ignore[arg-type]  # the check
    except TypeError:
        value = None
    if value is None or not 0 < value < 2**64:
        raise CacheTypeError(
            f"after is {event!r:.80}; it must be a recorded torch.npu.Event, the handle of an aclrtEvent as an integer, or "
            "a list of them"
        )
    return value
