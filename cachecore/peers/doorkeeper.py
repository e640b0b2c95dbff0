"""Shut and open a listening TCP socket in the kernel, without touching the connections it has accepted.

A socket filter (classic BPF, see socket(7)) that drops everything is put on the listening socket. The first packet of a
new connection then gets no answer; its sender repeats it after a second or so, as if the packet had been lost.
"""

from __future__ import annotations

import ctypes
import socket
import struct

__all__ = ["open", "shut"]

_SO_ATTACH_FILTER = 26
_SO_DETACH_FILTER = 27
#: One instruction: return 0, that is, keep no byte of the packet (struct sock_filter: code, jt, jf, k).
_DROP_ALL = struct.pack("=HBBI", 0x06, 0, 0, 0)


def shut(listening: socket.socket) -> None:
    """Let no new connection in.

    Raises:
        OSError: This kernel has no socket filters.
    """
    program = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
    # struct sock_fprog: the number of instructions and where they are.
    listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(program)))


def open(listening: socket.socket) -> None:
    """Let new connections in again.

    Raises:
        OSError: It was not shut.
    """
    listening.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
