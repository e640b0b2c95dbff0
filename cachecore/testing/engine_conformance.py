"""What every transfer engine must do. Subclass it, say which engine and driver, and run pytest.

The peer is a real process. Skips follow what engine and driver declare, never their names. The tests use
xunit-style set-up and no fixtures, so that `cachecore.testing.runner` can run them on mutants.
"""

from __future__ import annotations

from cachecore.testing._engine_failures import EngineFailures
from cachecore.testing._engine_links import EngineLinks
from cachecore.testing._engine_transfers import EngineTransfers

__all__ = ["EngineConformance"]


class EngineConformance(EngineLinks, EngineTransfers, EngineFailures):
    """Set `driver` and `engine` to the `package.module:name` of their specs; see `EngineCase` for more."""
