"""What this distribution tells the core: which Ascend devices there are."""

from __future__ import annotations

from cachecore.driver import DeviceInfo
from cachecore.plugins import hookimpl
from cachecore_ascend_runtime.detection import detect

CACHECORE_PLUGIN_API = 1


@hookimpl
def cachecore_devices() -> list[DeviceInfo]:
    """See `detection.detect`."""
    return detect()
