"""Lets tox find the interpreters that pyenv installed without putting them on PATH, and uv reuse the wheels it built.

uv looks for `python3.10` and its siblings on PATH only. pyenv puts a shim there that fails unless the version is
activated, so every other installed version would be skipped as missing.

uv goes by the times of files that are there, so it would miss one that is not any more. CACHECORE_SOURCES, a cache key of
the distributions in backends/native.txt, changes with every name and every byte that goes into a wheel of theirs.
"""

import hashlib
import os
from pathlib import Path

from tox.config.sets import ConfigSet
from tox.plugin import impl
from tox.session.state import State


@impl
def tox_add_core_config(core_conf: ConfigSet, state: State) -> None:
    """Append the folders of pyenv's Python 3.10 to 3.13 to PATH, behind everything else, and set CACHECORE_SOURCES."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = (str(folder) for folder in sorted(root.glob("versions/3.1[0-3].*/bin")))
    os.environ["PATH"] = os.pathsep.join([*path, *(folder for folder in found if folder not in path)])
    os.environ["CACHECORE_SOURCES"] = sources(Path(__file__).parent / "backends")


def sources(backends: Path) -> str:
    """Digest of names and contents below `backends`, without what no wheel holds: builds, tests and bytecode."""
    digest = hashlib.sha256()
    for file in sorted(backends.rglob("*")):
        name = file.relative_to(backends)
        if file.is_file() and not {"build", "tests", "__pycache__"} & set(name.parts):
            digest.update(f"{name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()
