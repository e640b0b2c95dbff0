"""Allocated caches between processes: mapped by readers, freed after them, keys consumed by exactly one."""

import ctypes
import importlib.util
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import cachecore as cc

SCRIPT = Path(__file__).with_name("allocating.py")
spec = importlib.util.spec_from_file_location("allocating", SCRIPT)
allocating = importlib.util.module_from_spec(spec)
spec.loader.exec_module(allocating)

TENSORS, ROWS, ROW = 3, 4, 8192
TWO_SIDED = {"manager.remote_cache_accessible": False}


class Process:
    """The other end of allocating.py. Every answer is waited for with a limit."""

    def __init__(self, cluster_id, options):
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(cluster_id), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("CACHECORE_")},
        )
        self.lines = queue.Queue()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        self.address = self.answer()["address"]

    def read(self):
        for line in self.process.stdout:
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def answer(self, seconds=60):
        answer = self.lines.get(timeout=seconds)
        assert answer is not None, f"the process ended with {self.process.wait(10)}"
        return answer

    def post(self, do, **arguments):
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

    def ask(self, do, **arguments):
        self.post(do, **arguments)
        answer = self.answer()
        assert "error" not in answer, answer
        return answer["result"]

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        self.reader.join(30)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def processes():
    started = []

    def start(cluster_id, options=None):
        started.append(Process(cluster_id, options or {}))
        return started[-1]

    yield start
    for process in started:
        process.end()


@pytest.fixture
def reader():
    with cc.CacheManager(2, backend="host") as manager:
        yield manager


def desc(tensors=TENSORS, rows=ROWS, row=ROW):
    return cc.CacheDesc(tensors, [rows, row], cc.DataType.DT_UINT8)


def rows_of(cache, row_bytes=ROW):
    rows = cache.cache_desc.shape[0]
    whole = [ctypes.string_at(address, rows * row_bytes) for address in cache.tensor_addrs]
    return [[tensor[r * row_bytes : (r + 1) * row_bytes] for r in range(rows)] for tensor in whole]


def expected(seed=0):
    whole = [allocating.content(tensor, ROWS * ROW, seed) for tensor in range(TENSORS)]
    return [[tensor[r * ROW : (r + 1) * ROW] for r in range(ROWS)] for tensor in whole]


def mapped_files():
    """Sizes of the memory files that this process has mapped."""
    sizes = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:" in line:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            sizes.append(end - start)
    return sizes


def test_a_peer_maps_an_allocated_cache_and_pulls_from_it(processes, reader):
    owner = processes(1)
    tensors, rows, row = 5, 40, 11111  # no multiple of anything
    owner.ask("allocate", tensors=tensors, rows=rows, row_bytes=row, model_id=0)
    target = reader.allocate_blocks_cache(desc(tensors, rows, row))
    before = mapped_files()
    reader.link(1, owner.address, timeout=10)
    new = mapped_files()
    for size in before:
        new.remove(size)
    assert len(new) == 1 and new[0] >= tensors * rows * row  # all tensors in one mapping
    order = [(7 * i) % rows for i in range(rows)]
    reader.pull_blocks(cc.BlocksCacheKey(1), target, order, range(rows), tensor_num_per_layer=1)
    found = rows_of(target, row)
    for tensor in range(tensors):
        whole = allocating.content(tensor, rows * row)
        for i, block in enumerate(order):
            assert found[tensor][i] == whole[block * row : (block + 1) * row]
    # Allocated after the link, and given back: the mapping comes with its first use, and goes.
    late = owner.ask("allocate", tensors=1, rows=2, row_bytes=ROW, model_id=9)
    small = reader.allocate_blocks_cache(desc(1, 2))
    reader.pull_blocks(cc.BlocksCacheKey(1, 9), small, [0, 1], [1, 0], tensor_num_per_layer=1)
    whole = allocating.content(0, 2 * ROW)
    assert rows_of(small) == [[whole[ROW:], whole[:ROW]]]
    assert len(mapped_files()) == len(before) + 3  # the small cache here, and both of the owner
    owner.ask("deallocate", cache_id=late)
    deadline = time.monotonic() + 20
    while len(mapped_files()) > len(before) + 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(cc.CacheNotFoundError):
        reader.pull_blocks(cc.BlocksCacheKey(1, 9), small, [0], [0], tensor_num_per_layer=1)


def test_deallocating_waits_for_a_pull_that_runs(processes, reader, monkeypatch):
    owner = processes(1)
    cache_id = owner.ask("allocate", tensors=TENSORS, rows=ROWS, row_bytes=ROW, model_id=0)
    target = reader.allocate_blocks_cache(desc())
    reader.link(1, owner.address, timeout=10)
    engine = reader.links[0]._link.engine
    entered, leave, failures = threading.Event(), threading.Event(), []
    transfer = engine.transfer

    def slow(*arguments, **more):
        entered.set()
        assert leave.wait(60)
        return transfer(*arguments, **more)

    monkeypatch.setattr(engine, "transfer", slow)

    def pull():
        try:
            reader.pull_blocks(
                cc.BlocksCacheKey(1), target, range(ROWS), range(ROWS), tensor_num_per_layer=1, timeout=60
            )
        except BaseException as error:
            failures.append(error)

    pulling = threading.Thread(target=pull)
    pulling.start()
    assert entered.wait(30)
    owner.post("deallocate", cache_id=cache_id, timeout=0.5)
    answer = owner.answer()
    assert answer["error"] == "CacheBusyError" and owner.ask("live") == 1
    # It refuses new pulls already, and the running one ends with the right bytes.
    with pytest.raises(cc.CacheNotFoundError):
        reader.pull_blocks(cc.BlocksCacheKey(1), target, [0], [0], tensor_num_per_layer=1)
    owner.post("deallocate", cache_id=cache_id, timeout=60)
    with pytest.raises(queue.Empty):
        owner.answer(0.3)
    left = time.monotonic()
    leave.set()
    pulling.join(60)
    assert not failures and rows_of(target) == expected()
    answer = owner.answer()
    assert answer["result"] >= left and owner.ask("live") == 0


def test_of_two_readers_exactly_one_consumes_a_key(processes):
    owner = processes(1, TWO_SIDED)
    readers = [processes(2), processes(3)]
    targets = []
    for process in readers:
        process.ask("link", cluster_id=1, address=owner.address)
        targets.append(process.ask("allocate", tensors=TENSORS, rows=ROWS, row_bytes=ROW, seed=7))
    for round_ in range(10):
        requests = [ROWS * round_ + i for i in range(ROWS)]
        cache_id = owner.ask("allocate", tensors=TENSORS, rows=ROWS, row_bytes=ROW, requests=requests)
        owner.ask("deallocate", cache_id=cache_id)  # released: the keys keep it
        for request in requests:
            for process, target in zip(readers, targets, strict=True):
                process.post("pull", cluster_id=1, request=request, cache_id=target)
            answers = [process.answer() for process in readers]
            assert sorted(answer.get("error", "") for answer in answers) == ["", "CacheNotFoundError"], answers
    deadline = time.monotonic() + 30
    while owner.ask("live"):
        assert time.monotonic() < deadline, "keys are gone and the memory is still there"
        time.sleep(0.02)


def test_a_reader_sees_removed_keys_go_and_the_others_stay(processes, reader):
    owner = processes(1)
    owner.ask("allocate", tensors=TENSORS, rows=ROWS, row_bytes=ROW, requests=[5, 6], prefixes=[7])
    target = reader.allocate_cache(desc())
    reader.link(1, owner.address, timeout=10)

    def pull(key, row):
        reader.pull_cache(key, target, row, tensor_num_per_layer=1, timeout=10)

    pull(cc.CacheKey(1, 5), 0)
    owner.ask("remove_key", request=5)
    deadline = time.monotonic() + 20
    while True:
        try:
            pull(cc.CacheKey(1, 5), 0)
        except cc.CacheNotFoundError:
            break
        assert time.monotonic() < deadline
    pull(cc.CacheKey(1, 6), 1)
    pull(cc.CacheKey(1, 6), 1)  # one-sided: nothing is consumed
    pull(cc.CacheKey(1, prefix_id=7), 2)
    assert [tensor[:3] for tensor in rows_of(target)] == [tensor[:3] for tensor in expected()]


def test_what_a_reader_does_not_consume(processes, reader):
    owner = processes(1, TWO_SIDED)
    owner.ask("allocate", tensors=TENSORS, rows=ROWS, row_bytes=ROW, requests=[5], prefixes=[7])
    target = reader.allocate_cache(desc())
    reader.link(1, owner.address, timeout=10)
    for _ in range(2):
        reader.pull_cache(cc.CacheKey(1, prefix_id=7), target, tensor_num_per_layer=1)
        with pytest.raises(cc.TransferTimeoutError):
            reader.pull_cache(cc.CacheKey(1, 5), target, tensor_num_per_layer=1, timeout=0)
    reader.pull_cache(cc.CacheKey(1, 5), target, tensor_num_per_layer=1)
    with pytest.raises(cc.CacheNotFoundError):
        reader.pull_cache(cc.CacheKey(1, 5), target, tensor_num_per_layer=1)


def test_the_registrations_of_a_link_are_ok_until_it_is_lost(processes, reader):
    owner = processes(1)
    with pytest.raises(cc.NotLinkedError):
        reader.query_register_mem_status(1)
    reader.link(1, owner.address, timeout=10)
    assert reader.query_register_mem_status(1) is cc.RegisterMemStatus.OK
    owner.process.kill()
    deadline = time.monotonic() + 20
    while reader.query_register_mem_status(1) is not cc.RegisterMemStatus.FAILED:
        assert time.monotonic() < deadline
        time.sleep(0.02)
