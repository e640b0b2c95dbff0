"""What both roles have: a manager, and a registered paged cache whose content can be written and checked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from cachecore.cli.demo.cache_memory import CacheMemory
from cachecore.cli.demo.messages import Channel, ChannelClosedError, Settings
from cachecore.manager import CacheManager
from cachecore.types import BlocksCacheKey, Cache, CacheDesc, DataType

__all__ = ["Side", "open_side"]


@dataclass(frozen=True)
class Side:
    """One side of the demo.

    Attributes:
        manager: Its manager.
        cache: The registered cache.
        memory: The memory of the cache.
    """

    manager: CacheManager
    cache: Cache
    memory: CacheMemory


@contextlib.contextmanager
def open_side(channel: Channel, cluster_id: int, settings: Settings, listen: str | None) -> Iterator[Side]:
    """Make a manager, allocate and register a cache; give everything back in the end.

    A failure inside is told to the parent first: giving back can take its time when the other side is gone.

    Args:
        channel: To the parent.
        cluster_id: Of the manager; also names the cache.
        settings: Shape of the cache.
        listen: As in `CacheManager`.
    """
    with (
        CacheManager(cluster_id, backend=settings.backend, engine=settings.engine, listen=listen) as manager,
        _told(channel),
    ):
        memory = CacheMemory(manager.backend, settings)
        # Elements of two bytes, as a cache of half-precision numbers has them.
        desc = CacheDesc(settings.tensors, [settings.blocks, settings.block_bytes // 2], DataType.DT_FLOAT16)
        cache = manager.register_blocks_cache(desc, memory.addresses, BlocksCacheKey(cluster_id))
        yield Side(manager, cache, memory)
        # Not in a `finally`: memory that a failed transfer may still use must not be freed; the process ends anyway.
        manager.unregister_cache(cache.cache_id)
        memory.close()


@contextlib.contextmanager
def _told(channel: Channel) -> Iterator[None]:
    try:
        yield
    except ChannelClosedError:
        raise
    except Exception as error:
        channel.send_failure(error)
        raise
