"""What makes Atlas A2 and A3 different from every other product: names, limits, and the rules of registration.

The sources are the vendor's manual pages of register_blocks_cache and register_cache (CANN 9.x) and the CANN runtime
FAQ on memory shared between processes. Everything here is pure: facts in, exceptions out.
"""

from __future__ import annotations

import enum
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from cachecore.driver import (
    Capabilities,
    Capability,
    DeviceInfo,
    Knowledge,
    MemoryInfo,
    MemoryOrigin,
    RegistrationRequest,
)
from cachecore.errors import AlignmentError, CacheValueError
from cachecore.types import Placement

__all__ = [
    "A2_SOCS",
    "A3_SOCS",
    "HUGE_PAGE",
    "SERVERS",
    "MisalignedMemoryWarning",
    "ProductLine",
    "Rules",
    "Transport",
    "capabilities",
    "host_byte_limit",
    "product_line",
    "serves",
]

MIB, GIB = 1 << 20, 1 << 30
#: Page size that is assumed where the runtime cannot tell (register page: "2 MiB when the page size is not known").
HUGE_PAGE = 2 * MIB

#: Exact names. The A2 names start with those of the older Ascend910 training line, which is not supported.
A2_SOCS = ("Ascend910B1", "Ascend910B2", "Ascend910B2C", "Ascend910B3", "Ascend910B4", "Ascend910B4-1")
A3_SOCS = (
    "Ascend910_9391",
    "Ascend910_9392",
    "Ascend910_9381",
    "Ascend910_9382",
    "Ascend910_9372",
    "Ascend910_9362",
)

#: Of the A2 line the vendor supports these servers only; the SoC name cannot tell them apart.
SERVERS = (
    "Atlas 800I A2 inference server",
    "A200I A2 Box heterogeneous subrack",
    "Atlas A3 training and inference products",
)

_REGISTER_PAGE = "CANN 9.x manual, register_blocks_cache"
_REGISTER_CACHE_PAGE = "CANN 9.x manual, register_cache"


class ProductLine(enum.Enum):
    """The two lines this driver serves."""

    A2 = "Atlas A2 (Ascend 910B)"
    A3 = "Atlas A3 (Ascend 910_93)"


class Transport(enum.Enum):
    """How data travels between devices."""

    HCCS = "hccs"
    ROCE = "roce"


class MisalignedMemoryWarning(UserWarning):
    """Memory breaks the HCCS alignment rule and was registered because on_misaligned="warn" was asked for."""


def product_line(soc: str) -> ProductLine | None:
    """The line a SoC name belongs to; None for every other name."""
    if soc in A2_SOCS:
        return ProductLine.A2
    if soc in A3_SOCS:
        return ProductLine.A3
    return None


def serves(device: DeviceInfo | None) -> bool:
    """Whether this driver serves the detected device."""
    return device is not None and device.kind == "ascend" and product_line(device.soc) is not None


@dataclass(frozen=True)
class Rules:
    """What the product accepts.

    Attributes:
        line: A2 or A3.
        transport: HCCS, unless the option or HCCL_INTRA_ROCE_ENABLE=1 says RoCE.
        page_size: Bytes to assume where the runtime does not tell the page size of an address.
        assume_origin: What to assume where the runtime does not tell where memory came from.
        on_misaligned: "error", or "warn" to register memory that HCCS may refuse later as a failed link.
    """

    line: ProductLine
    transport: Transport
    page_size: int = HUGE_PAGE
    assume_origin: MemoryOrigin = MemoryOrigin.UNKNOWN
    on_misaligned: str = "error"

    def check(self, request: RegistrationRequest, infos: Sequence[MemoryInfo]) -> None:
        """Judge one registration.

        Memory that peers cannot reach does not travel, so that nothing is asked of it.

        Raises:
            AlignmentError: Over HCCS an address is not aligned as it must be.
            CacheValueError: Host memory that cannot travel this way.
        """
        if not request.remote_accessible:
            return
        if request.placement is Placement.HOST:
            self._check_host_memory(request, infos)
        elif self.transport is Transport.HCCS:
            for index, ((address, nbytes), info) in enumerate(zip(request.ranges, infos, strict=True)):
                self._check_alignment(request, index, address, nbytes, info)

    def _check_alignment(
        self, request: RegistrationRequest, index: int, address: int, nbytes: int, info: MemoryInfo
    ) -> None:
        """The HCCS rule: shared memory starts on a boundary of its page table.

        What aclrtMalloc returned is accepted by `register_blocks_cache` as it is; any other memory (virtual memory
        mappings, slices of a larger allocation, unknown) starts on its page, 2 MiB where the page is not known.
        `register_cache` asks for 2 MiB at the start of every region, whatever the allocator.
        """
        origin = info.origin if info.origin is not MemoryOrigin.UNKNOWN else self.assume_origin
        page = info.page_size or self.page_size
        if not request.is_blocks:
            required, rule = HUGE_PAGE, "register_cache needs 2 MiB at the start of every region"
        elif origin is MemoryOrigin.ACLRT_MALLOC:
            return
        else:
            required, rule = page, "memory that aclrtMalloc did not return starts on a page boundary"
        beyond = address % required
        if not beyond:
            return
        source = f": {info.reason}" if info.reason else ""
        page_text = f"page size {page}" if info.page_size else f"page size not known, {page} assumed"
        message = (
            f"{request.label(index)} is {address:#x} with {nbytes} bytes: over HCCS on {self.line.value}, {rule}. "
            f"Its origin is {origin.value} ({page_text}{source}); it lies {beyond} bytes behind a boundary of "
            f"{required} and {required - beyond} before the next. Allocate with driver.allocate_aligned(nbytes), cut "
            "with aligned_view(tensor) from a tensor that is 2 MiB larger, or use the RoCE transport "
            "(option ascend_a2a3.transport='roce' or HCCL_INTRA_ROCE_ENABLE=1)"
        )
        if self.on_misaligned == "warn":
            warnings.warn(
                f"{message}. Registered all the same: linking may fail", MisalignedMemoryWarning, stacklevel=2
            )
            return
        raise AlignmentError(message, tensor_index=index, address=address, alignment=required, origin=origin.value)

    def _check_host_memory(self, request: RegistrationRequest, infos: Sequence[MemoryInfo]) -> None:
        if self.transport is Transport.HCCS:
            raise CacheValueError(
                f"cache_desc.placement is HOST and remote_accessible True: over HCCS on {self.line.value} only device "
                "memory can be reached by peers. Register it with remote_accessible=False, or use the RoCE transport "
                "(option ascend_a2a3.transport='roce' or HCCL_INTRA_ROCE_ENABLE=1)"
            )
        for index, ((address, nbytes), info) in enumerate(zip(request.ranges, infos, strict=True)):
            origin = info.origin if info.origin is not MemoryOrigin.UNKNOWN else self.assume_origin
            if origin is not MemoryOrigin.HOST_PINNED:
                raise CacheValueError(
                    f"{request.label(index)} is {address:#x} with {nbytes} bytes of {origin.value}: over RoCE on "
                    f"{self.line.value} host memory comes from aclrtMallocHost. Allocate it with "
                    "driver.allocate(nbytes, Placement.HOST)"
                )


def host_byte_limit(hdk: Capability[str]) -> Capability[int | None]:
    """How much host memory can be registered: 20 GiB before HDK 25.5.0, else 1 TiB; the lower one when not known.

    Older drivers map host memory with 4 KiB page tables, which run out.
    """
    version = hdk.value_or("")
    limit = 1024 * GIB if version and _numbers(version) >= (25, 5, 0) else 20 * GIB
    shown = f"HDK {version}" if version else "HDK version not known"
    return Capability(limit, f"{_REGISTER_CACHE_PAGE}: 20 GiB before HDK 25.5.0, else 1 TiB; {shown} ({hdk.source})")


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version up to the first part that is none: 25 and 2 of 25.2.rc1."""
    numbers = []
    for part in version.split("."):
        digits = re.match(r"\d+", part)
        if digits is None or digits.group() != part:
            break
        numbers.append(int(part))
    return tuple(numbers)


def capabilities(
    line: ProductLine,
    transport: Transport,
    *,
    host_bytes: Capability[int | None],
    host_alignment: Capability[int],
    device_alignment: Capability[int],
    copy_knowledge: Capability[Knowledge],
) -> Capabilities:
    """Limits and features of a product line, each with its source.

    Args:
        line: A2 or A3.
        transport: In use.
        host_bytes: From `host_byte_limit`.
        host_alignment: What the runtime gives and asks for.
        device_alignment: What the runtime gives, where the product asks for no more.
        copy_knowledge: What the runtime's copies know after a failure.
    """
    yes = Capability(True, f"{_REGISTER_PAGE}: product table, {line.value}")
    huge = Capability(HUGE_PAGE, f"{_REGISTER_CACHE_PAGE}: over HCCS 2 MiB satisfies every rule")
    return Capabilities(
        address_budget=Capability(240, _REGISTER_PAGE),
        max_registered_device_bytes=Capability(50 * GIB, _REGISTER_CACHE_PAGE),
        max_registered_host_bytes=host_bytes,
        host_alignment=host_alignment,
        device_alignment=huge if transport is Transport.HCCS else device_alignment,
        remote_access_optional=yes,
        allocate_caches=yes,
        copy_and_swap_blocks=yes,
        copy_failure_knowledge=copy_knowledge,
        two_sided_lifetime=_two_sided_lifetime(line, transport),
        registration_status=Capability(
            True, f"CANN 9.x manual, query_register_mem_status: product table, {line.value}"
        ),
    )


def _two_sided_lifetime(line: ProductLine, transport: Transport) -> Capability[bool]:
    """Whether remote_cache_accessible may be False: on A2 always, on A3 over RoCE only."""
    page = "CANN 9.x manual, enable_remote_cache_accessible"
    if line is ProductLine.A3 and transport is Transport.HCCS:
        return Capability(False, f"{page}: on {line.value} it may be off over RoCE only, and the transport is HCCS")
    return Capability(True, f"{page}: {line.value} over {transport.value}")
