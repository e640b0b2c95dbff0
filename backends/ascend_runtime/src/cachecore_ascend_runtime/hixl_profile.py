"""What a product's driver tells the HIXL engine: over which protocols data travels, and between which placements.

A driver of an Ascend product that wants the engine has one method more than `BackendDriver` asks for:

    def hixl_profile(self) -> HixlProfile:
        return HixlProfile(
            product="Atlas A2 (Ascend 910B)",
            soc=self.runtime.soc_name,
            protocols=("hccs:device",),                       # the transport in use, by the vendor's names
            placement_pairs=Capability(DEVICE_TO_DEVICE, "CANN 9.x manual, HIXL, option BufferPool"),
            link_hint="device memory that aclrtMalloc did not return must start on a page boundary",
        )

| product and transport | protocols | placement_pairs | needs_local_comm_res |
|---|---|---|---|
| A2, HCCS | hccs:device | DEVICE_TO_DEVICE | no |
| A3, HCCS | hccs:device | HOST_IS_LOCAL_ONLY | no |
| A2 and A3, RoCE | roce:device | EVERY_PAIR | no |
| 950 | ub_ctp:device, or what its option names | EVERY_PAIR | yes |

It is asked for once, when a manager starts, and must be the same for every manager of a process on one device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cachecore.driver import BackendDriver, Capability
from cachecore.errors import CacheValueError
from cachecore.types import Placement
from cachecore_ascend_runtime.driver import AscendDriver

__all__ = [
    "DEVICE_TO_DEVICE",
    "EVERY_PAIR",
    "HOST_IS_LOCAL_ONLY",
    "PROTOCOLS",
    "HixlProfile",
    "PlacementPairs",
    "has_profile",
    "profile_of",
]

#: (local, remote) placements.
PlacementPairs = frozenset[tuple[Placement, Placement]]

DEVICE_TO_DEVICE: Final[PlacementPairs] = frozenset({(Placement.DEVICE, Placement.DEVICE)})
HOST_IS_LOCAL_ONLY: Final[PlacementPairs] = frozenset((here, Placement.DEVICE) for here in Placement)
EVERY_PAIR: Final[PlacementPairs] = frozenset((here, there) for here in Placement for there in Placement)

#: What `comm_resource_config.protocol_desc` takes.
PROTOCOLS: Final = (
    "hccs:device",
    "roce:device",
    "roce:host",
    "ub_ctp:device",
    "ub_ctp:host",
    "ub_rtp:device",
    "uboe:device",
)


@dataclass(frozen=True)
class HixlProfile:
    """How one product, with the transport chosen, uses HIXL.

    Attributes:
        product: The product line, for people.
        soc: Name of the SoC, as the runtime reports it.
        protocols: Some of `PROTOCOLS`; two sides need one in common.
        placement_pairs: Between which (local, remote) placements data travels.
        needs_local_comm_res: Whether the product must be told LocalCommRes; the engine then gives the shortest one
            (version 1.3), unless its option says another.
        fabric_memory: Whether EnableUseFabricMem is switched on; there is no relay buffer then.
        link_hint: What a link that cannot be made mostly means on this product, half a sentence; may be empty.
    """

    product: str
    soc: str
    protocols: tuple[str, ...]
    placement_pairs: Capability[PlacementPairs]
    needs_local_comm_res: bool = False
    fabric_memory: bool = False
    link_hint: str = ""

    def __post_init__(self) -> None:
        unknown = [name for name in self.protocols if name not in PROTOCOLS]
        if unknown or not self.protocols:
            raise CacheValueError(f"protocols is {self.protocols}; it takes one or more of {', '.join(PROTOCOLS)}")

    @property
    def placements(self) -> frozenset[Placement]:
        """Placements that can be one side of a transfer."""
        pairs = self.placement_pairs.value_or(EVERY_PAIR)
        return frozenset(placement for pair in pairs for placement in pair)


def has_profile(driver: BackendDriver) -> bool:
    """Whether the HIXL engine serves a driver: one for an Ascend product that says how the product uses HIXL."""
    return isinstance(driver, AscendDriver) and callable(getattr(driver, "hixl_profile", None))


def profile_of(driver: BackendDriver) -> HixlProfile:
    """What the driver says.

    Raises:
        CacheValueError: It says nothing of the kind.
    """
    ask = getattr(driver, "hixl_profile", None)
    profile = ask() if callable(ask) else None
    if not isinstance(profile, HixlProfile):
        raise CacheValueError(
            f"driver {driver.name!r} has no hixl_profile() that returns a HixlProfile; the HIXL engine serves drivers "
            "for Ascend products only"
        )
    return profile
