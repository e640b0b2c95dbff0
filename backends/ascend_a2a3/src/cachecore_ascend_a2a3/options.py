"""Options of the driver: what a caller, or the environment, says about this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from cachecore import _arguments as arguments
from cachecore.driver import MemoryOrigin
from cachecore.errors import CacheValueError
from cachecore_ascend_a2a3.product import HUGE_PAGE, Transport

__all__ = ["OPTION_NAMES", "Options", "read"]

#: As they stand behind "ascend_a2a3." in the options of a manager.
OPTION_NAMES = ("transport", "page_size", "assume_origin", "hdk_version", "on_misaligned")
#: The vendor's own switch from HCCS to RoCE within a server.
ROCE_VARIABLE = "HCCL_INTRA_ROCE_ENABLE"

_ORIGINS = {
    "unknown": MemoryOrigin.UNKNOWN,
    "aclrtMalloc": MemoryOrigin.ACLRT_MALLOC,
    "aclrtMallocHost": MemoryOrigin.HOST_PINNED,
}


@dataclass(frozen=True)
class Options:
    """Checked options.

    Attributes:
        transport: "hccs" or "roce"; without the option HCCL_INTRA_ROCE_ENABLE=1 says RoCE, else it is HCCS.
        page_size: Bytes to assume where the runtime does not tell, a power of two.
        assume_origin: "aclrtMalloc" or "aclrtMallocHost" to assume where the runtime does not tell; a promise of the
            caller, which nothing can check.
        hdk_version: "25.5.0" and the like, where the driver's version cannot be asked; None = not given.
        on_misaligned: "error" or "warn".
    """

    transport: Transport
    page_size: int
    assume_origin: MemoryOrigin
    hdk_version: str | None
    on_misaligned: str


def read(options: Mapping[str, object]) -> Options:
    """Check what a manager hands over.

    Raises:
        CacheTypeError, CacheValueError: Naming the option.
    """
    transport = options.get("transport")
    if transport is None:
        transport = "roce" if os.environ.get(ROCE_VARIABLE) == "1" else "hccs"
    page_size = arguments.integer(_name("page_size"), options.get("page_size", HUGE_PAGE), 1, 1 << 30)
    if page_size & (page_size - 1):
        raise CacheValueError(f"{_name('page_size')} is {page_size}; it must be a power of two")
    hdk = options.get("hdk_version")
    if hdk is not None:
        arguments.instance(_name("hdk_version"), hdk, str)
        if not re.fullmatch(r"\d+(\.\w+)*", str(hdk)):
            raise CacheValueError(f"{_name('hdk_version')} is {hdk!r}; give it as the driver prints it, like '25.5.0'")
    return Options(
        transport=Transport(_one_of("transport", transport, tuple(t.value for t in Transport))),
        page_size=page_size,
        assume_origin=_ORIGINS[_one_of("assume_origin", options.get("assume_origin", "unknown"), tuple(_ORIGINS))],
        hdk_version=None if hdk is None else str(hdk),
        on_misaligned=_one_of("on_misaligned", options.get("on_misaligned", "error"), ("error", "warn")),
    )


def _name(option: str) -> str:
    return f"options['ascend_a2a3.{option}']"


def _one_of(option: str, value: object, known: tuple[str, ...]) -> str:
    arguments.instance(_name(option), value, str)
    if value not in known:
        raise CacheValueError(f"{_name(option)} is {value!r}; it must be one of {', '.join(map(repr, known))}")
    return str(value)
