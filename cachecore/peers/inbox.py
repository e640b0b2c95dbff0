"""Where notifications of peers wait for the program: bounded, read by polling or by one callback.

Putting one in runs in the service thread and never waits or calls the program; the callback has a thread of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from cachecore.engine import PeerIdentity
from cachecore.errors import CacheValueError, ManagerClosedError
from cachecore.notifications import Notification
from cachecore.peers.request_messages import Verdict
from cachecore.threads import start

__all__ = ["MAX_BYTES", "MAX_ENTRIES", "Inbox"]

_logger = logging.getLogger("cachecore.peers")
#: Notifications that may wait to be read.
MAX_ENTRIES: Final = 4096
#: Bytes of names and payloads that may.
MAX_BYTES: Final = 64 << 20
#: Lives of peers whose last number is remembered.
_REMEMBERED: Final = 4096


class Inbox:
    """Thread-safe.

    Args:
        name: Of the callback's thread.
        bind_thread: Called first in that thread.
        report: Takes (sender, what happened) when a callback raises; never waits.
    """

    def __init__(
        self, name: str, bind_thread: Callable[[], None] | None, report: Callable[[PeerIdentity, str], None]
    ) -> None:
        self._name, self._bind_thread, self._report = name, bind_thread, report
        self._changed = threading.Condition()
        self._items: deque[tuple[PeerIdentity, Notification]] = deque()
        self._bytes = 0
        self._last: OrderedDict[str, int] = OrderedDict()
        self._callback: Callable[[Notification], object] | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, sender: PeerIdentity, number: int, name: str, payload: bytes) -> tuple[Verdict, str]:
        """Take a notification in. Service thread.

        Returns:
            YES, or why it was not taken, with a sentence for the sender.
        """
        with self._changed:
            if self._closed:
                return Verdict.FAILED, "the manager is closing"
            last = self._last.get(sender.incarnation, -1)
            if number <= last:
                # It was under way on a connection that is gone, and whoever sent it knows that it may not arrive.
                return Verdict.NO, f"notification {last} of the same sender has arrived already"
            if len(self._items) >= MAX_ENTRIES or self._bytes + len(name) + len(payload) > MAX_BYTES:
                return Verdict.FULL, f"{len(self._items)} notifications of {self._bytes} bytes wait to be read there"
            self._last[sender.incarnation] = number
            self._last.move_to_end(sender.incarnation)
            if len(self._last) > _REMEMBERED:
                self._last.popitem(last=False)
            self._items.append((sender, Notification(sender.cluster_id, sender.incarnation, name, payload, number)))
            self._bytes += len(name) + len(payload)
            self._changed.notify_all()
            return Verdict.YES, ""

    def drain(self) -> list[Notification]:
        """Everything that waits.

        Raises:
            CacheValueError: A callback takes them.
        """
        with self._changed:
            self._check_polled()
            taken = [item for _, item in self._items]
            self._items.clear()
            self._bytes = 0
            return taken

    def wait(self, deadline: float) -> Notification | None:
        """The next one, None when there is none until `deadline` (on `time.monotonic()`).

        Raises:
            CacheValueError: A callback takes them.
            ManagerClosedError: The inbox was closed meanwhile.
        """
        with self._changed:
            self._check_polled()
            while not self._items or self._callback is not None:
                if self._closed:
                    raise ManagerClosedError("the manager was closed while this thread waited for a notification")
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return None
                self._changed.wait(min(remaining, 3600.0))
            return self._take()[1]

    def listen(self, callback: Callable[[Notification], object] | None) -> None:
        """Give every notification from now on, and those that wait, to `callback`; None = they wait to be polled.

        Raises:
            CacheError: No thread can be started for it; nothing has changed.
        """
        with self._changed:
            if callback is not None and self._thread is None and not self._closed:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                start(thread)
                self._thread = thread
            self._callback = callback
            self._changed.notify_all()

    def close(self) -> None:
        """Take nothing any more. What waits is dropped, a callback that runs is not interrupted."""
        with self._changed:
            self._closed, self._callback = True, None
            self._items.clear()
            self._bytes = 0
            self._changed.notify_all()

    def join(self, deadline: float) -> bool:
        """Whether no callback runs any more before `deadline` (on `time.monotonic()`), but for one that asks this."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, min(deadline - time.monotonic(), 3600.0)))
            return not thread.is_alive()
        return True

    # --- inside --------------------------------------------------------------------------------------------------

    def _check_polled(self) -> None:
        if self._callback is not None:
            raise CacheValueError(
                "notifications go to the callback that on_notification was given; call on_notification(None) to poll"
            )

    def _take(self) -> tuple[PeerIdentity, Notification]:
        sender, item = self._items.popleft()
        self._bytes -= len(item.name) + len(item.payload)
        return sender, item

    def _run(self) -> None:
        if self._bind_thread is not None:
            try:
                self._bind_thread()
            except Exception:
                _logger.exception("binding the thread %s to its device failed", self._name)
        while True:
            with self._changed:
                while self._callback is not None and not self._items:
                    self._changed.wait()
                if self._callback is None:
                    self._thread = None
                    return
                callback = self._callback
                sender, item = self._take()
            try:
                callback(item)
            except BaseException as error:  # whatever the program raises, the next one is delivered
                _logger.exception("the callback for notifications failed on %r", item)
                self._report(sender, f"{type(error).__name__}: {error}"[:1000])
            del callback, item
