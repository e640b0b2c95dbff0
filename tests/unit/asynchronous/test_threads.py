"""The threads that transfers wait for: deadlines, cancelling, closing, leaving the process."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from transfer_pair import BLOCK, BLOCKS, wait_for

import cachecore as cc
from cachecore.transfers.pool import Pool


class Job:
    """One of a pool without a manager; runs until it is let go or cancelled."""

    def __init__(self, cluster_id, seconds=60.0):
        self.cluster_id, self.deadline = cluster_id, time.monotonic() + seconds
        self.go, self.running, self.expired, self.abandoned = (threading.Event() for _ in range(4))

    def run(self):
        self.running.set()
        self.go.wait()

    def cancel(self):
        self.go.set()

    def expire(self):
        self.expired.set()

    def abandon(self):
        self.abandoned.set()


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


def test_the_deadline_of_a_job_is_kept_that_a_later_one_takes_the_idle_thread_from():
    pool = Pool(lambda: None, 2)
    first, second, queued = Job(1), Job(2), Job(2)
    for job in (first, second, queued):
        pool.submit(job)
    assert first.running.wait(10) and second.running.wait(10)
    queued.go.set()
    second.go.set()
    wait_for(lambda: not pool.queued and pool._state.idle == 1)
    # Deadlines are next looked at a minute from now, when that of `queued` would have passed.
    late, taker = Job(1, 0.05), Job(2)
    with pool._state.changed:  # the idle thread sees both
        pool.submit(late)
        pool.submit(taker)
    try:
        assert taker.running.wait(10)
        assert late.expired.wait(5) and not late.running.is_set()
    finally:
        for job in (first, late, taker):
            job.go.set()
        assert pool.close(time.monotonic() + 10)


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


@pytest.mark.parametrize("end", [lambda pool: pool.close(time.monotonic()), lambda pool: pool._finalizer()])
def test_a_job_whose_end_raises_does_not_keep_the_others_from_theirs(end):
    class Raises(Job):
        def abandon(self):
            raise SystemExit

    pool = Pool(lambda: None, 1)
    running, raises, queued = Job(1), Raises(1), Job(1)
    pool.submit(running)
    assert running.running.wait(10)
    pool.submit(raises)
    pool.submit(queued)
    try:
        with pytest.raises(SystemExit):
            end(pool)
        assert queued.abandoned.is_set()
        # Cancelled where the pool is left, not where it is closed.
        assert running.go.is_set() != pool._finalizer.alive
    finally:
        running.go.set()
        assert pool.close(time.monotonic() + 10)


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
