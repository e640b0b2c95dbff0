"""Pushes and asynchronous transfers on the product that CACHECORE_EMULATE names, between two processes; prints JSON.

With "owner" as the first argument it is the other process, which serves caches until its stdin ends, and says for each
line (name of a cache, pattern, {row: row of the pattern}) whether that cache holds it.
"""

import asyncio
import json
import subprocess
import sys
import threading

import cachecore as cc
from cachecore.testing.harness import MemoryHarness
from cachecore.testing.side import pattern

TENSORS, ROWS, ROW = 4, 4, 8192
SECONDS = 30
#: Address alignment that no product's rules refuse.
ALIGNMENT = 2 << 20


class Site:
    """A manager and its memory; host code reads and writes the device only through the harness."""

    def __init__(self, cluster_id, device, **more):
        self.manager = cc.CacheManager(cluster_id, device=device, **more)
        self.memory = MemoryHarness(self.manager.backend)

    def cache(self, seed, key=None, paged=True):
        addresses = [self.memory.allocate(ROWS * ROW, cc.Placement.DEVICE, ALIGNMENT) for _ in range(TENSORS)]
        for tensor, address in enumerate(addresses):
            self.memory.write(address, pattern(1000 * seed + tensor, ROWS * ROW))
        desc = cc.CacheDesc(TENSORS, [ROWS, ROW], cc.DataType.DT_UINT8)
        if paged:
            return self.manager.register_blocks_cache(desc, addresses, key)
        return self.manager.register_cache(desc, addresses, [] if key is None else [key])

    def holds(self, cache, rows, seed):
        """Whether row `to` of each tensor holds row `origin` of the pattern, for {to: origin}."""
        for tensor, address in enumerate(cache.tensor_addrs):
            whole = pattern(1000 * seed + tensor, ROWS * ROW)
            for to, origin in rows.items():
                if self.memory.read(address + int(to) * ROW, ROW) != whole[origin * ROW : (origin + 1) * ROW]:
                    return False
        return True

    def close(self):
        for cache in self.manager.caches:
            self.manager.unregister_cache(cache.cache_id, timeout=SECONDS)
        self.memory.close()
        self.manager.close(timeout=SECONDS)


def serve():
    site = Site(1, 1, listen="127.0.0.1:0")
    caches = {
        "blocks": site.cache(1, cc.BlocksCacheKey(1)),
        "entries": site.cache(2, cc.CacheKey(1, 5), paged=False),
    }
    ids = {name: (cache.cache_id, cache.tensor_addrs) for name, cache in caches.items()}
    print(json.dumps([site.manager.address, ids]), flush=True)
    for line in sys.stdin:
        name, seed, rows = json.loads(line)
        print(json.dumps(site.holds(caches[name], rows, seed)), flush=True)
    site.close()


class Ready(cc.LayerSynchronizer):
    def synchronize_layer(self, layer_index, timeout_in_millis):
        return True


def status(call):
    """ "ok", or what was raised."""
    try:
        call()
    except cc.CacheError as error:
        return [type(error).__name__, str(error)]
    return "ok"


def run(site, owner):
    address, ids = json.loads(owner.stdout.readline())
    manager = site.manager
    manager.link(1, address, timeout=SECONDS)
    key, blocks, entries = cc.BlocksCacheKey(1), site.cache(3), site.cache(4, paged=False)
    entries_id = ids["entries"][0]

    def owner_holds(name, seed, rows):
        owner.stdin.write(json.dumps([name, seed, rows]) + "\n")
        owner.stdin.flush()
        return json.loads(owner.stdout.readline())

    found = {}

    def check(name, call, look):
        result = status(call)
        found[name] = (look() or "wrong bytes") if result == "ok" else result

    check(
        "push_blocks",
        lambda: manager.push_blocks(key, blocks, [3, 0], [0, 1], timeout=SECONDS),
        lambda: owner_holds("blocks", 3, {0: 3, 1: 0}) and owner_holds("blocks", 1, {2: 2, 3: 3}),
    )
    check(
        "push_cache",
        lambda: manager.push_cache(cc.CacheKeyByIdAndIndex(1, entries_id, 2), entries, 1, timeout=SECONDS),
        lambda: owner_holds("entries", 4, {2: 1}) and owner_holds("entries", 2, {0: 0, 1: 1, 3: 3}),
    )
    go = threading.Event()
    transfer = manager.pull_blocks_async(key, blocks, [2], [2], layerwise=True, after=go, timeout=SECONDS)
    found["waits for the event"] = not transfer.done and site.holds(blocks, {2: 2}, 3)
    go.set()
    transfer.wait_layer(0, SECONDS)

    async def wait():
        await transfer

    check("pull_blocks_async", lambda: asyncio.run(wait()), lambda: site.holds(blocks, {2: 2}, 1))
    late = manager.push_blocks_async(key, blocks, [1], [3], after=threading.Event(), timeout=SECONDS)
    late.cancel()
    found["cancelled"] = status(lambda: late.wait(SECONDS))[0], owner_holds("blocks", 1, {3: 3})
    found["too late"] = status(lambda: manager.push_blocks(key, blocks, [1], [3], timeout=0))[0]
    configs = [
        cc.TransferWithCacheKeyConfig(key),
        cc.TransferConfig(1, ids["blocks"][1][2:], range(1)),
        cc.TransferWithCacheKeyConfig(cc.BlocksCacheKey(6)),
    ]
    task = manager.transfer_cache_async(blocks, Ready(), configs[:1], [1, 0], [3, 2], ROW, timeout=SECONDS)
    check("transfer_cache_async", lambda: None, lambda: task.get_results() == [0] and owner_holds("blocks", 3, {3: 1}))
    results = manager.transfer_cache_async(blocks, Ready(), configs[1:], [0], [0], timeout=SECONDS).get_results()
    found["statuses"] = [one.name for one in results]
    stats = manager.stats()
    found["counted"] = [stats.pushes, stats.pulls, stats.quarantined]
    return found


def main():
    if sys.argv[1:] == ["owner"]:
        serve()
        return
    command = [sys.executable, __file__, "owner"]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        site = Site(2, 0)
        found = run(site, owner)
        site.close()
        print(json.dumps(found))
    finally:
        owner.stdin.close()
        owner.wait(60)
        owner.stdout.close()


if __name__ == "__main__":
    main()
