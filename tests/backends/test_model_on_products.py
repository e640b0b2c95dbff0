"""The model of tests/model holds on every product line: a short run with emulated devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[1] / "model"


@pytest.mark.parametrize("soc", ["Ascend910B4", "Ascend910_9392", "Ascend950PR_9599"])
def test_random_calls_give_what_the_model_says(soc):
    run = subprocess.run(
        [sys.executable, str(MODEL), "--operations", "400", "--seed", "7"],
        env={**os.environ, "CACHECORE_EMULATE": soc},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert json.loads(run.stdout.splitlines()[-1])["operations"] >= 400
