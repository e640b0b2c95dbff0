"""A process with allocated caches for tests: owner or reader, obeys one JSON object a line and answers each with one.

Run by path with a cluster id and the options of its manager. It ends when stdin ends, so that it never outlives the
test.
"""

import json
import os
import sys
import time

import cachecore as cc
from cachecore.testing.harness import MemoryHarness
from cachecore.testing.side import pattern


def content(tensor, nbytes, seed=0):
    return pattern(1000 * seed + tensor, nbytes)


class Process:
    """The commands."""

    def __init__(self, cluster_id, options):
        self.manager = cc.CacheManager(cluster_id, listen="127.0.0.1:0", options=options)
        self.memory = MemoryHarness(self.manager.backend)
        self.caches = {}

    def allocate(self, tensors, rows, row_bytes, requests=None, prefixes=(), model_id=None, seed=0):
        """A paged cache with `model_id`, else a contiguous one with keys of requests and prefixes; returns its id."""
        desc = cc.CacheDesc(tensors, [rows, row_bytes], cc.DataType.DT_UINT8)
        own = self.manager.cluster_id
        if model_id is not None:
            cache = self.manager.allocate_blocks_cache(desc, cc.BlocksCacheKey(own, model_id))
        else:
            keys = [cc.CacheKey(own, request) for request in requests or ()]
            keys += [cc.CacheKey(own, prefix_id=prefix) for prefix in prefixes]
            cache = self.manager.allocate_cache(desc, keys)
        for tensor, address in enumerate(cache.tensor_addrs):
            self.memory.write(address, content(tensor, rows * row_bytes, seed))
        self.caches[cache.cache_id] = cache
        return cache.cache_id

    def deallocate(self, cache_id, timeout=30.0):
        """Returns when it was done, on the clock that all processes share."""
        cache = self.caches[cache_id]
        blocks = cache.is_blocks_cache
        (self.manager.deallocate_blocks_cache if blocks else self.manager.deallocate_cache)(cache, timeout=timeout)
        return time.monotonic()

    def remove_key(self, request):
        self.manager.remove_cache_key(cc.CacheKey(self.manager.cluster_id, request))

    def link(self, cluster_id, address):
        self.manager.link(cluster_id, address, timeout=10)

    def pull(self, cluster_id, request, cache_id):
        self.manager.pull_cache(
            cc.CacheKey(cluster_id, request), self.caches[cache_id], tensor_num_per_layer=1, timeout=20
        )

    def live(self):
        return self.manager.backend.live_allocations


def main():
    process = Process(int(sys.argv[1]), json.loads(sys.argv[2]))
    print(json.dumps({"address": process.manager.address, "pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": getattr(process, request.pop("do"))(**request)}
        except cc.CacheError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), flush=True)
    process.memory.close()
    process.manager.close()


if __name__ == "__main__":
    main()
