"""The thread for what must not hold up pings: calls into engines, and telling listeners about events."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from cachecore.threads import start_or_log

__all__ = ["Worker"]

_logger = logging.getLogger("cachecore.peers")


class Worker:
    """Runs jobs one after the other, in the order of submission. The thread starts with the first job.

    Args:
        name: Of the thread.
        bind_thread: Called first in the thread; a device driver sets its device there.
    """

    def __init__(self, name: str, bind_thread: Callable[[], None] | None = None) -> None:
        self._name = name
        self._bind_thread = bind_thread
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def submit(self, job: Callable[[], None]) -> None:
        """Run `job` soon; never raises. After `stop` jobs are dropped: what they served is gone.

        Where no thread can be started now, the next call tries again.
        """
        with self._lock:
            if self._stopped:
                return
            self._jobs.put(job)
            if self._thread is None:
                self._thread = start_or_log(self._run, self._name)

    def stop(self, deadline: float) -> bool:
        """Run what was submitted and end. Returns whether that was over before `deadline` (`time.monotonic()`)."""
        self.request_stop()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, min(deadline - time.monotonic(), 3600.0)))
        return thread is None or not thread.is_alive()

    def request_stop(self) -> None:
        """Ask the thread to end after what was submitted, without waiting."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._jobs.put(None)

    def _run(self) -> None:
        if self._bind_thread is not None:
            try:
                self._bind_thread()
            except Exception:
                _logger.exception("binding the thread %s to its device failed", self._name)
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:
                _logger.exception("a job of %s failed", self._name)
            del job
