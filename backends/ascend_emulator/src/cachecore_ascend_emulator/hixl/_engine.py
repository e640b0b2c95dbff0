"""``Hixl``: one transfer engine for each device of a process."""

from __future__ import annotations

import ctypes
import operator
import struct
import sys
from collections.abc import Mapping, Sequence
from itertools import chain

from cachecore_ascend_emulator.hixl import _native
from cachecore_ascend_emulator.hixl._background import BackgroundLinks
from cachecore_ascend_emulator.hixl._options import Line, OptionError, read_options
from cachecore_ascend_emulator.hixl._types import (
    FAILED,
    FEATURE_NOT_SUPPORTED,
    FEATURE_SUPPORTED,
    PARAM_INVALID,
    SUCCESS,
    AsyncConnectStatus,
    FeatureType,
    MemDesc,
    MemType,
    NotifyDesc,
    TransferArgs,
    TransferOp,
    TransferOpDesc,
    TransferStatus,
    unsigned,
)

_LONGEST = 1024  # characters of a notification's name and of its message


def get_capability(feature_type: FeatureType) -> tuple[int, int]:
    """Whether the library has a feature: status, and FEATURE_SUPPORTED or FEATURE_NOT_SUPPORTED."""
    feature = operator.index(feature_type)
    if feature < 0:
        return PARAM_INVALID, FEATURE_NOT_SUPPORTED
    known = feature in (FeatureType.AUTO_CONNECT, FeatureType.CLIENT_SERVER_COMM)
    return SUCCESS, FEATURE_SUPPORTED if known else FEATURE_NOT_SUPPORTED


class Hixl:
    """An emulated transfer engine. All methods return status codes as the vendor's do; none raises for them."""

    def __init__(self) -> None:
        self._engine = 0
        self._name = ""
        self._background = BackgroundLinks(self)

    def __repr__(self) -> str:
        return f"<emulated Hixl {self._name or 'not initialised'}>"

    def __del__(self) -> None:
        # While the interpreter ends, what finalize needs may be gone; the process ends the links all the same.
        if getattr(self, "_engine", 0) and not sys.is_finalizing():
            self.finalize()

    def initialize(self, local_engine: str, options: Mapping[str, str] = {}) -> int:
        """Start the engine on the calling thread's device. "ip:port" listens, "ip" does not."""
        _text("local_engine", local_engine)
        if self._engine:
            return SUCCESS
        try:
            settings = read_options(options, Line(_native.product_line()))
        except OptionError as error:
            _native.logger.warning("emulated hixl: initialize returns %d: %s", error.status, error)
            return error.status
        engine = ctypes.c_uint64()
        status = _native.call(
            "initialize", local_engine.encode(), settings.protocols, settings.flags, ctypes.byref(engine)
        )
        if status == SUCCESS:
            self._engine, self._name = engine.value, local_engine
        return status

    def finalize(self) -> None:
        """End all links and the engine."""
        self._background.close()
        if self._engine:
            engine, self._engine, self._name = self._engine, 0, ""
            _native.call("finalize", engine)

    def register_mem(self, mem_desc: MemDesc, mem_type: MemType, /) -> tuple[int, int]:
        """Register a range; all before connecting. The same range again gives the same handle."""
        _kind("mem_desc", mem_desc, MemDesc)
        _kind("mem_type", mem_type, MemType)
        handle = ctypes.c_uint64()
        status = _native.call(
            "register_mem", self._engine, mem_desc.addr, mem_desc.len, int(mem_type), ctypes.byref(handle)
        )
        return status, handle.value

    def deregister_mem(self, mem_handle: int) -> int:
        """Give a registration back. Fails while any peer is connected."""
        return _native.call("deregister_mem", self._engine, unsigned("mem_handle", mem_handle))

    def connect(self, remote_engine: str, timeout_in_millis: int = 1000) -> int:
        """Make a link over which this side reads and writes; it reaches what is registered now on both sides."""
        return _native.call("connect", self._engine, _text("remote_engine", remote_engine), _timeout(timeout_in_millis))

    def disconnect(self, remote_engine: str, timeout_in_millis: int = 1000) -> int:
        """End a link and every transfer of it."""
        return _native.call(
            "disconnect", self._engine, _text("remote_engine", remote_engine), _timeout(timeout_in_millis)
        )

    def connect_async(self, remote_engine: str, timeout_in_millis: int = 1000) -> int:
        """Connect in the background; `get_async_connect_status` tells how it went."""
        _text("remote_engine", remote_engine)
        return self._background.submit("connect", remote_engine, _timeout(timeout_in_millis))

    def disconnect_async(self, remote_engine: str, timeout_in_millis: int = 1000) -> int:
        """Disconnect in the background."""
        _text("remote_engine", remote_engine)
        return self._background.submit("disconnect", remote_engine, _timeout(timeout_in_millis))

    def get_async_connect_status(self, remote_engine: str) -> tuple[int, AsyncConnectStatus]:
        """Status of the call, and state of the task that was submitted last for this engine."""
        _text("remote_engine", remote_engine)
        return (SUCCESS if self._engine else FAILED), self._background.status(remote_engine)

    def transfer_sync(
        self, remote_engine: str, op: TransferOp, op_descs: Sequence[TransferOpDesc], timeout_in_millis: int = 1000
    ) -> int:
        """Read or write, and wait. After TIMEOUT or FAILED the link must be disconnected and connected again."""
        _kind("op", op, TransferOp)
        remote, elements = _text("remote_engine", remote_engine), _elements(op_descs)
        timeout = _timeout(timeout_in_millis)
        return _native.call("transfer_sync", self._engine, remote, int(op), elements, len(op_descs), timeout)

    def transfer_async(
        self,
        remote_engine: str,
        op: TransferOp,
        op_descs: Sequence[TransferOpDesc],
        args: TransferArgs | None = None,
    ) -> tuple[int, int]:
        """Read or write in the background: status, and the request to ask after."""
        _kind("op", op, TransferOp)
        if args is not None:
            _kind("args", args, TransferArgs)
        remote, elements = _text("remote_engine", remote_engine), _elements(op_descs)
        request = ctypes.c_uint64()
        status = _native.call(
            "transfer_async", self._engine, remote, int(op), elements, len(op_descs), ctypes.byref(request)
        )
        return status, request.value

    def get_transfer_status(self, req_id: int) -> tuple[int, TransferStatus]:
        """State of a request. COMPLETED and FAILED are told once."""
        state = ctypes.c_int(TransferStatus.FAILED)
        status = _native.call("get_transfer_status", self._engine, unsigned("req_id", req_id), ctypes.byref(state))
        return status, TransferStatus(state.value)

    def send_notify(self, remote_engine: str, notify: NotifyDesc, timeout_in_millis: int = 1000) -> int:
        """Send a notification over the link to `remote_engine`."""
        _kind("notify", notify, NotifyDesc)
        remote = _text("remote_engine", remote_engine)
        name, message = _text("name", notify.name), _text("notify_msg", notify.notify_msg)
        timeout = _timeout(timeout_in_millis)
        if max(len(notify.name), len(notify.notify_msg)) > _LONGEST or b"\0" in name + message:
            return PARAM_INVALID
        return _native.call("send_notify", self._engine, remote, name, message, timeout)

    def get_notifies(self) -> tuple[int, list[NotifyDesc]]:
        """Take all notifications that other engines sent to this one, in the order in which they came."""
        name = ctypes.create_string_buffer(_native.LONGEST_TEXT)
        message = ctypes.create_string_buffer(_native.LONGEST_TEXT)
        found = ctypes.c_int()
        taken: list[NotifyDesc] = []
        while True:
            status = _native.call("take_notify", self._engine, name, message, ctypes.byref(found))
            if status != SUCCESS or not found.value:
                return status, taken
            taken.append(NotifyDesc(name.value.decode(), message.value.decode()))


def _text(name: str, value: str) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, not {type(value).__name__}")
    return value.encode()


def _kind(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, not {type(value).__name__}")


def _timeout(value: int) -> int:
    number = operator.index(value)
    if not -(2**31) <= number < 2**31:
        raise TypeError(f"timeout_in_millis is {number}; it must be a 32-bit integer")
    return number


def _elements(op_descs: Sequence[TransferOpDesc]) -> bytes:
    for desc in op_descs:
        _kind("op_descs", desc, TransferOpDesc)
    numbers = chain.from_iterable((desc.local_addr, desc.remote_addr, desc.len) for desc in op_descs)
    return struct.pack(f"{3 * len(op_descs)}Q", *numbers)
