"""Probes: what a plugin can find out about this machine for `cachecore doctor`, each on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

__all__ = ["Finding", "Probe", "run"]


@dataclass(frozen=True)
class Finding:
    """One line of a report.

    Attributes:
        name: What was looked at.
        value: What was seen.
        problem: What is wrong with it and what to do, empty when nothing is.
    """

    name: str
    value: str
    problem: str = ""


@dataclass(frozen=True)
class Probe:
    """What a plugin's `cachecore_probes` hook returns, one for each subject.

    Attributes:
        title: The subject.
        look: Finds out. May raise: the report then says so in its place.
    """

    title: str
    look: Callable[[], Iterable[Finding]]


def run(probe: Probe) -> list[Finding]:
    """The findings of a probe; what it raised is a finding too, because a report must not end early."""
    found: list[Finding] = []
    try:
        for finding in probe.look():
            found.append(finding)  # noqa: PERF402  # what came before an exception counts
    except (Exception, SystemExit) as error:  # noqa: BLE001  # third-party code
        found.append(Finding("this probe", "failed", f"{type(error).__name__}: {error}"))
    return found
