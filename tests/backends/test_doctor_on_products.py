"""`cachecore doctor` is useful wherever it is run: on no NPU, on an A3, on a 950 with an old runtime, and beside a plugin
that is broken."""

import os
import subprocess
import sys

import pytest

BROKEN = """
import importlib.metadata as metadata, sys
real = metadata.entry_points
class Entry:
    name, dist = "wreck", None
    def load(self):
        raise ImportError("libwreck.so is missing")
metadata.entry_points = lambda **given: [*real(**given), Entry()]
from cachecore.cli import main
sys.exit(main(["doctor"]))
"""


def doctor(code="import sys; from cachecore.cli import main; sys.exit(main(['doctor']))", **environment):
    env = {name: value for name, value in os.environ.items() if not name.startswith("CACHECORE_")} | environment
    run = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode in (0, 1), run.stderr
    return run.stdout


def test_no_npu():
    text = doctor()
    assert "none seen" in text and "host, because no accelerator was seen" in text


def test_an_emulated_a3():
    text = doctor(CACHECORE_EMULATE="Ascend910_9392")
    for part in ("Ascend910_9392", "emulated", "EMULATED", "Atlas A3", "Atlas 800I A2", "ascend_a2a3, because", "240"):
        assert part in text, part


def test_an_emulated_950_with_a_runtime_that_lacks_the_query_of_addresses():
    text = doctor(CACHECORE_EMULATE="Ascend950PR_9599", CACHECORE_EMULATE_HIDE="aclrtPointerGetAttributes")
    assert "ascend_950, because" in text
    line = next(line for line in text.splitlines() if "aclrtPointerGetAttributes" in line)
    assert len(line) > len("aclrtPointerGetAttributes") + 20, "it says what the missing symbol switches off"


def test_a_plugin_that_raises_on_import():
    text = doctor(BROKEN)
    assert "wreck" in text and "libwreck.so is missing" in text and "host, because" in text


@pytest.mark.parametrize("code", ["507899", "107002", "503900"])
def test_a_code_of_the_runtime_is_explained(code):
    run = subprocess.run(
        [sys.executable, "-c", f"from cachecore.cli import main; main(['explain', '{code}'])"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert code in run.stdout and "no such code" not in run.stdout
