"""cachecore backend driver for Ascend 950PR and 950DT; chosen by the core from the SoC. See `product` for its facts."""

from cachecore_ascend_950.driver import Ascend950Driver

__all__ = ["Ascend950Driver"]
