"""A prefill process for tests: serves caches of known content and does what its parent tells it, line by line.

Run by path; reads one JSON object a line from stdin and answers each with one on stdout. It ends when stdin ends, so
that it never outlives the test.
"""

import ctypes
import json
import os
import sys
import time
from array import array

import cachecore as cc
from cachecore import _core


def addresses_and_seeds(base, tensor, blocks, block_bytes, content=None):
    """Where the blocks of one tensor are, and the seed of what they hold: tensor and block of the owner."""
    addresses = [base + block * block_bytes for block in blocks]
    seeds = [tensor * 2**32 + int(block) for block in (blocks if content is None else content)]
    return array("Q", addresses), array("Q", seeds)


class Owner:
    """The commands."""

    def __init__(self, cluster_id, listen):
        self.manager = cc.CacheManager(cluster_id, backend="host", listen=listen)

    def register(self, tensors, blocks, block_bytes, model_id=0):
        made = [self.manager.backend.allocate(blocks * block_bytes, cc.Placement.DEVICE) for _ in range(tensors)]
        for tensor, allocation in enumerate(made):
            _core.fill_blocks(*addresses_and_seeds(allocation.address, tensor, range(blocks), block_bytes), block_bytes)
        desc = cc.CacheDesc(tensors, [blocks, block_bytes], cc.DataType.DT_UINT8)
        key = cc.BlocksCacheKey(self.manager.cluster_id, model_id)
        return self.manager.register_blocks_cache(desc, [m.address for m in made], key).cache_id

    def unregister(self, cache_id, timeout=30.0):
        started = time.monotonic()
        self.manager.unregister_cache(cache_id, timeout=timeout)
        return time.monotonic() - started

    def hold(self, seconds):
        """Keep the interpreter busy: PyDLL does not release the GIL."""
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))

    def sessions(self):
        return self.manager.stats().sessions


def main():
    owner = Owner(int(sys.argv[1]), sys.argv[2])
    print(json.dumps({"address": owner.manager.address, "pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        command = request.pop("do")
        if command == "hold":  # answered first: nobody hears from us for a while
            print(json.dumps({"result": None}), flush=True)
        try:
            answer = {"result": getattr(owner, command)(**request)}
        except cc.CacheError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        if command != "hold":
            print(json.dumps(answer), flush=True)
    owner.manager.close()


if __name__ == "__main__":
    main()
