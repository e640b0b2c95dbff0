"""(being written)"""
from cachecore._core import CopyPlan  # noqa
