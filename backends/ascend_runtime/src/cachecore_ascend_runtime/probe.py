"""What `cachecore doctor` reports about the Ascend runtime: the library, its versions, what it lacks, and hixl."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cachecore.errors import BackendError, CacheError
from cachecore.probes import Finding, Probe
from cachecore_ascend_runtime import hixl_module
from cachecore_ascend_runtime.detection import detect
from cachecore_ascend_runtime.loader import EMULATE, candidates, emulated_soc, load

__all__ = ["PROBE"]

_VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"


def _look() -> Iterator[Finding]:
    places = candidates()
    if emulated_soc():
        yield Finding(EMULATE, os.environ.get(EMULATE, ""))
    elif not places:
        yield Finding("libascendcl", "not found: no sign of Ascend software on this machine")
        return
    for place in places:
        yield Finding("candidate", f"{place.name} ({place.how})")
    try:
        detect()
        runtime = load()
    except BackendError as error:
        yield Finding("libascendcl", "not usable", str(error))
        return
    emulated = "; EMULATED" if runtime.emulated else ""
    yield Finding("libascendcl", f"{runtime.library}, found by {runtime.how_found}{emulated}")
    yield Finding("SoC", runtime.soc_name)
    yield Finding(
        "devices",
        f"{runtime.device_count} visible ({_VISIBLE} {os.environ.get(_VISIBLE, 'is not set')})",
        "" if runtime.device_count else "no device is visible: look at npu-smi info and at that variable",
    )
    for name, version in runtime.versions.items():
        yield Finding(f"{name} version", version)
    hdk = runtime.hdk_version
    yield Finding("HDK version", f"{hdk.value_or('not known')} ({hdk.source})")
    # An older runtime is no fault: what it lacks is switched off, and the report says what that costs.
    for symbol, cost in runtime.missing_symbols.items():
        yield Finding(f"without {symbol}", cost)
    for symbol, cost in runtime.refused_by_driver.items():
        yield Finding(f"driver refuses {symbol}", cost)
    yield from _hixl()


def _hixl() -> Iterator[Finding]:
    try:
        module, emulated = hixl_module.find_module()
    except CacheError as error:
        yield Finding("hixl", "not usable", str(error))
        return
    where = getattr(module, "__file__", None) or module.__name__
    yield Finding("hixl", f"{where}{'; EMULATED' if emulated else ''}")


PROBE = Probe("Ascend runtime", _look)
