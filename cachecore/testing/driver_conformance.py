"""What every backend driver must do. Subclass it, say which driver, and run pytest.

Skips follow what the driver declares, never its name. The tests use xunit-style set-up and no fixtures, so that
`cachecore.testing.runner` can run them on mutants.
"""

from __future__ import annotations

from cachecore.testing._driver_copies import DriverCopies
from cachecore.testing._driver_memory import DriverMemory

__all__ = ["DriverConformance"]


class DriverConformance(DriverMemory, DriverCopies):
    """Set `driver` to the `package.module:name` of a `DriverSpec`; see `DriverCase` for more."""
