"""SoC names: which ones the vendor's cache management does not run on, and which extra serves the others.

Only what detection needs. What a driver knows about its product line lives in the driver.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["NUMERIC_SOCS", "extra_for", "unsupported"]

#: SoC versions as torch_npu numbers them, with the names the runtime uses.
NUMERIC_SOCS: Final = {
    100: "Ascend910PremiumA",
    101: "Ascend910ProA",
    102: "Ascend910A",
    103: "Ascend910ProB",
    104: "Ascend910",
    **{number: "Ascend310P" for number in range(200, 206)},
    220: "Ascend910B1",
    221: "Ascend910B2",
    222: "Ascend910B2C",
    223: "Ascend910B3",
    224: "Ascend910B4",
    225: "Ascend910B4-1",
    **{number: "Ascend310B" for number in range(240, 244)},
    250: "Ascend910_9391",
    251: "Ascend910_9392",
    252: "Ascend910_9381",
    253: "Ascend910_9382",
    254: "Ascend910_9372",
    255: "Ascend910_9362",
    260: "Ascend950",
}

_TRAINING: Final = ("Ascend910", "Ascend910A", "Ascend910ProA", "Ascend910ProB", "Ascend910PremiumA")
_WHY: Final = "the vendor's CacheManager does not run on it; A2, A3 and 950 products are supported"


def unsupported(soc: str) -> str:
    """Why a SoC cannot be used, with the name of its product line; empty when nothing speaks against it."""
    if soc.startswith("Ascend310P"):
        return f"Atlas inference products ({soc}) are not supported: {_WHY}"
    if soc.startswith("Ascend310B"):
        return f"Atlas 200I/500 A2 inference products ({soc}) are not supported: {_WHY}"
    if soc in _TRAINING:  # the exact names: Ascend910B and Ascend910_ begin in the same way
        return f"Atlas training products ({soc}) are not supported: {_WHY}"
    return ""


def extra_for(soc: str) -> str:
    """The extra of cachecore-kv whose driver serves a SoC, empty when none is known to."""
    if re.match(r"Ascend910(B\d|_93\d\d)", soc):
        return "ascend-a2a3"
    if "ascend950" in soc.lower():
        return "ascend-950"
    return ""
