"""One transfer of the local engine: through the mapping where there is one, else by system calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cachecore import _core
from cachecore.engine import CancelToken, Operation
from cachecore.host.driver import HostDriver
from cachecore.host.link import Link, View
from cachecore.host.permissions import advice
from cachecore.host.results import outcome_of
from cachecore.outcome import FailureCause, Outcome, OutcomeState
from cachecore.planning import CopyPlan

__all__ = ["move"]

_SELF_ADVICE: Final = "A seccomp filter forbids process_vm_readv; allow it, or use memory that cachecore allocated"


def move(
    link: Link,
    view: View,
    host: HostDriver | None,
    plan: CopyPlan,
    op: Operation,
    deadline: float,
    cancel: CancelToken | None,
    threads: int,
) -> Outcome:
    """Move a plan. When it returns, nothing of it runs any more.

    Args:
        link: The peer.
        view: What may be used of it.
        host: Whose allocations need no check by the kernel.
        plan: What to move.
        op: Direction.
        deadline: On `time.monotonic()`.
        cancel: Polled between batches.
        threads: At most.
    """
    pid = link.process.pid
    flag = None if cancel is None else cancel.flag
    write = op is Operation.WRITE
    what = f"{'writing to' if write else 'reading from'} process {pid}"
    mapped = _core.map_plan(plan, view.mapped, write) if view.mapped else None
    problems: list[str] = []
    if mapped is None and view.shared:
        view, problems = link.view_again(plan, deadline, lambda: cancel is not None and cancel.cancelled)
        mapped = _core.map_plan(plan, view.mapped, write) if view.mapped else None
    if mapped is not None:
        if link.process.alive is False:  # its memory would still be there
            return Outcome.untouched_by(FailureCause.PEER_GONE, plan.chunks, message=f"process {pid} has ended")
        # The caller's own addresses are his word only: without the kernel's checks nothing but our own memory.
        owned = host is not None and host.owns(plan, local=True)
        copy = _core.memcpy_plan if owned else _core.vm_copy
        report = copy(mapped, deadline, flag, threads=threads)
        return outcome_of(report, plan, what, swapped=write, advice=_SELF_ADVICE)
    if not _core.plan_within(plan, view.regions, False):
        return Outcome.untouched_by(
            FailureCause.REMOTE_FAULT,
            plan.chunks,
            message=f"{what} was refused: the plan leaves the regions that the peer registered",
        )
    call = _core.vm_write if write else _core.vm_read
    endpoint = link.endpoint
    report = call(plan, pid, endpoint.nonce_address, endpoint.nonce, deadline, flag, threads=threads)
    outcome = outcome_of(report, plan, what, advice=advice(pid) if report.cause == "not permitted" else "")
    if problems and outcome.state is not OutcomeState.DONE:
        return replace(outcome, message=f"{outcome.message}. Shared memory: {'; '.join(problems)}")
    return outcome
