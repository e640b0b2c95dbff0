"""What every group of methods of the manager works with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cachecore.driver import BackendDriver
    from cachecore.events import Listeners
    from cachecore.options import ManagerOptions
    from cachecore.peers import Peers
    from cachecore.registration.allocations import Allocations
    from cachecore.registration.registrar import Registrar
    from cachecore.registration.registry import Registry
    from cachecore.registration.retirement import Retirement
    from cachecore.transfers.copies import Copies
    from cachecore.transfers.finding import Ends
    from cachecore.transfers.pool import Pool
    from cachecore.transfers.pulls import Pulls
    from cachecore.transfers.pushes import Pushes
    from cachecore.transfers.running import Transfers

__all__ = ["DEFAULT_TIMEOUT", "ManagerParts"]

#: Seconds a call waits unless it is told otherwise. Above the 20 s after which a silent peer counts as gone.
DEFAULT_TIMEOUT: Final = 30.0


class ManagerParts:
    """The parts of a manager, made by `CacheManager.__init__`."""

    #: The driver in use, with `.name`.
    backend: BackendDriver
    _allocations: Allocations
    _cluster_id: int
    _ends: Ends
    _copies: Copies
    _listeners: Listeners
    _options: ManagerOptions
    _peers: Peers
    _pool: Pool
    _pulls: Pulls
    _pushes: Pushes
    _registrar: Registrar
    _registry: Registry
    _retirement: Retirement
    _transfers: Transfers

    def _enter(self) -> None:
        """Refuse a call on a closed manager, or in a forked child. First in every public method.

        Raises:
            ManagerClosedError, ForkedProcessError: It is.
        """
        raise NotImplementedError

    def _check_process(self) -> None:
        """Refuse a look at the manager in a forked child, where a lock may be held for ever; it may be closed.

        Raises:
            ForkedProcessError: It is one.
        """
        raise NotImplementedError
