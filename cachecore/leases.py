"""Block leases as values: which blocks of a cache a manager keeps for readers, and until when it lets them start.

A lease travels with a request, from the manager that granted it to whoever shall pull the blocks. Presenting it makes
the owner keep the blocks until the pull has ended, whatever happens to the request meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from cachecore import _arguments as arguments
from cachecore import _core
from cachecore.errors import CacheValueError, LeaseExpiredError

__all__ = ["BlockLease", "LeaseInfo", "check_blocks", "check_lease"]

_HEAD: Final = b"CCB\x01"  # the last byte is the version of the format
_Token = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}\\Z")]
_U64 = Annotated[int, msgspec.Meta(ge=0)]  # msgpack holds nothing above 2**64-1


class BlockLease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `CacheManager.lease` returns. Pickles, compares and hashes by value.

    Attributes:
        cluster_id: Who granted it.
        incarnation: The life of that manager; a restarted one does not know it.
        cache_id: The cache that the blocks belong to.
        lease_id: 128 random bits, hexadecimal.
        blocks: Ids of the blocks in the order given, without repeats, packed little-endian uint64.
        ttl: Seconds from the grant for which pulls could start under it, unless it was renewed or released since.
    """

    cluster_id: _U64
    incarnation: _Token
    cache_id: _U64
    lease_id: _Token
    blocks: bytes
    ttl: Annotated[float, msgspec.Meta(gt=0, le=1e9)]

    def __post_init__(self) -> None:
        if not self.blocks or len(self.blocks) % 8:
            raise ValueError(f"blocks has {len(self.blocks)} bytes, which are not packed 8-byte ids")

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return len(self.blocks) // 8

    @property
    def block_ids(self) -> tuple[int, ...]:
        """Ids of the blocks, in the order given."""
        return tuple(memoryview(self.blocks).cast("Q"))

    def to_bytes(self) -> bytes:
        """The lease for a connector's own channel, 8 bytes a block and about 150 more."""
        return _HEAD + msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> BlockLease:
        """The lease that `to_bytes` wrote.

        Raises:
            MissingArgumentError, CacheTypeError, CacheValueError: It is none, or of another version of cachecore.
        """
        arguments.instance("data", data, (bytes, bytearray, memoryview))
        raw = bytes(data)
        if raw[:3] != _HEAD[:3]:
            raise CacheValueError(
                f"data has {len(raw)} bytes that do not start like a block lease; give what to_bytes made"
            )
        if raw[:4] != _HEAD:
            raise CacheValueError(
                f"data is a block lease of format {raw[3:4].hex() or 'none'} and this release reads format "
                f"{_HEAD[3:].hex()}; install the same release of cachecore on both sides"
            )
        try:
            return _decoder.decode(raw[4:])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CacheValueError(f"data is a damaged block lease: {error}") from error

    def __repr__(self) -> str:
        return (
            f"<BlockLease {self.lease_id[:8]} of {self.num_blocks} blocks of cache {self.cache_id} of cluster "
            f"{self.cluster_id}, {self.ttl:g} s>"
        )


_decoder = msgspec.msgpack.Decoder(BlockLease)


@dataclass(frozen=True)
class LeaseInfo:
    """A lease as the manager that granted it sees it.

    Attributes:
        lease: The lease.
        state: "LIVE": pulls may start under it. "EXPIRED": its time is over. "REVOKED": released, or its cache is being
            unregistered. Of the last two no pull starts any more and those in `readers` may still run.
        seconds_left: Until it expires, 0 when it has.
        readers: Cluster ids of the pulls that run under it, one entry for each pull.
    """

    lease: BlockLease
    state: str
    seconds_left: float
    readers: tuple[int, ...]


def pack_blocks(blocks: Any) -> bytes:
    """Block ids, given as planning takes them, as `BlockLease.blocks` holds them."""
    return _core.pack_blocks(blocks, "blocks")


def check_lease(name: str, lease: object, *, cluster_id: int, incarnation: str, cache_id: int) -> BlockLease:
    """A lease that fits the source of a pull.

    Args:
        name: Of the argument, for messages.
        lease: As the caller gave it.
        cluster_id: Of the source's manager.
        incarnation: Its life that is linked.
        cache_id: The source.

    Raises:
        MissingArgumentError, CacheTypeError: It is no lease.
        CacheValueError: It is of another cluster or cache.
        LeaseExpiredError: The manager that granted it has ended.
    """
    arguments.instance(name, lease, BlockLease)
    assert isinstance(lease, BlockLease)
    if lease.cluster_id != cluster_id:
        raise CacheValueError(
            f"{name} is {lease!r} and the key names cluster {cluster_id}; give the lease that this cluster granted"
        )
    if lease.incarnation != incarnation:
        raise LeaseExpiredError(
            f"{name} is {lease!r}, which ended with the manager that granted it: cluster {cluster_id} has been restarted "
            "since. What its blocks held is gone"
        )
    if lease.cache_id != cache_id:
        raise CacheValueError(
            f"{name} is {lease!r} and the key names cache {cache_id} of cluster {cluster_id}; give a lease of that cache"
        )
    return lease


def check_blocks(lease: BlockLease, blocks_name: str, blocks: Any) -> None:
    """Refuse blocks that the lease does not keep.

    Args:
        lease: The lease.
        blocks_name: Of the argument that holds the blocks, for messages.
        blocks: As planning takes them.

    Raises:
        CacheValueError: Names the first one.
    """
    position = _core.first_missing(lease.blocks, blocks)
    if position >= 0:
        raise CacheValueError(
            f"{blocks_name}[{position}] is block {int(blocks[position])}, which {lease!r} does not keep; pull only blocks "
            "of the lease"
        )
