"""What an owner tells its readers about one remotely accessible cache. Built by the owner, checked by the reader."""

from __future__ import annotations

import bisect
import math
from typing import Annotated, Any

import msgspec

from cachecore.engine import Region, Registration, RemoteRegion
from cachecore.peers.layer_records import LayersRecord
from cachecore.types import NO_ID, BlocksCacheKey, CacheKey, DataType, Placement

__all__ = ["BlocksKeyRecord", "CacheRecord", "EntryKeyRecord", "RegionRecord", "key_records", "region_records"]

#: msgpack holds integers up to 2**64-1; without the lower bound a negative one would pass.
U64 = Annotated[int, msgspec.Meta(ge=0)]
_Index = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_CacheId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Dimension = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
_Shape = Annotated[tuple[_Dimension, ...], msgspec.Meta(min_length=1, max_length=32)]
WireId = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class RegionRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One registered region as one engine reaches it.

    Attributes:
        base: Start address at the owner.
        nbytes: Size in bytes.
        placement: Where it is.
        descriptor: What the reader's engine needs; opaque.
    """

    base: U64
    nbytes: U64
    placement: Placement
    descriptor: bytes

    def __post_init__(self) -> None:
        if not (self.base and self.nbytes and self.base + self.nbytes <= 2**64):
            raise ValueError(f"region of {self.nbytes} bytes at {self.base:#x} is not within the address space")

    @property
    def remote_region(self) -> RemoteRegion:
        """The same for `TransferEngine.connect` and `update`."""
        return RemoteRegion(self.base, self.nbytes, self.placement, self.descriptor)


class EntryKeyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="entry"):
    """A `CacheKey` and the batch entry it names."""

    model_id: U64
    req_id: U64
    prefix_id: U64
    batch_index: _Index


class BlocksKeyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="blocks"):
    """A `BlocksCacheKey`."""

    model_id: U64


class CacheRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One remotely accessible cache of the owner.

    Attributes:
        cache_id: The owner's id of it, never used twice.
        is_blocks: Whether it is paged: the first dimension counts blocks.
        keys: What names it; may be empty.
        num_tensors: Number of tensors.
        shape: Dimensions of one tensor.
        data_type: Element type.
        placement: Where the memory is.
        batch_dim: Dimension that counts batch entries.
        addrs: Start address of each tensor at the owner.
        regions: By wire id of each engine it is registered with, the regions its tensors lie in.
        layers: The tensors of a cache of named layers; None for a cache whose tensors are all of one shape. With it
            `shape` is the number of blocks, `data_type` DT_UINT8 and `addrs` empty: it says the rest.
        consumable: Whether a reader that has pulled what a key of a request names has the owner drop the key.
    """

    cache_id: _CacheId
    is_blocks: bool
    keys: tuple[EntryKeyRecord | BlocksKeyRecord, ...]
    num_tensors: Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)]
    shape: _Shape
    data_type: DataType
    placement: Placement
    batch_dim: Annotated[int, msgspec.Meta(ge=0, le=31)]
    addrs: tuple[U64, ...]
    regions: dict[WireId, tuple[RegionRecord, ...]]
    layers: LayersRecord | None = None
    consumable: bool = False

    def __post_init__(self) -> None:
        if self.batch_dim >= len(self.shape):
            raise ValueError(f"batch_dim {self.batch_dim} of {len(self.shape)} dimensions")
        self._check_keys()
        if self.layers is not None:
            self._check_layers(self.layers)
            return
        if len(self.addrs) != self.num_tensors:
            raise ValueError(f"{len(self.addrs)} addresses for {self.num_tensors} tensors")
        if self.data_type.itemsize == 0:
            raise ValueError(f"data type {self.data_type.name} has no fixed size")
        nbytes = self.tensor_bytes
        if not all(address and address + nbytes <= 2**64 for address in self.addrs):
            raise ValueError(f"a tensor of {nbytes} bytes is not within the address space")

    def _check_layers(self, layers: LayersRecord) -> None:
        uniform = (self.is_blocks, self.num_tensors, self.shape, self.data_type, self.batch_dim, self.addrs)
        if uniform != (True, layers.num_tensors, (layers.num_blocks,), DataType.DT_UINT8, 0, ()):
            raise ValueError("a cache of named layers that says something else beside its layers")
        for wire_id, records in self.regions.items():
            regions = sorted((record.base, record.base + record.nbytes) for record in records)
            for address, nbytes in layers.ranges if regions else ():
                found = bisect.bisect_right(regions, (address, 2**64)) - 1
                if found < 0 or address + nbytes > regions[found][1]:
                    raise ValueError(f"a tensor of {nbytes} bytes at {address:#x} is in no region of {wire_id}")

    def _check_keys(self) -> None:
        for key in self.keys:
            if isinstance(key, BlocksKeyRecord) is not self.is_blocks:
                raise ValueError("a blocks key for a contiguous cache, or the other way round")
            if isinstance(key, EntryKeyRecord) and key.batch_index >= self.batch_size:
                raise ValueError(f"key of batch entry {key.batch_index} of {self.batch_size}")

    @property
    def batch_size(self) -> int:
        """Number of batch entries."""
        return self.shape[self.batch_dim]

    @property
    def tensor_bytes(self) -> int:
        """Bytes of one tensor."""
        return math.prod(self.shape) * self.data_type.itemsize

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """(address, bytes) of each tensor."""
        if self.layers is not None:
            return self.layers.ranges
        return tuple((address, self.tensor_bytes) for address in self.addrs)


def key_records(keys: list[Any] | tuple[Any, ...]) -> tuple[EntryKeyRecord | BlocksKeyRecord, ...]:
    """Records of `CacheKey`s, whose positions are the batch entries they name, or of one `BlocksCacheKey`.

    Placeholder keys hold their place and are left out.
    """
    records: list[EntryKeyRecord | BlocksKeyRecord] = []
    for position, key in enumerate(keys):
        if isinstance(key, BlocksCacheKey):
            records.append(BlocksKeyRecord(key.model_id))
        elif isinstance(key, CacheKey) and (key.req_id != NO_ID or key.prefix_id != NO_ID):
            records.append(EntryKeyRecord(key.model_id, key.req_id, key.prefix_id, position))
    return tuple(records)


def region_records(registrations: list[Registration] | tuple[Registration, ...]) -> tuple[RegionRecord, ...]:
    """Records of what one engine's `register` returned, without repeats."""
    records = []
    for registration in registrations:
        region: Region = registration.region
        records.append(RegionRecord(region.base, region.nbytes, region.placement, registration.descriptor))
    return tuple(dict.fromkeys(records))
