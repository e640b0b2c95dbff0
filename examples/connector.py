"""The core of a KV connector: blocks are leased on the prefill side, announced, and pulled layer by layer with asyncio.

Start it as `python examples/connector.py`. It starts the prefill side as a process of its own, asks it for two requests
at once, and uses each layer as soon as it has arrived. Its tensors are numpy arrays, for
a machine without an NPU; with one they are torch tensors of the device.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys

import numpy as np

import cachecore as cc

PREFILL, DECODE = 1, 2  # cluster ids
BLOCKS, TOKENS, HEADS, HEAD_SIZE, NOPE, PE = 64, 16, 4, 64, 512, 64
BLOCKS_PER_REQUEST = 6


def model() -> dict[str, list[np.ndarray]]:
    """A model's layers as a serving engine lays them out: two of attention, two of latent attention."""
    layers = {}
    for layer in (0, 1):
        kv = np.zeros((2, BLOCKS, TOKENS, HEADS, HEAD_SIZE), np.float16)  # stacked, and blocks must come first:
        layers[f"layers.{layer}.attention"] = [kv[0], kv[1]]
    for layer in (2, 3):
        page = np.zeros((BLOCKS, TOKENS * (NOPE + PE)), np.float16)  # k_nope and k_pe interleaved block by block
        nope, pe = page[:, : TOKENS * NOPE], page[:, TOKENS * NOPE :]
        layers[f"layers.{layer}.latent"] = [nope.reshape(BLOCKS, TOKENS, NOPE), pe.reshape(BLOCKS, TOKENS, PE)]
    return layers


def prefill() -> None:
    """Compute requests, keep their blocks until they were pulled or the time for it is over, then use them again."""
    layers = model()
    free, leases = list(range(BLOCKS)), {}
    with cc.CacheManager(PREFILL, listen="127.0.0.1:0") as manager:
        cache = manager.register_layers(layers, key=cc.BlocksCacheKey(PREFILL))
        print(manager.address, flush=True)
        while (told := manager.wait_notification(timeout=60)) and told.name != "stop":
            request = int.from_bytes(told.payload, "little")
            if told.name == "prefill":
                for lease in manager.expired_leases():  # their requests were not pulled in time
                    free += lease.block_ids
                    leases = {number: other for number, other in leases.items() if other != lease}
                blocks = [free.pop() for _ in range(BLOCKS_PER_REQUEST)]
                for tensors in layers.values():
                    for tensor in tensors:
                        tensor[blocks] = request  # the model runs here
                leases[request] = manager.lease(cache, blocks, ttl=30.0)
                manager.notify(told.cluster_id, "ready", told.payload + leases[request].to_bytes())
            elif told.name == "pulled" and (lease := leases.pop(request, None)) is not None:
                manager.release_lease(lease)
                free += lease.block_ids
    print("every block is free again" if len(free) == BLOCKS else f"{len(free)} blocks are free", flush=True)


class Decode:
    """Pulls what the prefill side has announced."""

    def __init__(self, manager: cc.CacheManager) -> None:
        self.manager, self.layers = manager, model()
        self.cache = manager.register_layers(self.layers, key=cc.BlocksCacheKey(DECODE))
        self.ready: dict[int, asyncio.Future[cc.BlockLease]] = {}
        loop = asyncio.get_running_loop()
        # Called in a thread of the manager; futures belong to the loop.
        manager.on_notification(lambda told: loop.call_soon_threadsafe(self.told, told))

    def told(self, told: cc.Notification) -> None:
        """Hand the lease to the request that waits for it."""
        self.ready[int.from_bytes(told.payload[:8], "little")].set_result(cc.BlockLease.from_bytes(told.payload[8:]))

    async def lease_of(self, request: int) -> cc.BlockLease:
        """Ask for a request and wait for its lease, for as long as the prefill side is there."""
        self.ready[request] = asyncio.get_running_loop().create_future()
        await asyncio.to_thread(self.manager.notify, PREFILL, "prefill", request.to_bytes(8, "little"))
        while not (await asyncio.wait([self.ready[request]], timeout=1.0))[0]:
            if self.manager.links[0].state == "LOST":
                raise ConnectionError(f"the prefill side is gone, and request {request} with it")
        return self.ready.pop(request).result()

    async def serve(self, request: int, blocks: list[int]) -> None:
        """Pull one request into blocks of ours. LeaseExpiredError: too late, it has to be computed again."""
        lease = await self.lease_of(request)
        transfer = self.manager.pull_blocks_async(
            cc.BlocksCacheKey(PREFILL), self.cache, lease.block_ids, blocks, lease=lease, layerwise=True, timeout=20.0
        )
        for name, tensors in self.layers.items():
            await asyncio.to_thread(transfer.wait_layer, name)
            assert all((tensor[blocks] == request).all() for tensor in tensors)  # decoding of this layer begins here
        await transfer
        await asyncio.to_thread(self.manager.notify, PREFILL, "pulled", request.to_bytes(8, "little"))


async def decode(address: str) -> None:
    """Serve two requests at a time."""
    with cc.CacheManager(DECODE) as manager:
        manager.link(PREFILL, address, timeout=5.0)
        side = Decode(manager)
        await asyncio.gather(side.serve(101, [0, 2, 4, 6, 8, 10]), side.serve(102, [1, 3, 5, 7, 9, 11]))
        manager.notify(PREFILL, "stop")
        print(f"pulled {manager.stats().pulls} requests of {len(side.layers)} layers")


def main() -> None:
    """Run both sides, or the one that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", nargs="?", choices=["prefill"], help="run this side only; it prints its address")
    if parser.parse_args().side == "prefill":
        prefill()
        return
    with subprocess.Popen([sys.executable, __file__, "prefill"], stdout=subprocess.PIPE, text=True) as process:
        try:
            asyncio.run(decode(process.stdout.readline().strip()))
            print(process.stdout.read(), end="")
        finally:
            process.kill()


if __name__ == "__main__":
    main()
