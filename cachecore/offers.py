"""What this manager offers to its peers about a registered cache: the catalogue record made from the registry."""

from __future__ import annotations

from collections.abc import Sequence

from cachecore.engine import EngineBinding
from cachecore.peers.records import CacheRecord, key_records, region_records
from cachecore.registry import LocalCache

__all__ = ["record_of"]


def record_of(cache: LocalCache, engines: Sequence[EngineBinding], *, consumable: bool = False) -> CacheRecord:
    """The record of a remotely accessible cache, with its regions as each engine registered them.

    Args:
        cache: The cache.
        engines: Of the manager.
        consumable: Whether readers use up its keys.
    """
    keys = (cache.blocks_key,) if cache.blocks_key is not None else cache.keys
    registrations = [pair for region in cache.regions for pair in region.registrations]
    return CacheRecord(
        cache_id=cache.cache.cache_id,
        is_blocks=cache.cache.is_blocks_cache,
        keys=key_records(keys),
        num_tensors=cache.desc.num_tensors,
        shape=tuple(cache.desc.shape),
        data_type=cache.desc.data_type,
        placement=cache.desc.placement,
        batch_dim=cache.desc.batch_dim,
        addrs=cache.addrs,
        regions={
            engine.wire_id: region_records([made for by, made in registrations if by is engine]) for engine in engines
        },
        consumable=consumable,
    )
