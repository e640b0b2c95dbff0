"""The benchmarks run, compare what they say, and check what they move."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("memory", ["shared", "foreign"])
def test_pull_is_paired_with_the_bare_system_call(tmp_path: Path, memory: str) -> None:
    command = [sys.executable, str(FOLDER), "--workloads", "W3,W4", "--memory", memory, "--repetitions", "1", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(row["tensors"], row["blocks"]) for row in found["planning"]] == [(1, 1), (1, 4096), (64, 1), (64, 4096)]
    assert [(row["workload"], row["memory"]) for row in found["pulls"]] == [("W3", memory), ("W4", memory)]
    many, one = found["pulls"]
    assert (many["bytes"], one["bytes"]) == (16 * 2**20, 4096)
    assert many["pull_over_raw"]["median"] > 0 and many["pull_over_raw_two_threads"]["median"] > 0
    assert one["pull_over_raw"]["median"] > 0 and one["pull_over_raw_two_threads"] is None
    assert one["repetitions"] == 50


def test_a_wrong_name_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER), "--workloads", "W9"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--workloads has 'W9'; known: W1, W2, W3, W4" in done.stderr
