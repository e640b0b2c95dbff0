"""Checks of what an `Outcome` claims."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from cachecore.outcome import Outcome, OutcomeState
from cachecore.planning import CopyPlan

__all__ = ["check_coverage", "chunk_list", "chunk_states", "settled"]


def check_coverage(outcome: Outcome, chunks: int) -> None:
    """Demand that landed, untouched and unknown are disjoint and cover all `chunks`, and fit the state."""
    parts = sorted(outcome.landed + outcome.untouched + outcome.unknown)
    end = 0
    for start, stop in parts:
        assert start == end and stop > start, f"the ranges {parts} leave gaps, overlap or are empty"
        end = stop
    assert end == chunks, f"the ranges {parts} end at {end}; the plan has {chunks} chunks"
    if outcome.state is OutcomeState.DONE:
        assert not outcome.untouched and not outcome.unknown, f"DONE with {outcome}"


def chunk_states(outcome: Outcome, chunks: int) -> list[str]:
    """For each chunk "landed", "untouched" or "unknown"."""
    states = [""] * chunks
    for name in ("landed", "untouched", "unknown"):
        for start, stop in getattr(outcome, name):
            states[start:stop] = [name] * (stop - start)
    return states


def chunk_list(plan: CopyPlan, outcome: Outcome) -> Iterator[tuple[str, int, tuple[int, int, int]]]:
    """For each chunk its state, its number and (local, remote, bytes)."""
    flat = struct.iter_unpack("QQQ", plan.flat(0, plan.chunks))
    for index, (state, chunk) in enumerate(zip(chunk_states(outcome, plan.chunks), flat, strict=True)):
        yield state, index, (chunk[0], chunk[1], chunk[2])


def settled(quiescent: Callable[[object], bool], outcome: Outcome, timeout: float = 60.0) -> Outcome:
    """Wait until nothing writes any more; returns the outcome as it counts from then on (UNKNOWN becomes FAILED)."""
    if outcome.state is not OutcomeState.UNKNOWN:
        return outcome
    end = time.monotonic() + timeout
    while not quiescent(outcome.ticket):
        assert time.monotonic() < end, f"not quiescent after {timeout} s: {outcome}"
        time.sleep(0.005)
    return replace(outcome, state=OutcomeState.FAILED)
