"""What makes Ascend 950PR and 950DT different from every other product: there is no alignment rule.

The sources are the vendor's manual pages (CANN 9.x). Everything here is pure: facts in, exceptions out.
"""

from __future__ import annotations

from collections.abc import Sequence

from cachecore.driver import (
    Capabilities,
    Capability,
    DeviceInfo,
    Knowledge,
    MemoryInfo,
    MemoryOrigin,
    RegistrationRequest,
)
from cachecore.errors import CacheValueError
from cachecore.types import Placement

__all__ = ["PRODUCT", "PROTOCOLS", "capabilities", "check_registration", "is_950", "serves"]

PRODUCT = "Ascend 950PR/950DT"

#: What data travels over, by the vendor's names: UB. There is no HCCS.
PROTOCOLS = ("ub_ctp:device", "ub_ctp:host")

_REGISTER_PAGE = "CANN 9.x manual, register_blocks_cache"
_STATUS_PAGE = "CANN 9.1.0 manual, product table of query_register_mem_status"
_ALLOCATION_PAGES = "CANN 9.1.0 manual, product tables of allocate_blocks_cache and AllocateCache"
_COPY_PAGES = "CANN 9.1.0 manual, product tables of copy_cache, copy_blocks and swap_blocks"


def is_950(soc: str) -> bool:
    """Whether a SoC name belongs to the line: any name that contains "Ascend950", in any case."""
    return "ascend950" in soc.lower()


def serves(device: DeviceInfo | None) -> bool:
    """Whether this driver serves the detected device."""
    return device is not None and device.kind == "ascend" and is_950(device.soc)


def check_registration(request: RegistrationRequest, infos: Sequence[MemoryInfo]) -> None:
    """Judge one registration. Device memory is taken from any allocator at any address.

    Raises:
        CacheValueError: Host memory from aclrtMallocHost, which the host's network card cannot register.
    """
    if request.placement is not Placement.HOST:
        return
    for index, ((address, nbytes), info) in enumerate(zip(request.ranges, infos, strict=True)):
        if info.origin is MemoryOrigin.HOST_PINNED:
            raise CacheValueError(
                f"{request.label(index)} is {address:#x} with {nbytes} bytes of {info.origin.value}: on {PRODUCT} the host's "
                "network card cannot register memory of aclrtMallocHost. Use ordinary memory, for example "
                "driver.allocate(nbytes, Placement.HOST)"
            )


def capabilities(
    *, host_alignment: Capability[int], device_alignment: Capability[int], copy_knowledge: Capability[Knowledge]
) -> Capabilities:
    """Limits and features, each with its source.

    Args:
        host_alignment: What the runtime gives and asks for.
        device_alignment: What the runtime gives; no rule asks for more.
        copy_knowledge: What the runtime's copies know after a failure.
    """
    return Capabilities(
        address_budget=Capability(240, _REGISTER_PAGE),
        max_registered_device_bytes=Capability(None, f"{_REGISTER_PAGE}: no limit is stated for {PRODUCT}"),
        max_registered_host_bytes=Capability(None, f"{_REGISTER_PAGE}: no limit is stated for {PRODUCT}"),
        host_alignment=host_alignment,
        device_alignment=device_alignment,
        remote_access_optional=Capability(False, f"CANN 9.x manual: remote access is always on for {PRODUCT}"),
        allocate_caches=Capability(False, _ALLOCATION_PAGES),
        copy_and_swap_blocks=Capability(False, _COPY_PAGES),
        copy_failure_knowledge=copy_knowledge,
        two_sided_lifetime=Capability(False, f"CANN 9.x manual: remote access cannot be switched off on {PRODUCT}"),
        registration_status=Capability(False, f"{_STATUS_PAGE}: not for {PRODUCT}, which has no bilateral links"),
    )
