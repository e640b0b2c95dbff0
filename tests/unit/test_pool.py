"""The threads behind asynchronous transfers: bound to their device, fair, and gone when nobody needs them."""

import gc
import threading
import time

import pytest

from cachecore.errors import CacheError, ManagerClosedError
from cachecore.transfers.pool import Pool


class Job:
    def __init__(self, cluster_id, order, wait=None, seconds=3600):
        self.cluster_id, self.order, self.wait = cluster_id, order, wait
        self.deadline = time.monotonic() + seconds
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

    def expire(self):
        self.expired_at = time.monotonic()
        self.ended.set()


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


def test_what_waits_for_a_thread_is_told_at_its_deadline():
    order, go = [], threading.Event()
    pool, running = Pool(lambda: None, 1), Job(1, order, go)
    pool.submit(running)
    wait_for(lambda: pool.running == 1)
    patient = Job(1, order)
    late = [Job(1, order, seconds=0.2), Job(2, order, seconds=0.1)]
    for job in (patient, *late):
        pool.submit(job)
    for job in late:
        assert job.ended.wait(20) and job.expired_at >= job.deadline
    assert pool.queued == 1 and not patient.ended.is_set() and not running.ended.is_set()
    go.set()
    assert patient.ended.wait(20) and len(order) == 2
    close(pool)
    wait_for(lambda: pool._state.keeper is None)


def test_without_a_thread_a_job_is_refused_and_with_one_it_waits(monkeypatch):
    pool, go = Pool(lambda: None, 2), threading.Event()

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for start in (pool.submit, lambda job: pool.apart(job, "apart")):
            with pytest.raises(CacheError, match="can't start new thread"):
                start(Job(1, []))
    assert pool.queued == pool.running == 0
    running, waiting = Job(1, [], go), Job(1, [])
    pool.submit(running)
    wait_for(lambda: pool.running == 1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        pool.submit(waiting)
    go.set()
    assert waiting.ended.wait(20)
    close(pool)


def test_an_interrupted_call_leaves_no_job_behind(monkeypatch):
    pool = Pool(lambda: None, 2)
    pool.submit(Job(1, [], go := threading.Event()))
    wait_for(lambda: pool.running == 1)

    def interrupt(thread):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(threading.Thread, "start", interrupt)
        pool.submit(Job(1, []))
    assert pool.queued == 0
    go.set()
    close(pool)


def test_a_job_in_a_thread_of_its_own_takes_no_turn_from_its_peer():
    order, go, apart = [], threading.Event(), threading.Event()
    pool = Pool(lambda: None, 2)
    pool.submit(Job(1, order, go))
    wait_for(lambda: len(order) == 1)
    pool.apart(one := Job(1, order, apart), "apart")
    apart.set()
    assert one.ended.wait(20)
    wait_for(lambda: pool.running == 1)
    pool.submit(Job(3, order, last := threading.Event()))
    wait_for(lambda: len(order) == 3)
    for cluster_id in (1, 2):
        pool.submit(Job(cluster_id, order))
    last.set()
    wait_for(lambda: len(order) == 5)
    assert [cluster_id for _, cluster_id in order[3:]] == [2, 1]  # one of peer 1 runs
    go.set()
    close(pool)
