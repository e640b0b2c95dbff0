"""The driver for Ascend 950PR and 950DT: the product's facts (see `product`) on top of the shared Ascend driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cachecore_ascend_runtime.driver import AscendDriver
from cachecore_ascend_runtime.hixl_profile import EVERY_PAIR, HixlProfile
from cachecore_ascend_runtime.runtime import Runtime

from cachecore.driver import BackendDriver, Capabilities, Capability, MemoryInfo, RegistrationRequest
from cachecore.errors import BackendError, NotSupportedError
from cachecore_ascend_950 import product

__all__ = ["Ascend950Driver", "create_driver"]


class Ascend950Driver(AscendDriver):
    """One device of an Ascend 950.

    Args:
        device: Index over the visible devices; None = the calling thread's current one, else the only one visible.
        runtime: The runtime, None = the one of this process.

    Raises:
        BackendError: The SoC is of another product line, or as in `AscendDriver`.
    """

    name = "ascend_950"
    #: Its host network card cannot register memory of aclrtMallocHost.
    ordinary_host_memory = True

    def __init__(self, device: int | None, *, runtime: Runtime | None = None) -> None:
        super().__init__(device, runtime=runtime)
        if not product.is_950(self.runtime.soc_name):
            raise BackendError(
                f"the SoC is {self.runtime.soc_name!r}; driver {self.name} serves names that contain 'Ascend950'. "
                "Use backend='auto' to find the driver that fits"
            )
        self._capabilities = product.capabilities(
            host_alignment=self.host_alignment(),
            device_alignment=self.device_alignment(),
            copy_knowledge=self.copy_knowledge(),
        )

    def capabilities(self) -> Capabilities:
        """See `product.capabilities`."""
        return self._capabilities

    def check_registration(self, request: RegistrationRequest, infos: Sequence[MemoryInfo]) -> None:
        """See `product.check_registration`."""
        product.check_registration(request, infos)

    def remap(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Refuse: the vendor's manual says that the product does not have it.

        Raises:
            NotSupportedError: Always.
        """
        raise NotSupportedError(
            f"remap_registered_memory is not supported on {product.PRODUCT} (CANN 9.x manual). Unregister the caches that "
            "lie in the memory, repair it, and register them again",
            product=product.PRODUCT,
            feature="remap_registered_memory",
        )

    def hixl_profile(self) -> HixlProfile:
        """How the product uses the HIXL engine: over UB, between all placements; it must be told LocalCommRes."""
        return HixlProfile(
            product=product.PRODUCT,
            soc=self.runtime.soc_name,
            protocols=product.PROTOCOLS,
            placement_pairs=Capability(
                EVERY_PAIR, f"CANN 9.x manual, {product.PRODUCT}: UB moves host and device memory"
            ),
            needs_local_comm_res=True,
        )


def create_driver(device: int | None, options: Mapping[str, object]) -> BackendDriver:
    """Make the driver; the factory of its `DriverSpec`. It has no options."""
    return Ascend950Driver(device)
