"""What this manager offers to its peers about a registered cache: the catalogue record made from the registry."""

from __future__ import annotations

from collections.abc import Sequence

from cachecore.engine import EngineBinding
from cachecore.peers.layer_records import layers_record
from cachecore.peers.records import CacheRecord, RegionRecord, WireId, key_records, region_records
from cachecore.registration.registry import LocalCache, LocalLayers, Registered
from cachecore.types import DataType

__all__ = ["record_of"]


def record_of(cache: Registered, engines: Sequence[EngineBinding], *, consumable: bool = False) -> CacheRecord:
    """The record of a remotely accessible cache, with its regions as each engine registered them.

    Args:
        cache: The cache.
        engines: Of the manager.
        consumable: Whether readers use up its keys.
    """
    registrations = [pair for region in cache.regions for pair in region.registrations]
    regions = {
        engine.wire_id: region_records([made for by, made in registrations if by is engine]) for engine in engines
    }
    if isinstance(cache, LocalLayers):
        return _layers_record_of(cache, regions)
    assert isinstance(cache, LocalCache), "there are two kinds"
    keys = (cache.blocks_key,) if cache.blocks_key is not None else cache.keys
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
        regions=regions,
        consumable=consumable,
    )


def _layers_record_of(cache: LocalLayers, regions: dict[WireId, tuple[RegionRecord, ...]]) -> CacheRecord:
    shape = cache.shape
    return CacheRecord(
        cache_id=cache.cache.cache_id,
        is_blocks=True,
        keys=key_records(() if cache.blocks_key is None else (cache.blocks_key,)),
        num_tensors=shape.num_tensors,
        shape=(shape.num_blocks,),
        data_type=DataType.DT_UINT8,
        placement=shape.placement,
        batch_dim=0,
        addrs=(),
        regions=regions,
        layers=layers_record(shape),
    )
