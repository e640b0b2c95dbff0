"""A prefill process for tests: serves caches of known content and does what its parent tells it, line by line.

Run by path; reads one JSON object a line from stdin and answers each with one on stdout. It ends when stdin ends, so
that it never outlives the test.
"""

import ctypes
import json
import os
import sys
import time

import numpy as np

import cachecore as cc


def content(tensor, blocks, block_bytes, salt=0):
    """Words of `blocks` (ids) of one tensor: every word tells tensor, block and place, so that none can be mistaken."""
    words = np.arange(block_bytes // 8, dtype=np.uint64)
    head = np.asarray(blocks, dtype=np.uint64) * np.uint64(2**32) + np.uint64(tensor * 2**52 + salt * 2**60)
    return (head[:, None] + words[None, :]) * np.uint64(0x9E3779B97F4A7C15)


def view(address, blocks, block_bytes):
    """The memory of one tensor as words, one row a block."""
    raw = (ctypes.c_uint8 * (blocks * block_bytes)).from_address(address)
    return np.frombuffer(raw, dtype=np.uint64).reshape(blocks, -1)


class Owner:
    """The commands."""

    def __init__(self, cluster_id, listen):
        self.manager = cc.CacheManager(cluster_id, backend="host", listen=listen)

    def register(self, tensors, blocks, block_bytes, model_id=0, salt=0):
        made = [self.manager.backend.allocate(blocks * block_bytes, cc.Placement.DEVICE) for _ in range(tensors)]
        for tensor, allocation in enumerate(made):
            view(allocation.address, blocks, block_bytes)[:] = content(tensor, range(blocks), block_bytes, salt)
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
