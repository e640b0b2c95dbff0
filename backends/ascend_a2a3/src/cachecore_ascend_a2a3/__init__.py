"""cachecore backend driver for Atlas A2 and A3; chosen by the core from the SoC. See `product` for its rules."""

from cachecore_ascend_a2a3.alignment import aligned_view
from cachecore_ascend_a2a3.driver import A2A3Driver
from cachecore_ascend_a2a3.product import MisalignedMemoryWarning, ProductLine, Transport

__all__ = ["A2A3Driver", "MisalignedMemoryWarning", "ProductLine", "Transport", "aligned_view"]
