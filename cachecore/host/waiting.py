"""Waiting for what a caller calls an event on a machine without an accelerator."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from typing import Any, Final

from cachecore.driver import event_is_no_event
from cachecore.engine import CancelToken
from cachecore.errors import CacheError, CacheTimeoutError, TransferCancelledError

__all__ = ["wait_event"]

#: Seconds between two looks at the cancel flag.
_SLICE: Final = 0.05
#: Seconds between two questions to an event that can only be asked.
_FIRST_PAUSE: Final = 50e-6
_LONGEST_PAUSE: Final = 1e-3


def wait_event(event: object, deadline: float, cancel: CancelToken | None) -> None:
    """Wait for an event; see `BackendDriver.wait_event`.

    Args:
        event: A `threading.Event`; a `concurrent.futures.Future`, which must end without an exception; or any object
            with `synchronize()`, which is asked by `query()` where it has that, because `synchronize` knows no deadline.
        deadline: On `time.monotonic()`.
        cancel: Looked at while waiting, except inside `synchronize`.
    """
    if isinstance(event, concurrent.futures.Future):
        _wait_future(event, deadline, cancel)
    elif isinstance(event, threading.Event):
        while not event.is_set():
            event.wait(_slice(deadline, cancel))
    elif callable(getattr(event, "query", None)) and callable(getattr(event, "synchronize", None)):
        _ask(event, deadline, cancel)
    elif callable(getattr(event, "synchronize", None)):
        event.synchronize()  # type: ignore[attr-defined]  # looked up above
    else:
        raise event_is_no_event(event, "a threading.Event, a concurrent.futures.Future or an object with synchronize()")


def _wait_future(event: concurrent.futures.Future[Any], deadline: float, cancel: CancelToken | None) -> None:
    while not event.done():
        concurrent.futures.wait([event], _slice(deadline, cancel))
    if event.cancelled():
        raise CacheError("the future given as after was cancelled: what it stands for never happened")
    error = event.exception()
    if error is not None:
        raise CacheError(
            f"the future given as after ended with {type(error).__name__}: {error}; what it stands for never happened"
        ) from error


def _ask(event: Any, deadline: float, cancel: CancelToken | None) -> None:
    pause = _FIRST_PAUSE
    while not event.query():
        time.sleep(min(pause, _slice(deadline, cancel)))
        pause = min(2 * pause, _LONGEST_PAUSE)


def _slice(deadline: float, cancel: CancelToken | None) -> float:
    """Seconds to wait before the next look; raises where there is nothing left to wait for."""
    if cancel is not None and cancel.cancelled:
        raise TransferCancelledError("the transfer was cancelled while it waited for an event; nothing moved")
    left = deadline - time.monotonic()
    if left <= 0:
        raise CacheTimeoutError("the event given as after did not happen before the deadline")
    return min(left, _SLICE)
