"""Who may connect: the handler that ZeroMQ asks about every CURVE key (ZAP, ZeroMQ RFC 27).

Without a handler CURVE encrypts and admits any key. The handler must be there before the listener is bound.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import zmq
import zmq.utils.z85

__all__ = ["DOMAIN", "KeyGuard"]

_logger = logging.getLogger("cachecore.peers")
DOMAIN = b"cachecore"
_VERSION = b"1.0"


class KeyGuard:
    """Answers ZeroMQ's questions in the service thread.

    Args:
        context: The context of the listener; the handler serves that one only.
        allowed: Public keys to admit, in Z85.
        on_denied: Called for each connection turned away.
    """

    def __init__(self, context: zmq.Context[Any], allowed: frozenset[str], on_denied: Callable[[], None]) -> None:
        self._allowed = frozenset(key.encode() for key in allowed)
        self._on_denied = on_denied
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind("inproc://zeromq.zap.01")

    def answer_all(self) -> None:
        """Answer every question that is waiting."""
        while True:
            try:
                question = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.socket.send_multipart(self._answer(question))

    def close(self) -> None:
        """Stop answering; nobody is admitted any more."""
        self.socket.close(0)

    def _answer(self, question: list[bytes]) -> list[bytes]:
        version, request = (*question[:2], b"", b"")[:2]
        admitted = False
        if len(question) == 7 and version == _VERSION:
            _, _, domain, address, _, mechanism, key = question
            known = mechanism == b"CURVE" and len(key) == 32 and zmq.utils.z85.encode(key) in self._allowed
            admitted = known and domain == DOMAIN
            if not admitted:
                _logger.debug("denied a connection from %r with %r", address, mechanism)
        if admitted:
            return [_VERSION, request, b"200", b"OK", b"manager", b""]
        self._on_denied()
        return [_VERSION, request, b"400", b"unknown key", b"", b""]
