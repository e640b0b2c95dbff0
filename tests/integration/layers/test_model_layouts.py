"""The KV caches of four families of models move between unequal tensor-parallel sizes, byte for byte."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("program.py")


@pytest.mark.parametrize("ranks", ["2 to 1", "1 to 2"])
def test_model_layouts_move_between_unequal_ranks(ranks):
    prefills, decodes = ranks.split(" to ")
    run = subprocess.run(
        [sys.executable, str(PROGRAM), prefills, decodes],
        env={**os.environ, "CACHECORE_BACKEND": "host"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(run.stdout.splitlines()[-1])
    assert (report["backend"], report["engine"]) == ("host", "local/1")
    families = report["families"]
    assert {name: (found["tensors"], found["regions"]) for name, found in families.items()} == {
        "attention": (64, 64),
        "stacked": (96, 48),
        "mla": (122, 61),
        "indexer": (244, 122),  # more tensors than there are addresses to register
        "hybrid": (96, 12),
    }
    assert {name: found["wrong"] for name, found in families.items()} == {name: [] for name in families}
    # What every rank has whole agrees; heads that the ranks share out are seen when they link.
    assert {name for name, found in families.items() if any(found["differences"])} == {"attention", "stacked", "hybrid"}
