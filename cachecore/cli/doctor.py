"""`cachecore doctor`: everything about this machine that decides what cachecore can do, in one block to paste."""

from __future__ import annotations

import argparse
import enum
import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from cachecore.errors import CacheError

if TYPE_CHECKING:
    from cachecore.driver import DeviceInfo, DriverSpec
    from cachecore.plugins import Plugins
    from cachecore.probes import Finding

__all__ = ["HELP", "NAME", "add_arguments", "examine", "run"]

#: Facts whose name would be misread: without the vendor's functions, cachecore's own copy and swap all the same.
_LABELS: Final = {"copy_and_swap_blocks": "vendor copies, swaps blocks"}

NAME = "doctor"
HELP = (
    "Report what this machine offers, what is chosen and why, and what is wrong; made to be pasted into a bug report."
)

_VARIABLES = (
    "CACHECORE_BACKEND",
    "CACHECORE_EMULATE",
    "CACHECORE_KEY_DIR",
    "ASCEND_HOME_PATH",
    "ASCEND_TOOLKIT_HOME",
    "ASCEND_RT_VISIBLE_DEVICES",
    "HCCL_INTRA_ROCE_ENABLE",
    "LD_LIBRARY_PATH",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--backend", default="auto", metavar="NAME", help="choose as CacheManager(backend=NAME) would")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the report; 1 when it found a problem."""
    from cachecore.plugins import discover

    sections = examine(discover(), arguments.backend)
    problems = [finding for findings in sections.values() for finding in findings if finding.problem]
    if arguments.json:
        print(json.dumps({title: [_row(one) for one in found] for title, found in sections.items()}))
    else:
        print("\n".join(_lines(sections, len(problems))))
    return 1 if problems else 0


def examine(plugins: Plugins, backend: str) -> dict[str, list[Finding]]:
    """All findings by section. No probe can end the report: what one raises stands in its place.

    Args:
        plugins: What was found.
        backend: A driver's name, or "auto".
    """
    from cachecore.probes import Probe
    from cachecore.probes import run as look

    own = [
        Probe("machine", _machine),
        Probe("plugins", lambda: _plugins(plugins)),
        Probe("devices", lambda: _devices(plugins)),
        Probe("backend", lambda: _backend(plugins, backend)),
    ]
    return {probe.title: look(probe) for probe in (*own, *plugins.probes())}


def _machine() -> Iterator[Finding]:
    from importlib.metadata import version

    from cachecore.probes import Finding

    yield Finding("cachecore-kv", version("cachecore-kv"))
    yield Finding("Python", f"{platform.python_version()} ({sys.executable})")
    yield Finding("system", f"{platform.system()} {platform.release()} {platform.machine()}")
    for name in ("pyzmq", "msgspec", "pluggy", "numpy"):
        yield Finding(name, version(name))
    for name in _VARIABLES:
        if name in os.environ:
            yield Finding(name, os.environ[name])


def _plugins(plugins: Plugins) -> Iterator[Finding]:
    from cachecore.probes import Finding

    for plugin in plugins.loaded:
        yield Finding(plugin.name, f"{plugin.distribution} {plugin.version}")
    for broken in plugins.broken:
        yield Finding(
            broken.name,
            f"{broken.distribution} {broken.version}",
            f"broken, left out: {broken.reason}. Repair or uninstall it",
        )


def _devices(plugins: Plugins) -> Iterator[Finding]:
    from cachecore.probes import Finding

    devices, failed = plugins.detect()
    for device in devices:
        yield Finding(device.soc or device.kind, _shown(device, plugins), device.unsupported)
    for broken in failed:
        yield Finding(broken.name, "detection failed", broken.reason)
    if not devices and not failed:
        yield Finding("accelerators", "none seen")


def _shown(device: DeviceInfo, plugins: Plugins) -> str:
    lines = [spec for spec in plugins.drivers if spec.matches(device)]
    parts = [
        "emulated" if device.emulated else "",
        f"{device.count} device{'s' if device.count != 1 else ''}",
        f"found by {device.source}",
        *(f"{spec.description}{_servers(spec)}" for spec in lines),
    ]
    return "; ".join(part for part in parts if part)


def _servers(spec: DriverSpec) -> str:
    return f" (the vendor supports it on: {', '.join(spec.servers)})" if spec.servers else ""


def _backend(plugins: Plugins, backend: str) -> Iterator[Finding]:
    from cachecore.driver import Capability
    from cachecore.probes import Finding
    from cachecore.selection import choose_driver, make_driver

    try:
        choice = choose_driver(backend, plugins)
    except CacheError as error:
        yield Finding("chosen", "none", str(error))
        return
    yield Finding("chosen", f"{choice.spec.name}, because {choice.reason}")
    try:
        driver = make_driver(choice, None if choice.device is None else 0, {})
    except CacheError as error:
        yield Finding("started", "no", str(error))
        return
    try:
        if driver.emulated:
            yield Finding("silicon", "EMULATED: what runs here has not run on a device")
        capabilities = driver.capabilities()
        for name in type(capabilities).__dataclass_fields__:
            fact: Capability[object] = getattr(capabilities, name)
            yield Finding(_LABELS.get(name, name.replace("_", " ")), f"{_value(fact.value)} ({fact.source})")
        serving = [spec for spec in plugins.engines if spec.serves(driver)]
        yield Finding(
            "engines",
            ", ".join(f"{spec.name} (speaks {spec.wire_id}, rank {spec.rank})" for spec in serving) or "none",
            "" if serving else "no installed engine serves this driver: transfers between processes are impossible",
        )
    finally:
        driver.close()


def _value(value: object) -> str:
    from cachecore.driver import Unknown

    if isinstance(value, Unknown):
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, enum.Enum):
        return str(value.value)
    return "no limit" if value is None else f"{value}"


def _row(finding: Finding) -> dict[str, str]:
    return {"name": finding.name, "value": finding.value, "problem": finding.problem}


def _lines(sections: dict[str, list[Finding]], problems: int) -> Iterable[str]:
    for title, findings in sections.items():
        yield f"{title}:"
        width = max((len(one.name) for one in findings), default=0)
        for one in findings:
            yield f"  {one.name:{width}}  {one.value}"
            if one.problem:
                yield f"  {'':{width}}  PROBLEM: {one.problem}"
    yield "no problems found" if not problems else f"{problems} problem{'s' if problems != 1 else ''} found"
