"""What a started transfer says and lets wait for: events, layers, its end, however it ends."""

import concurrent.futures
import ctypes
import gc
import threading
import weakref

import numpy as np
import pytest
from transfer_pair import BLOCK, BLOCKS, LAYERS, wait_for

import cachecore as cc


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


def test_a_list_of_events_may_be_used_again_after_the_call(pair):
    go = threading.Event()
    events = [go]
    transfer = pair.pull(after=events)
    events.clear()
    with pytest.raises(cc.CacheTimeoutError):
        transfer.wait(0.05)
    assert pair.untouched()
    go.set()
    transfer.wait(10)


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
