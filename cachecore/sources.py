"""Where a pull reads from: a cache of a linked peer, or another cache of the same manager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cachecore import _arguments as arguments
from cachecore.driver import BackendDriver
from cachecore.engine import Operation, TransferEngine
from cachecore.errors import CacheValueError, LinkLostError, NotSupportedError
from cachecore.outcome import FailureCause, Outcome
from cachecore.peers import Link, Peers, RemoteCache
from cachecore.planning import CopyPlan
from cachecore.registry import LocalCache, Registry
from cachecore.shape import CacheShape
from cachecore.tensors import check_unmoved
from cachecore.types import BlocksCacheKey, Cache, Placement, TransferKey

__all__ = ["LocalSource", "RemoteSource", "Source", "Sources"]


class Source(Protocol):
    """Where a pull reads from.

    Attributes:
        shape: Layout of the cache.
        entry: The batch entry that the key names, None when it names the whole paged cache.
        same_process: Whether its memory is this process's.
    """

    shape: CacheShape
    entry: int | None
    same_process: bool

    def begin(self) -> None:
        """Count a transfer that reads it; raises when it takes no new one."""

    def end(self, quiescent: bool) -> None:
        """Count the end; with `quiescent` False `settled` follows when nothing is under way any more."""

    def settled(self) -> None:
        """The transfer that `end(False)` reported has stopped."""

    def ready(self, deadline: float) -> None:
        """Wait until what is read can be trusted; raises LinkLostError at the deadline."""

    def read(self, plan: CopyPlan, deadline: float) -> tuple[Outcome, Callable[[object], bool]]:
        """Move the plan; returns the outcome and the function that judges its ticket."""

    def state_after(self, outcome: Outcome) -> str:
        """State of the link after a failure: "LINKED", "STALLED" or "LOST"."""


class LocalSource:
    """A cache of the same manager: no link, no lease, one copy within the process."""

    same_process = True

    def __init__(self, driver: BackendDriver, registry: Registry, cache: LocalCache, entry: int | None) -> None:
        self.shape = cache.shape
        self.entry = entry
        self._driver = driver
        self._registry = registry
        self._cache = cache

    def __str__(self) -> str:
        return f"{self._cache} of this manager"

    def begin(self) -> None:
        """See `Source.begin`."""
        self._registry.begin(self._cache)

    def end(self, quiescent: bool) -> None:
        """See `Source.end`."""
        if quiescent:
            self.settled()

    def settled(self) -> None:
        """See `Source.settled`."""
        self._registry.end(self._cache)

    def ready(self, deadline: float) -> None:
        """A cache of this process can always be trusted."""

    def read(self, plan: CopyPlan, deadline: float) -> tuple[Outcome, Callable[[object], bool]]:
        """See `Source.read`."""
        return self._driver.copy(plan, deadline), self._driver.quiescent

    def state_after(self, outcome: Outcome) -> str:
        """A process is always linked to itself."""
        return "LINKED"


class RemoteSource:
    """A cache of a linked peer."""

    def __init__(self, driver: BackendDriver, link: Link, remote: RemoteCache, entry: int | None) -> None:
        self.shape = remote.shape
        self.entry = entry
        self.same_process = link.engine is None
        self._driver = driver
        self._link = link
        self._remote = remote

    def __str__(self) -> str:
        return f"cluster {self._link.identity.cluster_id}"

    def begin(self) -> None:
        """See `Source.begin`."""
        self._link.begin(self._remote)

    def end(self, quiescent: bool) -> None:
        """See `Source.end`."""
        self._link.end(self._remote, quiescent)

    def settled(self) -> None:
        """See `Source.settled`."""
        self._link.settled(self._remote)

    def ready(self, deadline: float) -> None:
        """Wait for the lease."""
        link = self._link
        if link.lease_holds() or link.wait_for_lease(deadline):
            return
        state = link.state
        what = "its process does not answer" if state == "STALLED" else "the connection ended"
        raise LinkLostError(
            f"the lease of {self} ended and was not renewed before the deadline: {what}. "
            "What was read since cannot be trusted; link() again when the peer is back",
            state="STALLED" if state == "STALLED" else "LOST",
        )

    def read(self, plan: CopyPlan, deadline: float) -> tuple[Outcome, Callable[[object], bool]]:
        """See `Source.read`."""
        engine = self._link.engine
        if engine is None:  # the peer is a manager of this process
            return self._driver.copy(plan, deadline), self._driver.quiescent
        return engine.transfer(self._link.identity, plan, Operation.READ, deadline), engine.quiescent

    def state_after(self, outcome: Outcome) -> str:
        """See `Source.state_after`."""
        if outcome.cause is FailureCause.PEER_GONE:
            self._link.report_gone(outcome.message)
        return self._link.state


class Sources:
    """Finds both ends of a transfer for one manager."""

    def __init__(self, cluster_id: int, driver: BackendDriver, registry: Registry, peers: Peers) -> None:
        self._cluster_id = cluster_id
        self._driver = driver
        self._registry = registry
        self._peers = peers

    def target(self, name: str, cache: object) -> LocalCache:
        """The registration of the caller's cache, whose tensors are where they were.

        Raises:
            MissingArgumentError, CacheTypeError, CacheNotFoundError, AddressMovedError: See `CacheManager.pull_blocks`.
        """
        arguments.instance(name, cache, Cache)
        assert isinstance(cache, Cache)
        target = self._registry.get(cache, name)
        if target.tensors:
            check_unmoved(target.tensors)
        return target

    def find(self, key: TransferKey, target: LocalCache, deadline: float) -> Source:
        """What a checked key names.

        Raises:
            NotLinkedError, CacheNotFoundError, LinkLostError, CacheTimeoutError: It cannot be found.
            CacheValueError: Its batch index is outside the cache, or the target may not be reached from outside.
        """
        paged = isinstance(key, BlocksCacheKey)
        if key.cluster_id == self._cluster_id:
            own, index = self._registry.by_key(key)
            return LocalSource(self._driver, self._registry, own, None if paged else index)
        link = self._peers.get(key.cluster_id)
        remote, index = link.lookup(key, deadline=deadline)
        if link.engine is not None and not target.remote_accessible:
            raise CacheValueError(
                f"{target} was registered with remote_accessible=False and cannot take part in a transfer between "
                "processes; register it with remote_accessible=True"
            )
        if link.engine is not None:
            check_movable(link.engine, target.shape.placement, remote.shape.placement)
        return RemoteSource(self._driver, link, remote, None if paged else index)


def check_movable(engine: TransferEngine, local: Placement, remote: Placement) -> None:
    """Refuse a pair of placements that the link's engine cannot move between.

    Raises:
        NotSupportedError: Names engine and placements.
    """
    pairs = engine.capabilities().placement_pairs
    if (local, remote) not in pairs.value_or(frozenset()):
        raise NotSupportedError(
            f"the link's engine {engine.wire_id} does not move between {local.name} memory here and {remote.name} memory "
            f"of the peer ({pairs.source}); use memory of a placement it moves, or link by another engine",
            product=engine.wire_id,
            feature=f"{local.name} to {remote.name}",
        )
