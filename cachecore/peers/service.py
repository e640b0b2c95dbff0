"""The thread that owns every socket of one manager.

ZeroMQ sockets belong to one thread. Callers hand in functions and wait for their results on futures with deadlines,
never on sockets. The loop polls sockets, runs what was handed in, and runs timers. It never dies silently: an
exception that nobody expected fails everybody who waits, with the exception as cause.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import zmq

from cachecore.errors import CacheError, CacheTimeoutError, ForkedProcessError, ManagerClosedError
from cachecore.peers.descriptors import TO_START, require

__all__ = ["Service"]

T = TypeVar("T")
_logger = logging.getLogger("cachecore.peers")
#: Three for each link; ZeroMQ's default would end at 340 links.
_MAX_SOCKETS = 30_000


class Service:
    """One daemon thread, one private ZeroMQ context.

    Methods marked "service thread" may only be called from functions that the thread runs.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._queue: deque[Callable[[], None]] = deque()
        self._waiting: set[concurrent.futures.Future[Any]] = set()
        require(TO_START, "a link service")
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._open = True
        self._stopping = False
        self._failure: BaseException | None = None
        self._at_end: list[Callable[[], None]] = []
        self._on_failure: list[Callable[[CacheError], None]] = []
        self._poller = zmq.Poller()
        self._callbacks: dict[Any, Callable[[], None]] = {}
        self._timers: list[_Timer] = []
        self.context = zmq.Context(io_threads=1)
        self.context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        # The first socket starts ZeroMQ's threads, now, while there are descriptors for them.
        self.context.socket(zmq.PAIR).close(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread serves."""
        return self._thread.is_alive() and not self._stopping and self._failure is None

    def start(self, setup: Callable[[], T], deadline: float) -> T:
        """Start the thread and run `setup` in it; what `setup` raises is raised here and the thread is gone again."""
        self._poller.register(self._wake, zmq.POLLIN)
        self._callbacks[self._wake] = self._drain_wake
        self._thread.start()
        try:
            result = self.call(setup, deadline)
        except BaseException:
            self.stop(time.monotonic() + 5.0)
            raise
        _services.add(self)
        return result

    def stop(self, deadline: float) -> bool:
        """End the thread and close every socket. Returns whether it ended before `deadline`; repeated calls are fine.

        Does nothing in a forked child: sockets and thread are the parent's.
        """
        if os.getpid() != self._pid:
            return True
        self.request_stop()
        if self._thread.ident is None:  # never started
            self._teardown()
        elif self._thread is not threading.current_thread():
            self._thread.join(max(0.0, min(deadline - time.monotonic(), 3600.0)))
        return not self._thread.is_alive()

    def request_stop(self) -> None:
        """Ask the thread to end, without waiting. Also called when a manager is garbage collected."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._stopping = True
            if self._open:
                os.eventfd_write(self._wake, 1)

    def submit(self, function: Callable[[], None]) -> None:
        """Have the thread run `function` soon, in the order of submission.

        Raises:
            ForkedProcessError, ManagerClosedError, CacheError: The thread is not there (any more).
        """
        self._check_process()
        with self._lock:
            self._check_open()
            self._queue.append(function)
            if len(self._queue) == 1:
                os.eventfd_write(self._wake, 1)

    def call(self, function: Callable[[], T], deadline: float) -> T:
        """Have the thread run `function` and wait for its result until `deadline` (on `time.monotonic()`)."""
        future = self.future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    result = function()
                except Exception as error:  # noqa: BLE001  # raised again where the result is waited for
                    self.settle(future, error=error)
                else:
                    self.settle(future, result)

        self.submit(run)
        return self.wait(future, deadline, "the link service did not answer")  # type: ignore[no-any-return]

    def check(self) -> None:
        """Raise what `submit` would raise."""
        self._check_process()
        with self._lock:
            self._check_open()

    def future(self) -> concurrent.futures.Future[Any]:
        """A future that fails when the thread fails or ends. Settle it with `settle`."""
        self._check_process()
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        with self._lock:
            self._check_open()
            self._waiting.add(future)
        return future

    def settle(
        self, future: concurrent.futures.Future[Any], result: object = None, error: Exception | None = None
    ) -> None:
        """Give a future its result or error; a future that has one already keeps it."""
        with self._lock:
            self._waiting.discard(future)
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

    def wait(self, future: concurrent.futures.Future[Any], deadline: float, what: str) -> Any:
        """The result of `future`.

        Raises:
            CacheTimeoutError: `deadline` passed; the message starts with `what`.
        """
        try:
            return future.result(max(0.0, min(deadline - time.monotonic(), 3600.0)))
        except concurrent.futures.TimeoutError:
            if future.done():  # on newer Pythons this is also the class of a result
                return future.result()
            with self._lock:
                self._waiting.discard(future)
            future.cancel()
            raise CacheTimeoutError(f"{what} before the deadline") from None

    def watch(self, socket: Any, callback: Callable[[], None]) -> None:
        """Run `callback` whenever `socket` can be read. Service thread."""
        self._callbacks[socket] = callback
        self._poller.register(socket, zmq.POLLIN)

    def unwatch(self, socket: Any) -> None:
        """Undo `watch`. Service thread."""
        if self._callbacks.pop(socket, None) is not None:
            self._poller.unregister(socket)

    def every(self, seconds: float, function: Callable[[], None]) -> Callable[[], None]:
        """Run `function` each `seconds`. Returns a function that ends it. Service thread."""
        timer = _Timer(time.monotonic() + seconds, seconds, function)
        self._timers.append(timer)

        def cancel() -> None:
            if timer in self._timers:
                self._timers.remove(timer)

        return cancel

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Run `function` once, in `seconds`. Service thread."""

        def run() -> None:
            cancel()
            function()

        cancel = self.every(seconds, run)

    def at_end(self, function: Callable[[], None]) -> None:
        """Run `function` when the thread ends, for whatever reason, before its sockets are closed. Service thread."""
        self._at_end.append(function)

    def on_failure(self, function: Callable[[CacheError], None]) -> None:
        """Call `function` with the error if the thread fails, from the failing thread."""
        self._on_failure.append(function)

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except BaseException as error:  # noqa: BLE001  # everybody who waits gets it as cause
            self._fail(error)
        finally:
            self._teardown()

    def _turn(self) -> None:
        now = time.monotonic()
        due = min((timer.due for timer in self._timers), default=now + 1.0)
        ready = dict(self._poller.poll(math.ceil(max(0.0, min(due - now, 1.0)) * 1000)))
        if self._wake in ready or self._queue:
            self._drain_wake()
            self._run_queue()
        for socket in ready:
            callback = self._callbacks.get(socket)  # an earlier callback of this turn may have closed it
            if callback is not None and socket != self._wake:
                callback()
        now = time.monotonic()
        for timer in list(self._timers):
            if timer.due <= now and timer in self._timers:
                timer.due = now + timer.interval
                timer.function()

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _run_queue(self) -> None:
        more = False
        for _ in range(len(self._queue)):
            with self._lock:
                function = self._queue.popleft()
                more = bool(self._queue)
            function()
        if more:
            os.eventfd_write(self._wake, 1)

    def _fail(self, error: BaseException) -> None:
        _logger.critical("the link service %s failed; all its links are lost", self._name, exc_info=error)
        with self._lock:
            self._failure = error
        failure = self._failure_error()
        for function in self._on_failure:
            try:
                function(failure)
            except Exception:
                _logger.exception("telling a waiter about the failure of %s failed", self._name)

    def _teardown(self) -> None:
        for function in reversed(self._at_end):
            try:
                function()
            except Exception:
                _logger.exception("ending %s did not go in order", self._name)
        with self._lock:
            self._open = False
            self._queue.clear()
            waiting, self._waiting = self._waiting, set()
            os.close(self._wake)
        error = self._failure_error() if self._failure is not None else ManagerClosedError("the manager was closed")
        for future in waiting:
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                future.set_exception(error)
        self._callbacks.clear()
        self._timers.clear()
        self._on_failure.clear()
        self._at_end.clear()
        self.context.destroy()  # every socket has its own linger; sockets left open are closed here

    def _failure_error(self) -> CacheError:
        error = CacheError(f"the link service failed: {type(self._failure).__name__}: {self._failure}")
        error.__cause__ = self._failure
        return error

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedProcessError(
                f"this manager was made by process {self._pid} and this is its forked child {os.getpid()}; links do not "
                "survive fork(): make a new CacheManager in the child, or start it with spawn"
            )

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure_error()
        if self._stopping or not self._open:
            raise ManagerClosedError("the manager was closed; its links are gone")


class _Timer:
    __slots__ = ("due", "function", "interval")

    def __init__(self, due: float, interval: float, function: Callable[[], None]) -> None:
        self.due, self.interval, self.function = due, interval, function


_services: weakref.WeakSet[Service] = weakref.WeakSet()
_EXIT_SECONDS = 1.0


def _stop_all_at_exit() -> None:
    """A program that ends without closing its managers ends their threads in order, and is not held up by them."""
    services = list(_services)
    for service in services:
        service.request_stop()
    deadline = time.monotonic() + _EXIT_SECONDS
    for service in services:
        service.stop(deadline)


atexit.register(_stop_all_at_exit)
