"""The owner's catalogue: what readers may read, with numbered changes.

Guarded by the lock of `Sessions`. A reader that has the state of number `n` is brought up to date by `since(n)`; what
is retiring by then is never told to anybody again, so that a late message cannot offer memory that is about to go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from cachecore.errors import CacheError, CacheNotFoundError, CacheValueError
from cachecore.peers.messages import MAX_CATALOGUE_BYTES, Changes, Snapshot, encode
from cachecore.peers.records import CacheRecord

__all__ = ["Catalogue"]

_REMEMBERED_REMOVALS = 1000


class Catalogue:
    """Published caches by id, each with the number of the change that added it."""

    def __init__(self) -> None:
        self.number = 0
        self._records: dict[int, CacheRecord] = {}
        self._added_at: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        self._retiring: set[int] = set()
        self._removals: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED_REMOVALS)
        self._removals_from = 0

    @property
    def live(self) -> tuple[CacheRecord, ...]:
        """What readers may start to read, in the order of publication."""
        return tuple(record for cache_id, record in self._records.items() if cache_id not in self._retiring)

    @property
    def retiring(self) -> frozenset[int]:
        """Ids of the caches that are being retired."""
        return frozenset(self._retiring)

    def record(self, cache_id: int) -> CacheRecord | None:
        """The record of a published cache, also of one that is retiring."""
        return self._records.get(cache_id)

    def add(self, records: Sequence[CacheRecord]) -> None:
        """Publish records; one change.

        Raises:
            CacheError: A cache id was published before; ids are never used twice.
            CacheValueError: The catalogue would not fit one message.
        """
        sizes = {record.cache_id: _size(record) for record in records}
        if len(sizes) != len(records) or not self._records.keys().isdisjoint(sizes):
            raise CacheError(f"cache ids {sorted(record.cache_id for record in records)} were published before")
        self._check_total(sum(sizes.values()))
        if not records:
            return
        self.number += 1
        for record in records:
            self._records[record.cache_id] = record
            self._added_at[record.cache_id] = self.number
        self._sizes.update(sizes)
        self._bytes += sum(sizes.values())

    def replace(self, record: CacheRecord) -> bool:
        """Publish other keys of a published cache; one change, and none where the keys are those it has.

        Returns:
            Whether anything changed.

        Raises:
            CacheNotFoundError: The cache is not published.
            CacheError: More than the keys differs: what readers rely on never changes under one id.
            CacheValueError: The catalogue would not fit one message.
        """
        cache_id = record.cache_id
        old = self._records.get(cache_id)
        if old is None:
            raise CacheNotFoundError(f"cache {cache_id} is not published; published are {sorted(self._records)[:20]}")
        if msgspec.structs.replace(old, keys=record.keys) != record:
            raise CacheError(f"cache {cache_id} was published with another geometry; only its keys can change")
        if old.keys == record.keys:
            return False
        size = _size(record)
        self._check_total(size - self._sizes[cache_id])
        self.number += 1
        self._records[cache_id] = record
        self._added_at[cache_id] = self.number
        self._bytes += size - self._sizes[cache_id]
        self._sizes[cache_id] = size
        return True

    def retire(self, cache_ids: Iterable[int]) -> None:
        """Offer these no more; they are still there.

        Raises:
            CacheNotFoundError: An id is not published.
        """
        unknown = sorted(set(cache_ids) - self._records.keys())
        if unknown:
            raise CacheNotFoundError(f"caches {unknown} are not published; published are {sorted(self._records)[:20]}")
        self._retiring.update(cache_ids)

    def remove(self, cache_ids: Iterable[int]) -> None:
        """Forget retired caches; one change."""
        gone = [cache_id for cache_id in cache_ids if cache_id in self._records]
        if not gone:
            return
        self.number += 1
        for cache_id in gone:
            if len(self._removals) == _REMEMBERED_REMOVALS:
                self._removals_from = self._removals[0][0]
            self._removals.append((self.number, cache_id))
            del self._records[cache_id], self._added_at[cache_id]
            self._bytes -= self._sizes.pop(cache_id)
            self._retiring.discard(cache_id)

    def since(self, number: int) -> Changes | Snapshot:
        """What a reader at `number` has missed, or everything where that is not remembered any more."""
        if number < self._removals_from:
            return self.snapshot(0)
        added = tuple(record for record in self.live if self._added_at[record.cache_id] > number)
        removed = tuple(cache_id for removed_at, cache_id in self._removals if removed_at > number)
        return Changes(number, self.number, added, removed)

    def snapshot(self, request: int) -> Snapshot:
        """Everything."""
        return Snapshot(request, self.number, self.live)

    def _check_total(self, more: int) -> None:
        if self._bytes + more > MAX_CATALOGUE_BYTES:
            raise CacheValueError(
                f"the description of all remotely accessible caches would need {self._bytes + more} bytes of at most "
                f"{MAX_CATALOGUE_BYTES}; register fewer tensors, or with remote_accessible=False"
            )


def _size(record: CacheRecord) -> int:
    return len(encode(Snapshot(0, 0, (record,))))
