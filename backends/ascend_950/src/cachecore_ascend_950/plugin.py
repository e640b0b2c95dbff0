"""What this distribution tells the core: the driver for Ascend 950PR and 950DT."""

from __future__ import annotations

from cachecore.driver import DriverSpec
from cachecore.plugins import hookimpl
from cachecore_ascend_950 import driver, product

__all__ = ["DRIVER"]

CACHECORE_PLUGIN_API = 1

DRIVER = DriverSpec(
    name=driver.Ascend950Driver.name,
    description="Ascend 950PR and 950DT",
    matches=product.serves,
    factory=driver.create_driver,
    known_socs=("any name that contains Ascend950",),
    servers=("products with Ascend 950PR or 950DT",),
)


@hookimpl
def cachecore_drivers() -> list[DriverSpec]:
    """The one driver."""
    return [DRIVER]
