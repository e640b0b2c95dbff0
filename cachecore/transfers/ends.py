"""The two ends of a transfer: a registered cache of the caller, and what a key names.

A key names a cache of a linked peer, or another cache of the same manager. Either can be read from and written to.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from cachecore import _core
from cachecore.driver import BackendDriver
from cachecore.engine import CancelToken, Operation
from cachecore.errors import CacheError, LinkLostError
from cachecore.leases import BlockLease, check_lease
from cachecore.outcome import FailureCause, Outcome
from cachecore.peers import Link, Peers, RemoteCache
from cachecore.planning import CopyPlan
from cachecore.registration.allocations import already_consumed
from cachecore.registration.local_caches import Registered
from cachecore.registration.registry import Registry
from cachecore.shape import CacheShape, LayersShape
from cachecore.tensors import check_unmoved
from cachecore.transfers.matching import Matched
from cachecore.types import CacheKey

__all__ = ["Consume", "End", "LocalEnd", "Moved", "RemoteEnd"]

#: Maps every address to itself, so that `_core.map_plan` only exchanges the sides of a plan.
_IDENTITY: Final = struct.pack("QQQ", 0, 2**64 - 1, 0)
_SWAPPED: Final = {
    FailureCause.LOCAL_FAULT: FailureCause.REMOTE_FAULT,
    FailureCause.REMOTE_FAULT: FailureCause.LOCAL_FAULT,
}

#: Uses up a key of a cache of this manager.
Consume = Callable[[Registered, CacheKey], None]

#: What a move returns: how it ended, and the function that judges the outcome's ticket.
Moved = tuple[Outcome, Callable[[object], bool]]


class End(Protocol):
    """What a key names: the other end of a transfer. Its addresses are the remote side of plans."""

    @property
    def shape(self) -> CacheShape | LayersShape:
        """Layout of the cache."""

    @property
    def entry(self) -> int | None:
        """The batch entry that the key names, None when it names a whole paged cache."""

    @property
    def cluster_id(self) -> int:
        """Whose cache it is."""

    @property
    def same_process(self) -> bool:
        """Whether its memory is this process's."""

    @property
    def space(self) -> str | None:
        """Names the address space of the cache: the peer's incarnation, None for this process."""

    @property
    def matches(self) -> dict[object, Matched]:
        """Matches with the caller's cache that were made before."""

    def begin(self) -> None:
        """Count a transfer that uses it; raises when it takes no new one."""

    def end(self, quiescent: bool) -> None:
        """Count the end; with `quiescent` False `settled` follows when nothing is under way any more."""

    def settled(self) -> None:
        """The transfer that `end(False)` reported has stopped."""

    def check_lease(self, name: str, lease: object) -> BlockLease:
        """A lease of this very cache; raises where it is none, or another one's."""

    def claim(self, lease_id: str, deadline: float) -> Callable[[], None]:
        """Keep the blocks of a lease until the returned function is called; raises LeaseExpiredError."""

    def prepare(self, op: Operation, deadline: float) -> None:
        """Before the first byte; raises when the end cannot be trusted, or not be written."""

    def confirm(self, op: Operation, deadline: float) -> None:
        """After the last byte: wait until what moved counts; raises LinkLostError at the deadline."""

    def move(self, plan: CopyPlan, op: Operation, deadline: float, cancel: CancelToken | None) -> Moved:
        """Move a plan from it (READ) or to it (WRITE). A failure is an outcome."""

    def state_after(self, outcome: Outcome) -> str:
        """State of the link after a failure: "LINKED", "STALLED" or "LOST"."""

    def consume(self, key: CacheKey, deadline: float) -> None:
        """Everything the key names was pulled: use the key up, where its owner lets pulls do that.

        Raises:
            CacheNotFoundError: Another pull was faster, so that this one does not count.
            CacheError: The owner does not answer.
        """


class LocalEnd:
    """A cache of the same manager: no link, no lease, one copy within the process."""

    same_process = True
    space = None

    def __init__(
        self,
        cluster_id: int,
        driver: BackendDriver,
        registry: Registry,
        peers: Peers,
        cache: Registered,
        entry: int | None,
        consume: Consume,
    ) -> None:
        self._peers = peers
        self.matches: dict[object, Matched] = {}
        self.shape = cache.shape
        self.entry = entry
        self.cluster_id = cluster_id
        self._driver = driver
        self._registry = registry
        self._cache = cache
        self._consume = consume

    def __str__(self) -> str:
        return f"{self._cache} of this manager"

    def begin(self) -> None:
        """See `End.begin`."""
        self._registry.begin(self._cache)

    def end(self, quiescent: bool) -> None:
        """See `End.end`."""
        if quiescent:
            self.settled()

    def settled(self) -> None:
        """See `End.settled`."""
        self._registry.end(self._cache)

    def check_lease(self, name: str, lease: object) -> BlockLease:
        """See `End.check_lease`."""
        return check_lease(
            name,
            lease,
            cluster_id=self.cluster_id,
            incarnation=self._peers.identity.incarnation,
            cache_id=self._cache.cache.cache_id,
        )

    def claim(self, lease_id: str, deadline: float) -> Callable[[], None]:
        """See `End.claim`."""
        leases = self._peers.leases
        return partial(leases.release_here, leases.claim_here(lease_id))

    def prepare(self, op: Operation, deadline: float) -> None:
        """A cache of this process can be trusted where its tensors are where they were; raises AddressMovedError."""
        check_unmoved(self._cache.tensors)

    def confirm(self, op: Operation, deadline: float) -> None:
        """A cache of this process can always be trusted."""

    def move(self, plan: CopyPlan, op: Operation, deadline: float, cancel: CancelToken | None) -> Moved:
        """See `End.move`. A copy within the process cannot be cancelled once it runs."""
        return _copy(self._driver, plan, op, deadline), self._driver.quiescent

    def state_after(self, outcome: Outcome) -> str:
        """A process is always linked to itself."""
        return "LINKED"

    def consume(self, key: CacheKey, deadline: float) -> None:
        """See `End.consume`."""
        self._consume(self._cache, key)


class RemoteEnd:
    """A cache of a linked peer."""

    def __init__(self, driver: BackendDriver, link: Link, remote: RemoteCache, entry: int | None) -> None:
        self.shape = remote.shape
        self.entry = entry
        self.cluster_id = link.identity.cluster_id
        self.same_process = link.engine is None
        self.space = None if self.same_process else link.identity.incarnation
        self.matches: dict[object, Matched] = {}
        self._engine = link.engine
        self._driver = driver
        self._link = link
        self._remote = remote

    def is_of(self, link: Link) -> bool:
        """Whether it is reached over this link, by the engine that the link has now."""
        return self._link is link and self._engine is link.engine

    def __str__(self) -> str:
        return f"cluster {self.cluster_id}"

    def begin(self) -> None:
        """See `End.begin`."""
        self._link.begin(self._remote)

    def end(self, quiescent: bool) -> None:
        """See `End.end`."""
        self._link.end(self._remote, quiescent)

    def settled(self) -> None:
        """See `End.settled`."""
        self._link.settled(self._remote)

    def check_lease(self, name: str, lease: object) -> BlockLease:
        """See `End.check_lease`."""
        return check_lease(
            name,
            lease,
            cluster_id=self.cluster_id,
            incarnation=self._link.identity.incarnation,
            cache_id=self._remote.cache_id,
        )

    def claim(self, lease_id: str, deadline: float) -> Callable[[], None]:
        """See `End.claim`. One round trip."""
        self._link.claim(lease_id, deadline)
        return partial(self._link.release_claim, lease_id)

    def prepare(self, op: Operation, deadline: float) -> None:
        """Wait for the lease, and let the owner know before the first write over this link."""
        self._wait_for_lease(deadline)
        if op is Operation.WRITE:
            # From its answer on the owner takes only proof, never silence, for the end of what this side writes.
            self._link.will_write(deadline)

    def confirm(self, op: Operation, deadline: float) -> None:
        """Wait for the lease: what was read after it ended may be another request's.

        What was written over a connection that has ended is in the owner's memory, and nobody may be there to use it.
        """
        if op is Operation.WRITE and self._link.state == "LOST":
            raise self._lost()
        self._wait_for_lease(deadline)

    def _wait_for_lease(self, deadline: float) -> None:
        link = self._link
        if link.lease_holds() or link.wait_for_lease(deadline):
            return
        raise self._lost()

    def _lost(self) -> LinkLostError:
        state = self._link.state
        what = "its process does not answer" if state == "STALLED" else "the connection ended"
        return LinkLostError(
            f"the link to {self} was lost, or its lease was not renewed before the deadline: {what}. "
            "What was moved since cannot be trusted; link() again when the peer is back",
            state="STALLED" if state == "STALLED" else "LOST",
        )

    def move(self, plan: CopyPlan, op: Operation, deadline: float, cancel: CancelToken | None) -> Moved:
        """See `End.move`."""
        engine = self._engine
        if engine is None:  # the peer is a manager of this process
            return _copy(self._driver, plan, op, deadline), self._driver.quiescent
        return engine.transfer(self._link.identity, plan, op, deadline, cancel), engine.quiescent

    def state_after(self, outcome: Outcome) -> str:
        """See `End.state_after`."""
        if outcome.cause is FailureCause.PEER_GONE:
            self._link.report_gone(outcome.message)
        return self._link.state

    def consume(self, key: CacheKey, deadline: float) -> None:
        """See `End.consume`."""
        if not self._remote.record.consumable or key.is_prefix or self.entry is None:
            return
        if not self._link.consume(self._remote, self.entry, key, deadline):
            raise already_consumed(key)


def _copy(driver: BackendDriver, plan: CopyPlan, op: Operation, deadline: float) -> Outcome:
    """Move a plan within this process; drivers copy remote -> local only."""
    if op is Operation.READ:
        return driver.copy(plan, deadline)
    swapped = exchanged(plan)
    outcome = driver.copy(swapped, deadline)
    cause = _SWAPPED.get(outcome.cause)
    return outcome if cause is None else replace(outcome, cause=cause)


def exchanged(plan: CopyPlan) -> CopyPlan:
    """The plan with its sides exchanged; chunks keep their numbers."""
    swapped = _core.map_plan(plan, _IDENTITY, True)
    if swapped is None:
        raise CacheError("a plan reaches beyond the address space; this is an error of cachecore, please report it")
    return swapped
