"""The threads behind asynchronous transfers: bound to their device, fair, and gone when nobody needs them."""

import gc
import threading
import time

import pytest

from cachecore.errors import ManagerClosedError
from cachecore.pool import Pool


class Job:
    def __init__(self, cluster_id, order, wait=None):
        self.cluster_id, self.order, self.wait = cluster_id, order, wait
        self.abandoned = self.cancelled = False
        self.ended = threading.Event()

    def run(self):
        self.order.append((threading.current_thread().name, self.cluster_id))
        if self.wait is not None:
            assert self.wait.wait(20)
        self.ended.set()

    def cancel(self):
        self.cancelled = True

    def abandon(self):
        self.abandoned = True


def close(pool):
    assert pool.close(time.monotonic() + 20)


def test_every_thread_is_bound_before_its_first_job():
    order, go = [], threading.Event()
    pool = Pool(lambda: order.append((threading.current_thread().name, "bound")), 2)
    jobs = [Job(1, order, go) for _ in range(4)]
    for job in jobs:
        pool.submit(job)
    wait_for(lambda: pool.running == 2)
    go.set()
    for job in jobs:
        assert job.ended.wait(20)
    close(pool)
    names = {name for name, _ in order}
    assert names == {"cachecore-transfer-0", "cachecore-transfer-1"}
    for name in names:
        assert [what for who, what in order if who == name].index("bound") == 0
    assert [what for _, what in order].count("bound") == 2


def test_a_thread_that_cannot_be_bound_still_runs_its_job(caplog):
    def bind():
        raise OSError("no device")

    pool, job = Pool(bind, 1), Job(1, [])
    pool.submit(job)
    assert job.ended.wait(20)
    close(pool)
    assert "no device" in caplog.text


def test_a_job_that_raises_ends_nobody_but_itself(caplog):
    class Raising(Job):
        def run(self):
            raise ZeroDivisionError("inside a job")

    pool, after = Pool(lambda: None, 1), Job(1, [])
    pool.submit(Raising(1, []))
    pool.submit(after)
    assert after.ended.wait(20)  # by the same thread
    close(pool)
    assert "inside a job" in caplog.text and pool.running == 0


def test_a_free_thread_goes_to_the_peer_with_the_fewest_jobs():
    order, first, second = [], threading.Event(), threading.Event()
    pool = Pool(lambda: None, 2)
    pool.submit(Job(1, order, first))
    pool.submit(Job(1, order, second))
    wait_for(lambda: len(order) == 2)
    for cluster_id in (1, 1, 1, 2, 3):
        pool.submit(Job(cluster_id, order))
    assert pool.queued == 5 and pool.running == 2
    second.set()
    wait_for(lambda: len(order) == 7)
    # One job of peer 1 runs on: the peers with none come first.
    assert [cluster_id for _, cluster_id in order[2:]] == [2, 3, 1, 1, 1]
    first.set()
    close(pool)


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
    assert condition()


def test_closing_abandons_what_waits_and_takes_nothing_more():
    go = threading.Event()
    pool, running, queued = Pool(lambda: None, 1), Job(1, [], go), Job(1, [])
    pool.submit(running)
    wait_for(lambda: pool.running == 1)
    pool.submit(queued)
    removed = Job(2, [])
    pool.submit(removed)
    assert pool.remove(removed) and not pool.remove(removed) and not pool.remove(running)
    assert not pool.close(time.monotonic())
    assert queued.abandoned and not removed.abandoned and not running.abandoned
    for start in (pool.submit, lambda job: pool.apart(job, "apart")):
        with pytest.raises(ManagerClosedError):
            start(Job(1, []))
    go.set()
    close(pool)


def test_a_pool_that_nobody_refers_to_ends_its_threads():
    pool, job = Pool(lambda: None, 2), Job(1, [])
    pool.submit(job)
    assert job.ended.wait(20)
    threads = list(pool._state.threads)
    del pool
    gc.collect()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
