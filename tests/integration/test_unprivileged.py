"""What needs no privileges is tested without them too: root may read every process and would hide what users meet."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NOBODY = "65534"
#: Let the user read an interpreter below a closed home folder; neither has to do with reading processes.
CAPABILITIES = {"dac_read_search": 2, "dac_override": 1}


def as_nobody():
    """A command prefix that runs a program as an ordinary user, who can still read the interpreter and the tests."""
    if os.getuid() != 0:
        pytest.skip("these tests run without privileges already")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv (util-linux) is not installed")
    held = int(Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0], 16)
    kept = "".join(f",+{name}" for name, bit in CAPABILITIES.items() if held & 1 << bit)
    sets = [f"--inh-caps=-all{kept}", f"--ambient-caps=-all{kept}"]
    prefix = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", *sets]
    probe = [*prefix, sys.executable, "-c", "import cachecore._core"]
    if subprocess.run(probe, check=False, cwd="/", timeout=60).returncode:
        pytest.skip(f"user {NOBODY} cannot run {sys.executable}")
    return prefix


@pytest.mark.parametrize(
    "selection",
    [
        ["test_local_engine.py"],
        ["test_local_engine_conformance.py", "-k", "scattered or missing_page or dead or endpoint or stopped"],
    ],
    ids=lambda selection: selection[0],
)
def test_as_an_ordinary_user(selection):
    command = [*as_nobody(), sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-c", str(HERE.parents[1] / "pyproject.toml"), str(HERE / selection[0]), *selection[1:]]
    environment = {**os.environ, "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, check=False, cwd="/", env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CAP_SYS_PTRACE" not in done.stdout, "the user could still read every process"
