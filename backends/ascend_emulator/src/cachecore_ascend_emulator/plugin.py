"""What the emulator tells `cachecore doctor`. It offers no driver and no device: those are of who loads its library."""

from __future__ import annotations

from collections.abc import Iterator

from cachecore.plugins import hookimpl
from cachecore.probes import Finding, Probe
from cachecore_ascend_emulator._description import describe

CACHECORE_PLUGIN_API = 1


@hookimpl
def cachecore_probes() -> list[Probe]:
    """One probe: what is emulated, and which settings of it are on."""
    return [Probe("Ascend emulator", _look)]


def _look() -> Iterator[Finding]:
    description = describe()
    if not description.soc:
        yield Finding("emulated", "nothing; installed, and used only where CACHECORE_EMULATE names a SoC")
        return
    yield Finding("emulated", str(description))
    plan = description.settings.get("CACHECORE_EMULATE_FAULTS")
    if plan:
        yield Finding(
            "faults on demand", plan, "calls fail on purpose; unset CACHECORE_EMULATE_FAULTS if you do not test"
        )
