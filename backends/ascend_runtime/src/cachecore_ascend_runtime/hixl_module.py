"""Finding the vendor's `hixl` module, or the emulator's where CACHECORE_EMULATE asks for it."""

from __future__ import annotations

import importlib
from types import ModuleType

from cachecore.errors import BackendError
from cachecore_ascend_runtime.errors import EmulatorNotInstalledError
from cachecore_ascend_runtime.loader import EMULATE, emulated_soc

__all__ = ["HixlNotInstalledError", "find_module"]

_PACKAGE = "cachecore_ascend_emulator"


class HixlNotInstalledError(BackendError):
    """The vendor's Python module `hixl` cannot be imported."""


def find_module() -> tuple[ModuleType, bool]:
    """The module and whether it is the emulator's. Imports it on the first call.

    Raises:
        HixlNotInstalledError: It is not there, or does not load; says which package of CANN brings it.
        EmulatorNotInstalledError: CACHECORE_EMULATE is set without the emulator.
    """
    if emulated_soc():
        try:
            emulator = importlib.import_module(_PACKAGE)
        except ModuleNotFoundError as error:
            if error.name != _PACKAGE:
                raise
            raise EmulatorNotInstalledError(
                f"{EMULATE}={emulated_soc()} is set and the emulator is not installed: "
                "pip install --find-links WHEELHOUSE cachecore-ascend-emulator, or unset it"
            ) from None
        module: ModuleType = emulator.hixl_module()
        return module, True
    try:
        return importlib.import_module("hixl"), False
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "hixl"
        what = "is not installed" if missing else f"is there and does not load ({error})"
        raise HixlNotInstalledError(
            f"the Python module hixl {what}. It comes with the CANN toolkit (package Ascend-cann-toolkit, component "
            "cann-hixl, with libcann_hixl.so): install it for this Python, and run CANN's set_env.sh before the process "
            "starts. Transfers within the process need none of it: engine='local'"
        ) from error
