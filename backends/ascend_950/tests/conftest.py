"""One emulated SoC for this process."""

import os

os.environ.setdefault("CACHECORE_EMULATE", "Ascend950PR_9599")
