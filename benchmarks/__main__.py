"""Benchmarks, run as a folder: `python benchmarks`. See docs/benchmarks.md for how to read them."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from typing import Any

from plan import run_planning
from pull import run_pull
from table import planning_table, pull_table
from target import serve
from workloads import WORKLOADS

_MEMORIES = ("shared", "foreign")
_PLANNING = [(tensors, blocks) for tensors in (1, 64) for blocks in (1, 4096)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python benchmarks", description=__doc__)
    parser.add_argument(
        "--workloads", default=",".join(WORKLOADS), metavar="NAMES", help="comma-separated: %(default)s"
    )
    parser.add_argument("--memory", default=",".join(_MEMORIES), metavar="KINDS", help="comma-separated: %(default)s")
    parser.add_argument("--repetitions", type=int, default=21, metavar="N", help="of each row; W4 has 50 times as many")
    parser.add_argument("--json", action="store_true", help="print one JSON object and no table")
    parser.add_argument("--serve", choices=WORKLOADS, help=argparse.SUPPRESS)  # the second process
    arguments = parser.parse_args()
    memories = [_one_of(parser, "--memory", name, _MEMORIES) for name in arguments.memory.split(",")]
    if arguments.serve:
        serve(WORKLOADS[arguments.serve], memories[0])
        return
    chosen = [_one_of(parser, "--workloads", name, WORKLOADS) for name in arguments.workloads.split(",")]
    if arguments.repetitions < 1:
        parser.error(f"--repetitions is {arguments.repetitions}; it must be at least 1")

    planning = [_told(run_planning(tensors, blocks, arguments.repetitions * 10)) for tensors, blocks in _PLANNING]
    pulls = [_told(run_pull(WORKLOADS[name], memory, arguments.repetitions)) for name in chosen for memory in memories]
    print(file=sys.stderr)  # after the dots
    if arguments.json:
        machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "kernel": platform.release()}
        print(json.dumps({"python": platform.python_version(), **machine, "planning": planning, "pulls": pulls}))
        return
    print("planning against numpy descriptors, medians; ratios are medians of paired repetitions (quartiles)\n")
    print(planning_table(planning))
    print("\npull_blocks against a bare process_vm_readv loop with one and two threads over the same chunks\n")
    print(pull_table(pulls))
    print("\nothers = cores that other processes used meanwhile; above about 0.15 run it again")


def _one_of(parser: argparse.ArgumentParser, option: str, name: str, known: Any) -> Any:
    if name not in known:
        parser.error(f"{option} has {name!r}; known: {', '.join(known)}")
    return name


def _told(row: dict[str, Any]) -> dict[str, Any]:
    """The row; a line of progress goes to standard error."""
    print(".", end="", file=sys.stderr, flush=True)
    return row


if __name__ == "__main__":
    main()
