"""The smallest driver of an emulated product that uses HIXL, for tests in processes of their own.

`CACHECORE_EMULATE` names the SoC; the table of `hixl_profile` says how it uses HIXL. The drivers of real product lines
are tested where they live.
"""

from collections.abc import Mapping, Sequence

from cachecore_ascend_runtime import AscendDriver, MallocPolicy
from cachecore_ascend_runtime.hixl_profile import DEVICE_TO_DEVICE, EVERY_PAIR, HOST_IS_LOCAL_ONLY, HixlProfile

from cachecore.driver import Capabilities, Capability, DeviceInfo, DriverSpec, MemoryInfo, RegistrationRequest
from cachecore.plugins import hookimpl

CACHECORE_PLUGIN_API = 1
HERE = "a product made for tests"
LIMITS = {"address_budget": 240, "max_registered_device_bytes": None, "max_registered_host_bytes": None}
FEATURES = ("remote_access_optional", "allocate_caches", "copy_and_swap_blocks")


class EmulatedDriver(AscendDriver):
    name = "emulated"

    def __init__(self, device: int | None, transport: str) -> None:
        super().__init__(device)
        self.transport = transport
        self.is_950 = "950" in self.runtime.soc_name
        self.ordinary_host_memory = self.is_950  # type: ignore[misc]  # one class for all products

    def capabilities(self) -> Capabilities:
        return Capabilities(
            **{name: Capability(value, HERE) for name, value in LIMITS.items()},
            **{name: Capability(True, HERE) for name in FEATURES},
            host_alignment=self.host_alignment(),
            device_alignment=self.device_alignment(),
            copy_failure_knowledge=self.copy_knowledge(),
        )

    def malloc_policy(self, nbytes: int) -> MallocPolicy:
        return MallocPolicy.HUGE_ONLY

    def check_registration(self, request: RegistrationRequest, infos: Sequence[MemoryInfo]) -> None:
        """Nothing is refused: what HIXL makes of it is the test."""

    def hixl_profile(self) -> HixlProfile:
        soc, pairs, protocols = self.runtime.soc_name, EVERY_PAIR, (f"{self.transport}:device",)
        if self.is_950:
            protocols = ("ub_ctp:device", "ub_ctp:host")
        elif self.transport == "hccs":
            pairs = HOST_IS_LOCAL_ONLY if soc.startswith("Ascend910_") else DEVICE_TO_DEVICE
        return HixlProfile(
            f"the line of {soc}", soc, protocols, Capability(pairs, HERE), self.is_950, link_hint="alignment"
        )


def create(device: int | None, options: Mapping[str, object]) -> EmulatedDriver:
    return EmulatedDriver(device, str(options.get("transport", "hccs")))


def matches(device: DeviceInfo | None) -> bool:
    return False


DRIVER = DriverSpec("emulated", HERE, matches, create, option_names=("transport",))


@hookimpl
def cachecore_drivers() -> list[DriverSpec]:
    return [DRIVER]
