"""Pushes and asynchronous transfers between two processes on every product line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("transfers.py")


@pytest.mark.parametrize("soc", ["Ascend910B4", "Ascend910_9392", "Ascend950PR_9599"])
def test_transfers_in_both_directions(soc):
    run = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**os.environ, "CACHECORE_EMULATE": f"{soc}:2"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {
        "push_blocks": True,
        "push_cache": True,
        "waits for the event": True,
        "pull_blocks_async": True,
        "cancelled": ["TransferCancelledError", True],
        "too late": "TransferTimeoutError",
        "transfer_cache_async": True,
        "statuses": ["SUCCESS", "NOT_YET_LINK"],
        "counted": [4, 1, 0],
    }
