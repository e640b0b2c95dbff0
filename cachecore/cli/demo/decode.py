"""The decode role: pulls what it lacks with one call for all layers, and checks every word of it."""

from __future__ import annotations

import time

from cachecore.cli.demo.messages import Channel, Pull, Pulled, Ready, Settings, Stop, Stopped
from cachecore.cli.demo.pool import BlockPool
from cachecore.cli.demo.prefill import PREFILL_CLUSTER
from cachecore.cli.demo.side import Side, open_side
from cachecore.types import BlocksCacheKey

__all__ = ["serve_decode"]

_DECODE_CLUSTER = 2


def serve_decode(channel: Channel, settings: Settings, peer_address: str) -> None:
    """Link to the prefill side and serve the parent until it says stop.

    Raises:
        CacheError: Something failed; the parent has been told.
        ChannelClosedError: The parent is gone.
    """
    with open_side(channel, _DECODE_CLUSTER, settings, listen=None) as side:
        peer = side.manager.link(PREFILL_CLUSTER, peer_address, timeout=settings.timeout)
        driver = side.manager.backend
        channel.send(Ready(driver.name, driver.emulated, engine=peer.engine))
        pool = BlockPool(settings.blocks)
        _serve(channel, side, pool, settings)
        checked = pool.resident
        mismatches, first = side.memory.check(list(checked), list(checked.values()))
        side.manager.unlink(PREFILL_CLUSTER)
    channel.send(Stopped(len(checked), mismatches, first))


def _serve(channel: Channel, side: Side, pool: BlockPool, settings: Settings) -> None:
    while True:
        message = channel.receive()
        if isinstance(message, Pull):
            channel.send(_pull(message, side, pool, settings))
        elif isinstance(message, Stop):
            return
        else:
            raise TypeError(f"decode got the message {type(message).__name__}, which is not for it")


def _pull(message: Pull, side: Side, pool: BlockPool, settings: Settings) -> Pulled:
    got = pool.acquire(message.content_ids)
    content_ids = [message.content_ids[i] for i in got.missing]
    src_blocks = [message.src_blocks[i] for i in got.missing]
    dst_blocks = [got.blocks[i] for i in got.missing]
    seconds = 0.0
    before = side.manager.stats()
    mismatches, first = 0, None
    if content_ids:
        started = time.perf_counter()
        side.manager.pull_blocks(
            BlocksCacheKey(PREFILL_CLUSTER), side.cache, src_blocks, dst_blocks, timeout=settings.timeout
        )
        seconds = time.perf_counter() - started
        mismatches, first = side.memory.check(content_ids, dst_blocks)
    pool.release(message.content_ids)
    after = side.manager.stats()
    return Pulled(
        part=message.part,
        moved=len(content_ids),
        resident=len(message.content_ids) - len(content_ids),
        evicted=got.evicted,
        nbytes=after.nbytes - before.nbytes,
        # Each run is moved once for every tensor.
        runs=(after.chunks - before.chunks) // settings.tensors,
        seconds=seconds,
        mismatches=mismatches,
        first_mismatch=first,
    )
