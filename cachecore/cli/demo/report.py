"""What a replay did: totals, the table for people and the object for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from cachecore.cli.demo.messages import Mismatch, Prepared, Pulled, Stopped

__all__ = ["Totals", "percentile"]

_MISMATCHES_SHOWN = 5


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of all values do not exceed; 0.0 when there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass
class Totals:
    """Sums over a replay.

    A block here is one block of the whole cache: K and V of all layers. Transfers that had nothing to move are no
    pulls.

    Attributes:
        backend: Name of the driver.
        emulated: Whether an emulator stands in for silicon.
        engine: Name of the engine that moved the blocks.
        requests: Requests completed.
        split_requests: Requests that were cut because they are larger than a pool.
        blocks: Blocks moved.
        resident: Blocks that were asked for and needed no transfer.
        nbytes: Bytes moved.
        runs: Contiguous runs that the blocks were moved in.
        evictions: Contents evicted on the decode side.
        prefill_evictions: Contents evicted on the prefill side.
        mismatches: Blocks of single tensors that did not hold their content, in both checks.
        pull_seconds: Time inside each pull.
        seconds: Time of the whole replay.
        checked_at_end: Blocks checked once more at the end.
    """

    backend: str = ""
    emulated: bool = False
    engine: str = ""
    requests: int = 0
    split_requests: int = 0
    blocks: int = 0
    resident: int = 0
    nbytes: int = 0
    runs: int = 0
    evictions: int = 0
    prefill_evictions: int = 0
    mismatches: int = 0
    pull_seconds: list[float] = field(default_factory=list)
    seconds: float = 0.0
    checked_at_end: int = 0
    first_mismatches: list[Mismatch] = field(default_factory=list)

    @property
    def gb_per_s(self) -> float:
        """10**9 bytes moved per second inside pulls."""
        inside = sum(self.pull_seconds)
        return self.nbytes / inside / 1e9 if inside else 0.0

    def add_prepared(self, answer: Prepared) -> None:
        """Count what the prefill side did."""
        self.prefill_evictions += answer.evicted

    def add_pulled(self, answer: Pulled, *, last: bool) -> None:
        """Count what the decode side did; `last` = its request is complete."""
        self.requests += last
        self.blocks += answer.moved
        self.resident += answer.resident
        self.evictions += answer.evicted
        self.nbytes += answer.nbytes
        self.runs += answer.runs
        if answer.moved:
            self.pull_seconds.append(answer.seconds)
        self._add_mismatches(answer.mismatches, answer.first_mismatch)

    def add_final_check(self, answer: Stopped) -> None:
        """Count the check of everything resident."""
        self.checked_at_end = answer.checked
        self._add_mismatches(answer.mismatches, answer.first_mismatch)

    def _add_mismatches(self, count: int, first: Mismatch | None) -> None:
        self.mismatches += count
        if first is not None and len(self.first_mismatches) < _MISMATCHES_SHOWN:
            self.first_mismatches.append(first)

    def as_json(self) -> dict[str, object]:
        """The object that `--json` prints."""
        return {
            "requests": self.requests,
            "blocks": self.blocks,
            "bytes": self.nbytes,
            "evictions": self.evictions,
            "mismatches": self.mismatches,
            "gb_per_s": round(self.gb_per_s, 3),
            "p50_ms": round(percentile(self.pull_seconds, 0.50) * 1e3, 3),
            "p99_ms": round(percentile(self.pull_seconds, 0.99) * 1e3, 3),
            "merged_runs": self.runs,
            "backend": self.backend,
            "emulated": self.emulated,
            "engine": self.engine,
            "pulls": len(self.pull_seconds),
            "resident": self.resident,
            "prefill_evictions": self.prefill_evictions,
            "split_requests": self.split_requests,
            "seconds": round(self.seconds, 3),
        }

    def table(self) -> str:
        """The table for people, one line a fact, without a newline at the end."""
        pulls = len(self.pull_seconds)
        rows = [
            ("requests", f"{self.requests:,}" + (f" ({self.split_requests} split)" if self.split_requests else "")),
            ("blocks", f"{self.blocks:,} moved, {self.resident:,} resident already"),
            ("bytes", f"{self.nbytes:,} ({self.nbytes / 2**30:.2f} GiB)"),
            ("evictions", f"{self.evictions:,} decode, {self.prefill_evictions:,} prefill"),
            ("GB/s", f"{self.gb_per_s:.2f} (bytes moved / time inside {pulls:,} pulls)"),
            ("p50 per pull", f"{percentile(self.pull_seconds, 0.50) * 1e3:.2f} ms"),
            ("p99 per pull", f"{percentile(self.pull_seconds, 0.99) * 1e3:.2f} ms"),
            ("merged runs", f"{self.runs:,} for {self.blocks:,} blocks"),
            ("backend", self.backend + (" (emulated)" if self.emulated else "")),
            ("engine", self.engine),
            (
                "verified",
                f"every 64-bit word of every moved block; {self.checked_at_end:,} resident blocks again at the end",
            ),
            ("mismatches", f"{self.mismatches:,}"),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)

    def mismatch_lines(self) -> list[str]:
        """What was wrong in the first blocks that were."""
        return [
            f"mismatch: layer {one.layer} {one.tensor}, content {one.content_id} in block {one.block}: "
            f"word {one.word} is {one.found:#018x}, must be {one.expected:#018x}"
            for one in self.first_mismatches
        ]
