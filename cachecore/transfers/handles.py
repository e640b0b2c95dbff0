"""What an asynchronous call returns: waiting for a transfer, cancelling it, and how far it is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from cachecore import _arguments as arguments
from cachecore.engine import CancelToken
from cachecore.errors import (
    CacheTimeoutError,
    CacheValueError,
    ForkedProcessError,
    TransferCancelledError,
    TransferTimeoutError,
)
from cachecore.transfers.pool import Pool
from cachecore.transfers.requests import Request, Step
from cachecore.transfers.running import Transfers

__all__ = ["Progress", "Transfer"]

_log = logging.getLogger("cachecore")


class Progress(NamedTuple):
    """How far a transfer is.

    Attributes:
        layers_done: Layers whose bytes are where they belong and can be trusted.
        layers: Layers in all.
        nbytes: Bytes of the layers that are done.
    """

    layers_done: int
    layers: int
    nbytes: int


class Transfer:
    """A transfer that was started by one of the `..._async` methods. Many threads may wait for one.

    `await transfer` works in any asyncio loop; a task that is cancelled while it waits cancels the transfer, and goes on
    when nothing moves any more.
    """

    def __init__(
        self,
        transfers: Transfers,
        request: Request,
        after: object = None,
        layerwise: bool = True,
        gate: Callable[[int, CancelToken], None] | None = None,
    ) -> None:
        self._pid = os.getpid()
        self._transfers = transfers
        self._gate = gate
        self._after = tuple(after) if isinstance(after, list) else after  # the caller may use the list again
        #: See `Job`.
        self.deadline = request.deadline
        self._with = str(request.end)
        #: See `Job`.
        self.cluster_id = request.end.cluster_id
        self._names: Sequence[object] = request.matched.names
        self._cancel = CancelToken()
        self._changed = threading.Condition(threading.Lock())
        self._callbacks: list[Callable[[Transfer], object]] = []
        self._by_layer = layerwise
        self._layers_done = self._nbytes = 0
        self._finished = False
        self._error: BaseException | None = None
        #: None once it has ended, so that a handle keeps neither blocks nor caches.
        self._request: Request | None = request
        self._steps: Sequence[Step] | None = request.by_layer() if layerwise else None
        self._pool: Pool | None = None
        self._number = 0

    # --- what the caller uses ----------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._finished

    @property
    def progress(self) -> Progress:
        """How far it is."""
        with self._changed:
            return Progress(self._layers_done, len(self._names), self._nbytes)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it has ended.

        Args:
            timeout: Seconds, None = until its own deadline has ended it.

        Raises:
            CacheTimeoutError: It had not ended by then; it goes on.
            CacheError: What the call that is not asynchronous would have raised.
            TransferCancelledError: It was cancelled, with what had landed.
            ForkedProcessError: This process is a fork of the one that started it; the threads are there.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until it has ended; returns its error, None after a success.

        Args:
            timeout: As in `wait`.

        Raises:
            CacheTimeoutError: It had not ended by then; it goes on.
        """
        self._check_process()
        with self._changed:
            self._wait_for(lambda: self._finished, timeout, "it")
            return self._error

    def wait_layer(self, layer: int | str, timeout: float | None = None) -> None:
        """Wait until one layer has arrived, so that work on it can begin while later ones move.

        A transfer goes layer by layer where it was asked to (`layerwise=True`), and where somebody waits for a layer
        before it has started; else all layers arrive together, at its end.

        Args:
            layer: Position among the layers that move, counted from 0; or its name, for caches of `register_layers`.
            timeout: As in `wait`.

        Raises:
            CacheTypeError, CacheValueError: There is no such layer.
            CacheTimeoutError: It had not arrived by then; the transfer goes on.
            CacheError: The transfer ended before the layer had arrived.
        """
        if isinstance(layer, str):
            if layer not in self._names:
                shown = ", ".join(map(repr, self._names[:8])) + (", ..." if len(self._names) > 8 else "")
                raise CacheValueError(
                    f"layer is {layer!r}, which is none of the layers that move ({shown}); give the name of one of them, or "
                    "its position"
                )
            position = self._names.index(layer)
        else:
            position = arguments.integer("layer", layer, 0, len(self._names) - 1)
        self._check_process()
        with self._changed:
            self._by_layer = True
            self._wait_for(lambda: self._finished or self._layers_done > position, timeout, f"layer {layer}")
            if self._layers_done <= position and self._error is not None:
                raise self._error

    def cancel(self) -> None:
        """Ask it to end; returns at once. `wait` tells what became of it: it may have finished before.

        Where an engine cannot stop, a transfer ends at the next layer or at its deadline.
        """
        self._check_process()
        self._cancel.cancel()
        pool = self._pool
        if pool is not None and pool.remove(self):
            self._finish(TransferCancelledError(f"the transfer with {self._with} was cancelled before it started"))

    def add_done_callback(self, callback: Callable[[Transfer], object]) -> None:
        """Call a function with this transfer when it has ended; at once, if it has.

        It is called in the thread that ended the transfer and must return quickly. What it raises is logged.
        """
        if not callable(callback):
            raise arguments.wrong_type("callback", callback, "a function that takes the transfer")
        self._check_process()
        with self._changed:
            if not self._finished:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def __await__(self) -> Generator[Any, None, None]:
        return self._awaited().__await__()

    async def _awaited(self) -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def tell(_: Transfer) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody awaits any more
                loop.call_soon_threadsafe(ended.set)

        self.add_done_callback(tell)
        cancelled: asyncio.CancelledError | None = None
        # Whoever is told that this was cancelled may reuse the blocks: not before nothing writes them any more, however
        # often it is cancelled.
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
                self.cancel()
        if cancelled is not None:
            raise cancelled
        if self._error is not None:
            raise self._error

    def __repr__(self) -> str:
        state = "running" if not self._finished else "done" if self._error is None else type(self._error).__name__
        done, layers, nbytes = self.progress
        return f"<Transfer with {self._with}, {state}, {done} of {layers} layers, {nbytes} bytes>"

    # --- what the pool uses ------------------------------------------------------------------------------------------

    def start(self, pool: Pool, apart: str = "") -> None:
        """Hand it to the pool; from now on a barrier waits for it.

        Args:
            pool: Of the manager.
            apart: Name of a thread of its own, for a transfer that waits for what the caller does; empty = one of the
                pool's threads.

        Raises:
            ManagerClosedError: The manager is being closed.
        """
        self._number = self._transfers.called(self.cluster_id)
        self._pool = pool
        try:
            if apart:
                pool.apart(self, apart)
            else:
                pool.submit(self)
        except BaseException:
            self._pool = None
            self._transfers.ended(self.cluster_id, self._number)
            raise

    def run(self) -> None:
        """See `Job`."""
        request = self._request
        assert request is not None, "a job runs once"
        try:
            request.check_unmoved()
            if self._by_layer and self._steps is None and len(self._names) > 1:
                self._steps = request.by_layer()
            self._transfers.run(
                request,
                steps=self._steps,
                cancel=self._cancel,
                after=self._after,
                before=self._before if self._gate is not None else None,
                landed=self._landed,
                number=self._number,
            )
        except BaseException as error:  # noqa: BLE001  # it belongs to whoever waits
            del request
            traceback.clear_frames(error.__traceback__)  # they refer to caches and blocks, and the error may be kept
            self._finish(error)
        else:
            self._finish(None)

    def abandon(self) -> None:
        """See `Job`."""
        self._finish(
            TransferCancelledError(
                f"the manager was closed before the transfer with {self._with} started; nothing moved"
            )
        )

    def expire(self) -> None:
        """See `Job`."""
        self._finish(
            TransferTimeoutError(
                f"the transfer with {self._with} did not start: all threads were busy until its deadline. Nothing moved; "
                'give a longer timeout, or more threads with the option "manager.transfer_threads"'
            )
        )

    # --- inside ------------------------------------------------------------------------------------------------------

    def _before(self, position: int) -> None:
        if self._gate is not None:
            self._gate(position, self._cancel)

    def _landed(self, step: Step) -> None:
        with self._changed:
            self._layers_done += step.layers
            self._nbytes += step.plan.nbytes
            self._changed.notify_all()

    def _finish(self, error: BaseException | None) -> None:
        transfers = self._transfers
        with self._changed:
            if self._finished:
                return
            self._error = error
            self._finished = True
            self._request = self._steps = self._after = self._pool = self._gate = None
            callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        transfers.ended(self.cluster_id, self._number)
        if isinstance(error, TransferCancelledError):
            transfers.counters.cancellation()
        with contextlib.ExitStack() as calls:  # one that raises SystemExit or the like does not keep the others from it
            for callback in reversed(callbacks):
                calls.callback(self._call, callback)

    def _call(self, callback: Callable[[Transfer], object]) -> None:
        try:
            callback(self)
        except Exception:  # noqa: BLE001
            _log.exception("a callback of a transfer raised")

    def _check_process(self) -> None:
        if not self._finished and os.getpid() != self._pid:
            raise ForkedProcessError(
                f"this transfer was started by process {self._pid} and this is its fork {os.getpid()}, where no thread "
                "moves it: wait for it in the process that started it"
            )

    def _wait_for(self, condition: Callable[[], bool], timeout: float | None, what: str) -> None:
        """With the lock held."""
        end = None if timeout is None else arguments.deadline("timeout", timeout)
        while not condition():
            left = threading.TIMEOUT_MAX if end is None else end - time.monotonic()
            if left <= 0:
                raise CacheTimeoutError(
                    f"{what} has not arrived within {timeout} s; the transfer with {self._with} goes on: wait again, or "
                    "cancel it"
                )
            self._changed.wait(min(left, threading.TIMEOUT_MAX))
