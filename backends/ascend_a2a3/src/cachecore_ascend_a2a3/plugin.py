"""What this distribution tells the core: the driver for Atlas A2 and A3."""

from __future__ import annotations

from cachecore.driver import DriverSpec
from cachecore.plugins import hookimpl
from cachecore_ascend_a2a3 import driver, options, product

__all__ = ["DRIVER"]

CACHECORE_PLUGIN_API = 1

DRIVER = DriverSpec(
    name=driver.A2A3Driver.name,
    description="Atlas A2 (Ascend 910B) and Atlas A3 (Ascend 910_93)",
    matches=product.serves,
    factory=driver.create_driver,
    known_socs=product.A2_SOCS + product.A3_SOCS,
    option_names=options.OPTION_NAMES,
    servers=product.SERVERS,
)


@hookimpl
def cachecore_drivers() -> list[DriverSpec]:
    """The one driver."""
    return [DRIVER]
