"""The program of a child process: take a role, serve it until told to stop, report what went wrong."""

from __future__ import annotations

import signal
import socket
import traceback

from cachecore.cli.demo.messages import Channel, ChannelClosedError, Setup
from cachecore.errors import CacheError

__all__ = ["serve"]


def serve(descriptor: int) -> int:
    """Serve the parent at the other end of the socket `descriptor`; returns the exit code of the process."""
    # A Ctrl-C at the terminal reaches the whole group; the parent decides what happens then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=descriptor))
    try:
        _play(channel)
    except ChannelClosedError:
        return 1  # the parent is gone; there is nobody to tell
    except Exception as error:  # noqa: BLE001  # the parent reports whatever it is
        if not isinstance(error, CacheError):
            traceback.print_exc()
        channel.send_failure(error)
        return 1
    return 0


def _play(channel: Channel) -> None:
    setup = channel.receive()
    if not isinstance(setup, Setup):
        raise TypeError(f"the first message is {type(setup).__name__}; it must be Setup")
    # Only the module of the role: each loads what it needs.
    if setup.role == "prefill":
        from cachecore.cli.demo.prefill import serve_prefill

        serve_prefill(channel, setup.settings)
    elif setup.role == "decode":
        from cachecore.cli.demo.decode import serve_decode

        serve_decode(channel, setup.settings, setup.peer_address)
    else:
        raise ValueError(f"role is {setup.role!r}; it must be prefill or decode")
