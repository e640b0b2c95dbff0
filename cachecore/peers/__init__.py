"""Links between managers: handshake, catalogue, liveness, retirement and security. See docs/peers.md."""

from __future__ import annotations

from cachecore.peers.events import EventKind, PeerEvent, PeersCounters
from cachecore.peers.link import Link
from cachecore.peers.liveness import Timing
from cachecore.peers.manager import Peers
from cachecore.peers.records import (
    BlocksKeyRecord,
    CacheRecord,
    EntryKeyRecord,
    RegionRecord,
    key_records,
    region_records,
)
from cachecore.peers.remote import RemoteCache, RemoteEntry
from cachecore.peers.security import InsecureLinkWarning, Security
from cachecore.peers.session import SessionInfo

__all__ = [
    "BlocksKeyRecord",
    "CacheRecord",
    "EntryKeyRecord",
    "EventKind",
    "InsecureLinkWarning",
    "Link",
    "PeerEvent",
    "Peers",
    "PeersCounters",
    "RegionRecord",
    "RemoteCache",
    "RemoteEntry",
    "Security",
    "SessionInfo",
    "Timing",
    "key_records",
    "region_records",
]
