"""What is known after a transfer: which parts landed, which were never touched, which nobody can tell."""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields
from typing import NamedTuple

__all__ = ["BlockRange", "FailureCause", "Outcome", "OutcomeState"]

Ranges = tuple[tuple[int, int], ...]


class OutcomeState(enum.Enum):
    """How a transfer ended.

    DONE: every byte landed. FAILED: it ended early and nothing writes any more. UNKNOWN: it may still be writing;
    the ticket tells when that is over.
    """

    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"


class FailureCause(enum.Enum):
    """Why a transfer did not end in DONE."""

    NONE = "none"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    PEER_GONE = "peer gone"
    LOCAL_FAULT = "local memory fault"
    REMOTE_FAULT = "remote memory fault"
    NOT_PERMITTED = "not permitted"
    NATIVE = "native error"


class BlockRange(NamedTuple):
    """`count` neighbouring blocks of one tensor, from block `start` on."""

    tensor_index: int
    start: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here


@dataclass(frozen=True)
class Outcome:
    """The result of one `TransferEngine.transfer` or `BackendDriver.copy`.

    Ranges are half-open intervals over the chunks of the plan (see `CopyPlan`): chunk `pair * runs + run`. The three
    lists are disjoint and together cover every chunk. A chunk of which only a part landed counts as unknown.

    Attributes:
        state: How it ended.
        landed: Chunks whose every byte was written.
        untouched: Chunks of which no byte was written.
        unknown: Chunks that may hold old, new or mixed bytes.
        cause: Why it is not DONE.
        code: The native error code (an errno for system calls), 0 when there is none.
        message: One sentence for people, empty for DONE.
        ticket: Given to `quiescent()` to learn when writing has ended; None when it has ended already, and in a copy that was
            pickled.
    """

    state: OutcomeState
    landed: Ranges = ()
    untouched: Ranges = ()
    unknown: Ranges = ()
    cause: FailureCause = FailureCause.NONE
    code: int = 0
    message: str = ""
    ticket: object | None = None

    def __reduce__(self) -> tuple[object, ...]:
        # A ticket is the engine's own and says nothing elsewhere; errors, which have an outcome, cross processes.
        return type(self), tuple(
            None if field.name == "ticket" else getattr(self, field.name) for field in fields(self)
        )

    @classmethod
    def done(cls, chunks: int) -> Outcome:
        """The outcome of a transfer that moved all `chunks` of its plan."""
        return cls(OutcomeState.DONE, landed=((0, chunks),) if chunks else ())

    @classmethod
    def untouched_by(cls, cause: FailureCause, chunks: int, *, code: int = 0, message: str = "") -> Outcome:
        """The outcome of a transfer that ended before its first byte."""
        return cls(OutcomeState.FAILED, untouched=((0, chunks),), cause=cause, code=code, message=message)
