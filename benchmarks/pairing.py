"""Paired repetitions: everything that is compared runs in turn, so that a slow moment of the machine hits all of it."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["ForeignLoad", "measure", "ratio", "summary"]

_WARM_UP = 2


def measure(
    candidates: Mapping[str, Callable[[], float]], repetitions: int, prepare: Callable[[], None]
) -> dict[str, list[float]]:
    """Run all candidates in each repetition, forwards and backwards in turn.

    Args:
        candidates: Name -> a function that does the work and returns its time in seconds.
        repetitions: How many count; two more go before them.
        prepare: Called before each repetition, outside of the clock.

    Returns:
        Name -> seconds of each repetition; equal positions belong to one repetition.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    order = list(candidates)
    for repetition in range(_WARM_UP + repetitions):
        prepare()
        for name in order:
            seconds = candidates[name]()
            if repetition >= _WARM_UP:
                times[name].append(seconds)
        order.reverse()
    return times


def ratio(over: Sequence[float], under: Sequence[float]) -> dict[str, float]:
    """Median and quartiles of the ratios `over[i] / under[i]`."""
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    if len(ratios) < 2:
        return {"median": ratios[0], "lower_quartile": ratios[0], "upper_quartile": ratios[0]}
    lower, median, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    return {"median": round(median, 3), "lower_quartile": round(lower, 3), "upper_quartile": round(upper, 3)}


def summary(times: Sequence[float]) -> dict[str, float]:
    """Median, smallest and 99th percentile in microseconds."""
    ordered = sorted(times)
    return {
        "median_us": round(statistics.median(ordered) * 1e6, 2),
        "min_us": round(ordered[0] * 1e6, 2),
        "p99_us": round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] * 1e6, 2),
    }


class ForeignLoad:
    """Cores that processes other than ours have used since this object was made.

    Args:
        pids: Our other processes.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = (os.getpid(), *pids)
        self._started = time.monotonic()
        self._busy = self._foreign()

    def cores(self) -> float:
        """How many, on average; includes time that a hypervisor took away."""
        elapsed = time.monotonic() - self._started
        return round(max(0.0, self._foreign() - self._busy) / elapsed, 2) if elapsed else 0.0

    def _foreign(self) -> float:
        ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        # user nice system idle iowait irq softirq steal
        everything = sum(ticks) - ticks[3] - ticks[4]
        return (everything - sum(map(_own_ticks, self._pids))) / os.sysconf("SC_CLK_TCK")


def _own_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
