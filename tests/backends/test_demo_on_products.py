"""The same demo on every product line: a prefill and a decode process with emulated devices, every block verified."""

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("soc", "driver"),
    [("Ascend910B4", "ascend_a2a3"), ("Ascend910_9392", "ascend_a2a3"), ("Ascend950PR_9599", "ascend_950")],
)
def test_every_block_is_verified(soc, driver):
    arguments = ["demo", "--layers", "2", "--blocks", "16", "--block-bytes", "4096", "--requests", "60", "--json"]
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; from cachecore.cli import main; sys.exit(main({arguments!r}))"],
        env={**os.environ, "CACHECORE_EMULATE": soc},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout.splitlines()[-1])
    assert report["mismatches"] == 0 and report["blocks"] > 0 and report["evictions"] > 0
    assert (report["backend"], report["emulated"], report["engine"]) == (driver, True, "hixl/1")
