"""The built distributions that the tests of this folder read."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def project(root: Path) -> dict[str, object]:
    """Table [project] of the core's pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="session")
def wheelhouse() -> Path:
    """The folder that `tox -e wheels` filled: a source distribution, and a wheel built from it."""
    folder = os.environ.get("CACHECORE_WHEELHOUSE")
    if folder is None:
        pytest.skip("CACHECORE_WHEELHOUSE is not set: run `tox -e wheels`, which builds the wheelhouse and sets it")
    return Path(folder)


def only(folder: Path, pattern: str) -> Path:
    """The one file of `folder` that matches; more would mean that a stale file could be the one tested."""
    found = list(folder.glob(pattern))
    assert len(found) == 1, f"{folder} has {[f.name for f in found]} for {pattern}; one was expected"
    return found[0]


@pytest.fixture(scope="session")
def wheel(wheelhouse: Path) -> Path:
    """The core's wheel."""
    return only(wheelhouse, "cachecore_kv-*.whl")


@pytest.fixture(scope="session")
def sdist(wheelhouse: Path) -> Path:
    """The core's source distribution."""
    return only(wheelhouse, "cachecore_kv-*.tar.gz")
