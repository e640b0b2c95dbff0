"""What the built-in plugin brings: the host driver and the local engine."""

from __future__ import annotations

from cachecore.driver import DriverSpec
from cachecore.engine import EngineSpec
from cachecore.host import driver, engine, probe
from cachecore.plugins import hookimpl
from cachecore.probes import Probe

__all__ = ["DRIVER", "ENGINE"]

CACHECORE_PLUGIN_API = 1

#: A machine without an accelerator. Matches only when none was seen, so that nothing falls back to it silently.
DRIVER = DriverSpec(
    name="host",
    description="a machine without an accelerator",
    matches=lambda device: device is None,
    factory=driver.create_driver,
    option_names=driver.OPTION_NAMES,
)

#: Peers of this machine. The engines of accelerators and networks say their own rank.
ENGINE = EngineSpec(
    name="local",
    wire_id=engine.LocalEngine.wire_id,
    rank=50,
    serves=lambda driver: True,
    factory=engine.create_engine,
    option_names=engine.OPTION_NAMES,
)


@hookimpl
def cachecore_drivers() -> list[DriverSpec]:
    """The host driver."""
    return [DRIVER]


@hookimpl
def cachecore_engines() -> list[EngineSpec]:
    """The local engine."""
    return [ENGINE]


@hookimpl
def cachecore_probes() -> list[Probe]:
    """What the kernel lets the local engine do."""
    return [probe.PROBE]
