"""What is in the wheel and in the source distribution."""

from __future__ import annotations

import configparser
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath

import pytest


@pytest.fixture(scope="module")
def files(wheel: Path) -> dict[str, bytes]:
    """Name and content of every file in the wheel; the metadata folder is called `info`."""
    with zipfile.ZipFile(wheel) as archive:
        info = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"
        return {name.replace(info, "info", 1): archive.read(name) for name in archive.namelist()}


def test_wheel_holds_every_module_and_its_types(files: dict[str, bytes], root: Path) -> None:
    modules = {str(path.relative_to(root)) for path in (root / "cachecore").rglob("*.py")}
    missing = (modules | {"cachecore/py.typed", "cachecore/_core.pyi"}) - files.keys()
    assert not missing
    natives = [name for name in files if name.endswith(".so")]
    assert len(natives) == 1 and natives[0].startswith("cachecore/_core.")


def test_wheel_holds_no_sources_of_the_native_module_and_nothing_outside_the_package(files: dict[str, bytes]) -> None:
    strangers = [name for name in files if name.partition("/")[0] not in ("cachecore", "info")]
    sources = [name for name in files if PurePosixPath(name).suffix in (".cpp", ".hpp", ".h", ".txt", ".cmake")]
    assert not strangers
    assert sources == ["info/entry_points.txt"]


def test_wheel_registers_the_built_in_plugin_and_the_command(files: dict[str, bytes]) -> None:
    entries = configparser.ConfigParser()
    entries.read_string(files["info/entry_points.txt"].decode())
    assert dict(entries["cachecore.plugins"]) == {"host": "cachecore.host.plugin"}
    assert dict(entries["console_scripts"]) == {"cachecore": "cachecore.cli:main"}
    # An entry point that names a module the wheel lacks would only show up at the user's.
    assert {"cachecore/host/plugin.py", "cachecore/cli/__init__.py"} <= files.keys()


def test_wheel_states_its_license_and_python(files: dict[str, bytes], root: Path, project: dict[str, object]) -> None:
    metadata = HeaderParser().parsestr(files["info/METADATA"].decode())
    assert metadata["Name"] == "cachecore-kv"
    assert metadata["Version"] == project["version"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    assert files["info/licenses/LICENSE"] == (root / "LICENSE").read_bytes()


def test_source_distribution_holds_what_a_build_needs_and_no_tests(sdist: Path, root: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    native = {str(path.relative_to(root)) for path in (root / "cachecore" / "_native").rglob("*") if path.is_file()}
    assert native | {"pyproject.toml", "README.md", "LICENSE", "cachecore/_core.pyi"} <= names
    assert not {name.partition("/")[0] for name in names} & {
        "tests",
        "benchmarks",
        "backends",
        "build",
        ".tox",
        ".venv",
    }
