"""The driver for Atlas A2 and A3: the product's rules (see `product`) on top of the shared Ascend driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cachecore_ascend_runtime.device import MallocPolicy
from cachecore_ascend_runtime.driver import AscendDriver
from cachecore_ascend_runtime.hixl_profile import DEVICE_TO_DEVICE, EVERY_PAIR, HOST_IS_LOCAL_ONLY, HixlProfile
from cachecore_ascend_runtime.runtime import Runtime

from cachecore.driver import Allocation, BackendDriver, Capabilities, Capability, MemoryInfo, RegistrationRequest
from cachecore.errors import BackendError, NotSupportedError
from cachecore.types import Placement
from cachecore_ascend_a2a3 import options as driver_options
from cachecore_ascend_a2a3 import product
from cachecore_ascend_a2a3.product import Transport

__all__ = ["A2A3Driver", "create_driver"]


class A2A3Driver(AscendDriver):
    """One device of an Atlas A2 or A3.

    Args:
        device: Index over the visible devices; None = the calling thread's current one, else the only one visible.
        options: Checked options.
        runtime: The runtime, None = the one of this process.

    Attributes:
        rules: The product line and what it accepts.

    Raises:
        BackendError: The SoC is of another product line, or as in `AscendDriver`.
    """

    name = "ascend_a2a3"

    def __init__(self, device: int | None, options: driver_options.Options, *, runtime: Runtime | None = None) -> None:
        super().__init__(device, runtime=runtime)
        line = product.product_line(self.runtime.soc_name)
        if line is None:
            raise BackendError(
                f"the SoC is {self.runtime.soc_name!r}; driver {self.name} serves "
                f"{', '.join(product.A2_SOCS + product.A3_SOCS)}. Use backend='auto' to find the driver that fits"
            )
        self.rules = product.Rules(
            line, options.transport, options.page_size, options.assume_origin, options.on_misaligned
        )
        hdk = self.runtime.hdk_version
        if options.hdk_version is not None:
            hdk = Capability(options.hdk_version, "option ascend_a2a3.hdk_version")
        self._capabilities = product.capabilities(
            line,
            options.transport,
            host_bytes=product.host_byte_limit(hdk),
            host_alignment=self.host_alignment(),
            device_alignment=self.device_alignment(),
            copy_knowledge=self.copy_knowledge(),
        )

    def capabilities(self) -> Capabilities:
        """See `product.capabilities`."""
        return self._capabilities

    def check_registration(self, request: RegistrationRequest, infos: Sequence[MemoryInfo]) -> None:
        """See `product.Rules.check`."""
        self.rules.check(request, infos)

    def remap(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Refuse: the vendor reserves the call, and no function of the runtime renews the mapping of a network card.

        Raises:
            NotSupportedError: Always.
        """
        raise NotSupportedError(
            f"remap_registered_memory is reserved on {self.rules.line.value} (CANN 9.x manual: not supported yet). "
            "Unregister the caches that lie in the memory, repair it, and register them again",
            product=self.rules.line.value,
            feature="remap_registered_memory",
        )

    def malloc_policy(self, nbytes: int) -> MallocPolicy:
        """Memory meant for HCCS consists of huge pages only."""
        return MallocPolicy.HUGE_ONLY if self.rules.transport is Transport.HCCS else MallocPolicy.HUGE_FIRST

    def hixl_profile(self) -> HixlProfile:
        """How the product uses the HIXL engine: by HCCS or RoCE, and between which placements."""
        line, transport = self.rules.line, self.rules.transport
        pairs, source = EVERY_PAIR, "over RoCE host memory travels too"
        if transport is Transport.HCCS and line is product.ProductLine.A3:
            pairs, source = HOST_IS_LOCAL_ONLY, "over HCCS host memory is never the remote side"
        elif transport is Transport.HCCS:
            pairs, source = DEVICE_TO_DEVICE, "over HCCS from device to device only"
        return HixlProfile(
            product=line.value,
            soc=self.runtime.soc_name,
            protocols=(f"{transport.value}:device",),
            placement_pairs=Capability(pairs, f"CANN 9.x manual, {line.value}: {source}"),
            link_hint="device memory that aclrtMalloc did not return must start on a page boundary"
            if transport is Transport.HCCS
            else "",
        )

    def allocate_aligned(self, nbytes: int) -> Allocation:
        """Device memory that satisfies every alignment rule of the product: huge pages, from a 2 MiB boundary on.

        Args:
            nbytes: Size in bytes.

        Raises:
            CacheValueError, CacheOutOfMemoryError, AscendError: As in `allocate`.
        """
        return self.allocate(nbytes, Placement.DEVICE, product.HUGE_PAGE)


def create_driver(device: int | None, options: Mapping[str, object]) -> BackendDriver:
    """Make the driver; the factory of its `DriverSpec`."""
    return A2A3Driver(device, driver_options.read(options))
