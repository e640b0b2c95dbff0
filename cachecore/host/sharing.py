"""Hands memory files to peers: descriptors over a socket, because no other way crosses a ptrace restriction.

The owner runs one small thread that answers on an abstract socket. Whoever asks must be of the same user, which the
kernel says, and know the nonce of the endpoint, which travels over the encrypted link only. The asking side in turn
lets the kernel say which process listens.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import secrets
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec

from cachecore.errors import LinkFailedError
from cachecore.host.identity import Endpoint

__all__ = ["BlockServer", "SharedRange", "fetch", "new_socket_name"]

_log = logging.getLogger("cachecore")

_Word = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
#: Blocks of one message; the kernel takes 253 descriptors.
_MOST = 64
#: Seconds for which a peer may keep the thread waiting.
_PATIENCE = 1.0
#: Milliseconds between two looks at whether somebody who waits for an answer was cancelled.
_LOOK_MS = 50


class SharedRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The descriptor of a region that lies in a block of the owner's driver.

    Attributes:
        block: Number of the block.
        offset: Where in it the region starts, in bytes.
        block_bytes: Bytes of the whole block.
    """

    block: _Word
    offset: _Word
    block_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class _Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    nonce: Annotated[bytes, msgspec.Meta(max_length=64)]
    blocks: Annotated[list[_Word], msgspec.Meta(max_length=_MOST)]


class _Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Which of the blocks asked for come with it, in order; the others are not served (any more)."""

    blocks: Annotated[list[_Word], msgspec.Meta(max_length=_MOST)]


def new_socket_name() -> bytes:
    """A name in the abstract namespace that nobody can have taken before."""
    return b"cachecore-" + secrets.token_hex(16).encode()


def _credentials(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the other side, as the kernel says."""
    pid, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


class BlockServer:
    """The owner's side.

    Args:
        name: Of its socket.
        nonce: What a peer must know.
        duplicate: Block number -> new descriptor, or None for blocks that are not offered.
    """

    def __init__(self, name: bytes, nonce: bytes, duplicate: Callable[[int], int | None]) -> None:
        self._nonce = nonce
        self._duplicate = duplicate
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.bind(b"\0" + name)
            self._socket.listen(16)
        except BaseException:
            self._socket.close()
            raise
        self._closed = threading.Event()
        _servers.add(self)
        self._thread = threading.Thread(target=self._run, name="cachecore-local", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends accept()
        self._thread.join(2 * _PATIENCE)
        self._socket.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if self._closed.is_set():
                    return
                # For example all descriptors in use; the peer asks again or reads another way.
                _log.warning("engine local/1 could not take a peer that asks for memory: %s", error)
                self._closed.wait(0.1)
                continue
            with connection:
                try:
                    self._serve(connection)
                except (OSError, msgspec.MsgspecError, RecursionError) as error:
                    _log.warning("engine local/1 did not hand memory to a process that asked: %s", error)

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(_PATIENCE)
        pid, uid = _credentials(connection)
        if uid != os.geteuid():
            _log.warning("engine local/1 refused memory to process %d of user %d", pid, uid)
            return
        while data := connection.recv(4096):
            request = msgspec.msgpack.decode(data, type=_Request)
            if not hmac.compare_digest(request.nonce, self._nonce):
                _log.warning("engine local/1 refused memory to process %d, which does not know the nonce", pid)
                return
            with contextlib.ExitStack() as stack:
                sent, fds = [], []
                for block in request.blocks:
                    fd = self._duplicate(block)
                    if fd is not None:
                        stack.callback(os.close, fd)
                        sent.append(block)
                        fds.append(fd)
                socket.send_fds(connection, [msgspec.msgpack.encode(_Answer(sent))], fds)

    def after_fork(self) -> None:
        """In a child: let go of the socket without shutting it down, which would end it for the parent too."""
        self._closed.set()
        self._socket.close()


_servers: weakref.WeakSet[BlockServer] = weakref.WeakSet()


def _after_fork() -> None:
    for server in list(_servers):
        server.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def fetch(
    endpoint: Endpoint, blocks: Sequence[int], deadline: float, cancelled: Callable[[], bool] = lambda: False
) -> dict[int, int]:
    """Ask the owner for memory files; also proves, with no blocks, that the owner is who it says.

    Args:
        endpoint: The owner's.
        blocks: Numbers of blocks.
        deadline: On `time.monotonic()`.
        cancelled: Whether to give up before the deadline; asked while waiting.

    Returns:
        Descriptors by block number, which the caller closes; blocks that are gone are missing.

    Raises:
        LinkFailedError: The owner does not answer, or somebody else does.
    """
    found: dict[int, int] = {}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            _arm(connection, deadline)
            connection.connect(b"\0" + endpoint.socket)
            pid, _ = _credentials(connection)
            if pid != endpoint.pid:
                raise LinkFailedError(f"process {pid} listens on the socket of process {endpoint.pid}")
            for start in range(0, max(len(blocks), 1), _MOST):
                _arm(connection, deadline)
                connection.send(msgspec.msgpack.encode(_Request(endpoint.nonce, list(blocks[start : start + _MOST]))))
                _wait(connection, deadline, cancelled)
                _take(connection, blocks[start : start + _MOST], found)
    except BaseException as error:
        for fd in found.values():
            os.close(fd)
        if isinstance(error, OSError | msgspec.MsgspecError | RecursionError) and not isinstance(
            error, LinkFailedError
        ):
            raise LinkFailedError(
                f"process {endpoint.pid} does not hand out its memory over its socket "
                f"({type(error).__name__}: {error}); it has another network namespace, another user, is stopped or busy"
            ) from error
        raise
    return found


def _arm(connection: socket.socket, deadline: float) -> None:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("the deadline passed")
    connection.settimeout(min(remaining, 3600.0))


def _wait(connection: socket.socket, deadline: float, cancelled: Callable[[], bool]) -> None:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while not poll.poll(_LOOK_MS):
        _arm(connection, deadline)
        if cancelled():
            raise InterruptedError("the transfer was cancelled")


def _take(connection: socket.socket, blocks: Sequence[int], found: dict[int, int]) -> None:
    data, fds, _, _ = socket.recv_fds(connection, 4096, _MOST, socket.MSG_CMSG_CLOEXEC)
    # Taken over before anything is checked, so that none is lost.
    try:
        if not data:
            raise ConnectionError("it closed the connection, as it does with strangers")
        sent = msgspec.msgpack.decode(data, type=_Answer).blocks
        if len(sent) != len(fds) or not set(sent) <= set(blocks) or len(set(sent)) != len(sent):
            raise ConnectionError(f"it sent {len(fds)} files for {len(sent)} blocks")
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    found.update(zip(sent, fds, strict=True))
