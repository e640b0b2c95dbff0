"""Lets tox find the interpreters that pyenv installed without putting them on PATH.

uv looks for `python3.10` and its siblings on PATH only. pyenv puts a shim there that fails unless the version is
activated, so every other installed version would be skipped as missing.
"""

import os
from pathlib import Path

from tox.config.sets import ConfigSet
from tox.plugin import impl
from tox.session.state import State


@impl
def tox_add_core_config(core_conf: ConfigSet, state: State) -> None:
    """Append the folders of pyenv's Python 3.10 to 3.13 to PATH, behind everything that is there already."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = (str(folder) for folder in sorted(root.glob("versions/3.1[0-3].*/bin")))
    os.environ["PATH"] = os.pathsep.join([*path, *(folder for folder in found if folder not in path)])
