"""The prefill role: writes the content of requests into its cache and keeps it while it is pulled."""

from __future__ import annotations

from cachecore.cli.demo.messages import Channel, Prepare, Prepared, Ready, Release, Settings, Stop, Stopped
from cachecore.cli.demo.pool import BlockPool
from cachecore.cli.demo.side import Side, open_side

__all__ = ["PREFILL_CLUSTER", "serve_prefill"]

PREFILL_CLUSTER = 1


def serve_prefill(channel: Channel, settings: Settings) -> None:
    """Serve the parent until it says stop.

    Raises:
        CacheError: Something failed; the parent has been told.
        ChannelClosedError: The parent is gone.
    """
    with open_side(channel, PREFILL_CLUSTER, settings, listen="127.0.0.1:0") as side:
        driver = side.manager.backend
        channel.send(Ready(driver.name, driver.emulated, address=side.manager.address or ""))
        _serve(channel, side, BlockPool(settings.blocks))
    channel.send(Stopped())


def _serve(channel: Channel, side: Side, pool: BlockPool) -> None:
    held: dict[int, list[int]] = {}
    while True:
        message = channel.receive()
        if isinstance(message, Prepare):
            got = pool.acquire(message.content_ids)
            held[message.part] = message.content_ids
            side.memory.fill(
                [message.content_ids[i] for i in got.missing],
                [got.blocks[i] for i in got.missing],
            )
            channel.send(Prepared(message.part, list(got.blocks), written=len(got.missing), evicted=got.evicted))
        elif isinstance(message, Release):
            pool.release(held.pop(message.part))
        elif isinstance(message, Stop):
            return
        else:
            raise TypeError(f"prefill got the message {type(message).__name__}, which is not for it")
