"""The other process of `suite_pulls.py`: serves caches of known content; obeys one JSON request a line, ends with stdin."""

import importlib.metadata
import json
import os
import sys

import cachecore as cc
from cachecore import plugins
from cachecore.testing.harness import MemoryHarness
from cachecore.testing.side import pattern


def content(model, tensor, nbytes):
    return pattern(1000 * model + tensor, nbytes)


def manager(cluster_id, **arguments):
    """A manager on the driver of `emulated.py`, which no distribution brings."""
    entries = [*importlib.metadata.entry_points(group=plugins.GROUP)]
    entries.append(importlib.metadata.EntryPoint("emulated", "emulated", plugins.GROUP))
    plugins._found = plugins.load(entries)
    options = {"emulated.transport": os.environ["TRANSPORT"]}
    return cc.CacheManager(cluster_id, backend="emulated", options=options, **arguments)


class Owner:
    def __init__(self):
        self.manager = manager(1, device=1, listen="127.0.0.1:0")
        self.memory = MemoryHarness(self.manager.backend)

    def register(self, model, blocks, block_bytes, tensors):
        nbytes = blocks * block_bytes
        addresses = [self.memory.allocate(nbytes) for _ in range(tensors)]
        for tensor, address in enumerate(addresses):
            self.memory.write(address, content(model, tensor, nbytes))
        desc = cc.CacheDesc(tensors, [blocks, block_bytes], cc.DataType.DT_UINT8)
        return self.manager.register_blocks_cache(desc, addresses, cc.BlocksCacheKey(1, model)).cache_id

    def unregister(self, cache_id):
        self.manager.unregister_cache(cache_id)


def main():
    owner = Owner()
    print(json.dumps(owner.manager.address), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = {"result": getattr(owner, name)(*arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    for cache in owner.manager.caches:
        owner.manager.unregister_cache(cache.cache_id)
    owner.memory.close()
    owner.manager.close()


if __name__ == "__main__":
    main()
