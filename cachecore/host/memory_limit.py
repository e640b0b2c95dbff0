"""How much memory the machine can still give, asked before pages are filled.

Shared memory is not counted until its pages are touched: without this question a size that cannot be had ends with the
kernel killing processes instead of with an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["available_bytes"]

_UNLIMITED = 2**62


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The smaller of what the machine has left and what the limits of the process's control groups leave.

    Args:
        proc: Where /proc is.
        cgroups: Where the control groups are.

    Returns:
        Bytes, or None when the system does not say.
    """
    candidates = [*_of_machine(proc), *_of_groups(proc, cgroups)]
    return max(0, min(candidates)) if candidates else None


def _of_machine(proc: Path) -> Iterator[int]:
    values = {}
    for line in _read(proc / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()
        if number and number[0].isdigit():
            values[name] = int(number[0]) * 1024
    if "MemAvailable" in values:
        yield values["MemAvailable"] + values.get("SwapFree", 0)


def _of_groups(proc: Path, cgroups: Path) -> Iterator[int]:
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2: every group up to the root may have a limit
            folder = cgroups / path.lstrip("/")
            while folder != cgroups.parent and folder != folder.parent:
                yield from _left(folder, "memory.max", "memory.current", "")
                folder = folder.parent
        elif "memory" in controllers.split(","):
            folder = cgroups / "memory" / path.lstrip("/")
            yield from _left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")


def _left(folder: Path, limit: str, usage: str, prefix: str) -> Iterator[int]:
    most, used = _read(folder / limit).strip(), _read(folder / usage).strip()
    if most.isdigit() and used.isdigit() and int(most) < _UNLIMITED:
        yield int(most) - max(0, int(used) - _page_cache(folder, prefix))


def _page_cache(folder: Path, prefix: str) -> int:
    """Bytes of files that a group keeps in memory: counted as used, and given back as soon as pages are asked for.

    A server that has just read its weights has little else. Memory files are not among them: they count as shmem.
    """
    kinds = {f"{prefix}inactive_file", f"{prefix}active_file"}
    rows = (line.split() for line in _read(folder / "memory.stat").splitlines())
    return sum(int(row[1]) for row in rows if len(row) == 2 and row[0] in kinds and row[1].isdigit())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""  # not there: this system or this process has no such limit
