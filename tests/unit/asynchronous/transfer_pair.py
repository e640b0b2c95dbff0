"""Two linked managers of one process, for tests of transfers that are waited for."""

import time

import numpy as np

import cachecore as cc

LAYERS, BLOCKS, BLOCK = 3, 8, 64


class Pair:
    def __init__(self, owner, reader):
        self.owner, self.reader = owner, reader
        random = np.random.default_rng(1)
        self.there = [random.integers(1, 256, (BLOCKS, BLOCK), np.uint8) for _ in range(LAYERS)]
        self.here = [np.zeros((BLOCKS, BLOCK), np.uint8) for _ in range(LAYERS)]
        self.source = owner.register_blocks_tensors(self.there, blocks_cache_key=cc.BlocksCacheKey(1))
        self.cache = reader.register_blocks_tensors(self.here)

    def pull(self, blocks=range(BLOCKS), **more):
        more = {"tensor_num_per_layer": 1, "timeout": 30, **more}
        return self.reader.pull_blocks_async(cc.BlocksCacheKey(1), self.cache, blocks, blocks, **more)

    def arrived(self, blocks=range(BLOCKS), layers=range(LAYERS)):
        return all((self.here[layer][blocks] == self.there[layer][blocks]).all() for layer in layers)

    def untouched(self):
        return not any(tensor.any() for tensor in self.here)


def wait_for(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()
