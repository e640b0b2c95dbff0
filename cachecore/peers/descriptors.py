"""File descriptors held back, so that strangers' connections cannot use up those that a link needs.

Whoever can reach the port can open TCP connections; each takes a descriptor of this process until it has proven its
key or the handshake time is over. The listener stops accepting before the last ones are gone (see `listener`); these
are given back to the process in the moment our own link is made.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from cachecore.errors import EngineError

if TYPE_CHECKING:
    from cachecore.peers.listener import Listener

__all__ = ["FOR_ONE_LINK", "TO_START", "DescriptorReserve", "Door", "available", "require"]

#: Descriptors a link takes: two sockets of ZeroMQ with an event each, the monitor's other end, the connection; and spare.
FOR_ONE_LINK = 8


#: What a link service takes to start: the threads of ZeroMQ, its sockets, the listener, the reserve; and spare.
TO_START = 32


def require(count: int, purpose: str) -> None:
    """Refuse to begin what would run out of descriptors half way: ZeroMQ ends the whole process then.

    Raises:
        EngineError: Less than `count` more descriptors can be opened.
    """
    if not available(count):
        raise EngineError(
            f"{purpose} needs up to {count} file descriptors and the process may not open so many more; raise the limit of "
            "open files (ulimit -n) or close some",
            operation="open",
            code=errno.EMFILE,
        )


def available(count: int) -> bool:
    """Whether `count` more descriptors can be opened now."""
    opened: list[int] = []
    try:
        _open(opened, count)
        return True
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        return False
    finally:
        _close(opened)


class DescriptorReserve:
    """`count` descriptors that are open for no other purpose. Used in the service thread."""

    def __init__(self, count: int = FOR_ONE_LINK) -> None:
        self._count = count
        self._held: list[int] = []
        self.refill()

    @property
    def held(self) -> int:
        """How many are held now."""
        return len(self._held)

    def refill(self) -> None:
        """Take back as many as can be had."""
        with contextlib.suppress(OSError):
            _open(self._held, self._count - len(self._held))

    def release(self) -> None:
        """Give all of them back to the process."""
        _close(self._held)


class Door:
    """Makes room for links of our own when descriptors are short: strangers out, reserve released. Service thread."""

    def __init__(self) -> None:
        self._reserve = DescriptorReserve()
        self._holders = 0
        self._listener: Listener | None = None

    def guard(self, listener: Listener) -> None:
        """Shut this listener's door when descriptors are short."""
        self._listener = listener

    def hold(self) -> bool:
        """A link is about to take its descriptors. Returns whether it may: if not, ask again in a moment.

        After True, `let_go` must follow.
        """
        if not available(2 * FOR_ONE_LINK):
            if self._listener is not None:
                self._listener.hold_door(True)
                # Those who wait already would take what the reserve gives back. They end with the handshake time.
                if self._listener.somebody_waits:
                    return False
            self._reserve.release()
        self._holders += 1
        return True

    def let_go(self) -> None:
        """The link has them, or has failed."""
        self._holders -= 1
        if self._holders == 0:
            self._reserve.refill()
            if self._listener is not None:
                self._listener.hold_door(False)

    def close(self) -> None:
        """Give the reserve back for good."""
        self._reserve.release()


def _open(opened: list[int], count: int) -> None:
    for _ in range(count):
        opened.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))


def _close(opened: list[int]) -> None:
    while opened:
        os.close(opened.pop())
