"""Starting threads where the process, its user or its container may have no room for one more; a lock that says who erred."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from cachecore.errors import CacheError

__all__ = ["RefusingLock", "start", "start_or_log"]

_log = logging.getLogger("cachecore")


class RefusingLock:
    """A lock that refuses the thread that has it already, which would wait for itself for ever.

    Args:
        refusal: What the `CacheError` says.
    """

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal
        self._lock = threading.Lock()
        self._owner = 0

    def __enter__(self) -> None:
        if self._owner == threading.get_ident():
            raise CacheError(self._refusal)
        self._lock.acquire()
        self._owner = threading.get_ident()

    def __exit__(self, *exception: object) -> None:
        self._owner = 0
        self._lock.release()


def start(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        CacheError: There is no room for it.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise CacheError(
            f"the thread {thread.name} could not be started: {error}. End other threads, or raise the limit of this user "
            "or container"
        ) from error


def start_or_log(target: Callable[[], None], name: str) -> threading.Thread | None:
    """A daemon thread that was started; None where there was no room for it: the caller has to try again later."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        start(thread)
    except CacheError as error:
        _log.error("%s; what it is for waits", error)
        return None
    return thread
