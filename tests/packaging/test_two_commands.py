"""The two commands of the README do all the set-up there is, and the continuous integration runs the second."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def commands(root: Path) -> list[str]:
    """The shell commands of the README, in order."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (root / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


def test_readme_has_two_commands(commands: list[str]) -> None:
    assert len(commands) == 2
    assert commands[0].endswith("cachecore demo")
    assert commands[1].endswith("tox")


def test_ci_runs_the_second_command_as_it_stands(root: Path, commands: list[str]) -> None:
    script = (root / ".ci" / "run").read_text().splitlines()
    assert script.count(commands[1]) == 1
    # As the last line its status is that of the script.
    assert script[-1] == commands[1]
    assert os.access(root / ".ci" / "run", os.X_OK)


def test_first_command_works_in_a_fresh_copy(root: Path, wheelhouse: Path, commands: list[str], tmp_path: Path) -> None:
    # It builds, as a newcomer does; asking for the wheelhouse keeps it out of runs that do not build otherwise.
    copy = tmp_path / "copy"
    made = shutil.ignore_patterns(".git", ".tox", ".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(root, copy, ignore=made)
    # A newcomer's shell has none of what tox sets, and a home without keys or caches.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "UV_", "TOX_", "VIRTUAL_ENV", "CACHECORE_"))
    }
    environment["HOME"] = str(tmp_path / "home")
    (tmp_path / "home").mkdir()
    interpreter = str(Path(sys.base_prefix) / "bin")
    environment["PATH"] = os.pathsep.join([interpreter, environment["PATH"]])
    small = f"{commands[0]} --layers 2 --blocks 64 --block-bytes 65536 --json"
    done = subprocess.run(
        ["bash", "-c", small], cwd=copy, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["blocks"] > 0
    assert result["mismatches"] == 0
