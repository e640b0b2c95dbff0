"""What is registered: regions (native memory, counted) and caches (views with shape and keys that lie in them).

A region belongs to the hardware: alignment, origin, budget, native registrations and reference counts. A cache
belongs to the caller: descriptor, keys, tensors kept alive. Registering is all or nothing over every engine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, overload

from cachecore import _arguments as arguments
from cachecore.driver import Allocation, BackendDriver, RegistrationRequest
from cachecore.engine import EngineBinding
from cachecore.errors import (
    AlignmentError,
    CacheBusyError,
    CacheNotFoundError,
    PlacementError,
    RegistrationRefusedError,
)
from cachecore.layers import LayersCache, TensorSpec
from cachecore.plugins import Policy
from cachecore.registration import placing, rules
from cachecore.registration.given_layers import GivenLayers
from cachecore.registration.local_caches import LocalCache, LocalLayers, Registered, State
from cachecore.registration.regions import LocalRegion, NativeRegistrations
from cachecore.tensors import TensorView
from cachecore.threads import RefusingLock
from cachecore.types import BlocksCacheKey, Cache, CacheDesc, CacheKey, CacheKeyByIdAndIndex, Placement, TransferKey

__all__ = ["LocalCache", "LocalLayers", "LocalRegion", "Registered", "Registry", "State", "busy_error"]


C = TypeVar("C", bound=Registered)

#: Addresses over both register functions, from the vendor's register page; used where a driver does not know better.
_DOCUMENTED_BUDGET = 240


class Registry:
    """The caches and regions of one manager. Thread-safe.

    Args:
        cluster_id: The manager's id.
        driver: Judges and describes memory.
        engines: All of them register what is remotely accessible.
        policies: May refuse.
    """

    def __init__(
        self, cluster_id: int, driver: BackendDriver, engines: Sequence[EngineBinding], policies: Sequence[Policy]
    ) -> None:
        self._cluster_id = cluster_id
        self._driver = driver
        self._natives = NativeRegistrations(engines)
        self._policies = tuple(policies)
        limits = driver.capabilities()
        self._address_budget = limits.address_budget.value_or(_DOCUMENTED_BUDGET)
        self._byte_limits = {
            Placement.DEVICE: limits.max_registered_device_bytes.value_or(None),
            Placement.HOST: limits.max_registered_host_bytes.value_or(None),
        }
        # Two locks: registering and deregistering natively is slow and must not stop transfers from being counted.
        self._native = RefusingLock(
            "a cache cannot be registered or taken back while this thread registers another: a policy only looks, and what "
            "reacts to a registration listens to the manager's events"
        )
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._caches: dict[int, Registered] = {}
        self._regions: dict[tuple[int, int], LocalRegion] = {}
        self._last_id = 0

    # --- registering ---------------------------------------------------------------------------------------------

    def register(
        self,
        function: str,
        desc: CacheDesc,
        addrs: tuple[int, ...],
        *,
        is_blocks: bool,
        blocks_key: object = None,
        keys: object = (),
        remote_accessible: bool,
        tensors: Sequence[TensorView] = (),
        allocation: Allocation | None = None,
        joined: Callable[[LocalCache], None] = lambda cache: None,
    ) -> LocalCache:
        """Check everything, then register every region with every engine; all of it or nothing.

        Args:
            function: Public function, for messages.
            desc: Descriptor, copied.
            addrs: Checked addresses, one a tensor.
            is_blocks: Paged or contiguous.
            blocks_key: BlocksCacheKey or None, not yet checked.
            keys: CacheKeys of a contiguous cache, not yet checked.
            remote_accessible: Whether peers may reach it.
            tensors: Owners to keep alive.
            allocation: The memory, where the manager allocated it: it is registered as one region, does not count
                against the address budget, and is freed by `remove`. On an error it stays the caller's to free, but
                for a StillReachableError.
            joined: Called with the new cache before another registration can change anything.
        """
        if allocation is None:
            ranges = tuple((addr, desc.size) for addr in addrs)
            new = [rules.OwnedRange(base, nbytes, f"addrs[{i}]") for i, (base, nbytes) in enumerate(ranges)]
        else:
            ranges = ((allocation.address, allocation.nbytes),)
            new = [rules.OwnedRange(*ranges[0], "the memory that was allocated", rules.STALE)]
        with self._native:
            with self._lock:
                caches = list(self._caches.values())
                regions = list(self._regions.values())
            if allocation is None:
                rules.check_budget(_counted_addresses(caches), len(addrs), self._address_budget)
            checked_key = rules.checked_blocks_key(
                blocks_key, self._cluster_id, [c.blocks_key for c in caches if c.blocks_key is not None]
            )
            checked_keys = rules.checked_cache_keys(keys, desc, self._cluster_id, [k for c in caches for k in c.keys])
            rules.check_no_overlap(new, _owned(regions, caches))
            same = [region for region in regions if region.placement is desc.placement]
            known = {(region.base, region.nbytes) for region in same}
            rules.check_bytes(
                desc.placement,
                sum(region.nbytes for region in same),
                sum(nbytes for base, nbytes in ranges if (base, nbytes) not in known),
                self._byte_limits[desc.placement],
                name="addrs" if allocation is None else "cache_desc",
            )
            self._check_memory(RegistrationRequest(function, ranges, desc.placement, remote_accessible, is_blocks))
            regions = [self._region(f"addrs[{i}]", *placed, desc.placement) for i, placed in enumerate(ranges)]
            cache = Cache(self._last_id + 1, desc, addrs, is_blocks)
            local = LocalCache(cache, checked_key, checked_keys, remote_accessible, tensors, regions, allocation)
            self._join(local, joined)
            return local

    def register_layers(
        self,
        given: GivenLayers,
        group: str,
        *,
        key: object,
        remote_accessible: Callable[[Placement], bool],
        joined: Callable[[Registered], None] = lambda cache: None,
    ) -> LocalLayers:
        """Check everything, merge the tensors into regions, then register these; all of it or nothing.

        Args:
            given: The tensors.
            group: Name of their block list.
            key: BlocksCacheKey or None, not yet checked.
            remote_accessible: Says for a placement whether peers may reach it.
            joined: Called with the new cache before another registration can change anything.
        """
        self._driver.bind_thread()
        infos = self._driver.describe(given.ranges)
        names = [view.name for view in given.views]
        rules.check_mapped(given.ranges, infos, names.__getitem__)
        placement = placing.common_placement(given.views, infos)
        rules.check_placement(placement, given.ranges, infos, names.__getitem__, "its placement")
        remote = remote_accessible(placement)
        with self._native:
            with self._lock:
                caches = list(self._caches.values())
                regions = list(self._regions.values())
            checked_key = rules.checked_blocks_key(key, self._cluster_id, (), name="key")
            placing.check_key_and_group(checked_key, group, caches)
            placed = placing.place(given, infos, placement, checked_key, caches, regions)
            new = [one.region for one in placed if one.is_new]
            rules.check_budget(
                _counted_addresses(caches),
                len(new),
                self._address_budget,
                name="layers",
                what=f"regions for {len(names)} tensors",
                remedy="cut the tensors from fewer and larger allocations",
            )
            rules.check_bytes(
                placement,
                sum(region.nbytes for region in regions if region.placement is placement),
                sum(region.nbytes for region in new),
                self._byte_limits[placement],
                name="layers",
            )
            ranges = tuple((one.region.base, one.region.nbytes) for one in placed)
            labels = tuple(one.label for one in placed)
            try:
                self._check_memory(RegistrationRequest("register_layers", ranges, placement, remote, True, labels))
            except AlignmentError as error:
                error.tensor_index = placed[error.tensor_index].first_view
                raise
            cache = LayersCache(self._last_id + 1, checked_key, group, placement, remote, given.described())
            shape = given.shape(f"cache {cache.cache_id}", group, placement)
            # What only an address is known of cannot be seen to move.
            owned = [view for view in given.views if not isinstance(view.owner, TensorSpec)]
            local = LocalLayers(cache, shape, owned, [one.region for one in placed])
            self._join(local, joined)
            return local

    def _check_memory(self, request: RegistrationRequest) -> None:
        self._driver.bind_thread()
        infos = self._driver.describe(request.ranges)
        rules.check_mapped(request.ranges, infos, request.label)
        rules.check_placement(request.placement, request.ranges, infos, request.label)
        self._driver.check_registration(request, infos)
        for policy in self._policies:
            try:
                policy.check_registration(request.function, self._cluster_id, request.ranges)
            except Exception as error:
                raise RegistrationRefusedError(
                    f"{request.function} was refused by the policy {type(policy).__name__}: "
                    f"{type(error).__name__}: {error}"
                ) from error

    def _join(self, cache: C, joined: Callable[[C], None]) -> None:
        if cache.remote_accessible:
            self._natives.register(cache.regions)
        with self._lock:
            self._last_id = cache.cache.cache_id
            self._caches[self._last_id] = cache
            for region in cache.regions:
                self._regions[region.base, region.nbytes] = region
                region.references += 1
                region.remote_references += cache.remote_accessible
        try:
            joined(cache)
        except BaseException:
            cache.allocation = None  # the caller frees what did not become a cache
            # Where it cannot be undone, only close() can take it back, and no peer was told of it.
            cache.state, cache.withdrawn = State.RETIRING, True
            self._remove(cache)
            raise

    def _region(self, name: str, base: int, nbytes: int, placement: Placement) -> LocalRegion:
        region = self._regions.get((base, nbytes))
        if region is None:
            return LocalRegion(base, nbytes, placement)
        if region.placement is not placement:
            raise PlacementError(
                f"{name} is {base:#x}, which a live cache registered as {region.placement.name}; "
                f"cache_desc.placement is {placement.name}. Register the same memory with one placement"
            )
        return region

    # --- looking up ----------------------------------------------------------------------------------------------

    @overload
    def get(self, cache: Cache, name: str) -> LocalCache: ...

    @overload
    def get(self, cache: LayersCache, name: str) -> LocalLayers: ...

    def get(self, cache: Cache | LayersCache, name: str) -> Registered:
        """The registration of a cache of this manager.

        Raises:
            CacheNotFoundError: It is not registered here, or is being unregistered.
        """
        found = self._caches.get(cache.cache_id)
        if found is None or found.cache is not cache:
            raise CacheNotFoundError(
                f"{name} is {cache!r}, which is not registered with this manager (unregistered, or another manager's)"
            )
        if found.state is not State.LIVE:
            raise CacheNotFoundError(f"{name} is {cache!r}, which is being unregistered; it takes no new transfer")
        if found.released:
            raise CacheNotFoundError(f"{name} is {cache!r}, which was deallocated and waits for its keys to be used up")
        return found

    def by_key(self, key: TransferKey, group: str | None = None) -> tuple[Registered, int]:
        """The cache and batch index that a key of this manager names.

        Args:
            key: Which.
            group: For a BlocksCacheKey: the group of a cache of named layers, None for a cache of one shape.

        Raises:
            CacheNotFoundError: It names none.
            CacheValueError: Its batch index is outside the cache.
        """
        with self._lock:
            for cache in self._caches.values():
                if cache.state is not State.LIVE:
                    continue
                if isinstance(key, CacheKeyByIdAndIndex):
                    if cache.cache.cache_id == key.cache_id:
                        entries = cache.desc.batch_size if isinstance(cache, LocalCache) else 1
                        arguments.integer("batch_index of the key", key.batch_index, 0, entries - 1)
                        return cache, key.batch_index
                elif isinstance(key, BlocksCacheKey):
                    if cache.blocks_key == key and (cache.group if isinstance(cache, LocalLayers) else None) == group:
                        return cache, 0
                elif key in cache.keys:
                    return cache, cache.keys.index(key)
        layers = "" if group is None else f" with layers of group {group!r}"
        raise CacheNotFoundError(f"{key}{layers} names no cache of this manager; register one with this key first")

    def by_id(self, cache_id: int) -> Registered:
        """The registration of a cache id, in any state.

        Raises:
            CacheNotFoundError: There is none.
        """
        found = self._caches.get(cache_id)
        if found is None:
            known = ", ".join(map(str, sorted(self._caches))) or "none"
            raise CacheNotFoundError(f"cache_id is {cache_id}, which is not registered; registered: {known}")
        return found

    def caches(self) -> list[Registered]:
        """All registered caches, oldest first."""
        with self._lock:
            return list(self._caches.values())

    def usage(self) -> tuple[int, int, int]:
        """(caches, addresses, bytes) registered now."""
        with self._lock:
            addresses = _counted_addresses(self._caches.values())
            return len(self._caches), addresses, sum(region.nbytes for region in self._regions.values())

    # --- keys ----------------------------------------------------------------------------------------------------

    def drop_key(self, key: CacheKey, cache_id: int | None = None) -> LocalCache | None:
        """Take a key from the live cache that it names an entry of; the other keys keep their entries.

        Args:
            key: The key.
            cache_id: Only if it names an entry of this cache.

        Returns:
            The cache, None when the key names none (any more).
        """
        with self._lock:
            for cache in self._caches.values():
                if not isinstance(cache, LocalCache):
                    continue
                if cache.state is State.LIVE and key in cache.keys and cache_id in (None, cache.cache.cache_id):
                    unused = CacheKey(key.cluster_id)
                    cache.keys = tuple(unused if item == key else item for item in cache.keys)
                    return cache
        return None

    def release(self, cache: Registered) -> bool:
        """Note that the caller has given a cache back that keys still name; returns whether any does.

        Raises:
            CacheNotFoundError: It was given back already, by another thread.
        """
        with self._lock:
            if cache.released:
                raise CacheNotFoundError(f"{cache} was deallocated already, by another thread")
            cache.released = cache.has_keys
            return cache.released

    # --- counting transfers --------------------------------------------------------------------------------------

    def begin(self, *caches: Registered) -> None:
        """Count a transfer that uses the caches.

        Raises:
            CacheNotFoundError: One of them is being unregistered; nothing is counted.
        """
        with self._lock:
            for cache in caches:
                if cache.state is not State.LIVE:
                    raise CacheNotFoundError(f"{cache} is being unregistered; it takes no new transfer")
            for cache in caches:
                cache.running += 1

    def end(self, *caches: Registered) -> None:
        """Count the end of a transfer that `begin` counted."""
        with self._idle:
            for cache in caches:
                cache.running -= 1
            self._idle.notify_all()

    def wait_idle(self, caches: Sequence[Registered], deadline: float) -> list[Registered]:
        """Wait until no transfer of this process uses the caches; returns those still in use at the deadline."""
        with self._idle:
            while True:
                busy = [cache for cache in caches if cache.running]
                left = deadline - time.monotonic()
                if not busy or left <= 0:
                    return busy
                self._idle.wait(left)

    # --- unregistering -------------------------------------------------------------------------------------------

    def retire(self, cache: Registered) -> None:
        """Refuse new transfers on the cache from now on. Repeating it is harmless."""
        with self._lock:
            if cache.state is State.LIVE:
                cache.state = State.RETIRING

    def remove(self, cache: Registered) -> None:
        """Deregister what only this cache used, free what was allocated for it, forget it. Nothing may use it any more.

        Raises:
            StillReachableError: An engine cannot promise that; the cache stays, the call can be repeated.
            CacheBusyError, EngineError: The driver cannot free the memory now; the same holds.
        """
        with self._native:
            self._remove(cache)

    def _remove(self, cache: Registered) -> None:
        for region in cache.regions:
            if cache.remote_accessible and region.remote_references == 1:
                self._natives.deregister(region)
        if cache.allocation is not None:
            self._driver.free(cache.allocation)
        with self._lock:
            for region in cache.regions:
                region.references -= 1
                region.remote_references -= cache.remote_accessible
                if not region.references:
                    del self._regions[region.base, region.nbytes]
            del self._caches[cache.cache.cache_id]
            cache.state = State.GONE


def _owned(regions: Iterable[LocalRegion], caches: Iterable[Registered]) -> list[rules.OwnedRange]:
    """The regions with the names of the caches that lie in them. One pass: there may be thousands of both."""
    users: dict[LocalRegion, list[Registered]] = {region: [] for region in regions}
    for cache in caches:
        for region in cache.regions:
            users[region].append(cache)
    owned = []
    for region, using in users.items():
        exclusive = ""
        if any(isinstance(user, LocalLayers) for user in using):
            exclusive = rules.IN_LAYERS
        elif any(user.allocation is not None for user in using):
            exclusive = rules.ALLOCATED
        owned.append(rules.OwnedRange(region.base, region.nbytes, ", ".join(map(str, using)), exclusive))
    return owned


def _counted_addresses(caches: Iterable[Registered]) -> int:
    """How many addresses of the budget are used: of layers one a region, which several caches may share."""
    merged: set[int] = set()
    counted = 0
    for cache in caches:
        if isinstance(cache, LocalCache):
            counted += cache.counted_addresses
        else:
            merged.update(region.base for region in cache.regions)
    return counted + len(merged)


def busy_error(caches: Sequence[Registered], peers: tuple[int, ...], why: str) -> CacheBusyError:
    """The error for memory that is still in use at a deadline."""
    ranges = tuple((region.base, region.nbytes) for cache in caches for region in cache.regions)
    listed = ", ".join(str(cache) for cache in caches)
    total = sum(nbytes for _, nbytes in ranges)
    return CacheBusyError(
        f"{listed} ({len(ranges)} ranges, {total} bytes) is still in use: {why}. The memory stays registered and must "
        "not be freed; repeat the call",
        peers=peers,
        ranges=ranges,
    )
