"""Core and drivers are released together: one version, exact pins both ways, and never the unrelated distribution."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import cachecore

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def normalised(requirement: str) -> tuple[str, str]:
    """Name and the rest of a requirement, without extras and markers."""
    match = re.match(r"\s*([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*([^;]*)", requirement)
    assert match is not None
    return re.sub(r"[-_.]+", "-", match[1]).lower(), match[2].strip()


def disagreements(root: Path) -> list[str]:
    """What is wrong with versions and pins under `root`: the core there, and a driver or engine in each backends/*."""
    core = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    version, wrong = core["version"], []
    extras = core.get("optional-dependencies", {})
    for where, requirements in [("dependencies", core["dependencies"]), *extras.items()]:
        for name, pin in map(normalised, requirements):
            if name == "cachecore":
                wrong.append(f"{where} asks for cachecore, an unrelated distribution")
            elif name.startswith("cachecore-") and pin != f"=={version}":
                wrong.append(f"{where} asks for {name}{pin}; it must be =={version}")
    for file in sorted(root.glob("backends/*/pyproject.toml")):
        backend = tomllib.loads(file.read_text())["project"]
        if backend["version"] != version:
            wrong.append(f"{backend['name']} has version {backend['version']}; the core has {version}")
        own = {name: pin for name, pin in map(normalised, backend["dependencies"]) if name.startswith("cachecore")}
        if own.get("cachecore-kv") != f"=={version}" or set(own.values()) != {f"=={version}"} or "cachecore" in own:
            wrong.append(f"{backend['name']} pins {own}; each must be =={version}, and cachecore-kv among them")
    return wrong


def test_versions_and_pins_agree(root: Path) -> None:
    assert disagreements(root) == []


def test_installed_package_says_the_version_of_the_project(project: dict[str, object]) -> None:
    assert cachecore.__version__ == project["version"]


def test_a_wrong_version_or_pin_is_found(tmp_path: Path) -> None:
    driver = tmp_path / "backends" / "x" / "pyproject.toml"
    driver.parent.mkdir(parents=True)

    def write(core_pin: str, driver_version: str, driver_pin: str) -> list[str]:
        (tmp_path / "pyproject.toml").write_text(
            '[project]\nname = "cachecore-kv"\nversion = "0.2.0"\ndependencies = ["pluggy>=1.5"]\n'
            f'[project.optional-dependencies]\nx = ["{core_pin}"]\n'
        )
        driver.write_text(
            f'[project]\nname = "cachecore-x"\nversion = "{driver_version}"\ndependencies = ["{driver_pin}"]\n'
        )
        return disagreements(tmp_path)

    assert write("cachecore-x==0.2.0", "0.2.0", "cachecore-kv==0.2.0") == []
    assert len(write("cachecore-x>=0.2.0", "0.2.0", "cachecore-kv==0.2.0")) == 1
    assert len(write("cachecore[x]==0.2.0", "0.2.0", "cachecore-kv==0.2.0")) == 1
    assert len(write("cachecore-x==0.2.0", "0.1.0", "cachecore-kv==0.2.0")) == 1
    assert len(write("cachecore-x==0.2.0", "0.2.0", "cachecore-kv>=0.2.0")) == 1
    assert len(write("cachecore-x==0.2.0", "0.2.0", "cachecore==0.2.0")) == 1
