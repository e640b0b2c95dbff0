"""The vendor's engine object: one method for each native call, each with an `Answer` and never an exception.

Its calls may come from many threads; `finalize` alone may not run beside another one, so the calls are counted.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple

from cachecore.engine import Operation
from cachecore.errors import EngineError
from cachecore.types import Placement
from cachecore_ascend_runtime.codes import hixl_code
from cachecore_ascend_runtime.hixl_options import HixlOptions
from cachecore_ascend_runtime.hixl_profile import HixlProfile

__all__ = [
    "ALREADY_CONNECTED",
    "FAILED",
    "NOT_CONNECTED",
    "PARAM_INVALID",
    "TIMEOUT",
    "UNSUPPORTED",
    "Answer",
    "NativeEngine",
    "start",
]

_log = logging.getLogger("cachecore")

SUCCESS: Final = 0
PARAM_INVALID: Final = 103900
TIMEOUT: Final = 103901
NOT_CONNECTED: Final = 103902
ALREADY_CONNECTED: Final = 103903
UNSUPPORTED: Final = 103905
FAILED: Final = 503900

#: The vendor's manual asks for more than 200 ms to connect; less fails although the peer is there.
_SHORTEST_MS: Final = 250
_LONGEST_MS: Final = 2**31 - 1
#: A port that is free before and after an attempt is not what made it fail: no use in trying all the others.
_ATTEMPTS_ON_FREE_PORTS: Final = 3


class Answer(NamedTuple):
    """What a native call returned.

    Attributes:
        status: The vendor's status, 0 for success.
        value: What came with it: a handle, a request, a state.
        detail: What an exception said, where the module raised one.
    """

    status: int
    value: Any = None
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether the call succeeded."""
        return self.status == SUCCESS

    def __str__(self) -> str:
        entry = hixl_code(self.status)
        words = self.detail or entry.words
        name = f" {entry.name}" if entry.name else ""
        return f"status {self.status}{name} ({words})" + (f"; {entry.remedy}" if entry.remedy else "")


class NativeEngine:
    """One initialised `Hixl` object.

    Args:
        module: The vendor's module.
        hixl: The object.
        address: Where it listens, "ip:port".
    """

    def __init__(self, module: ModuleType, hixl: Any, address: str) -> None:
        self.address = address
        #: Makes one element of a transfer: (local address, remote address, bytes).
        self.element: Callable[[int, int, int], Any] = module.TransferOpDesc
        self._hixl = hixl
        self._describe = module.MemDesc
        self._types = {Placement.DEVICE: module.MemType.MEM_DEVICE, Placement.HOST: module.MemType.MEM_HOST}
        self._operations = {Operation.READ: module.TransferOp.READ, Operation.WRITE: module.TransferOp.WRITE}
        states = module.TransferStatus
        self.waiting, self.completed, self.timed_out = states.WAITING, states.COMPLETED, states.TIMEOUT
        self._idle = threading.Condition()
        self._calls = 0
        self._ended = False

    def register(self, base: int, nbytes: int, placement: Placement) -> Answer:
        """Register memory; the value is the handle."""
        return self._pair(self._hixl.register_mem, lambda: (self._describe(base, nbytes), self._types[placement]))

    def deregister(self, handle: int) -> Answer:
        """Undo it. The vendor's engine does so only while no peer is connected."""
        return self._single(self._hixl.deregister_mem, handle)

    def connect(self, remote: str, deadline: float) -> Answer:
        """Connect to a peer's engine. Takes 0.25 s beyond a deadline that is too near."""
        return self._single(self._hixl.connect, remote, _milliseconds(deadline))

    def disconnect(self, remote: str, deadline: float) -> Answer:
        """End a link and every transfer on it."""
        return self._single(self._hixl.disconnect, remote, _milliseconds(deadline))

    def submit(self, remote: str, op: Operation, elements: Sequence[Any]) -> Answer:
        """Start a transfer; the value is the request."""
        return self._pair(self._hixl.transfer_async, lambda: (remote, self._operations[op], elements))

    def poll(self, request: int) -> Answer:
        """How a transfer stands; the value is `waiting`, `completed` or something else. An end is told once."""
        return self._pair(self._hixl.get_transfer_status, lambda: (request,))

    def finalize(self, deadline: float) -> bool:
        """End the engine, its links in both directions and its registrations. False: a call has not returned."""
        with self._idle:
            self._ended = True
            if not self._idle.wait_for(lambda: not self._calls, max(0.0, deadline - time.monotonic())):
                return False
        hixl, self._hixl = self._hixl, None
        if hixl is not None:
            hixl.finalize()
        return True

    def _single(self, function: Callable[..., Any], *args: object) -> Answer:
        with self._counted() as open_:
            if not open_:
                return _CLOSED
            try:
                return Answer(int(function(*args)))
            except Exception as error:
                return _raised(function, error)

    def _pair(self, function: Callable[..., Any], arguments: Callable[[], tuple[Any, ...]]) -> Answer:
        with self._counted() as open_:
            if not open_:
                return _CLOSED
            try:
                status, value = function(*arguments())
                return Answer(int(status), value)
            except Exception as error:
                return _raised(function, error)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[bool]:
        with self._idle:
            if self._ended:
                yield False
                return
            self._calls += 1
        try:
            yield True
        finally:
            with self._idle:
                self._calls -= 1
                self._idle.notify_all()
