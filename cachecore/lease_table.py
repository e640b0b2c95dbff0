"""The block leases that one manager has granted, and the pulls that run under them.

Claims come from linked readers, through the service thread, and from pulls within the process. They are counted by
who holds them, so that the end of a reader's session ends all of its claims and nobody else's.
"""

from __future__ import annotations

import heapq
import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from cachecore.engine import PeerIdentity
from cachecore.errors import CacheBusyError, CacheError, CacheValueError, LeaseExpiredError
from cachecore.leases import BlockLease, LeaseInfo

__all__ = ["LeaseTable"]

#: Notes of when something expires that are kept at least, before those that are out of date are thrown away.
_MANY_DUE: Final = 64
_UNKNOWN = "it was never granted, or has expired, was released, or its cache was unregistered"


class _Entry:
    """One granted lease.

    Attributes:
        lease: The value.
        until: When it expires, on the table's clock.
        revoked: Why no pull may start under it, empty while it may.
        claims: Cluster id of each running pull, by (holder, number).
    """

    __slots__ = ("claims", "lease", "revoked", "until")

    def __init__(self, lease: BlockLease, until: float) -> None:
        self.lease, self.until, self.revoked = lease, until, ""
        self.claims: dict[tuple[str, int], int] = {}

    def state(self, now: float) -> str:
        return "REVOKED" if self.revoked else "LIVE" if now < self.until else "EXPIRED"


class LeaseTable:
    """Thread-safe; nothing but the methods with a deadline waits.

    Args:
        identity: Of the manager.
        clock: Seconds that count suspend: a lease must not outlive its time because the machine slept.
    """

    def __init__(self, identity: PeerIdentity, clock: Callable[[], float]) -> None:
        self._identity, self._clock = identity, clock
        self._changed = threading.Condition()
        self._entries: dict[str, _Entry] = {}
        self._claimed: dict[tuple[str, int], _Entry] = {}
        #: (when it expires, lease id): what may have expired is on top.
        self._due: list[tuple[float, str]] = []
        self._over: dict[str, _Entry] = {}
        self._refused: set[int] = set()
        self._own_claims = itertools.count(1)
        self._failure: CacheError | None = None

    @property
    def infos(self) -> tuple[LeaseInfo, ...]:
        """Every lease that is known, in the order of granting."""
        with self._changed:
            now = self._clock()
            return tuple(
                LeaseInfo(entry.lease, entry.state(now), max(0.0, entry.until - now), tuple(entry.claims.values()))
                for entry in self._entries.values()
            )

    # --- the owner -----------------------------------------------------------------------------------------------

    def grant(self, cache_id: int, blocks: bytes, ttl: float) -> BlockLease:
        """Grant a lease of checked, packed blocks."""
        own = self._identity
        lease = BlockLease(own.cluster_id, own.incarnation, cache_id, secrets.token_hex(16), blocks, ttl)
        with self._changed:
            entry = _Entry(lease, self._clock() + ttl)
            if cache_id in self._refused:
                entry.revoked = "its cache is being unregistered"
            self._entries[lease.lease_id] = entry
            self._remember(entry)
        return lease

    def renew(self, lease: BlockLease, ttl: float) -> None:
        """Let pulls start under it for `ttl` seconds from now on, be that more or less than was left.

        Raises:
            CacheValueError: Another manager granted it.
            LeaseExpiredError: It has expired or was released: its blocks may have been given to others.
        """
        with self._changed:
            self._check_own(lease)
            entry = self._entries.get(lease.lease_id)
            refusal = self._refusal(entry)
            if refusal or entry is None:
                raise LeaseExpiredError(f"{lease!r} cannot be renewed: {refusal}")
            entry.until = self._clock() + ttl
            self._remember(entry)

    def revoke(self, lease: BlockLease, deadline: float) -> None:
        """Let no pull start under it, wait for those that run, forget it. Can be repeated; harmless when it is gone.

        Raises:
            CacheValueError: Another manager granted it.
            CacheBusyError: Pulls run past the deadline (on `time.monotonic()`).
        """
        with self._changed:
            self._check_own(lease)
            entry = self._entries.get(lease.lease_id)
            if entry is None:
                return
            entry.revoked = entry.revoked or "it was released"
            if not self._wait(lambda: not entry.claims, deadline):
                raise _busy(f"{lease!r} is released and", [entry])
            self._forget(entry)

    def expired(self) -> list[BlockLease]:
        """Leases that have expired and that no pull runs under; each is returned once and then forgotten."""
        with self._changed:
            now = self._clock()
            while self._due and self._due[0][0] <= now:
                _, lease_id = heapq.heappop(self._due)
                entry = self._entries.get(lease_id)
                if entry is not None and entry.until <= now:
                    self._over[lease_id] = entry
            free = [entry for entry in self._over.values() if not entry.claims]
            for entry in free:
                self._forget(entry)
            return [entry.lease for entry in free]

    # --- the caches ----------------------------------------------------------------------------------------------

    def refuse(self, cache_ids: Iterable[int]) -> None:
        """Let no pull start under leases of these caches any more: they are being unregistered."""
        with self._changed:
            self._refused.update(cache_ids)
            for entry in self._entries.values():
                if entry.lease.cache_id in self._refused:
                    entry.revoked = entry.revoked or "its cache is being unregistered"

    def retire(self, cache_ids: Iterable[int], deadline: float) -> None:
        """After `refuse`: wait until no pull runs under leases of these caches, then forget the leases.

        Raises:
            CacheBusyError: Pulls run past the deadline (on `time.monotonic()`).
        """
        wanted = set(cache_ids)

        def held() -> list[_Entry]:
            return [entry for entry in self._entries.values() if entry.claims and entry.lease.cache_id in wanted]

        with self._changed:
            if not self._wait(lambda: not held(), deadline):
                raise _busy(f"caches {sorted(wanted)} are being unregistered and", held())
            for entry in [entry for entry in self._entries.values() if entry.lease.cache_id in wanted]:
                self._forget(entry)
            self._refused -= wanted

    # --- readers -------------------------------------------------------------------------------------------------

    def claim(self, lease_id: str, holder: str, number: int, cluster_id: int) -> str:
        """Count a pull that starts under a lease.

        Args:
            lease_id: Which.
            holder: Who counts it: the token of a session.
            number: Its number there.
            cluster_id: Who pulls.

        Returns:
            Why not, empty when it is counted.
        """
        with self._changed:
            entry = self._entries.get(lease_id)
            refusal = self._refusal(entry)
            if (holder, number) in self._claimed:
                refusal = f"the reader has used the number {number} for another pull that runs"
            if not refusal and entry is not None:
                entry.claims[holder, number] = cluster_id
                self._claimed[holder, number] = entry
            return refusal

    def release(self, holder: str, numbers: Iterable[int]) -> None:
        """These pulls have ended; unknown ones are passed over."""
        with self._changed:
            for number in numbers:
                self._release((holder, number))

    def end(self, holder: str) -> None:
        """Nobody counts for this holder any more."""
        with self._changed:
            for claim in [claim for claim in self._claimed if claim[0] == holder]:
                self._release(claim)

    def claim_here(self, lease_id: str) -> int:
        """Count a pull of this very manager.

        Returns:
            What `release_here` takes.

        Raises:
            LeaseExpiredError: No pull can start under the lease.
        """
        number = next(self._own_claims)
        refusal = self.claim(lease_id, self._identity.incarnation, number, self._identity.cluster_id)
        if refusal:
            raise LeaseExpiredError(f"the lease {lease_id} takes no new pull: {refusal}")
        return number

    def release_here(self, number: int) -> None:
        """A pull that `claim_here` counted has ended."""
        self.release(self._identity.incarnation, (number,))

    def fail(self, error: CacheError) -> None:
        """Nobody will release anything any more: who waits gets this error."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    # --- with the lock held --------------------------------------------------------------------------------------

    def _refusal(self, entry: _Entry | None) -> str:
        if entry is None:
            return _UNKNOWN
        late = self._clock() - entry.until
        return entry.revoked or (f"it expired {late:.3f} s ago" if late >= 0 else "")

    def _release(self, claim: tuple[str, int]) -> None:
        entry = self._claimed.pop(claim, None)
        if entry is not None:
            del entry.claims[claim]
            if not entry.claims:
                self._changed.notify_all()

    def _remember(self, entry: _Entry) -> None:
        """Note when it expires; of those that were released or renewed since, nothing is kept for long."""
        heapq.heappush(self._due, (entry.until, entry.lease.lease_id))
        if len(self._due) > 2 * len(self._entries) + _MANY_DUE:
            waiting = (one for one in self._entries.values() if one.lease.lease_id not in self._over)
            self._due = [(one.until, one.lease.lease_id) for one in waiting]
            heapq.heapify(self._due)

    def _forget(self, entry: _Entry) -> None:
        self._entries.pop(entry.lease.lease_id, None)
        self._over.pop(entry.lease.lease_id, None)

    def _wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        while not condition():
            if self._failure is not None:
                raise self._failure
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            self._changed.wait(min(remaining, 3600.0))
        return True

    def _check_own(self, lease: BlockLease) -> None:
        own = self._identity
        if (lease.cluster_id, lease.incarnation) != (own.cluster_id, own.incarnation):
            raise CacheValueError(f"lease is {lease!r}, which another manager, or an earlier one, has granted")


def _busy(what: str, entries: Iterable[_Entry]) -> CacheBusyError:
    peers = sorted({cluster_id for entry in entries for cluster_id in entry.claims.values()})
    return CacheBusyError(
        f"{what} pulls of the clusters {peers} have not ended. No new one starts; do not reuse the blocks; repeat the call",
        peers=tuple(peers),
    )
