"""Results as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["planning_table", "pull_table"]


def pull_table(rows: Sequence[dict[str, Any]]) -> str:
    """One line for each workload and kind of memory."""
    header = (
        "workload",
        "memory",
        "blocks",
        "raw us",
        "raw 2 us",
        "pull us",
        "GB/s",
        "pull/raw",
        "pull/raw 2",
        "others",
    )
    lines = [
        (
            row["workload"],
            row["memory"],
            f"{row['blocks']:,}",
            f"{row['raw']['median_us']:,.1f}",
            f"{row['raw_two_threads']['median_us']:,.1f}" if "raw_two_threads" in row else "-",
            f"{row['pull']['median_us']:,.1f}",
            f"{row['gb_per_s_pull']:.2f}",
            _ratio(row["pull_over_raw"]),
            _ratio(row["pull_over_raw_two_threads"]),
            f"{row['foreign_cores']:.2f}",
        )
        for row in rows
    ]
    return _aligned([header, *lines])


def planning_table(rows: Sequence[dict[str, Any]]) -> str:
    """One line for each number of tensors and blocks."""
    header = ("tensors", "blocks", "numpy us", "array us", "list us", "array/numpy", "list/numpy")
    lines = [
        (
            str(row["tensors"]),
            f"{row['blocks']:,}",
            f"{row['numpy']['median_us']:,.1f}",
            f"{row['array']['median_us']:,.1f}",
            f"{row['list']['median_us']:,.1f}",
            _ratio(row["array_over_numpy"]),
            _ratio(row["list_over_numpy"]),
        )
        for row in rows
    ]
    return _aligned([header, *lines])


def _ratio(value: dict[str, float] | None) -> str:
    if value is None:
        return "-"
    return f"{value['median']:.2f} ({value['lower_quartile']:.2f}-{value['upper_quartile']:.2f})"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
