"""Which caches of a peer exist and how many transfers use each: the counts that retirement waits for.

The owner takes a cache back by name; the reader refuses new transfers on it at once and says that it has let go only
when the last running one has ended and is quiescent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from cachecore.errors import CacheError, CacheNotFoundError
from cachecore.peers.records import CacheRecord
from cachecore.peers.remote import RemoteCache, RemoteCatalogue, RemoteEntry
from cachecore.types import TransferKey

__all__ = ["CacheUsage"]


class CacheUsage:
    """Thread-safe. `find` takes no lock.

    Args:
        cluster_id: Of the peer, for messages.
        number: Of the owner's last change that `records` contains.
        records: The owner's catalogue.
        on_quiet: Called once for each cache that was taken back and is not used any more. Must not wait.
        on_idle: Called when no cache is used any more. Must not wait.
    """

    def __init__(
        self,
        cluster_id: int,
        number: int,
        records: Iterable[CacheRecord],
        on_quiet: Callable[[RemoteCache], None],
        on_idle: Callable[[], None],
    ) -> None:
        self._cluster_id = cluster_id
        self._on_quiet, self._on_idle = on_quiet, on_idle
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._refusal: Callable[[], CacheError] | None = None
        self._final = False
        self._catalogue = RemoteCatalogue()
        self._catalogue.number = number
        for record in records:
            self._catalogue.add(RemoteCache(record))
        #: Called after what the owner offers has changed. Must not wait.
        self.on_change: Callable[[], None] = lambda: None
        #: Transfers that run.
        self.running = 0
        #: Transfers that have ended and may still be touching local memory.
        self.unsettled = 0

    @property
    def number(self) -> int:
        """Number of the owner's last change that is known here."""
        return self._catalogue.number

    @property
    def idle(self) -> bool:
        """Whether nothing is used."""
        return not (self.running or self.unsettled)

    @property
    def caches(self) -> tuple[RemoteCache, ...]:
        """Every cache that is known, also those taken back that are still in use."""
        with self._lock:
            return tuple(self._catalogue.caches)

    def find(self, key: TransferKey, group: str | None = None) -> RemoteEntry | None:
        """As `RemoteCatalogue.find`."""
        return self._catalogue.find(key, group)

    def describe_keys(self) -> str:
        """As `RemoteCatalogue.describe_keys`."""
        with self._lock:
            return self._catalogue.describe_keys()

    # --- transfers -----------------------------------------------------------------------------------------------

    def begin(self, cache: RemoteCache) -> None:
        """Count a transfer on `cache`.

        Raises:
            CacheNotFoundError: It was taken back.
            CacheError: What `refuse` was given.
        """
        with self._lock:
            if self._refusal is not None:
                raise self._refusal()
            self.check_offered(cache)
            cache.running += 1
            self.running += 1

    def end(self, cache: RemoteCache, quiescent: bool) -> None:
        """Count its end."""
        with self._lock:
            if not quiescent:
                cache.unsettled += 1
                self.unsettled += 1
            cache.running -= 1
            self.running -= 1
            self._after(cache)

    def settled(self, cache: RemoteCache) -> None:
        """One that had ended without being quiescent is quiescent now."""
        with self._lock:
            cache.unsettled -= 1
            self.unsettled -= 1
            self._after(cache)

    def refuse(self, reason: Callable[[], CacheError], *, final: bool = False) -> None:
        """Refuse every later `begin` with this error. A final reason is not replaced."""
        with self._lock:
            if not self._final:
                self._refusal, self._final = reason, final

    def wait_idle(self, deadline: float) -> bool:
        """Wait until nothing is used. Returns whether that was so before `deadline` (on `time.monotonic()`)."""
        with self._idle:
            while not self.idle:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                self._idle.wait(min(remaining, 3600.0))
            return True

    # --- what the owner says -------------------------------------------------------------------------------------

    def apply(self, base: int, number: int, added: Iterable[CacheRecord], removed: Iterable[int]) -> bool:
        """Apply numbered changes. Returns False when changes before them are missing; nothing is changed then."""
        with self._lock:
            if base != self._catalogue.number:
                return False
            for cache_id in removed:
                self._withdraw(self._catalogue.get(cache_id))
            self._add(added)
            self._catalogue.number = number
        self.on_change()
        return True

    def replace(self, number: int, records: Iterable[CacheRecord]) -> None:
        """Apply the whole catalogue, unless newer changes have been applied already."""
        with self._lock:
            if number < self._catalogue.number:
                return
            offered = {record.cache_id: record for record in records}
            for cache in self._catalogue.caches:
                if cache.cache_id not in offered:
                    self._withdraw(cache)
            self._add(offered.values())
            self._catalogue.number = number
        self.on_change()

    def retire(self, cache_ids: Iterable[int]) -> tuple[int, ...]:
        """The owner takes these back and waits for an answer. Returns those it can have at once: they are unknown."""
        unknown = []
        with self._lock:
            for cache_id in cache_ids:
                cache = self._catalogue.get(cache_id)
                if cache is None:
                    unknown.append(cache_id)
                else:
                    cache.answer_owed = True
                    self._withdraw(cache)
        return tuple(unknown)

    def forget(self, cache: RemoteCache) -> bool:
        """Drop a cache that was taken back. Returns whether the owner waits for an answer."""
        with self._lock:
            self._catalogue.forget(cache)
            return cache.answer_owed

    def check_offered(self, cache: RemoteCache) -> None:
        """Refuse a cache that was taken back.

        Raises:
            CacheNotFoundError: It was.
        """
        if cache.retiring:
            raise CacheNotFoundError(
                f"cache {cache.cache_id} of cluster {self._cluster_id} is being unregistered by its owner, or was already"
            )

    # --- with the lock held --------------------------------------------------------------------------------------

    def _add(self, records: Iterable[CacheRecord]) -> None:
        for record in records:
            cache = self._catalogue.get(record.cache_id)
            if cache is None:
                self._catalogue.add(RemoteCache(record))
            elif record.keys != cache.record.keys and not cache.retiring:
                # Transfers that run on it are not touched: it is the same object, with other names.
                self._catalogue.rename(cache, record)

    def _withdraw(self, cache: RemoteCache | None) -> None:
        if cache is not None:
            cache.retiring = True
            self._catalogue.unname(cache)
            self._after(cache)

    def _after(self, cache: RemoteCache) -> None:
        if cache.retiring and cache.quiet and not cache.forgetting:
            cache.forgetting = True
            self._on_quiet(cache)
        if self.idle:
            self._idle.notify_all()
            self._on_idle()
