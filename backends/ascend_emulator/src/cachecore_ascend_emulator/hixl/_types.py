"""Status codes, enumerations and descriptions of the transfer module."""

from __future__ import annotations

import operator
from enum import IntEnum

SUCCESS = 0
PARAM_INVALID = 103900
TIMEOUT = 103901
NOT_CONNECTED = 103902
ALREADY_CONNECTED = 103903
NOTIFY_FAILED = 103904
UNSUPPORTED = 103905
RESOURCE_EXHAUSTED = 203900
FAILED = 503900

FEATURE_SUPPORTED = 1
FEATURE_NOT_SUPPORTED = 0


class MemType(IntEnum):
    """Where registered memory is."""

    MEM_DEVICE = 0
    MEM_HOST = 1


class TransferOp(IntEnum):
    """Read from the remote side, or write to it."""

    READ = 0
    WRITE = 1


class TransferStatus(IntEnum):
    """State of an asynchronous transfer. TIMEOUT is never told."""

    WAITING = 0
    COMPLETED = 1
    TIMEOUT = 2
    FAILED = 3


class AsyncConnectStatus(IntEnum):
    """State of a link made or ended in the background."""

    NOT_CONNECT = 0
    CONNECT_PENDING = 1
    CONNECTING = 2
    CONNECTED = 3
    CONNECT_FAILED = 4
    DISCONNECT_PENDING = 5
    DISCONNECTING = 6


class FeatureType(IntEnum):
    """What `get_capability` can be asked about."""

    AUTO_CONNECT = 0
    CLIENT_SERVER_COMM = 1


def unsigned(name: str, value: int) -> int:
    """`value` as an unsigned 64-bit integer.

    Raises:
        TypeError: It is none. The vendor's module raises this for a number out of range too.
    """
    number = operator.index(value)
    if not 0 <= number < 2**64:
        raise TypeError(f"{name} is {number}; it must be from 0 to 2**64 - 1")
    return number


class MemDesc:
    """A range of memory: address and length in bytes."""

    __slots__ = ("addr", "len")

    def __init__(self, addr: int, len: int) -> None:
        self.addr = unsigned("addr", addr)
        self.len = unsigned("len", len)

    def __repr__(self) -> str:
        return f"MemDesc(addr={self.addr:#x}, len={self.len})"


class TransferOpDesc:
    """One element of a transfer: local address, remote address, length in bytes."""

    __slots__ = ("len", "local_addr", "remote_addr")

    def __init__(self, local_addr: int, remote_addr: int, len: int) -> None:
        self.local_addr = unsigned("local_addr", local_addr)
        self.remote_addr = unsigned("remote_addr", remote_addr)
        self.len = unsigned("len", len)

    def __repr__(self) -> str:
        return f"TransferOpDesc(local_addr={self.local_addr:#x}, remote_addr={self.remote_addr:#x}, len={self.len})"


class TransferArgs:
    """Optional arguments of an asynchronous transfer."""

    __slots__ = ("user_data",)

    def __init__(self) -> None:
        self.user_data = 0


class NotifyDesc:
    """A notification: name and message, at most 1024 characters each."""

    __slots__ = ("name", "notify_msg")

    def __init__(self, name: str, notify_msg: str) -> None:
        self.name = name
        self.notify_msg = notify_msg

    def __repr__(self) -> str:
        return f"NotifyDesc(name={self.name!r}, notify_msg={self.notify_msg!r})"
