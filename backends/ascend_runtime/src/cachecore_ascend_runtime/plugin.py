"""What this distribution tells the core: which Ascend devices there are, the HIXL engine, and what codes mean."""

from __future__ import annotations

from cachecore.driver import DeviceInfo
from cachecore.engine import EngineSpec
from cachecore.plugins import hookimpl
from cachecore.probes import Probe
from cachecore_ascend_runtime.detection import detect
from cachecore_ascend_runtime.explain import explain
from cachecore_ascend_runtime.hixl_engine import ENGINE
from cachecore_ascend_runtime.probe import PROBE

CACHECORE_PLUGIN_API = 1


@hookimpl
def cachecore_devices() -> list[DeviceInfo]:
    """See `detection.detect`."""
    return detect()


@hookimpl
def cachecore_engines() -> list[EngineSpec]:
    """The engine between accelerators."""
    return [ENGINE]


@hookimpl
def cachecore_explain_code(code: int) -> list[str]:
    """Codes of the runtime and of HIXL."""
    return [str(meaning) for meaning in explain(code)]


@hookimpl
def cachecore_probes() -> list[Probe]:
    """What doctor says about the runtime."""
    return [PROBE]
