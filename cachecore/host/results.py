"""From what native code reports to an `Outcome`."""

from __future__ import annotations

import errno
import os

from cachecore._core import TransferReport
from cachecore.outcome import FailureCause, Outcome, OutcomeState
from cachecore.planning import CopyPlan

__all__ = ["outcome_of"]

_CAUSES = {
    "deadline": FailureCause.DEADLINE,
    "cancelled": FailureCause.CANCELLED,
    "wrong peer": FailureCause.PEER_GONE,
    "peer gone": FailureCause.PEER_GONE,
    "local fault": FailureCause.LOCAL_FAULT,
    "remote fault": FailureCause.REMOTE_FAULT,
    "not permitted": FailureCause.NOT_PERMITTED,
}
_SWAPPED = {FailureCause.LOCAL_FAULT: FailureCause.REMOTE_FAULT, FailureCause.REMOTE_FAULT: FailureCause.LOCAL_FAULT}


def outcome_of(
    report: TransferReport, plan: CopyPlan, what: str, *, swapped: bool = False, advice: str = ""
) -> Outcome:
    """The outcome of one native call, after which nothing of it runs any more.

    Args:
        report: What the call returned.
        plan: The plan it was given.
        what: What was tried, for the message: "reading from process 5".
        swapped: Whether the call was given the plan with its sides exchanged.
        advice: Added to the message when the kernel refused.
    """
    if report.done:
        return Outcome.done(plan.chunks)
    cause = _CAUSES.get(report.cause, FailureCause.NATIVE)
    if swapped:
        cause = _SWAPPED.get(cause, cause)
    return Outcome(
        OutcomeState.FAILED,
        landed=report.landed,
        untouched=report.untouched,
        unknown=report.unknown,
        cause=cause,
        code=report.code,
        message=_sentence(report, cause, what, advice),
    )


def _sentence(report: TransferReport, cause: FailureCause, what: str, advice: str) -> str:
    moved = f"{what} ended after {report.nbytes} bytes"
    if cause is FailureCause.LOCAL_FAULT or cause is FailureCause.REMOTE_FAULT:
        side = "this side" if cause is FailureCause.LOCAL_FAULT else "the other side"
        return f"{moved}: memory at {report.fault_address:#x} on {side} is not mapped, or not accessible"
    if report.cause == "wrong peer":
        return f"{moved}: the process is not the one that was linked, or it has closed its engine"
    if cause is FailureCause.PEER_GONE:
        return f"{moved}: the process has ended"
    if report.code:
        name = errno.errorcode.get(report.code, str(report.code))
        return f"{moved}: {os.strerror(report.code)} ({name}){'. ' if advice else ''}{advice}"
    return f"{moved}: {cause.value}"
