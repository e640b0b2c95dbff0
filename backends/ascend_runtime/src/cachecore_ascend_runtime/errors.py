"""What can go wrong with the runtime library: it is not there, it cannot be used, or one of its functions fails."""

from __future__ import annotations

import errno
import os

from cachecore.errors import BackendError, CacheOutOfMemoryError, EngineError, StatusCode
from cachecore_ascend_runtime.codes import Code, acl_code

__all__ = [
    "AscendError",
    "AscendOutOfMemoryError",
    "EmulatorNotInstalledError",
    "RuntimeNotFoundError",
    "RuntimeNotLoadableError",
    "RuntimeStartError",
    "describe_failure",
    "from_code",
]


class RuntimeNotFoundError(BackendError):
    """No libascendcl anywhere; the message lists where it was looked for.

    Attributes:
        places: The places, in order.
    """

    def __init__(self, message: str, *, places: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.places = places


class RuntimeNotLoadableError(BackendError):
    """A libascendcl was found and the loader refuses it, mostly because a library that it needs is missing."""


class RuntimeStartError(BackendError):
    """The library was loaded and aclInit, aclrtGetSocName or aclrtGetDeviceCount failed: driver, device or permission."""


class EmulatorNotInstalledError(BackendError):
    """CACHECORE_EMULATE is set and the distribution with the emulator is not installed."""


class AscendError(EngineError):
    """A function of the runtime answered with an error.

    Attributes:
        operation: The function.
        code: Its answer, see `cachecore_ascend_runtime.codes`.
        detail: What aclGetRecentErrMsg said in the thread that failed, or empty.
    """

    def __init__(self, message: str, *, operation: str = "", code: int = 0, detail: str = "") -> None:
        super().__init__(message, operation=operation, code=code)
        self.detail = detail


class AscendOutOfMemoryError(AscendError, CacheOutOfMemoryError):
    """The device, or the memory that the host can page-lock, has too little left."""

    default_status = StatusCode.DEVICE_OUT_OF_MEMORY


#: Codes that mean "no memory": of the device or page-locked, of the host.
_OUT_OF_MEMORY = (207001, 200000)


def from_code(function: str, code: int, detail: str) -> AscendError:
    """The error for a function of the runtime that answered `code`; `detail` is the text of aclGetRecentErrMsg."""
    cls = AscendOutOfMemoryError if code in _OUT_OF_MEMORY else AscendError
    return cls(describe_failure(function, code, detail), operation=function, code=code, detail=detail)


def describe_failure(function: str, code: int, detail: str) -> str:
    """One line: what failed, the code and its words, what the runtime adds, and the remedy.

    Args:
        function: Of the runtime, or a system call, whose codes are errnos.
        code: Its answer.
        detail: Text of aclGetRecentErrMsg, any number of lines.
    """
    if function.startswith("acl"):
        entry = acl_code(code)
    else:
        entry = Code(code, errno.errorcode.get(code, ""), os.strerror(code))
    said = "; ".join(line.strip() for line in detail.splitlines() if line.strip())
    text = f"{function} failed with {code} ({entry.words})"
    if said:
        text += f": {said}"
    return f"{text}. {entry.remedy[0].upper()}{entry.remedy[1:]}" if entry.remedy else text
