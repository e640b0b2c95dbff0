"""Caches whose memory the manager allocates: one allocation each, freed after the last reader, and how long keys live."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

from cachecore import _arguments as arguments
from cachecore.driver import Allocation, BackendDriver
from cachecore.engine import EngineBinding
from cachecore.errors import (
    CacheBusyError,
    CacheError,
    CacheNotFoundError,
    CacheOutOfMemoryError,
    CacheTimeoutError,
    CacheValueError,
    NotSupportedError,
    StatusCode,
    StillReachableError,
)
from cachecore.events import Event, Listeners
from cachecore.peers import Peers
from cachecore.peers.records import CacheRecord
from cachecore.registration import rules
from cachecore.registration.local_caches import LocalCache, Registered
from cachecore.registration.offers import record_of
from cachecore.registration.registry import Registry
from cachecore.registration.retirement import Retirement
from cachecore.threads import start_or_log
from cachecore.types import Cache, CacheDesc, CacheKey, Placement

__all__ = ["Allocations", "tensor_stride"]

_log = logging.getLogger("cachecore")

_MOST_BYTES: Final = 2**63 - 1
#: Tensors start at multiples of this at least: a line of every cache, and what copies of accelerators like.
_LEAST_ALIGNMENT: Final = 512
#: Seconds of one attempt to free a cache whose last key is used up, and between two attempts.
_ATTEMPT: Final = 5.0
_PAUSE: Final = 0.5


def tensor_stride(nbytes: int, alignment: int) -> int:
    """Bytes from one tensor of an allocation to the next.

    A tensor starts at a multiple of the driver's alignment. Tensors smaller than that are not spread out so far: never
    is more than half of an allocation empty, but for tensors below 512 bytes.

    Args:
        nbytes: Bytes of one tensor.
        alignment: What the driver gives, in bytes, a power of two.
    """
    own = 1 << (nbytes - 1).bit_length()
    unit = max(min(alignment, own), _LEAST_ALIGNMENT)
    return -(-nbytes // unit) * unit


class Allocations:
    """The allocated caches of one manager.

    Args:
        cluster_id: The manager's id.
        driver: Gives the memory.
        registry: Holds the caches.
        peers: Are told of them.
        engines: Make them reachable.
        retirement: The way out.
        listeners: Are told what happens.
        two_sided: Whether a successful `pull_cache` consumes the key of a request.
    """

    def __init__(
        self,
        cluster_id: int,
        driver: BackendDriver,
        registry: Registry,
        peers: Peers,
        engines: Sequence[EngineBinding],
        retirement: Retirement,
        listeners: Listeners,
        two_sided: bool,
    ) -> None:
        self._cluster_id = cluster_id
        self._driver = driver
        self._registry = registry
        self._peers = peers
        self._engines = tuple(engines)
        self._retirement = retirement
        self._listeners = listeners
        self._two_sided = two_sided
        self._lock = threading.Lock()
        self._unused: list[Registered] = []
        self._freeing: threading.Thread | None = None

    # --- in ----------------------------------------------------------------------------------------------------------

    def allocate(
        self,
        function: str,
        desc: object,
        *,
        is_blocks: bool,
        blocks_key: object = None,
        keys: object = (),
        remote_accessible: object = None,
    ) -> Cache:
        """Allocate, register and publish; see `CacheManager.allocate_cache` for what is raised.

        Args:
            function: The public function, for messages, drivers and policies.
            desc: As the caller gave it.
            is_blocks: Paged or contiguous.
            blocks_key: Key of a paged cache, as the caller gave it.
            keys: Keys of a contiguous cache, as the caller gave them.
            remote_accessible: As the caller gave it.
        """
        desc = CacheDesc._given(desc)
        facts = self._driver.capabilities()
        offered = facts.allocate_caches
        if offered.value is not True:
            known = "does not offer allocated caches" if offered.known else "is not known to offer allocated caches"
            raise NotSupportedError(
                f"{function}: {self._driver.name} {known} ({offered.source}). Allocate the memory yourself and use "
                f"{'register_blocks_cache' if is_blocks else 'register_cache'}",
                product=self._driver.name,
                feature=function,
            )
        accessible = rules.default_remote_accessible(
            remote_accessible, desc.placement, facts.remote_access_optional.value_or(True), self._driver.name
        )
        self._check_keys(desc, blocks_key, keys)
        fact = facts.device_alignment if desc.placement is Placement.DEVICE else facts.host_alignment
        stride = tensor_stride(desc.size, fact.value_or(_LEAST_ALIGNMENT))
        allocation = self._memory(function, desc, stride)
        try:
            made = self._registry.register(
                function,
                desc,
                tuple(allocation.address + i * stride for i in range(desc.num_tensors)),
                is_blocks=is_blocks,
                blocks_key=blocks_key,
                keys=keys,
                remote_accessible=accessible,
                allocation=allocation,
                joined=self._publish,
            )
        except StillReachableError:
            raise  # a peer may still reach the memory: the driver frees it when the manager is closed
        except BaseException:
            self._driver.free(allocation)
            raise
        self._send("allocated", made, f"{allocation.nbytes} bytes for {desc!r}")
        return made.cache

    def _check_keys(self, desc: CacheDesc, blocks_key: object, keys: object) -> None:
        """What is wrong with keys costs no memory. The registry checks them again, when no other call can interfere."""
        caches = self._registry.caches()
        rules.checked_blocks_key(
            blocks_key, self._cluster_id, [c.blocks_key for c in caches if c.blocks_key is not None]
        )
        rules.checked_cache_keys(keys, desc, self._cluster_id, [key for c in caches for key in c.keys])

    def _memory(self, function: str, desc: CacheDesc, stride: int) -> Allocation:
        nbytes = stride * (desc.num_tensors - 1) + desc.size
        on_device = desc.placement is Placement.DEVICE
        code = StatusCode.DEVICE_OUT_OF_MEMORY if on_device else StatusCode.OUT_OF_MEMORY
        asked = f"{function} asks for {nbytes} bytes of {desc.placement.name} memory for {desc!r}"
        if nbytes > _MOST_BYTES:
            raise CacheOutOfMemoryError(
                f"{asked}; no machine has so much. Use fewer or smaller tensors", status_code=code
            )
        self._driver.bind_thread()
        try:
            return self._driver.allocate(nbytes, desc.placement)
        except CacheOutOfMemoryError as error:
            raise CacheOutOfMemoryError(f"{asked}, which could not be had: {error}", status_code=code) from error

    def _publish(self, cache: Registered) -> None:
        if cache.remote_accessible:
            self._peers.publish([self._record(cache)])

    def _record(self, cache: Registered) -> CacheRecord:
        assert isinstance(cache, LocalCache)  # caches of named layers are not allocated and have no keys of entries
        return record_of(cache, self._engines, consumable=self._consumable(cache))

    # --- out ---------------------------------------------------------------------------------------------------------

    def deallocate(self, function: str, cache: object, *, is_blocks: bool, deadline: float) -> None:
        """Give a cache back; see `CacheManager.deallocate_cache` for what is raised.

        Args:
            function: The public function, for messages.
            cache: As the caller gave it.
            is_blocks: Which kind the function is for.
            deadline: On `time.monotonic()`.
        """
        arguments.instance("cache", cache, Cache)
        assert isinstance(cache, Cache)
        if cache.cache_id == -1:
            raise CacheValueError(
                f"cache is {cache!r}, made by create_cpu_cache: its memory is the caller's; there is nothing to deallocate"
            )
        local = self._registry.by_id(cache.cache_id)
        if local.cache is not cache or local.released:
            raise CacheNotFoundError(f"cache is {cache!r}, which was deallocated already, or is another manager's")
        if local.allocation is None:
            raise CacheValueError(
                f"cache is {cache!r}, which was registered: its memory is the caller's. Use "
                f"unregister_cache({cache.cache_id}) in place of {function}"
            )
        if cache.is_blocks_cache is not is_blocks:
            kind, right = (
                ("paged", "deallocate_blocks_cache") if cache.is_blocks_cache else ("contiguous", "deallocate_cache")
            )
            raise CacheValueError(f"cache is {cache!r}, which is {kind}; use {right} in place of {function}")
        if self._consumable(local) and self._registry.release(local):
            self._send("released", local, "freed when its last key has been used up or removed")
            return
        self._remove(local, deadline)

    def _remove(self, cache: Registered, deadline: float) -> None:
        with self._retirement.retired([cache], deadline) as present:
            if not present:
                raise CacheNotFoundError(f"cache is {cache.cache!r}, which another thread has just deallocated")
            self._registry.remove(cache)
        self._send("deallocated", cache)

    # --- keys --------------------------------------------------------------------------------------------------------

    def _consumable(self, cache: Registered) -> bool:
        return self._two_sided and cache.allocation is not None and not cache.shape.is_blocks

    def remove_key(self, key: object, deadline: float) -> None:
        """Drop a key; see `CacheManager.remove_cache_key` for what is raised."""
        arguments.instance("cache_key", key, CacheKey)
        assert isinstance(key, CacheKey)
        if key.is_placeholder:
            raise CacheValueError(f"cache_key is {key}, a placeholder that names nothing; give req_id or prefix_id")
        if key.cluster_id != self._cluster_id:
            raise CacheValueError(
                f"cache_key has cluster_id {key.cluster_id} and this manager is cluster {self._cluster_id}; a key is removed "
                "by the manager whose cache it names"
            )
        cache = self._registry.drop_key(key)
        if cache is None:
            raise CacheNotFoundError(f"cache_key is {key}, which names no cache of this manager, or not any more")
        self._announce(cache)
        self._send("key removed", cache, repr(key))
        if cache.released and not cache.has_keys:
            try:
                self._remove(cache, deadline)
            except CacheNotFoundError:
                pass  # a pull consumed the other key meanwhile, and its memory is free already
            except (CacheBusyError, CacheTimeoutError):
                self._free_later(cache)  # the key is gone, as was asked for; the memory follows its readers

    def consumed(self, cache_id: int, key: CacheKey) -> bool:
        """A peer has pulled what a key names: drop the key. Waits for nothing.

        Returns:
            Whether the key was there and is dropped now.
        """
        if key.is_prefix:
            return False
        try:
            named = self._registry.by_id(cache_id)
        except CacheNotFoundError:
            return False
        # Whatever a peer asks for: only what allocate_cache made here is used up by readers.
        cache = self._registry.drop_key(key, cache_id) if self._consumable(named) else None
        if cache is None:
            return False
        if cache.released and not cache.has_keys:
            self._free_later(cache)
        return True

    def consume_own(self, cache: Registered, key: CacheKey) -> None:
        """This manager has pulled what a key of its own names: drop the key, if it is one that pulls consume.

        Raises:
            CacheNotFoundError: Another pull has consumed it first.
        """
        if key.is_prefix or not self._consumable(cache):
            return
        if not self.consumed(cache.cache.cache_id, key):
            raise already_consumed(key)
        self._announce(cache)

    def _announce(self, cache: Registered) -> None:
        """Tell the peers the keys that are left. Repeated when a reader consumed one meanwhile, which tells them too."""
        while cache.remote_accessible:
            keys = cache.keys
            with contextlib.suppress(CacheNotFoundError):  # it is being taken back, and nobody finds it any more
                self._peers.republish(self._record(cache))
            if cache.keys is keys:
                return

    # --- freeing what only keys kept -----------------------------------------------------------------------------------

    def _free_later(self, cache: Registered) -> None:
        """Free a cache from a thread of its own, which ends when there is no more to do.

        Where no thread can be started now, the next cache tries again, and close() frees what is left.
        """
        with self._lock:
            self._unused.append(cache)
            if self._freeing is None:
                self._freeing = start_or_log(self._free, "cachecore-deallocate")

    def _free(self) -> None:
        while True:
            with self._lock:
                if not self._unused:
                    self._freeing = None
                    return
                cache = self._unused.pop(0)
            try:
                self._driver.bind_thread()
                self._remove(cache, time.monotonic() + _ATTEMPT)
            except CacheNotFoundError:
                continue  # close() was faster
            except (CacheBusyError, CacheTimeoutError):
                with self._lock:
                    self._unused.append(cache)
                time.sleep(_PAUSE)
            except CacheError:
                # close() tries again and raises what is in the way.
                _log.exception(
                    "%s has no key left and could not be freed; its memory stays until the manager is closed", cache
                )

    def _send(self, kind: str, cache: Registered, detail: str = "") -> None:
        self._listeners.send(Event(kind, self._cluster_id, cache_id=cache.cache.cache_id, detail=detail))


def already_consumed(key: CacheKey) -> CacheNotFoundError:
    """The error for a pull that moved everything and whose key was gone by then."""
    return CacheNotFoundError(
        f"{key} was consumed by another pull, or removed by its owner, while this one ran: the request is not this pull's. "
        "The destination was written; do not use it for this request"
    )
