"""The layouts of model families on each product line: driver-allocated memory, known by its addresses only."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "integration" / "layers" / "program.py"


@pytest.mark.parametrize("ranks", ["2 to 1", "1 to 2"])
@pytest.mark.parametrize(("soc", "driver"), [("Ascend910_9392", "ascend_a2a3"), ("Ascend950PR_9599", "ascend_950")])
def test_model_layouts_move_between_unequal_ranks(soc, driver, ranks):
    run = subprocess.run(
        [sys.executable, str(PROGRAM), *ranks.split(" to ")],
        env={**os.environ, "CACHECORE_EMULATE": soc},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(run.stdout.splitlines()[-1])
    assert (report["backend"], report["engine"]) == (driver, "hixl/1")
    families = report["families"]
    assert {name: found["wrong"] for name, found in families.items()} == {name: [] for name in families}
    assert families["indexer"]["tensors"] == 244
    # Small allocations may lie in one block of the device, and are then one region.
    assert all(found["regions"] <= 122 for found in families.values())
