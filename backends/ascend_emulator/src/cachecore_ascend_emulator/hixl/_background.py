"""Links made and ended in the background, in the order of the calls."""

from __future__ import annotations

import queue
import threading
import weakref
from typing import TYPE_CHECKING

from cachecore_ascend_emulator.hixl._types import PARAM_INVALID, RESOURCE_EXHAUSTED, SUCCESS, AsyncConnectStatus

if TYPE_CHECKING:
    from cachecore_ascend_emulator.hixl._engine import Hixl

_CAPACITY = 128

_STATES = {
    "connect": (AsyncConnectStatus.CONNECT_PENDING, AsyncConnectStatus.CONNECTING, AsyncConnectStatus.CONNECTED),
    "disconnect": (
        AsyncConnectStatus.DISCONNECT_PENDING,
        AsyncConnectStatus.DISCONNECTING,
        AsyncConnectStatus.NOT_CONNECT,
    ),
}


class BackgroundLinks:
    """One thread that connects and disconnects; it starts with the first task."""

    def __init__(self, engine: Hixl) -> None:
        self._engine = weakref.ref(engine)  # the engine owns this object
        self._tasks: queue.Queue[tuple[str, str, int] | None] = queue.Queue(_CAPACITY)
        self._states: dict[str, AsyncConnectStatus] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, action: str, remote: str, timeout_ms: int) -> int:
        """Queue "connect" or "disconnect"."""
        if timeout_ms <= 0:
            return PARAM_INVALID
        with self._lock:
            try:
                self._tasks.put_nowait((action, remote, timeout_ms))
            except queue.Full:
                return RESOURCE_EXHAUSTED
            self._states[remote] = _STATES[action][0]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="emulated hixl links", daemon=True)
                self._thread.start()
        return SUCCESS

    def status(self, remote: str) -> AsyncConnectStatus:
        """State of the latest task for this engine."""
        with self._lock:
            return self._states.get(remote, AsyncConnectStatus.NOT_CONNECT)

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._tasks.put(None)
            if thread is not threading.current_thread():
                thread.join()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            action, remote, timeout_ms = task
            engine = self._engine()
            if engine is None:
                return
            _, during, after = _STATES[action]
            with self._lock:
                self._states[remote] = during
            status = (
                engine.connect(remote, timeout_ms) if action == "connect" else engine.disconnect(remote, timeout_ms)
            )
            if action == "connect" and status != SUCCESS:
                after = AsyncConnectStatus.CONNECT_FAILED
            with self._lock:
                self._states[remote] = after
            del engine  # or the last reference would live on in this waiting thread
