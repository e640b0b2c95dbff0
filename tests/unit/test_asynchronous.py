"""Transfers that were started and are waited for: what a handle says, however the transfer ends."""

import asyncio
import concurrent.futures
import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import cachecore as cc

LAYERS, BLOCKS, BLOCK = 3, 8, 64


@pytest.fixture
def pair():
    """An owner and a reader of this process, linked, with a cache of single-tensor layers each."""
    with (
        cc.CacheManager(1, backend="host", listen="127.0.0.1:0") as owner,
        cc.CacheManager(2, backend="host", options={"manager.transfer_threads": 2}) as reader,
    ):
        reader.link(1, owner.address, timeout=10)
        yield Pair(owner, reader)


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


def test_a_transfer_arrives_and_says_so(pair):
    told = threading.Event()
    transfer = pair.pull()
    transfer.add_done_callback(lambda ended: told.set() if ended is transfer else None)
    transfer.wait(10)
    assert pair.arrived() and transfer.done and transfer.exception() is None
    assert transfer.progress == cc.Progress(LAYERS, LAYERS, LAYERS * BLOCKS * BLOCK)
    assert told.wait(10)
    late = []
    transfer.add_done_callback(late.append)
    assert late == [transfer]
    transfer.cancel()  # too late to change anything
    transfer.wait(0)


@pytest.mark.parametrize("name", ["pull_cache", "push_cache", "push_blocks"])
def test_each_form_has_an_asynchronous_one(pair, name):
    source, target = [np.full((4, 32), 7, np.uint8)], [np.zeros((4, 32), np.uint8)]
    paged = name == "push_blocks"
    push = name.startswith("push")
    tensors = target if push else source
    if paged:
        pair.owner.register_blocks_tensors(tensors, blocks_cache_key=cc.BlocksCacheKey(1, 9))
        key, given = cc.BlocksCacheKey(1, 9), ([1], [2])
    else:
        pair.owner.register_cache_tensors(tensors, cache_keys=[cc.CacheKey(1, 5, 9)])
        key, given = cc.CacheKey(1, 5, 9), ()
    register = pair.reader.register_blocks_tensors if paged else pair.reader.register_cache_tensors
    own = register(source if push else target)
    getattr(pair.reader, f"{name}_async")(key, own, *given, tensor_num_per_layer=1).wait(10)
    assert (target[0][2 if paged else 0] == 7).all() and np.count_nonzero(target[0]) == 32


def test_bad_arguments_are_refused_by_the_call_and_start_nothing(pair):
    before = pair.reader.stats()
    with pytest.raises(cc.CacheValueError):
        pair.pull([BLOCKS])
    with pytest.raises(cc.CacheTypeError, match="layerwise"):
        pair.pull(layerwise=1)
    with pytest.raises(cc.CacheNotFoundError):
        pair.reader.pull_blocks_async(cc.BlocksCacheKey(1, 5), pair.cache, [0], [0])
    assert pair.reader.stats() == before and pair.untouched()


def test_what_the_caller_gave_may_change_after_the_call(pair):
    """Hole 9: nothing of the caller's is kept or changed."""
    go, blocks = threading.Event(), [1, 2]
    transfer = pair.pull(blocks, after=go)
    waiting = threading.Thread(target=lambda: transfer.wait_layer(0, 10))
    waiting.start()
    blocks[:] = [5, 6]
    go.set()
    transfer.wait(10)
    waiting.join()
    assert pair.arrived([1, 2]) and not pair.here[0][[5, 6]].any() and blocks == [5, 6]


def test_nothing_moves_before_the_event(pair):
    go = threading.Event()
    transfer = pair.pull(after=go)
    with pytest.raises(cc.CacheTimeoutError, match="goes on"):
        transfer.wait(0.05)
    assert pair.untouched() and not transfer.done
    go.set()
    transfer.wait(10)
    assert pair.arrived()


class DeviceEvent:
    """As torch has them: to be asked, or waited for without a limit."""

    def __init__(self):
        self.happened = threading.Event()

    def query(self):
        return self.happened.is_set()

    def synchronize(self):
        self.happened.wait()


def test_events_of_several_kinds_are_waited_for(pair):
    device, future = DeviceEvent(), concurrent.futures.Future()
    transfer = pair.pull(after=[device, future])
    device.happened.set()
    with pytest.raises(cc.CacheTimeoutError):
        transfer.wait(0.05)
    future.set_result(None)
    transfer.wait(10)
    assert pair.arrived()


def test_an_event_that_never_happens_ends_the_transfer_with_nothing_moved(pair):
    failed = concurrent.futures.Future()
    failed.set_exception(ZeroDivisionError("the computation failed"))
    with pytest.raises(cc.CacheError, match="ZeroDivisionError: the computation failed"):
        pair.pull(after=failed).wait(10)
    for event in (threading.Event(), DeviceEvent(), concurrent.futures.Future()):
        with pytest.raises(cc.TransferTimeoutError, match="Nothing moved"):
            pair.pull(after=event, timeout=0.05).wait(10)
    with pytest.raises(cc.NotSupportedError, match="after is 'event'"):
        pair.reader.pull_blocks(cc.BlocksCacheKey(1), pair.cache, [0], [0], tensor_num_per_layer=1, after="event")
    assert pair.untouched() and pair.reader.stats().quarantined == 0


def test_cancelling_a_waiting_transfer_and_one_in_the_queue(pair):
    never = threading.Event()
    running = [pair.pull(after=never) for _ in range(2)]  # all threads
    queued = pair.pull()
    wait_for(lambda: pair.reader.stats().transfers_running == 2)
    assert pair.reader.stats().transfers_queued == 1
    queued.cancel()
    with pytest.raises(cc.TransferCancelledError, match="before it started"):
        queued.wait(10)
    for transfer in running:
        transfer.cancel()
        with pytest.raises(cc.TransferCancelledError):
            transfer.wait(10)
    assert pair.untouched() and pair.reader.stats().transfers_cancelled == 3
    pair.pull().wait(10)


def test_layers_arrive_one_by_one(pair, monkeypatch):
    copy, go_on, copies = pair.reader.backend.copy, threading.Event(), []

    def held(plan, deadline):
        copies.append(plan)
        if len(copies) > 1:
            assert go_on.wait(30)
        return copy(plan, deadline)

    monkeypatch.setattr(pair.reader.backend, "copy", held)
    transfer = pair.pull(layerwise=True)
    transfer.wait_layer(0, 10)
    assert pair.arrived(layers=[0]) and not pair.here[1].any()
    assert transfer.progress == cc.Progress(1, LAYERS, BLOCKS * BLOCK)
    with pytest.raises(cc.CacheTimeoutError, match="layer 1"):
        transfer.wait_layer(1, 0.02)
    go_on.set()
    transfer.wait_layer(2, 10)
    transfer.wait(10)
    assert pair.arrived() and len(copies) == LAYERS
    with pytest.raises(cc.CacheValueError, match="layer is 3"):
        transfer.wait_layer(LAYERS)


def test_a_transfer_that_fails_at_a_layer_says_which_arrived(pair, monkeypatch):
    """Hole 8: a failure at layer k left the layers before it delivered, and nobody knew."""
    copy, copies = pair.reader.backend.copy, []

    def failing(plan, deadline):
        copies.append(plan)
        if len(copies) == 2:
            return cc.Outcome.untouched_by(cc.FailureCause.NATIVE, plan.chunks, message="a broken wire")
        return copy(plan, deadline)

    monkeypatch.setattr(pair.reader.backend, "copy", failing)
    transfer = pair.pull(layerwise=True)
    with pytest.raises(cc.TransferError, match="a broken wire") as caught:
        transfer.wait(10)
    assert caught.value.landed == (cc.BlockRange(0, 0, BLOCKS),) and caught.value.unknown == ()
    transfer.wait_layer(0, 0)
    with pytest.raises(cc.TransferError, match="a broken wire"):
        transfer.wait_layer(1, 0)
    assert transfer.progress.layers_done == 1 and pair.arrived(layers=[0]) and not pair.here[1].any()


def wait_for(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()


def test_a_transfer_can_be_awaited(pair):
    async def main():
        await pair.pull()
        go = threading.Event()
        both = asyncio.gather(*(pair.pull([block], after=go) for block in range(2)))
        asyncio.get_running_loop().call_later(0.01, go.set)
        await both
        with pytest.raises(cc.TransferTimeoutError):
            await pair.pull(after=threading.Event(), timeout=0.05)

    asyncio.run(main())
    assert pair.arrived()


def test_a_cancelled_task_cancels_its_transfer_and_ends_when_nothing_moves_any_more(pair):
    async def main():
        transfer = pair.pull(after=threading.Event())

        async def use():
            await transfer

        task = asyncio.create_task(use())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert transfer.done and isinstance(transfer.exception(0), cc.TransferCancelledError)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(pair.pull(after=threading.Event()), 0.05)

    asyncio.run(main())
    wait_for(lambda: pair.reader.stats().transfers_running == 0)
    assert pair.untouched()


def test_a_deadline_starts_with_the_call_and_runs_in_the_queue_too(pair):
    go = threading.Event()
    running = [pair.pull([block], after=go) for block in range(2)]
    late = pair.pull(timeout=0.02)
    time.sleep(0.05)
    go.set()
    with pytest.raises(cc.TransferTimeoutError):
        late.wait(10)
    for transfer in running:
        transfer.wait(10)


def test_an_exception_in_a_worker_is_never_a_success(pair, monkeypatch):
    def broken(*arguments, **more):
        raise MemoryError("inside the worker")

    monkeypatch.setattr(pair.reader._transfers, "run", broken)
    transfer = pair.pull()
    with pytest.raises(MemoryError, match="inside the worker"):
        transfer.wait(10)
    assert transfer.done and transfer.progress.layers_done == 0
    monkeypatch.undo()
    pair.pull().wait(10)  # the thread lives on
    assert pair.arrived()


def test_a_barrier_waits_for_transfers_in_the_queue(pair):
    go = threading.Event()
    for block in range(3):
        pair.pull([block], after=go)
    with pytest.raises(cc.CacheTimeoutError):
        pair.reader._transfers.barrier(1, time.monotonic() + 0.05)
    go.set()
    pair.reader._transfers.barrier(1, time.monotonic() + 10)
    assert pair.arrived(range(3))


def test_a_peer_that_holds_threads_does_not_hold_up_another(pair):
    with cc.CacheManager(3, backend="host", listen="127.0.0.1:0") as other:
        other.register_blocks_tensors([tensor.copy() for tensor in pair.there], blocks_cache_key=cc.BlocksCacheKey(3))
        pair.reader.link(3, other.address, timeout=10)
        go = threading.Event()
        first = pair.pull([0], after=go)
        wait_for(lambda: pair.reader.stats().transfers_running == 1)
        second = threading.Event()
        held = pair.pull([1], after=second)  # takes the last thread
        waiting = [pair.pull([block]) for block in range(2, 7)]
        urgent = pair.reader.pull_blocks_async(cc.BlocksCacheKey(3), pair.cache, [7], [7], tensor_num_per_layer=1)
        second.set()
        urgent.wait(10)
        held.wait(10)
        assert not first.done  # one thread is still with the slow peer
        go.set()
        for transfer in [first, *waiting]:
            transfer.wait(10)
        pair.reader.unlink(3)


def test_closing_waits_for_what_runs_and_cancels_what_waits():
    with cc.CacheManager(1, backend="host", options={"manager.transfer_threads": 1}) as manager:
        source = manager.register_blocks_tensors([np.ones((4, 8), np.uint8)], blocks_cache_key=cc.BlocksCacheKey(1))
        tensor = np.zeros((4, 8), np.uint8)
        cache = manager.register_blocks_tensors([tensor])
        go = threading.Event()
        pull = (cc.BlocksCacheKey(1), cache, [0], [0])
        running = manager.pull_blocks_async(*pull, tensor_num_per_layer=1, after=go)
        wait_for(lambda: manager.stats().transfers_running == 1)
        queued = manager.pull_blocks_async(*pull, tensor_num_per_layer=1)
        with pytest.raises(cc.CacheBusyError):
            manager.close(timeout=0.05)
        with pytest.raises(cc.TransferCancelledError, match="closed before"):
            queued.wait(0)
        with pytest.raises(cc.ManagerClosedError):
            manager.pull_blocks_async(*pull, tensor_num_per_layer=1)
        assert not running.done and source is not None
        go.set()
        manager.close(timeout=10)
        running.wait(0)
        assert tensor[0].all()


def test_a_queued_transfer_of_a_cache_that_was_unregistered_meanwhile_does_not_start(pair):
    go = threading.Event()
    for block in range(2):
        pair.pull([block], after=go)
    other = np.zeros((BLOCKS, BLOCK), np.uint8)
    cache = pair.reader.register_blocks_tensors([other])
    queued = pair.reader.pull_blocks_async(
        cc.BlocksCacheKey(1), cache, [0], [0], src_layer_range=range(1), tensor_num_per_layer=1
    )
    pair.reader.unregister_cache(cache.cache_id, timeout=5)
    go.set()
    with pytest.raises(cc.CacheNotFoundError):
        queued.wait(10)
    assert not other.any()


EXIT = """
import threading, sys, time
import numpy as np
import cachecore as cc
manager = cc.CacheManager(1, backend="host")
manager.register_blocks_tensors([np.ones((4, 8), np.uint8)], blocks_cache_key=cc.BlocksCacheKey(1))
cache = manager.register_blocks_tensors([np.zeros((4, 8), np.uint8)])
class Stuck:
    def synchronize(self):
        time.sleep(1e6)
for after in (threading.Event(), threading.Event(), Stuck(), Stuck(), None, None):
    manager.pull_blocks_async(cc.BlocksCacheKey(1), cache, [0], [0], tensor_num_per_layer=1, after=after, timeout=1e6)
time.sleep(0.1)
print("leaving")
"""


def test_an_exit_with_running_transfers_ends(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=60, check=False, env=os.environ
    )
    assert (run.returncode, run.stdout) == (0, "leaving\n"), run.stderr
    assert "Traceback" not in run.stderr


def test_a_callback_may_close_the_manager(pair):
    """Also one that runs inside `close`, because the transfer never started."""
    go, ended = threading.Event(), []
    running = [pair.pull([block], after=go) for block in range(2)]  # as many as there are threads
    queued = pair.pull([5])
    queued.add_done_callback(lambda transfer: go.set())
    queued.add_done_callback(lambda transfer: pair.reader.close(timeout=10))
    closer = threading.Thread(target=lambda: ended.append(pair.reader.close(timeout=10)), daemon=True)
    closer.start()
    closer.join(20)
    assert ended == [None] and all(transfer.done for transfer in running)


def test_a_callback_that_closes_the_manager_does_not_wait_for_its_own_transfer(pair):
    go, ended = threading.Event(), []
    transfer = pair.pull(after=go)

    def close(transfer):
        ended.append(pair.reader.close(timeout=3))

    transfer.add_done_callback(close)
    go.set()
    wait_for(lambda: ended)
    assert ended == [None] and pair.arrived()


def test_a_task_that_is_cancelled_twice_still_waits_until_nothing_moves(pair):
    go = threading.Event()

    class Deaf:
        def synchronize(self):
            assert go.wait(20)

    async def main():
        transfer = pair.pull(after=Deaf())
        task = asyncio.ensure_future(transfer)
        for _ in range(2):
            await asyncio.sleep(0.05)
            task.cancel()
        await asyncio.sleep(0.05)
        assert not task.done() and not transfer.done
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert transfer.done

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # forking beside threads, which is the point
def test_a_forked_child_is_told_instead_of_waiting_for_threads_it_does_not_have(pair):
    go = threading.Event()
    transfer = pair.pull(after=go)
    child = os.fork()
    if not child:
        told = []
        for call in (transfer.wait, transfer.cancel, lambda: transfer.wait_layer(0), lambda: transfer.exception(0)):
            try:
                call()
            except cc.ForkedProcessError:
                told.append(call)
        os._exit(len(told))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    go.set()
    transfer.wait(10)


def test_a_callback_that_exits_does_not_keep_the_others_from_being_called(pair, caplog):
    go, called = threading.Event(), threading.Event()
    transfer = pair.pull(after=go)
    transfer.add_done_callback(lambda transfer: sys.exit(3))
    transfer.add_done_callback(lambda transfer: called.set())
    go.set()
    assert called.wait(10)
    transfer.wait(0)


def test_the_handle_of_a_failed_transfer_keeps_no_cache_alive(pair):
    class Watched(np.ndarray):
        pass

    tensors = [np.zeros((BLOCKS, BLOCK), np.uint8).view(Watched) for _ in range(LAYERS)]
    gone = weakref.ref(tensors[0])
    cache = pair.reader.register_blocks_tensors(tensors)
    transfer = pair.reader.pull_blocks_async(
        cc.BlocksCacheKey(1), cache, [0], [0], tensor_num_per_layer=1, after=threading.Event(), timeout=0.05
    )
    assert isinstance(transfer.exception(10), cc.TransferTimeoutError)
    pair.reader.unregister_cache(cache)
    del tensors, cache
    gc.collect()
    assert gone() is None


def test_a_transfer_that_waits_for_a_thread_ends_at_its_deadline(pair):
    go = threading.Event()
    running = [pair.pull([block], after=go) for block in range(2)]
    late, told = pair.pull([5], timeout=0.1), threading.Event()
    late.add_done_callback(lambda transfer: told.set())
    assert told.wait(10)
    with pytest.raises(cc.TransferTimeoutError, match=r"did not start.*manager\.transfer_threads"):
        late.wait(0)
    go.set()
    for transfer in running:
        transfer.wait(10)
    assert not pair.here[0][5].any()


class Table:
    """A block table of somebody's own."""

    def __init__(self, ids):
        self.ids = ids

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return self.ids[index]


@pytest.mark.parametrize("kind", ["list", "array of ctypes", "own"])
def test_whatever_kind_of_block_list_may_change_after_the_call(pair, kind):
    """A layer that is waited for makes the transfer be planned again, layer by layer, in the thread that moves."""
    ids = (ctypes.c_int64 * 2)(1, 2) if kind == "array of ctypes" else [1, 2]
    given = {"list": lambda ids: ids, "array of ctypes": memoryview, "own": Table}[kind](ids)
    go = threading.Event()
    running = [pair.pull([block], after=go) for block in (0, 3)]
    transfer = pair.pull(given)
    waiting = threading.Thread(target=lambda: transfer.wait_layer(0, 10))
    waiting.start()
    wait_for(lambda: transfer._by_layer)
    ids[0], ids[1] = 5, 6
    go.set()
    for one in (*running, transfer):
        one.wait(10)
    waiting.join()
    assert pair.arrived([1, 2]) and not pair.here[0][[5, 6]].any()


@pytest.mark.parametrize("kind", [list, lambda ids: memoryview((ctypes.c_int64 * len(ids))(*ids)), Table])
def test_leases_take_every_kind_of_block_list_that_transfers_take(pair, kind):
    lease = pair.owner.lease(pair.source, kind([3, 1]), 60)
    assert lease.block_ids == (3, 1)
    pair.pull(kind([1, 3]), lease=lease).wait(10)
    with pytest.raises(cc.CacheValueError, match=r"src_blocks\[1\] is block 2, which"):
        pair.reader.pull_blocks(
            cc.BlocksCacheKey(1), pair.cache, kind([1, 2]), [0, 1], lease=lease, tensor_num_per_layer=1
        )
    assert pair.arrived([1, 3])


def test_no_lease_is_granted_of_a_cache_that_is_unregistered_meanwhile(pair, monkeypatch):
    leases = pair.owner._peers.leases
    grant = leases.grant

    def late(*given):
        pair.owner.unregister_cache(pair.source)
        return grant(*given)

    monkeypatch.setattr(leases, "grant", late)
    with pytest.raises(cc.CacheNotFoundError):
        pair.owner.lease(pair.source, [1], 60)
    assert pair.owner.leases == ()
