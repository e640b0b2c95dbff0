"""What it costs when an older runtime lacks a function. Functions without which nothing works are not listed here."""

from __future__ import annotations

from typing import Final

__all__ = ["COSTS", "cost"]

#: Function -> what is switched off without it.
COSTS: Final = {
    "aclGetRecentErrMsg": "errors carry the code only, without the text of the runtime",
    "aclrtSynchronizeStreamWithTimeout": "a copy that hangs in the device is not noticed at its deadline",
    "aclrtStreamAbort": "a copy past its deadline is not stopped; its blocks stay in quarantine until it has ended",
    "aclrtStreamWaitEvent": "copies cannot be ordered after an event of the device (after=)",
    "aclmdlRICaptureThreadExchangeMode": "copies and allocations fail while a graph is captured in mode GLOBAL",
    "aclrtPointerGetAttributes": "where memory is and its page size are not known: what the processor can reach counts "
    "as host memory, the rest as device memory of unknown origin",
    "aclrtMemGetAddressRange": "the origin of device memory is not known, so that it counts as not from aclrtMalloc",
    "aclrtMemRetainAllocationHandle": "mapped memory (aclrtMapMem) cannot be told from aclrtMalloc, so that the origin "
    "of device memory is not known",
    "aclrtFreePhysical": "mapped memory (aclrtMapMem) cannot be told from aclrtMalloc, so that the origin of device "
    "memory is not known",
    "aclrtMemcpyBatch": "copies between host and device are started piece by piece where aclrtMemcpyBatchAsync is "
    "missing too",
    "aclrtMemcpyBatchAsync": "copies between host and device are started piece by piece, or as batches that cannot be "
    "stopped where aclrtMemcpyBatch is there",
    "aclrtGetMemInfo": "free and total memory of the device are not known",
    "aclrtGetVersion": "the version of the interface is not known",
    "aclsysGetVersionStr": "versions of runtime and driver are read from files, or not known",
}


def cost(symbol: str) -> str:
    """What is switched off where the runtime lacks `symbol`."""
    return COSTS.get(symbol, "not known")
