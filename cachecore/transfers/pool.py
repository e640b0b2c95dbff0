"""The threads that run asynchronous transfers of one manager: few, started when needed, fair between peers.

A job waits in the queue of its cluster. A free thread takes from the cluster with the fewest jobs running, so that a
peer that does not answer cannot hold up transfers with others for as long as a thread is left. A job whose deadline
passes while it waits is taken out.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from cachecore.errors import CacheError, ManagerClosedError
from cachecore.threads import start

__all__ = ["Job", "Pool"]

_log = logging.getLogger("cachecore")
#: Seconds that the exit of the interpreter waits for running jobs after it has cancelled them.
_EXIT_SECONDS: Final = 2.0


class Job(Protocol):
    """Something to run in a thread."""

    @property
    def cluster_id(self) -> int:
        """Whose turn it is when it runs."""

    @property
    def deadline(self) -> float:
        """When it must have started, on `time.monotonic()`."""

    def run(self) -> None:
        """Do it; reports its errors itself."""

    def cancel(self) -> None:
        """Ask it to end early; returns at once. May be called at any time, also more than once."""

    def abandon(self) -> None:
        """It was never run and never will be: the pool was closed."""

    def expire(self) -> None:
        """It was never run and never will be: its deadline has passed."""


class _State:
    """What the threads share. They know nothing of the pool, so that a pool nobody refers to ends its threads."""

    def __init__(self, bind_thread: Callable[[], None], most: int) -> None:
        self.bind_thread = bind_thread
        self.most = most
        #: Reentrant: collecting garbage may run `_leave` in a thread that holds it.
        lock = threading.RLock()
        self.changed = threading.Condition(lock)
        #: Wakes the thread that takes out what is too late.
        self.sooner = threading.Condition(lock)
        self.keeper: threading.Thread | None = None
        self.soonest = math.inf  # until when that thread sleeps
        #: Earliest deadline of what was submitted since that thread last looked. Not only of what had to wait: the thread
        #: that a job is left to may take a later one of another cluster.
        self.unseen = math.inf
        self.queues: dict[int, deque[Job]] = {}
        self.running: dict[int, int] = {}
        self.jobs: set[Job] = set()
        #: Those that run, by thread.
        self.run_by: dict[int, Job] = {}
        self.idle = 0
        self.threads: list[threading.Thread] = []
        self.closed = False
        self.turn = itertools.count()
        self.last_turn: dict[int, int] = {}

    @property
    def queued(self) -> int:
        """Jobs that wait for a thread."""
        return sum(map(len, self.queues.values()))

    def take(self) -> Job:
        """The next job. With the lock held, and `queued` above 0."""
        cluster_id = min(self.queues, key=lambda key: (self.running.get(key, 0), self.last_turn.get(key, -1)))
        queue = self.queues[cluster_id]
        job = queue.popleft()
        self.last_turn[cluster_id] = next(self.turn)
        self.running[cluster_id] = self.running.get(cluster_id, 0) + 1
        if not queue:
            self.queues.pop(cluster_id, None)
        self.jobs.add(job)
        return job

    def done(self, job: Job) -> None:
        """A job that `take` gave has ended. With the lock held."""
        self.jobs.discard(job)
        cluster_id = job.cluster_id
        left = self.running.get(cluster_id, 0) - 1
        if left > 0:
            self.running[cluster_id] = left
            return
        self.running.pop(cluster_id, None)
        if cluster_id not in self.queues:
            self.last_turn.pop(cluster_id, None)

    def drop(self) -> list[Job]:
        """Take everything out of the queues, for good. With the lock held."""
        dropped = [job for queue in self.queues.values() for job in queue]
        self.queues.clear()
        self.closed = True
        self.changed.notify_all()
        self.sooner.notify_all()
        return dropped

    def remove(self, job: Job) -> bool:
        """Take a job out of its queue; whether it was there. With the lock held."""
        queue = self.queues.get(job.cluster_id)
        if queue is None or job not in queue:
            return False
        queue.remove(job)
        if not queue:
            del self.queues[job.cluster_id]
        return True

    def take_late(self, now: float) -> list[Job]:
        """Take out the jobs whose deadline has passed; notes the next one. With the lock held."""
        waiting = [job for queue in self.queues.values() for job in queue]
        self.unseen = math.inf
        self.soonest = min((job.deadline for job in waiting), default=math.inf)
        return [job for job in waiting if job.deadline <= now and self.remove(job)] if self.soonest <= now else []

    def keep_deadlines(self) -> None:
        """See to it that what waits does so until its deadline at most. With the lock held."""
        if self.keeper is None:
            self.keeper = threading.Thread(
                target=_keep_deadlines, args=(self,), name="cachecore-transfer-deadlines", daemon=True
            )
            try:
                start(self.keeper)
            except BaseException as error:
                self.keeper = None
                if not isinstance(error, CacheError):
                    raise
                _log.warning("transfers that wait for a thread may do so past their deadline: %s", error)
        else:
            self.sooner.notify_all()


class Pool:
    """Runs jobs. Whoever submits one keeps the pool alive until it has ended.

    Args:
        bind_thread: First call of every thread.
        most: Most threads.
    """

    def __init__(self, bind_thread: Callable[[], None], most: int) -> None:
        self._state = _State(bind_thread, most)
        # At the exit of the interpreter as well: a thread that comes back from native code then has nowhere to go.
        self._finalizer = weakref.finalize(self, _leave, self._state, os.getpid())

    @property
    def queued(self) -> int:
        """Jobs that wait for a thread."""
        with self._state.changed:
            return self._state.queued

    @property
    def running(self) -> int:
        """Jobs that run."""
        return len(self._state.jobs)

    def submit(self, job: Job) -> None:
        """Run a job when a thread is free.

        Raises:
            ManagerClosedError: The pool takes no jobs any more.
            CacheError: There is no thread, and none can be started.
        """
        state = self._state
        with state.changed:
            self._check_open()
            state.queues.setdefault(job.cluster_id, deque()).append(job)
            state.unseen = min(state.unseen, job.deadline)
            try:
                if not self._add_thread() and state.queued > state.idle and state.unseen < state.soonest:
                    state.keep_deadlines()
            except BaseException:
                state.remove(job)
                raise
            state.changed.notify()

    def _add_thread(self) -> bool:
        """Start one more where that helps; whether it did. With the lock held."""
        state = self._state
        number = len(state.threads)
        if state.queued <= state.idle or number >= state.most:
            return False
        thread = threading.Thread(target=_work, args=(state,), name=f"cachecore-transfer-{number}", daemon=True)
        state.threads.append(thread)
        try:
            start(thread)
        except BaseException as error:
            if thread.ident is None:
                state.threads.remove(thread)
            if not isinstance(error, CacheError) or not state.threads:  # nobody would ever run the job
                raise
            return False
        return True

    def apart(self, job: Job, name: str) -> None:
        """Run a job in a thread of its own: it waits for what the caller does, which may need the other threads.

        Raises:
            ManagerClosedError: The pool takes no jobs any more.
            CacheError: No thread can be started.
        """
        state = self._state
        with state.changed:
            self._check_open()
            state.jobs.add(job)
            try:
                start(threading.Thread(target=_work_once, args=(state, job), name=name, daemon=True))
            except BaseException:
                state.jobs.discard(job)
                raise

    def remove(self, job: Job) -> bool:
        """Take a job out of its queue. Returns whether it was there: it will not run then."""
        with self._state.changed:
            return self._state.remove(job)

    def close(self, deadline: float) -> bool:
        """Take no more jobs, abandon those that wait, and wait for those that run. Can be repeated.

        Returns:
            Whether nothing runs any more; False at the deadline (on `time.monotonic()`).
        """
        state = self._state
        with state.changed:
            dropped = state.drop()
        with contextlib.ExitStack() as calls:  # they are in no queue: one that raises does not keep the others from it
            for job in reversed(dropped):
                calls.callback(job.abandon)
        return _wait(state, deadline)

    def _check_open(self) -> None:
        if self._state.closed:
            raise ManagerClosedError("the manager is closed, or is being closed; no transfer can start")


def _keep_deadlines(state: _State) -> None:
    """Take out what is too late; ends when nothing waits."""
    while True:
        with state.changed:
            now = time.monotonic()
            late = state.take_late(now)
            if not late:
                if not state.queues:
                    state.keeper, state.soonest = None, math.inf
                    return
                state.sooner.wait(min(state.soonest - now, threading.TIMEOUT_MAX))
        _expire(late)
        del late


def _expire(jobs: list[Job]) -> None:
    for job in jobs:
        try:
            job.expire()
        except BaseException:  # noqa: BLE001
            _log.exception("what a transfer calls at its end raised")


def _work(state: _State) -> None:
    bound = False
    while True:
        with state.changed:
            state.idle += 1
            while not state.queued and not state.closed:
                state.changed.wait()
            state.idle -= 1
            if not state.queued:
                return
            job = state.take()
        try:
            if not bound:
                state.bind_thread()
                bound = True
        except Exception:  # noqa: BLE001
            # The job binds the thread again, and tells its own caller what is wrong.
            _log.exception("a transfer thread could not be bound to its device")
        _run(state, job, state.done)
        del job  # nothing of it is kept alive while this thread waits for the next one


def _work_once(state: _State, job: Job) -> None:
    _run(state, job, state.jobs.discard)  # no thread of the pool's was taken, so that it is nobody's turn


def _run(state: _State, job: Job, done: Callable[[Job], None]) -> None:
    thread = threading.get_ident()
    try:
        state.run_by[thread] = job
        job.run()
    except BaseException:  # noqa: BLE001
        _log.exception("a transfer job raised; this is an error of cachecore, please report it")
    finally:
        with state.changed:
            del state.run_by[thread]
            done(job)
            state.changed.notify_all()


def _wait(state: _State, deadline: float) -> bool:
    own = state.run_by.get(threading.get_ident())  # what it calls at its end must not wait for it
    with state.changed:
        while any(job is not own for job in state.jobs):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            state.changed.wait(min(left, threading.TIMEOUT_MAX))
    return True


def _leave(state: _State, pid: int) -> None:
    """The pool is gone, or the interpreter exits: cancel everything and give it a moment to end."""
    if os.getpid() != pid:
        return  # in a forked child there are no such threads, and a lock may be held for ever
    with state.changed:
        dropped, running = state.drop(), list(state.jobs)
    with contextlib.ExitStack() as calls:  # last in, first out; one that raises does not keep the others from it
        if threading.current_thread() is threading.main_thread():
            calls.callback(lambda: _wait(state, time.monotonic() + _EXIT_SECONDS))
        for job in reversed(running):
            calls.callback(job.cancel)
        for job in reversed(dropped):
            calls.callback(job.abandon)
