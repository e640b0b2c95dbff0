"""Keeping blocks for readers of other managers, for a time."""

from __future__ import annotations

import time
from typing import Any

from cachecore import _arguments as arguments
from cachecore.api.base import DEFAULT_TIMEOUT, ManagerParts
from cachecore.errors import CacheIncompatibleError, CacheNotFoundError, CacheValueError
from cachecore.layers import LayersCache
from cachecore.leases import BlockLease, LeaseInfo, pack_blocks
from cachecore.planning import Geometry, plan_blocks
from cachecore.shape import LayersShape
from cachecore.transfers.requests import frozen
from cachecore.types import Cache

__all__ = ["LeasingMethods"]


class LeasingMethods(ManagerParts):
    """`lease` and what is done with leases."""

    def lease(self, cache: Cache | LayersCache, blocks: Any, ttl: float) -> BlockLease:
        """Keep blocks for pulls that present the lease.

        A pull that has started under it is waited for, however long it takes: `release_lease` and `expired_leases` say
        when the blocks may be used for something else.

        Args:
            cache: A paged cache of this manager, or one of `register_layers`.
            blocks: Block ids: list, tuple, range, integer array, memoryview or CPU tensor; at least one, no repeats.
            ttl: Seconds from now on in which pulls may start, above 0.

        Returns:
            A value that pickles; `to_bytes` makes it fit a connector's own channel.

        Raises:
            MissingArgumentError, CacheTypeError, CacheValueError: A bad argument.
            CacheIncompatibleError: The cache is not paged.
            CacheNotFoundError: It is not registered with this manager, or is being unregistered.
        """
        self._enter()
        arguments.instance("cache", cache, (Cache, LayersCache))
        shape = self._registry.get(cache, "cache").shape
        if isinstance(shape, LayersShape):
            num_blocks = shape.num_blocks
        elif shape.is_blocks:
            num_blocks = shape.shape[0]
        else:
            raise CacheIncompatibleError(f"cache is {shape.owner}, which is not paged; only blocks can be leased")
        seconds = _ttl(ttl)
        granted = self._peers.leases.grant(cache.cache_id, _packed(blocks, num_blocks), seconds)
        try:
            self._registry.get(cache, "cache")
        except CacheNotFoundError:  # it was unregistered meanwhile, with the leases that there were
            self._peers.leases.revoke(granted, time.monotonic())
            raise
        return granted

    def renew_lease(self, lease: BlockLease, ttl: float) -> None:
        """Let pulls start under a lease for `ttl` seconds from now on, be that more or less than was left.

        Args:
            lease: As `lease` returned it. The value does not change, and those who have it need not know.
            ttl: Seconds, above 0.

        Raises:
            MissingArgumentError, CacheTypeError, CacheValueError: A bad argument; another manager's lease.
            LeaseExpiredError: It has expired or was released.
        """
        self._enter()
        arguments.instance("lease", lease, BlockLease)
        self._peers.leases.renew(lease, _ttl(ttl))

    def release_lease(self, lease: BlockLease, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Let no pull start under a lease any more, and wait for those that run. Then the blocks are free.

        Releasing it again is harmless.

        Args:
            lease: As `lease` returned it.
            timeout: Seconds to wait for pulls that run. A reader that does not answer counts as gone after 20 s.

        Raises:
            MissingArgumentError, CacheTypeError, CacheValueError: A bad argument; another manager's lease.
            CacheBusyError: Pulls still run at the deadline; `peers` names who pulls. The lease stays revoked, the blocks
                must not be reused, and the call can be repeated.
        """
        self._enter()
        deadline = arguments.deadline("timeout", timeout)
        arguments.instance("lease", lease, BlockLease)
        self._peers.leases.revoke(lease, deadline)

    def expired_leases(self) -> list[BlockLease]:
        """Leases whose time is over and under which no pull runs: their blocks are free. Each is returned once."""
        self._enter()
        return self._peers.leases.expired()

    @property
    def leases(self) -> tuple[LeaseInfo, ...]:
        """Every lease that was neither released nor returned by `expired_leases`, in the order of granting."""
        self._check_process()
        return self._peers.leases.infos


def _ttl(ttl: object) -> float:
    seconds = arguments.timeout("ttl", ttl)
    if not seconds:
        raise CacheValueError("ttl is 0; a lease of no time serves nobody: give the seconds in which pulls may start")
    return seconds


def _packed(blocks: Any, num_blocks: int) -> bytes:
    """Checked block ids: planning takes the same lists and has the same rules, so that a lease fits a pull."""
    any_tensor = Geometry([1 << 12], blocks=num_blocks, block_bytes=1)
    kept = frozen(blocks)
    plan_blocks(any_tensor, any_tensor, kept, kept, local_name="blocks", remote_name="blocks")
    return pack_blocks(kept)
