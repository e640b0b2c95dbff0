"""Allocated caches and copies on the product that CACHECORE_EMULATE names, in a process of its own; prints JSON.

Everything that happens is said in the answer, so that one table of expectations covers all products. With "owner" as the
first argument it is the other process, which serves an allocated cache until its stdin ends.
"""

import json
import subprocess
import sys

import cachecore as cc
from cachecore.testing.harness import MemoryHarness
from cachecore.testing.side import pattern

TENSORS, ROWS, ROW = 3, 4, 8192
SECONDS = 30


def desc(placement=cc.Placement.DEVICE, tensors=TENSORS):
    return cc.CacheDesc(tensors, [ROWS, ROW], cc.DataType.DT_UINT8, placement)


def outcome(call):
    """ "ok", or what was raised."""
    try:
        call()
    except cc.CacheError as error:
        return [type(error).__name__, str(error)]
    return "ok"


class Site:
    """A manager and its memory; host code reads and writes the device only through the harness."""

    def __init__(self, cluster_id, device, options, **more):
        self.manager = cc.CacheManager(cluster_id, device=device, options=options, **more)
        self.memory = MemoryHarness(self.manager.backend)

    def fill(self, cache, seed):
        for tensor, address in enumerate(cache.tensor_addrs):
            self.memory.write(address, pattern(1000 * seed + tensor, ROWS * ROW))

    def holds(self, cache, rows, seed):
        """Whether row `to` of each tensor holds row `origin` of the pattern, for {to: origin}."""
        for tensor, address in enumerate(cache.tensor_addrs):
            whole = pattern(1000 * seed + tensor, ROWS * ROW)
            for to, origin in rows.items():
                if self.memory.read(address + to * ROW, ROW) != whole[origin * ROW : (origin + 1) * ROW]:
                    return False
        return True

    def registered(self, placement=cc.Placement.DEVICE, blocks=True):
        """A cache over memory of the driver, for products that do not allocate caches."""
        addresses = [self.memory.allocate(ROWS * ROW, placement, 2 << 20) for _ in range(TENSORS)]
        register = self.manager.register_blocks_cache if blocks else self.manager.register_cache
        remote = None if placement is cc.Placement.DEVICE else self.host_remote()
        return register(desc(placement), addresses, remote_accessible=remote)

    def host_remote(self):
        """Host memory takes no part in transfers between processes, where the product leaves the choice."""
        return False if self.manager.backend.capabilities().remote_access_optional.value else None

    def close(self):
        for cache in self.manager.caches:
            if outcome(lambda cache=cache: self.manager.unregister_cache(cache.cache_id)) != "ok":
                blocks = cache.is_blocks_cache
                (self.manager.deallocate_blocks_cache if blocks else self.manager.deallocate_cache)(cache)
        self.memory.close()
        left = self.manager.backend.live_allocations
        self.manager.close()
        return left


def serve(options):
    site = Site(1, 1, options, listen="127.0.0.1:0")
    blocks = site.manager.allocate_blocks_cache(desc(), cc.BlocksCacheKey(1))
    entries = site.manager.allocate_cache(desc(), [cc.CacheKey(1, 5), cc.CacheKey(1, prefix_id=6)])
    site.fill(blocks, 1)
    site.fill(entries, 2)
    print(json.dumps(site.manager.address), flush=True)
    for line in sys.stdin:
        cache = {"blocks": blocks, "entries": entries}[line.strip()]
        give_back = site.manager.deallocate_blocks_cache if cache is blocks else site.manager.deallocate_cache
        print(
            json.dumps(outcome(lambda give_back=give_back, cache=cache: give_back(cache, timeout=SECONDS))), flush=True
        )
    site.close()


def pulls(site, options):
    """Pulls from an allocated cache of another process, and what a second pull with a key finds."""
    command = [sys.executable, __file__, "owner", json.dumps(options)]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        address = json.loads(owner.stdout.readline())
        blocks, entries = site.manager.allocate_blocks_cache(desc()), site.manager.allocate_cache(desc())
        site.manager.link(1, address, timeout=SECONDS)

        def pull(key, row):
            return outcome(lambda: site.manager.pull_cache(key, entries, row, tensor_num_per_layer=1, timeout=SECONDS))

        found = {
            "blocks": outcome(
                lambda: site.manager.pull_blocks(
                    cc.BlocksCacheKey(1), blocks, [3, 0, 1], [0, 1, 3], tensor_num_per_layer=1, timeout=SECONDS
                )
            ),
            "request": pull(cc.CacheKey(1, 5), 1),
            "prefix": pull(cc.CacheKey(1, prefix_id=6), 2),
            "request again": pull(cc.CacheKey(1, 5), 1),
            "prefix again": pull(cc.CacheKey(1, prefix_id=6), 2),
            "status": outcome(lambda: site.manager.query_register_mem_status(1)),
        }
        found["blocks are right"] = site.holds(blocks, {0: 3, 1: 0, 3: 1}, 1)
        found["entries are right"] = site.holds(entries, {1: 0, 2: 1}, 2)
        owner.stdin.write("blocks\n")
        owner.stdin.flush()
        found["owner deallocates"] = json.loads(owner.stdout.readline())
        found["blocks again"] = outcome(
            lambda: site.manager.pull_blocks(cc.BlocksCacheKey(1), blocks, [0], [0], tensor_num_per_layer=1)
        )
        return found
    finally:
        owner.stdin.close()
        owner.wait(60)
        owner.stdout.close()


def copies(site):
    """Copies and swaps of registered memory, which every product has."""
    manager = site.manager
    device, plain = site.registered(), site.registered(blocks=False)
    host = site.registered(cc.Placement.HOST)
    memory = [site.memory.allocate(ROWS * ROW, cc.Placement.HOST) for _ in range(TENSORS)]
    cpu = cc.Cache.create_cpu_cache(desc(cc.Placement.HOST), memory)
    on_device = [site.memory.allocate(ROWS * ROW) for _ in range(TENSORS)]
    for seed, cache in enumerate((device, plain, host, cpu)):
        site.fill(cache, seed)
    found = {
        "copy_blocks": outcome(lambda: manager.copy_blocks(device, {0: [2, 3]})),
        "copy_cache": outcome(lambda: manager.copy_cache(plain, plain, 3, 1)),
        "swap out": outcome(lambda: manager.swap_blocks(device, cpu, {1: 3})),
        "swap in": outcome(lambda: manager.swap_blocks(host, device, {2: 1})),
        "device memory as a CPU cache": outcome(
            lambda: manager.swap_blocks(device, cc.Cache.create_cpu_cache(desc(cc.Placement.HOST), on_device), {0: 0})
        ),
        "past its deadline": outcome(lambda: manager.copy_blocks(device, {0: [1]}, timeout=0)),
    }
    found["bytes are right"] = (
        site.holds(device, {0: 0, 2: 0, 3: 0}, 0)
        and site.holds(plain, {1: 1, 2: 2, 3: 1}, 1)
        and site.holds(cpu, {2: 2}, 3)
        and site.holds(cpu, {3: 1}, 0)
        and site.holds(device, {1: 2}, 2)
    )
    return found


def main():
    role, options = sys.argv[1], json.loads(sys.argv[2])
    if role == "owner":
        serve(options)
        return
    try:
        site = Site(2, 0, options)
    except cc.CacheError as error:
        print(json.dumps({"manager": [type(error).__name__, str(error)]}))
        return
    answer = {"manager": repr(site.manager), "copies": copies(site)}
    free = site.manager.backend.live_allocations
    answer["allocate"] = outcome(lambda: site.manager.allocate_blocks_cache(desc(tensors=300)))
    answer["allocate_cache"] = outcome(lambda: site.manager.allocate_cache(desc()))
    answer["allocate host"] = outcome(lambda: site.manager.allocate_cache(desc(cc.Placement.HOST)))
    answer["made"] = site.manager.backend.live_allocations - free
    answer["too much"] = outcome(
        lambda: site.manager.allocate_cache(cc.CacheDesc(2, [2**40, 64], cc.DataType.DT_UINT8))
    )
    answer["remap"] = outcome(
        lambda: site.manager.remap_registered_memory([cc.MemInfo(cc.Memtype.MEM_TYPE_DEVICE, 4096, 1)])
    )
    answer["status"] = outcome(lambda: site.manager.query_register_mem_status(7))
    if answer["allocate"] == "ok":
        answer["pulls"] = pulls(site, options)
    answer["left"] = site.close()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
