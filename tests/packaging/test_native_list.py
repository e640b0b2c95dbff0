"""Wheels of the distributions in backends/native.txt are reused between environments: never one of older sources."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_each_distribution_has_the_digest_of_its_sources_among_its_cache_keys(root: Path) -> None:
    lines = (root / "backends" / "native.txt").read_text().splitlines()
    folders = [root / line for line in lines if not line.startswith("#")]
    assert folders
    for folder in folders:
        project = tomllib.loads((folder / "pyproject.toml").read_text())
        # uv's own rules see no file that was removed; toxfile.py sets the variable.
        assert {"env": "CACHECORE_SOURCES"} in project["tool"]["uv"]["cache-keys"], folder
