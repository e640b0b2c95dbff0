"""Reading and writing process memory in plain Python, with system calls that report a bad address."""

from __future__ import annotations

import ctypes
import errno
import struct
import time
from collections.abc import Iterator, Sequence

from cachecore.engine import CancelToken, Operation
from cachecore.outcome import FailureCause, Outcome, OutcomeState
from cachecore.planning import CopyPlan

_libc = ctypes.CDLL(None, use_errno=True)


class _Span(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


def move_bytes(pid: int, local: int, remote: int, nbytes: int, op: Operation) -> int:
    """Move bytes between this process and another; returns those moved, or minus an errno."""
    call = _libc.process_vm_readv if op is Operation.READ else _libc.process_vm_writev
    here, there = _Span(local, nbytes), _Span(remote, nbytes)
    moved = call(pid, ctypes.byref(here), ctypes.c_ulong(1), ctypes.byref(there), ctypes.c_ulong(1), ctypes.c_ulong(0))
    return -ctypes.get_errno() if moved < 0 else int(moved)


def chunks_of(plan: CopyPlan) -> Iterator[tuple[int, int, int]]:
    yield from struct.iter_unpack("QQQ", plan.flat(0, plan.chunks))


def mapped() -> list[tuple[int, int]]:
    """(start, end) of everything readable and writable, neighbours joined."""
    found: list[tuple[int, int]] = []
    with open("/proc/self/maps", encoding="ascii", errors="replace") as lines:
        for line in lines:
            span, mode, _ = line.split(" ", 2)
            start, end = (int(part, 16) for part in span.split("-"))
            if not mode.startswith("rw"):
                continue
            if found and found[-1][1] == start:
                found[-1] = found[-1][0], end
            else:
                found.append((start, end))
    return found


def covered(maps: Sequence[tuple[int, int]], base: int, nbytes: int) -> bool:
    return any(start <= base and base + nbytes <= end for start, end in maps)


def run_plan(plan: CopyPlan, pid: int, op: Operation, deadline: float, cancel: CancelToken | None) -> Outcome:
    """Move the chunks of a plan one by one."""
    for index, (local, remote, nbytes) in enumerate(chunks_of(plan)):
        cause, code, moved = FailureCause.NONE, 0, 0
        if cancel is not None and cancel.cancelled:
            cause = FailureCause.CANCELLED
        elif time.monotonic() >= deadline:
            cause = FailureCause.DEADLINE
        else:
            while moved < nbytes and code == 0:
                part = move_bytes(pid, local + moved, remote + moved, nbytes - moved, op)
                moved, code = (moved, -part) if part <= 0 else (moved + part, code)
            if moved < nbytes:
                cause = _cause(code, local, nbytes)
        if cause is not FailureCause.NONE:
            started = index + (moved > 0)
            return Outcome(
                OutcomeState.FAILED,
                landed=((0, index),) if index else (),
                unknown=((index, started),) if moved else (),
                untouched=((started, plan.chunks),) if started < plan.chunks else (),
                cause=cause,
                code=code,
                message=f"chunk {index} ({local:#x} <-> {remote:#x}, {nbytes} bytes): {cause.value}",
            )
    return Outcome.done(plan.chunks)


def _cause(code: int, local: int, nbytes: int) -> FailureCause:
    if code == errno.ESRCH:
        return FailureCause.PEER_GONE
    if code == errno.EPERM:
        return FailureCause.NOT_PERMITTED
    if code == errno.EFAULT:
        return FailureCause.REMOTE_FAULT if covered(mapped(), local, nbytes) else FailureCause.LOCAL_FAULT
    return FailureCause.NATIVE
