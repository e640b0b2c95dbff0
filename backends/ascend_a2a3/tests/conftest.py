"""One emulated SoC for this process; tests of others start their own."""

import os

os.environ.setdefault("CACHECORE_EMULATE", "Ascend910B4:2")
