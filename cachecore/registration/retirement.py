"""Taking caches back: nothing new starts, every peer and every thread stops, then the memory may be deregistered."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from cachecore.driver import BackendDriver
from cachecore.errors import CacheTimeoutError
from cachecore.peers import Peers
from cachecore.registration.registry import Registered, Registry, State, busy_error

__all__ = ["Retirement"]


class Retirement:
    """The way out of the registry for the caches of one manager."""

    def __init__(self, driver: BackendDriver, registry: Registry, peers: Peers) -> None:
        self._driver = driver
        self._registry = registry
        self._peers = peers

    @contextlib.contextmanager
    def retired(self, caches: Sequence[Registered], deadline: float) -> Iterator[list[Registered]]:
        """Within the block nothing uses the caches and no other thread takes them back.

        Yields those of them that another thread had not removed already.

        Raises:
            CacheBusyError: Still in use at the deadline. They stay registered and refuse new transfers; can be
                repeated, and goes on where it stopped.
            CacheTimeoutError: Another thread is taking one back and has not finished.
        """
        with contextlib.ExitStack() as stack:
            for cache in caches:
                if not cache.retirement.acquire(timeout=max(0.0, deadline - time.monotonic())):
                    raise CacheTimeoutError(f"{cache} is being unregistered by another thread, which has not finished")
                stack.callback(cache.retirement.release)
            present = [cache for cache in caches if cache.state is not State.GONE]
            self._driver.bind_thread()
            self._stop(present, deadline)
            yield present

    def _stop(self, caches: Sequence[Registered], deadline: float) -> None:
        for cache in caches:
            self._registry.retire(cache)
        cache_ids = [cache.cache.cache_id for cache in caches]
        self._peers.leases.refuse(cache_ids)
        offered = [cache for cache in caches if not cache.withdrawn]
        if offered:
            self._peers.retire([cache.cache.cache_id for cache in offered], deadline=deadline)
            for cache in offered:
                cache.withdrawn = True
        self._peers.leases.retire(cache_ids, deadline)
        busy = self._registry.wait_idle(caches, deadline)
        if busy:
            raise busy_error(busy, (), "transfers of this process have not ended")
