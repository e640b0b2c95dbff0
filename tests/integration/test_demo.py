"""`cachecore demo` from end to end: what it moves, that it counts it right, and that it ends whatever dies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SMALL = ["--layers", "2", "--blocks", "24", "--block-bytes", "4096"]
BLOCK = 2 * 2 * 4096  # bytes of one block: K and V of two layers
PROGRAM = [sys.executable, "-c", "import sys; from cachecore.cli import main; sys.exit(main())", "demo"]
ENDS_WITHIN = 120.0


def demo(folder: Path, *options: str) -> tuple[dict[str, object], str]:
    """Run it in a folder without a checkout; returns the object on the last line and what went to standard error."""
    done = subprocess.run(
        [*PROGRAM, "--json", *options], cwd=folder, capture_output=True, text=True, timeout=ENDS_WITHIN, check=False
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return told, done.stderr


def test_the_built_in_workload_is_moved_and_verified(tmp_path: Path) -> None:
    told, _ = demo(tmp_path, *SMALL, "--requests", "60")
    blocks, evictions, runs = told["blocks"], told["evictions"], told["merged_runs"]
    assert isinstance(blocks, int) and isinstance(evictions, int) and isinstance(runs, int)
    assert (told["requests"], told["mismatches"]) == (60, 0)
    assert told["bytes"] == blocks * BLOCK
    assert evictions == blocks - 24
    assert 0 < runs < blocks
    assert told["backend"] and told["engine"]


def test_a_trace_moves_what_is_not_resident_and_evicts_the_oldest(tmp_path: Path) -> None:
    prompts = [[*range(start, start + 10)] for start in (0, 5, 0, 20, 3, 8)] + [[*range(100, 160)], [], [150, 150]]
    path = tmp_path / "requests.jsonl"
    path.write_text(
        "".join(
            json.dumps({"timestamp": 0, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}) + "\n"
            for ids in prompts
        )
    )
    resident: list[int] = []  # oldest first
    moved = evicted = 0
    for wanted in (list(dict.fromkeys(ids))[start : start + 24] for ids in prompts for start in (0, 24, 48)):
        absent = [content for content in wanted if content not in resident]
        others = [content for content in resident if content not in wanted]
        surplus = max(0, len(others) + len(wanted) - 24)
        moved, evicted = moved + len(absent), evicted + surplus
        resident = others[surplus:] + wanted
    told, _ = demo(tmp_path, *SMALL, "--trace", "requests.jsonl")
    expected = {"requests": len(prompts), "blocks": moved, "evictions": evicted, "mismatches": 0, "split_requests": 1}
    assert told | expected == told


def test_a_malformed_trace_ends_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text("{}\n")
    command = [*PROGRAM, "--json", "--trace", "requests.jsonl"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=ENDS_WITHIN, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("cachecore demo: error: trace requests.jsonl, line 1: ")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", ["prefill", "decode"])
def test_it_ends_with_a_reason_when_a_process_dies_or_stops(
    tmp_path: Path, victim: str, number: signal.Signals
) -> None:
    command = [*PROGRAM, *SMALL, "--requests", "50000", "--timeout", "3"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "are linked by" in line)
            pids = dict(re.findall(r"(prefill|decode) process (\d+)", line))
            time.sleep(0.3)  # into the replay
            os.kill(int(pids[victim]), number)
            output, errors = process.communicate(timeout=ENDS_WITHIN)
        finally:
            process.kill()
    assert process.returncode == 1
    assert output == ""
    reason = "was ended by signal 9 (SIGKILL)" if number is signal.SIGKILL else "did not answer for 8 s (it is stopped)"
    assert f"the {victim} process (pid {pids[victim]}) {reason}" in errors
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())


def test_no_process_is_left_when_the_demo_itself_is_killed(tmp_path: Path) -> None:
    command = [*PROGRAM, *SMALL, "--requests", "50000"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "are linked by" in line)
        finally:
            process.kill()
    pids = re.findall(r"process (\d+)", line)
    assert len(pids) == 2
    until = time.monotonic() + ENDS_WITHIN
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < until, f"processes {pids} outlive the demo"
        time.sleep(0.05)
