"""`cachecore backends`: what is installed, what is broken and why, what was detected, what would be used and why."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cachecore.errors import BackendError

if TYPE_CHECKING:
    from cachecore.plugins import BrokenPlugin, Plugins

__all__ = ["HELP", "NAME", "add_arguments", "run", "survey"]

NAME = "backends"
HELP = "List plugins, drivers, engines and devices, and say which backend would be used and why."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--backend", default="auto", metavar="NAME", help="choose as CacheManager(backend=NAME) would")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the survey; 1 when no backend can be chosen."""
    from cachecore.plugins import discover

    found = survey(discover(), arguments.backend)
    print(json.dumps(found) if arguments.json else "\n".join(_lines(found)))
    return 1 if found["chosen"] is None else 0


def survey(plugins: Plugins, backend: str) -> dict[str, object]:
    """What is there and what would be chosen, as plain data.

    Args:
        plugins: What was found.
        backend: A driver's name, or "auto".
    """
    from cachecore.selection import choose_driver

    devices, failed = plugins.detect()
    chosen: str | None = None
    try:
        choice = choose_driver(backend, plugins)
    except BackendError as error:
        reason = str(error)
    else:
        chosen, reason = choice.spec.name, choice.reason
    return {
        "plugins": [
            {"name": one.name, "distribution": one.distribution, "version": one.version} for one in plugins.loaded
        ],
        "broken": [_broken(one) for one in (*plugins.broken, *failed)],
        "drivers": [{"name": one.name, "description": one.description} for one in plugins.drivers],
        "engines": [{"name": one.name, "wire_id": one.wire_id, "rank": one.rank} for one in plugins.engines],
        "devices": [
            {
                "kind": one.kind,
                "soc": one.soc,
                "count": one.count,
                "source": one.source,
                "emulated": one.emulated,
                "unsupported": one.unsupported,
            }
            for one in devices
        ],
        "chosen": chosen,
        "reason": reason,
    }


def _broken(one: BrokenPlugin) -> dict[str, str]:
    return {"name": one.name, "distribution": one.distribution, "version": one.version, "reason": one.reason}


def _lines(found: dict[str, object]) -> Iterator[str]:
    formats = {
        "plugins": "{name} ({distribution} {version})",
        "broken": "{name} ({distribution} {version}): {reason}",
        "drivers": "{name}: {description}",
        "engines": "{name} (speaks {wire_id}, rank {rank})",
    }
    for title in (*formats, "devices"):
        rows = found[title]
        assert isinstance(rows, list)
        yield f"{title}:"
        for row in rows:
            yield f"  {_device(row) if title == 'devices' else formats[title].format(**row)}"
        if not rows:
            yield "  none"
    yield f"chosen: {found['chosen'] or 'none'}"
    yield f"  because: {found['reason']}"


def _device(row: dict[str, object]) -> str:
    notes = ["emulated"] if row["emulated"] else []
    if row["unsupported"]:
        notes.append(f"not supported: {row['unsupported']}")
    text = f"{row['soc'] or row['kind']} x{row['count']} (by {row['source']})"
    return f"{text}, {', '.join(notes)}" if notes else text
