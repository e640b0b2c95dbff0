"""Who a peer of this machine is, proven and not believed.

An endpoint says process id, address of 16 random bytes, and the bytes. Reading the bytes back from that process proves
that it is the one that made the endpoint: process ids are reused, exec keeps them, and another container has the same
ones. Where the kernel forbids to read, the process proves itself over its socket, see `cachecore.host.sharing`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import threading
import time
from pathlib import Path
from typing import Annotated

import msgspec

from cachecore import _core
from cachecore._core import Nonce
from cachecore.errors import LinkFailedError
from cachecore.planning import Geometry, plan_entry

__all__ = ["Endpoint", "Process", "decode_endpoint", "make_endpoint"]

_Word = Annotated[int, msgspec.Meta(ge=0)]


_NONCE_BYTES = 16


class Endpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """What a peer needs to find an engine. The nonce comes last, so that a cut endpoint is noticed.

    Attributes:
        boot: Random id of this boot of the machine, empty when the system does not say.
        namespace: Number of the pid namespace, 0 when the system does not say.
        pid: The process, in that namespace.
        socket: Name of its abstract socket.
        nonce_address: Where its nonce is.
        nonce: The nonce.
    """

    boot: str
    namespace: _Word
    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    socket: Annotated[bytes, msgspec.Meta(min_length=1, max_length=64)]
    nonce_address: Annotated[int, msgspec.Meta(ge=1)]
    nonce: Annotated[bytes, msgspec.Meta(min_length=_NONCE_BYTES, max_length=_NONCE_BYTES)]


def make_endpoint(socket: bytes, nonce: Nonce) -> Endpoint:
    """The endpoint of this process."""
    return Endpoint(_boot(), _namespace(), os.getpid(), socket, nonce.address, nonce.value)


def decode_endpoint(data: bytes) -> Endpoint:
    """Read an endpoint that came over a link.

    Raises:
        LinkFailedError: It is none.
    """
    try:
        endpoint = msgspec.msgpack.decode(data, type=Endpoint)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise LinkFailedError(f"the endpoint of {len(data)} bytes is not one of engine local/1: {error}") from error
    if endpoint.nonce_address + _NONCE_BYTES > 2**64:
        raise LinkFailedError(f"the endpoint has its nonce at {endpoint.nonce_address:#x}, past the address space")
    return endpoint


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


class Process:
    """Another process, held by a pidfd, so that its end is seen and its number is not confused with a later one's.

    Raises:
        LinkFailedError: There is no such process here; the message says why that may be.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.pid = endpoint.pid
        self._endpoint = endpoint
        self._lock = threading.Lock()
        boot = _boot()
        if endpoint.boot and boot and endpoint.boot != boot:
            raise LinkFailedError("the peer runs on another machine; engine local/1 serves peers of this machine")
        try:
            self._fd = _pidfd_open(endpoint.pid)
        except ProcessLookupError as error:
            raise LinkFailedError(f"{self._stranger()}: no such process here") from error
        except OSError as error:
            raise LinkFailedError(
                f"process {endpoint.pid} cannot be watched: pidfd_open says {os.strerror(error.errno or 0)}. "
                f"{_PIDFD_ADVICE.get(error.errno or 0, 'It needs Linux 5.3 or later')}"
            ) from error

    def check_nonce(self, deadline: float) -> bool:
        """Prove by reading that the process is the one that made the endpoint.

        Returns:
            False when the kernel does not let this process read it, so that nothing is proven.

        Raises:
            LinkFailedError: It is another process, or it has ended.
        """
        seen = bytearray(_NONCE_BYTES)
        plan = plan_entry(
            Geometry([_core.buffer_address(seen)], blocks=1, block_bytes=_NONCE_BYTES),
            Geometry([self._endpoint.nonce_address], blocks=1, block_bytes=_NONCE_BYTES),
            0,
            0,
        )
        report = _core.vm_read(plan, self.pid, self._endpoint.nonce_address, self._endpoint.nonce, deadline)
        if report.done:
            return True
        if report.cause == "not permitted":
            return False
        if report.cause == "deadline":
            raise LinkFailedError("the deadline passed before the peer had proven who it is")
        raise LinkFailedError(f"{self._stranger()}: {report.cause}")

    @property
    def alive(self) -> bool | None:
        """False only when the process has ended, as a zombie too; None when this object was closed."""
        with self._lock:  # the number of a closed descriptor may be another file's by now
            if self._fd < 0:
                return None
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            return not poll.poll(0)

    def close(self) -> None:
        """Let go of it."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    def _stranger(self) -> str:
        here = _namespace()
        text = f"process {self.pid} is not a process of this machine that made this endpoint"
        if here and self._endpoint.namespace and here != self._endpoint.namespace:
            return f"{text}; the peer runs in another container (pid namespace {self._endpoint.namespace}, here {here})"
        return f"{text}; it has ended, or the peer runs in another container or on another machine"


def _pidfd_open(pid: int) -> int:
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    # Pythons that were built with old kernel headers lack it; the number is the same on x86-64 and aarch64.
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.syscall(ctypes.c_long(434), ctypes.c_int(pid), ctypes.c_uint(0)))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


_PIDFD_ADVICE = {
    errno.EMFILE: "All descriptors of this process are in use; raise RLIMIT_NOFILE",
    errno.ENFILE: "All descriptors of this machine are in use",
    errno.EPERM: "A seccomp filter of the container forbids pidfd_open; allow it",
    errno.ENOSYS: "It needs Linux 5.3 or later, and a seccomp filter that knows it",
}


def check_deadline(deadline: float, what: str) -> None:
    """Refuse to begin something when its time is over.

    Raises:
        LinkFailedError: The deadline has passed.
    """
    if time.monotonic() >= deadline:
        raise LinkFailedError(f"the deadline passed before {what}")
