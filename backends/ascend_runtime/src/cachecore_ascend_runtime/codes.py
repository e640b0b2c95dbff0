"""Error codes of the Ascend runtime and of HIXL, with words and, where there is one, a way out.

Taken from the vendor's documentation. A code that is not listed is explained by its range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["ACL", "HIXL", "Code", "acl_code", "hixl_code"]


@dataclass(frozen=True)
class Code:
    """One error code.

    Attributes:
        code: The number.
        name: What the vendor's headers call it, empty for a code that is known by its range only.
        words: What it means.
        remedy: What to do, empty when nothing general can be said.
    """

    code: int
    name: str
    words: str
    remedy: str = ""


_INVALID: Final = "look at the arguments that the message names; report it if they come from cachecore"
_CAPTURE: Final = (
    "finish the graph capture first; cachecore copies during a capture only where the runtime has "
    "aclmdlRICaptureThreadExchangeMode"
)
_DEVICE: Final = "look into the device log (plog) and at `npu-smi info`; the process must be started again"

_ACL_CODES: Final = (
    Code(100000, "ACL_ERROR_INVALID_PARAM", "invalid parameter", _INVALID),
    Code(
        100001, "ACL_ERROR_UNINITIALIZE", "the runtime is not initialised", "call torch.npu.init() or aclInit before it"
    ),
    Code(100002, "ACL_ERROR_REPEAT_INITIALIZE", "the runtime was initialised already; harmless"),
    Code(100003, "ACL_ERROR_INVALID_FILE", "invalid file"),
    Code(107000, "ACL_ERROR_RT_PARAM_INVALID", "invalid parameter", _INVALID),
    Code(
        107001,
        "ACL_ERROR_RT_INVALID_DEVICEID",
        "no such device",
        "device numbers count from 0 over the devices that ASCEND_RT_VISIBLE_DEVICES leaves visible",
    ),
    Code(
        107002,
        "ACL_ERROR_RT_CONTEXT_NULL",
        "the calling thread has no context",
        "call torch.npu.set_device(n) or aclrtSetDevice(n) in this thread first",
    ),
    Code(
        107003,
        "ACL_ERROR_RT_STREAM_CONTEXT",
        "the stream belongs to another context",
        "use a stream or event of the device that the manager was made for",
    ),
    Code(107004, "ACL_ERROR_RT_MODEL_CONTEXT", "the model belongs to another context"),
    Code(107005, "ACL_ERROR_RT_STREAM_MODEL", "the stream is not one of the model's"),
    Code(107006, "ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID", "the event has no valid time stamp"),
    Code(107007, "ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL", "the time stamps of the events are in the wrong order"),
    Code(107008, "ACL_ERROR_RT_ADDR_UNALIGNED", "the address is not aligned", "align memory as the product asks"),
    Code(107016, "ACL_ERROR_RT_INVALID_MEMORY_TYPE", "the memory is of the wrong type"),
    Code(107017, "ACL_ERROR_RT_INVALID_HANDLE", "the handle is not valid"),
    Code(107018, "ACL_ERROR_RT_INVALID_MALLOC_TYPE", "the memory was allocated by another kind of call"),
    Code(
        107019, "ACL_ERROR_RT_WAIT_TIMEOUT", "the wait ended before the work did", "give a longer timeout or less work"
    ),
    Code(107020, "ACL_ERROR_RT_TASK_TIMEOUT", "the task took too long"),
    Code(
        107022, "ACL_ERROR_RT_DEVICE_TASK_ABORT", "tasks of the device are being aborted", "try again when that is over"
    ),
    Code(107023, "ACL_ERROR_RT_STREAM_ABORT", "the stream is being aborted", "try again when that is over"),
    Code(107024, "ACL_ERROR_RT_CAPTURE_DEPENDENCY", "the captured graph waits for an event nobody records", _CAPTURE),
    Code(107025, "ACL_ERROR_RT_STREAM_UNJOINED", "the captured graph has a stream that was not joined", _CAPTURE),
    Code(107026, "ACL_ERROR_RT_MODEL_CAPTURED", "the model is being captured", _CAPTURE),
    Code(107027, "ACL_ERROR_RT_STREAM_CAPTURED", "the stream is being captured", _CAPTURE),
    Code(107028, "ACL_ERROR_RT_EVENT_CAPTURED", "the event is being captured", _CAPTURE),
    Code(107029, "ACL_ERROR_RT_STREAM_NOT_CAPTURED", "the stream is not being captured"),
    Code(107030, "ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT", "a graph is captured in a mode that forbids this", _CAPTURE),
    Code(107031, "ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT", "the default stream would join the capture", _CAPTURE),
    Code(200000, "ACL_ERROR_BAD_ALLOC", "memory of the host could not be allocated", "free host memory"),
    Code(
        200001,
        "ACL_ERROR_API_NOT_SUPPORT",
        "the product or runtime does not have this function",
        "`cachecore doctor` lists what this runtime lacks",
    ),
    Code(
        207000,
        "ACL_ERROR_RT_FEATURE_NOT_SUPPORT",
        "the driver or product does not have this feature",
        "update the driver (HDK) and CANN to versions that belong together; for fabric memory on A3, HDK 25.5.0 and "
        "CANN 9.1.0",
    ),
    Code(
        207001,
        "ACL_ERROR_RT_MEMORY_ALLOCATION",
        "out of memory",
        "free memory of the device, or leave some to others: torch_npu keeps what it once took until "
        "torch.npu.empty_cache()",
    ),
    Code(207002, "ACL_ERROR_RT_MEMORY_FREE", "memory could not be freed"),
    Code(207003, "ACL_ERROR_RT_AICORE_OVER_FLOW", "an operator overflowed"),
    Code(
        207004,
        "ACL_ERROR_RT_NO_DEVICE",
        "there is no device",
        "look at `npu-smi info`, at ASCEND_RT_VISIBLE_DEVICES and, in a container, at the mounted /dev/davinci*",
    ),
    Code(
        207005, "ACL_ERROR_RT_RESOURCE_ALLOC_FAIL", "a resource of the device is used up", "close streams or processes"
    ),
    Code(
        207006,
        "ACL_ERROR_RT_NO_PERMISSION",
        "not permitted",
        "the user must be in the group of /dev/davinci*, usually HwHiAiUser",
    ),
    Code(207012, "ACL_ERROR_RT_OVER_LIMIT", "a limit of the device is exceeded"),
    Code(507000, "ACL_ERROR_RT_INTERNAL_ERROR", "internal error of the runtime", _DEVICE),
    Code(507002, "ACL_ERROR_RT_STREAM_TASK_FULL", "the stream's queue is full"),
    Code(507008, "ACL_ERROR_RT_SOC_VERSION", "the SoC's version is wrong", "install the CANN package for this SoC"),
    Code(507014, "ACL_ERROR_RT_AICORE_TIMEOUT", "an operator took too long"),
    Code(507015, "ACL_ERROR_RT_AICORE_EXCEPTION", "an operator failed on the device", _DEVICE),
    Code(507018, "ACL_ERROR_RT_AICPU_EXCEPTION", "an operator failed on the device", _DEVICE),
    Code(507033, "ACL_ERROR_RT_DEV_SETUP_ERROR", "the device could not be started", _DEVICE),
    Code(507035, "ACL_ERROR_RT_VECTOR_CORE_EXCEPTION", "an operator failed on the device", _DEVICE),
    Code(
        507046,
        "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT",
        "the wait for a stream ended before its work did",
        "give a longer timeout or less work",
    ),
    Code(507052, "ACL_ERROR_RT_COPY_DATA", "data could not be copied"),
    Code(507053, "ACL_ERROR_RT_DEVICE_MEM_ERROR", "memory of the device is damaged", _DEVICE),
    Code(507054, "ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR", "memory of the device is damaged", _DEVICE),
    Code(507055, "ACL_ERROR_RT_SUSPECT_DEVICE_MEM_ERROR", "memory of the device may be damaged", _DEVICE),
    Code(507056, "ACL_ERROR_RT_LINK_ERROR", "a link between devices failed", _DEVICE),
    Code(507057, "ACL_ERROR_RT_SUSPECT_REMOTE_ERROR", "the other end of a link may have failed", _DEVICE),
    Code(
        507899,
        "ACL_ERROR_RT_DRV_INTERNAL_ERROR",
        "internal error of the driver",
        "a frequent cause is memory whose address or size the driver cannot pin or share: see the alignment rules "
        "in the documentation",
    ),
    Code(507900, "ACL_ERROR_RT_AICPU_INTERNAL_ERROR", "internal error on the device", _DEVICE),
)

_HIXL_CODES: Final = (
    Code(103900, "PARAM_INVALID", "invalid parameter; also: the range overlaps a registered one in part", _INVALID),
    Code(103901, "TIMEOUT", "not finished in time; the link must be disconnected and connected again"),
    Code(
        103902,
        "NOT_CONNECTED",
        "not connected",
        "link() again; where it happens at once, CANN is too old or the transport is not the peer's",
    ),
    Code(103903, "ALREADY_CONNECTED", "connected already"),
    Code(103904, "NOTIFY_FAILED", "a notification was not delivered"),
    Code(103905, "UNSUPPORTED", "the product or transport does not have this"),
    Code(203900, "RESOURCE_EXHAUSTED", "a resource is used up", "register fewer regions or close links"),
    Code(
        503900,
        "FAILED",
        "the operation failed; the link must be disconnected and connected again",
        "where it happens while connecting over HCCS on A2 or A3, look at the alignment of the registered memory",
    ),
)

ACL: Final = {entry.code: entry for entry in _ACL_CODES}
HIXL: Final = {entry.code: entry for entry in _HIXL_CODES}


def acl_code(code: int) -> Code:
    """Words for a code of the runtime, by its range when it is not listed."""
    known = ACL.get(code)
    if known is not None:
        return known
    if 100000 <= code < 200000:
        return Code(code, "", "the call was wrong (codes from 100000 on are the caller's)", _INVALID)
    if 200000 <= code < 300000:
        return Code(code, "", "a resource is missing or used up (codes from 200000 on)")
    if 500000 <= code < 600000:
        return Code(code, "", "internal error of runtime or driver (codes from 500000 on)", _DEVICE)
    return Code(code, "", "not a code that the vendor documents for the runtime")


def hixl_code(code: int) -> Code:
    """Words for a status of HIXL; one that is not HIXL's own comes from the runtime below it."""
    return HIXL.get(code) or acl_code(code)
