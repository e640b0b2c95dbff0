"""Moves the KV caches of model families between prefill and decode ranks in processes of their own, and compares bytes.

Run by path: `program.py PREFILL_RANKS DECODE_RANKS`. Prints one JSON object with what it found for each family. The backend
is the one that `CacheManager` chooses. The ranks end when this process does.
"""

import ctypes
import json
import math
import multiprocessing
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import families
import numpy as np

import cachecore as cc
from cachecore.testing.harness import MemoryHarness

SECONDS = 120.0
#: What is in memory that nothing was written to.
EMPTY = 0x5A
NUMPY = {cc.DataType.DT_FLOAT16: np.float16, cc.DataType.DT_FLOAT: np.float32}


def content(family, group, layer, index, block, tensor, rank, ranks):
    """What a rank holds of a block of a layer's tensor: its share of bytes that depend on all of these names."""
    shape = list(tensor.shape)
    if tensor.axis is not None:
        shape[tensor.axis] *= ranks
    size = math.prod(shape) * tensor.data_type.itemsize
    whole = np.frombuffer(random.Random(f"{family} {group} {layer} {index} {block}").randbytes(size), np.uint8)
    whole = whole.reshape(*shape, tensor.data_type.itemsize)
    return (whole if tensor.axis is None else np.split(whole, ranks, tensor.axis)[rank]).tobytes()


class Rank:
    """One process."""

    def __init__(self, cluster_id, rank, ranks):
        self.rank, self.ranks = rank, ranks
        self.manager = cc.CacheManager(cluster_id, listen="127.0.0.1:0")
        self.memory = MemoryHarness(self.manager.backend)

    def start(self):
        return self.manager.address, self.manager.backend.name

    def link(self, cluster_id, address):
        self.manager.link(cluster_id, address, timeout=SECONDS)
        return self.manager.links[-1].engine

    def register(self, family, serves):
        """Allocate, fill with what is served, and register every group."""
        self.family, self.layout = family, families.layout(family, self.ranks)
        self.expected = {name: bytearray([EMPTY]) * nbytes for name, nbytes in self.layout.buffers.items()}
        if serves:
            for name, group in self.layout.groups.items():
                for block in group.served:
                    self._expect(name, group, block, block)
        self.addresses = {name: self.memory.allocate(len(data)) for name, data in self.expected.items()}
        for name, data in self.expected.items():
            self.memory.write(self.addresses[name], data)
        key = cc.BlocksCacheKey(self.manager.cluster_id, families.FAMILIES.index(family))
        self.caches = {}
        for name, group in self.layout.groups.items():
            layers = {layer: [self._given(group, one) for one in tensors] for layer, tensors in group.layers.items()}
            self.caches[name] = self.manager.register_layers(layers, key=key, group=name)
        tensors = sum(cache.num_tensors for cache in self.caches.values())
        return {"tensors": tensors, "regions": self.manager.stats().registered_addresses}

    def _given(self, group, tensor):
        """An array where the host may look and numpy has the type, else what is known without one."""
        address, dtype = self.addresses[tensor.buffer] + tensor.offset, NUMPY.get(tensor.data_type)
        shape, item = (group.blocks, *tensor.shape), tensor.data_type.itemsize
        inner = [math.prod(tensor.shape[i + 1 :]) * item for i in range(len(tensor.shape))]
        strides = (tensor.stride, *inner)
        if dtype is None or self.manager.backend.name != "host":
            return cc.TensorSpec(address, shape, strides, tensor.data_type)
        nbytes = len(self.expected[tensor.buffer])
        buffer = np.frombuffer((ctypes.c_char * nbytes).from_address(self.addresses[tensor.buffer]), np.uint8)
        return np.ndarray(shape, dtype, buffer, tensor.offset, strides)

    def _expect(self, name, group, served, block):
        for layer, tensors in group.layers.items():
            for index, tensor in enumerate(tensors):
                data = content(self.family, name, layer, index, served, tensor, self.rank, self.ranks)
                start = tensor.offset + block * tensor.stride
                self.expected[tensor.buffer][start : start + len(data)] = data

    def differences(self):
        return [len(peer.layout_differences) for peer in self.manager.links]

    def pull(self, owner, rank, ranks):
        """Take this rank's share of every group from one of the prefill ranks."""
        key = cc.BlocksCacheKey(owner, families.FAMILIES.index(self.family))
        for name, group in self.layout.groups.items():
            tensors = next(iter(group.layers.values()))
            src, dst = [None] * len(tensors), [None] * len(tensors)
            for index, tensor in enumerate(tensors):
                if ranks > self.ranks:  # several ranks fill my blocks
                    dst[index] = families.part(tensor, rank, ranks) or families.share(tensor, rank, ranks)
                    src[index] = None if tensor.axis is not None else dst[index]
                elif tensor.axis is not None:  # I take my part of the other rank's blocks
                    there = next(iter(families.layout(self.family, ranks).groups[name].layers.values()))[index]
                    src[index] = families.part(there, self.rank, self.ranks)
            self.manager.pull_blocks(
                key, self.caches[name], group.served, group.taken, src_slice=src, dst_slice=dst, timeout=SECONDS
            )

    def check(self):
        """Names of the buffers with a byte that should not be there, after everything was pulled."""
        for name, group in self.layout.groups.items():
            for served, taken in zip(group.served, group.taken, strict=True):
                self._expect(name, group, served, taken)
        return [
            name for name, data in self.expected.items() if self.memory.read(self.addresses[name], len(data)) != data
        ]

    def drop(self):
        for cache in self.caches.values():
            self.manager.unregister_cache(cache.cache_id, timeout=SECONDS)
        assert self.manager.stats().registered_addresses == 0
        self.memory.close()

    def close(self):
        self.manager.close(timeout=SECONDS)


def serve(pipe, *arguments):
    """Answer calls until the pipe ends."""
    rank = Rank(*arguments)
    while True:
        try:
            name, given = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, getattr(rank, name)(*given)))
        except Exception as error:
            pipe.send((False, f"{name}{given}: {type(error).__name__}: {error}"))


class Process:
    """A rank in a process of its own."""

    def __init__(self, context, cluster_id, rank, ranks):
        self.cluster_id, self.rank = cluster_id, rank
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, cluster_id, rank, ranks), daemon=True)
        self.process.start()
        theirs.close()

    def call(self, name, *given):
        self.pipe.send((name, given))
        if not self.pipe.poll(SECONDS):
            sys.exit(f"{name} of cluster {self.cluster_id} has no answer")
        succeeded, answer = self.pipe.recv()
        if not succeeded:
            sys.exit(f"cluster {self.cluster_id}: {answer}")
        return answer


def main():
    prefills, decodes = map(int, sys.argv[1:])
    context = multiprocessing.get_context("spawn")
    prefill = [Process(context, 10 + rank, rank, prefills) for rank in range(prefills)]
    decode = [Process(context, 20 + rank, rank, decodes) for rank in range(decodes)]
    addresses = {one.cluster_id: one.call("start") for one in prefill + decode}
    report = {"backend": addresses[10][1], "families": {}}
    for here in decode:
        for there in prefill:
            report["engine"] = here.call("link", there.cluster_id, addresses[there.cluster_id][0])
    for family in families.FAMILIES:
        found = [one.call("register", family, one in prefill) for one in prefill + decode][-1]
        for here in decode:
            for there in prefill:
                here.call("pull", there.cluster_id, there.rank, prefills)
        found["differences"] = decode[0].call("differences")
        found["wrong"] = [name for here in decode for name in here.call("check")]
        for one in decode + prefill:
            one.call("drop")
        report["families"][family] = found
    for one in decode + prefill:
        one.call("close")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
