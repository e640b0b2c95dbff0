"""Which Ascend devices this machine has. Creates no device context; loads nothing where there is no sign of Ascend."""

from __future__ import annotations

import os
import sys

from cachecore.driver import DeviceInfo
from cachecore.errors import BackendError
from cachecore_ascend_runtime.loader import LIBRARY, candidates, emulated_soc, load
from cachecore_ascend_runtime.products import NUMERIC_SOCS, extra_for, unsupported
from cachecore_ascend_runtime.runtime import Runtime

__all__ = ["detect"]


def detect() -> list[DeviceInfo]:
    """The devices, one entry for the kind there is; empty where there is no sign of Ascend software.

    A sign is CACHECORE_EMULATE, a libascendcl in one of the places of `loader.candidates`, or an imported torch_npu.

    Raises:
        BackendError: There is a sign, and it cannot be told what is there: with the reason.
    """
    if emulated_soc() or candidates():
        return [_of_runtime(load())]
    if "torch_npu" in sys.modules:
        return [_of_torch(sys.modules["torch_npu"])]
    return []


def _of_runtime(runtime: Runtime) -> DeviceInfo:
    if runtime.device_count == 0:
        visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
        raise BackendError(
            f"{runtime.library} is there for {runtime.soc_name} and no device is visible (ASCEND_RT_VISIBLE_DEVICES "
            f"{'is not set' if visible is None else f'is {visible!r}'}); to run without one, name the backend 'host'"
        )
    return DeviceInfo(
        kind="ascend",
        soc=runtime.soc_name,
        count=runtime.device_count,
        source=f"{runtime.how_found}, {runtime.library}",
        emulated=runtime.emulated,
        unsupported=unsupported(runtime.soc_name),
        install=extra_for(runtime.soc_name),
    )


def _of_torch(torch_npu: object) -> DeviceInfo:
    """What torch_npu says, where it has the runtime and our loader cannot find it."""
    npu = getattr(torch_npu, "npu", None)
    ask = getattr(npu, "get_soc_version", None) or getattr(getattr(torch_npu, "_C", None), "_npu_get_soc_version", None)
    count = getattr(npu, "device_count", None)
    if ask is None or count is None:
        raise BackendError(
            f"torch_npu is imported, {LIBRARY} was not found, and this torch_npu does not say which SoC it uses. Run CANN's "
            "set_env.sh, so that the library is found"
        )
    version = int(ask())
    soc = NUMERIC_SOCS.get(version, "")
    return DeviceInfo(
        kind="ascend",
        soc=soc or f"torch_npu SoC version {version}",
        count=int(count()),
        source=f"torch_npu, SoC version {version}",
        unsupported=unsupported(soc),
        install=extra_for(soc),
    )
