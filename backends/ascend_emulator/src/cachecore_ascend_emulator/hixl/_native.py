"""The transfer engine's C functions."""

from __future__ import annotations

import ctypes
import functools
import logging

from cachecore_ascend_emulator._library import library_path

logger = logging.getLogger("cachecore_ascend_emulator.hixl")
logger.addHandler(logging.NullHandler())

LONGEST_TEXT = 4097  # 1024 characters in UTF-8 and the byte that ends them

_TEXT = ctypes.c_char_p
_ID = ctypes.c_uint64
_ID_OUT = ctypes.POINTER(ctypes.c_uint64)
_INT_OUT = ctypes.POINTER(ctypes.c_int)
_SIGNATURES: dict[str, tuple[type, ...]] = {
    "initialize": (_TEXT, ctypes.c_uint32, ctypes.c_uint32, _ID_OUT),
    "finalize": (_ID,),
    "register_mem": (_ID, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int, _ID_OUT),
    "deregister_mem": (_ID, ctypes.c_uint64),
    "connect": (_ID, _TEXT, ctypes.c_int32),
    "disconnect": (_ID, _TEXT, ctypes.c_int32),
    "transfer_sync": (_ID, _TEXT, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int32),
    "transfer_async": (_ID, _TEXT, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, _ID_OUT),
    "get_transfer_status": (_ID, ctypes.c_uint64, _INT_OUT),
    "send_notify": (_ID, _TEXT, _TEXT, _TEXT, ctypes.c_int32),
    "take_notify": (_ID, ctypes.c_char_p, ctypes.c_char_p, _INT_OUT),
}


@functools.cache
def library() -> ctypes.CDLL:
    """The library that the loader of the runtime opens too: both see the same devices."""
    loaded = ctypes.CDLL(library_path())
    loaded.aclGetRecentErrMsg.restype = ctypes.c_char_p
    for name, arguments in _SIGNATURES.items():
        getattr(loaded, f"cachecore_emulator_hixl_{name}").argtypes = arguments
    return loaded


def call(name: str, *arguments: object) -> int:
    """Call one of them; the reason of a failure goes to the log. Other Python threads run meanwhile."""
    status = int(getattr(library(), f"cachecore_emulator_hixl_{name}")(*arguments))
    if status:
        reason = library().aclGetRecentErrMsg() or b""
        logger.warning("emulated hixl: %s returns %d: %s", name, status, reason.decode(errors="replace"))
    return status


def product_line() -> int:
    """The emulated product line, as the library numbers it."""
    return int(library().cachecore_emulator_product_line())
