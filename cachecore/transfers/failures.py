"""From an engine's `Outcome` to the error a caller sees: what happened, and which blocks of the destination hold what."""

from __future__ import annotations

from collections.abc import Sequence

from cachecore.errors import LinkLostError, TransferCancelledError, TransferError, TransferTimeoutError
from cachecore.outcome import BlockRange, FailureCause, Outcome
from cachecore.planning import CopyPlan

__all__ = ["blocks_of", "failure"]


def failure(
    what: str,
    plan: CopyPlan,
    tensor_indexes: Sequence[int],
    outcome: Outcome,
    state: str,
    landed_before: Sequence[BlockRange] = (),
) -> TransferError:
    """The error for a transfer that did not end in DONE.

    Args:
        what: "the pull from cluster 3".
        plan: What was being moved.
        tensor_indexes: Index in the caller's cache of each tensor of the plan.
        outcome: How it ended.
        state: State of the link afterwards: "LINKED", "STALLED" or "LOST".
        landed_before: What earlier plans of the same transfer had moved.
    """
    landed = (*landed_before, *blocks_of(plan, tensor_indexes, outcome.landed))
    unknown = blocks_of(plan, tensor_indexes, outcome.unknown)
    text = (
        f"{what} did not finish: {outcome.cause.value}"
        f"{': ' + outcome.message if outcome.message else ''} "
        f"(code {outcome.code}; of {plan.chunks} pieces {_count(outcome.landed)} landed, "
        f"{_count(outcome.untouched)} are untouched, {_count(outcome.unknown)} unknown)"
    )
    if outcome.ticket is not None:
        text += "; the unknown blocks are quarantined until the engine has stopped"
    if outcome.cause is FailureCause.CANCELLED:
        return TransferCancelledError(text, outcome=outcome, landed=landed, unknown=unknown)
    if outcome.cause is FailureCause.DEADLINE:
        return TransferTimeoutError(
            f"{text}. Give a longer timeout or fewer blocks", outcome=outcome, landed=landed, unknown=unknown
        )
    if outcome.cause is FailureCause.PEER_GONE or state == "LOST":
        return LinkLostError(
            f"{text}. link() again when the peer is back", outcome=outcome, landed=landed, unknown=unknown
        )
    return TransferError(text, outcome=outcome, landed=landed, unknown=unknown)


def blocks_of(
    plan: CopyPlan, tensor_indexes: Sequence[int], ranges: Sequence[tuple[int, int]]
) -> tuple[BlockRange, ...]:
    """The destination blocks of half-open ranges of chunks, with tensor indexes of the caller's cache."""
    return tuple(
        BlockRange(tensor_indexes[tensor], start, count) for tensor, start, count in plan.block_ranges(list(ranges))
    )


def _count(ranges: Sequence[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in ranges)
