"""The engine between real processes, on each product line of the emulator: the core's suite, and pulls of managers.

In processes of their own: a process has one runtime, and that one SoC.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent

#: Why a test of the suite may be left out: by a capability of the engine, or because nobody can punch holes into
#: the memory of a device.
EXPLAINED = {
    "memory with a hole cannot be registered",
    "the driver accepts no ordinary memory, and its own has no holes",
    "the engine does not deregister while linked",
}


def run(suite, soc, transport):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CACHECORE_")}
    environment |= {
        "CACHECORE_EMULATE": f"{soc}:2",
        "TRANSPORT": transport,
        "PYTHONPATH": str(FOLDER),
        "COLUMNS": "200",
    }
    options = ["-q", "-rs", "-p", "no:cacheprovider", "--import-mode=importlib", "-W", "error"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(FOLDER / suite)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        cwd="/",
        check=False,
    )
    assert result.returncode == 0, result.stdout[-20_000:] + result.stderr[-2_000:]
    return set(re.findall(r"^SKIPPED \[\d+\] \S+ (.*)$", result.stdout, re.MULTILINE))


@pytest.mark.parametrize(
    ("soc", "transport"), [("Ascend910B4", "hccs"), ("Ascend910_9392", "hccs"), ("Ascend950PR_9599", "ub")]
)
def test_the_engine_suite_passes_with_no_unexplained_skip(soc, transport):
    assert run("suite_engine.py", soc, transport) == EXPLAINED


@pytest.mark.parametrize(
    ("soc", "transport"),
    [("Ascend910B4", "hccs"), ("Ascend910B4", "roce"), ("Ascend910_9392", "hccs"), ("Ascend950PR_9599", "ub")],
)
def test_managers_of_two_processes_pull_blocks(soc, transport):
    assert run("suite_pulls.py", soc, transport) == set()
