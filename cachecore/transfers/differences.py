"""Where the layouts of this manager and of a peer differ, found when they link and whenever a catalogue changes.

A difference is no error: slices bridge different bytes of a block, and stages of a pipeline hold different layers. But
who sees it before the first request need not look for it in wrong answers.
"""

from __future__ import annotations

from collections.abc import Sequence

from cachecore.peers.records import BlocksKeyRecord
from cachecore.peers.remote import RemoteCache
from cachecore.registration.local_caches import LocalLayers, State
from cachecore.registration.registry import Registry
from cachecore.shape import LayersShape
from cachecore.transfers.layouts import compare

__all__ = ["layout_differences"]


def layout_differences(registry: Registry, remotes: Sequence[RemoteCache]) -> tuple[str, ...]:
    """Compare each cache of named layers with the peer's of the same model id and group.

    Args:
        registry: Of this manager.
        remotes: The peer's caches.

    Returns:
        Sentences, none where all layouts agree.
    """
    own = {
        (cache.blocks_key.model_id, cache.group): cache.shape
        for cache in registry.caches()
        if isinstance(cache, LocalLayers) and cache.blocks_key is not None and cache.state is State.LIVE
    }
    found: list[str] = []
    for remote in remotes if own else ():
        if remote.retiring or not isinstance(remote.shape, LayersShape):
            continue
        for key in remote.record.keys:
            local = own.get((key.model_id, remote.shape.group)) if isinstance(key, BlocksKeyRecord) else None
            if local is not None:
                found += compare(local, remote.shape)
    return tuple(found)
