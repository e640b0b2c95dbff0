"""The vendor's engine object: one method for each native call, each with an `Answer` and never an exception.

Its calls may come from many threads; `finalize` alone may not run beside another one, so the calls are counted.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
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
        detail: What an exception said where the module raised one, or why no call was made.
    """

    status: int
    value: Any = None
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether the call succeeded."""
        return self.status == SUCCESS

    @property
    def short(self) -> str:
        """Number and name, for calls whose failure the general words of the status do not fit."""
        name = hixl_code(self.status).name
        detail = f" ({self.detail})" if self.detail else ""
        return f"status {self.status}{' ' if name else ''}{name}{detail}"

    def __str__(self) -> str:
        if self.ok or self.detail:
            return self.detail if self.ok else self.short
        entry = hixl_code(self.status)
        return f"{self.short} ({entry.words}){'; ' if entry.remedy else ''}{entry.remedy}"


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
        return self._call("register_mem", self._describe(base, nbytes), self._types[placement])

    def deregister(self, handle: int) -> Answer:
        """Undo it. The vendor's engine does so only while no peer is connected."""
        return self._call("deregister_mem", handle)

    def connect(self, remote: str, deadline: float) -> Answer:
        """Connect to a peer's engine. Takes 0.25 s beyond a deadline that is too near."""
        return self._call("connect", remote, _milliseconds(deadline))

    def disconnect(self, remote: str, deadline: float) -> Answer:
        """End a link and every transfer on it; the same about the deadline."""
        return self._call("disconnect", remote, _milliseconds(deadline))

    def submit(self, remote: str, op: Operation, elements: Sequence[Any]) -> Answer:
        """Start a transfer; the value is the request."""
        return self._call("transfer_async", remote, self._operations[op], elements)

    def poll(self, request: int) -> Answer:
        """How a transfer stands; the value is `waiting`, `completed` or something else. An end is told once."""
        return self._call("get_transfer_status", request)

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

    def _call(self, name: str, *args: object) -> Answer:
        with self._idle:
            if self._ended:
                return Answer(NOT_CONNECTED, detail="this engine is closed")
            self._calls += 1
        try:
            result = getattr(self._hixl, name)(*args)
        except Exception as error:  # noqa: BLE001  # whatever the module raises is one more way to fail
            _log.warning("hixl.%s raised %s: %s", name, type(error).__name__, error)
            return Answer(FAILED, detail=f"hixl.{name} raised {type(error).__name__}: {error}")
        finally:
            with self._idle:
                self._calls -= 1
                self._idle.notify_all()
        if isinstance(result, tuple):
            return Answer(int(result[0]), result[1])
        return Answer(int(result))


def start(module: ModuleType, options: HixlOptions, profile: HixlProfile) -> NativeEngine:
    """Initialise an engine on the calling thread's device, at the first port of the range that can be had.

    Raises:
        EngineError: It cannot be initialised, or no port is free; says the last reason.
    """
    native_options = options.native(profile)
    count = options.last_port - options.first_port + 1
    reason = Answer(FAILED, detail="every port is in use")
    attempts = 0
    for number in range(count):
        # Processes that start together begin at different ports.
        port = options.first_port + (os.getpid() + number) % count
        if not _is_free(options.host, port):
            continue
        hixl, address = module.Hixl(), options.address(port)
        try:
            answer = Answer(int(hixl.initialize(address, native_options)))
        except Exception as error:  # noqa: BLE001  # as in NativeEngine._call
            answer = Answer(FAILED, detail=f"hixl.initialize raised {type(error).__name__}: {error}")
        if answer.ok:
            return NativeEngine(module, hixl, address)
        reason = answer
        if answer.status in (PARAM_INVALID, UNSUPPORTED):
            break
        attempts += _is_free(options.host, port)
        if attempts == _ATTEMPTS_ON_FREE_PORTS:
            break
    raise EngineError(
        f"HIXL could not be initialised for {profile.soc} at {options.host}, ports {options.first_port} to "
        f"{options.last_port}, protocols {', '.join(profile.protocols)}: {reason}. The log of HIXL says more; see the "
        "options hixl.host, hixl.ports and hixl.local_comm_res",
        operation="hixl.initialize",
        code=reason.status,
    )


def _is_free(host: str, port: int) -> bool:
    """Whether a port can be listened on. To ask is cheap, and an attempt to initialise is not."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise EngineError(
                f"options['hixl.host'] is {host!r}, which is no address of this machine: {error.strerror}",
                operation="bind",
                code=error.errno,
            ) from error
        return False
    return True


def _milliseconds(deadline: float) -> int:
    return max(_SHORTEST_MS, min(_LONGEST_MS, int((deadline - time.monotonic()) * 1000)))
