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
from cachecore.testing.harness import MemoryHarness


def addresses_and_seeds(base, tensor, blocks, block_bytes, content=None):
    """Where the blocks of one tensor are, and the seed of what they hold: tensor and block of the owner."""
    addresses = [base + block * block_bytes for block in blocks]
    seeds = [tensor * 2**32 + int(block) for block in (blocks if content is None else content)]
    return array("Q", addresses), array("Q", seeds)


class Owner:
    """The commands."""

    def __init__(self, cluster_id, listen):
        self.manager = cc.CacheManager(cluster_id, backend="host", listen=listen)
        self.foreign = MemoryHarness(self.manager.backend, foreign=True)
        self.addresses = {}

    def register(self, tensors, blocks, block_bytes, model_id=0, foreign=False):
        """A cache of known content, in memory that readers map, or in memory that only system calls reach."""
        if foreign:
            made = [self.foreign.allocate(blocks * block_bytes) for _ in range(tensors)]
        else:
            made = [
                self.manager.backend.allocate(blocks * block_bytes, cc.Placement.DEVICE).address for _ in range(tensors)
            ]
        for tensor, address in enumerate(made):
            _core.fill_blocks(*addresses_and_seeds(address, tensor, range(blocks), block_bytes), block_bytes)
        desc = cc.CacheDesc(tensors, [blocks, block_bytes], cc.DataType.DT_UINT8)
        key = cc.BlocksCacheKey(self.manager.cluster_id, model_id)
        cache_id = self.manager.register_blocks_cache(desc, made, key).cache_id
        self.addresses[cache_id] = made
        return cache_id

    def wrong(self, cache_id, blocks, block_bytes, content=None, tensors=None):
        """(tensor, position in `blocks`) of each block that does not hold what `content` says, None = its own."""
        return [
            (tensor, position)
            for tensor, address in enumerate(self.addresses[cache_id])
            if tensors is None or tensor in tensors
            for position, _ in _core.find_mismatches(
                *addresses_and_seeds(address, tensor, blocks, block_bytes, content), block_bytes
            )
        ]

    def addresses_of(self, cache_id):
        return self.addresses[cache_id]

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
