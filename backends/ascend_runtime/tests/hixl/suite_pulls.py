"""`pull_blocks` between two processes by the HIXL engine. Run by `test_hixl_emulated.py`, once for each product."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from owner import content, manager

import cachecore as cc
from cachecore.testing.harness import MemoryHarness

BLOCKS, BLOCK, TENSORS = 64, 4096, 4
SECONDS = 20.0


class Owner:
    """The process of `owner.py`."""

    def __init__(self, faults=""):
        environment = {**os.environ, "CACHECORE_EMULATE_FAULTS": faults}
        script = Path(__file__).with_name("owner.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.address = json.loads(self.process.stdout.readline())

    def ask(self, *request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def end(self):
        self.process.stdin.close()
        try:
            assert self.process.wait(60) in (0, -9)
        finally:
            self.process.kill()
            self.process.wait(60)
            self.process.stdout.close()


class Reader:
    """This process: a manager on device 0 with one cache."""

    def __init__(self):
        self.manager = manager(2, device=0)
        self.memory = MemoryHarness(self.manager.backend)
        self.cache, self.addresses = self.register(0)

    def register(self, model):
        addresses = [self.memory.allocate(BLOCKS * BLOCK) for _ in range(TENSORS)]
        desc = cc.CacheDesc(TENSORS, [BLOCKS, BLOCK], cc.DataType.DT_UINT8)
        return self.manager.register_blocks_cache(desc, addresses, cc.BlocksCacheKey(2, model)), addresses

    def pull(self, blocks, model=0, timeout=SECONDS):
        there, here = zip(*blocks, strict=True)
        self.manager.pull_blocks(cc.BlocksCacheKey(1, model), self.cache, list(there), list(here), timeout=timeout)

    def check(self, blocks, model=0):
        for tensor, address in enumerate(self.addresses):
            for there, here in blocks:
                found = self.memory.read(address + here * BLOCK, BLOCK)
                assert found == content(model, tensor, BLOCKS * BLOCK)[there * BLOCK : (there + 1) * BLOCK]

    def link(self, owner):
        self.manager.link(1, owner.address, timeout=SECONDS)
        assert self.manager._peers.links[0].wire_id == "hixl/1"

    def end(self):
        for cache in self.manager.caches:
            self.manager.unregister_cache(cache.cache_id)
        self.memory.close()
        self.manager.close()


@pytest.fixture
def owner():
    made = Owner()
    made.ask("register", 0, BLOCKS, BLOCK, TENSORS)
    yield made
    made.end()


@pytest.fixture
def reader():
    made = Reader()
    yield made
    made.end()


def test_every_block_arrives(owner, reader):
    reader.link(owner)
    assert "(emulated)" in repr(reader.manager)
    blocks = [(7, 0), (8, 1), (9, 2), (40, 63), (0, 9), (63, 10)]
    reader.pull(blocks)
    reader.check(blocks)


def test_caches_registered_after_the_link_are_pulled(owner, reader):
    reader.link(owner)
    owner.ask("register", 1, BLOCKS, BLOCK, TENSORS)
    reader.pull([(3, 4)], model=1)
    reader.check([(3, 4)], model=1)
    reader.cache, reader.addresses = reader.register(1)
    reader.pull([(5, 6)], model=1)
    reader.check([(5, 6)], model=1)


def test_a_cache_is_taken_back_while_another_one_is_read(owner, reader):
    """The owner cannot deregister while a link is up: the reader cuts it, and every pull succeeds all the same."""
    cache_id = owner.ask("register", 1, BLOCKS, BLOCK, TENSORS)
    reader.link(owner)
    reader.pull([(1, 1)], model=1)
    stop, failures = threading.Event(), []

    def traffic():
        while not stop.is_set():
            try:
                reader.pull([(2, 3), (9, 9)])
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=traffic) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        owner.ask("unregister", cache_id)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60.0)
    assert not failures
    with pytest.raises(cc.CacheNotFoundError):
        reader.pull([(1, 1)], model=1)
    reader.check([(2, 3), (9, 9)])


def test_a_pull_that_is_not_served_times_out_and_the_next_one_works(reader):
    owner = Owner("hixl_serve:2:stall")
    try:
        owner.ask("register", 0, BLOCKS, BLOCK, TENSORS)
        reader.link(owner)
        reader.pull([(1, 1)])
        with pytest.raises(cc.TransferTimeoutError) as caught:
            reader.pull([(2, 2)], timeout=0.5)
        assert caught.value.unknown and not caught.value.landed
        reader.pull([(2, 2), (3, 3)])
        reader.check([(1, 1), (2, 2), (3, 3)])
    finally:
        owner.end()


def test_a_killed_owner_ends_pulls_soon(owner, reader):
    reader.link(owner)
    reader.pull([(1, 1)])
    owner.process.kill()
    began = time.monotonic()
    with pytest.raises(cc.CacheError):
        while True:
            reader.pull([(1, 1)])
    assert time.monotonic() - began < SECONDS
