"""Short messages between managers, ordered with the transfers between them."""

from __future__ import annotations

from collections.abc import Callable

from cachecore import _arguments as arguments
from cachecore.api.base import DEFAULT_TIMEOUT, ManagerParts
from cachecore.errors import CacheValueError
from cachecore.notifications import Notification
from cachecore.peers.request_messages import MAX_NAME, MAX_PAYLOAD

__all__ = ["NotifyingMethods"]


class NotifyingMethods(ManagerParts):
    """`notify` and the inbox."""

    def notify(
        self,
        cluster_id: int,
        name: str,
        payload: bytes | bytearray | memoryview = b"",
        *,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """Put a short message into a peer's inbox: after every transfer with that peer that was started before.

        It goes over the link to the peer, or over the peer's link to this manager: one link serves both directions.
        Returning means that it is in the inbox, once, and behind those sent to this peer before.

        Args:
            cluster_id: The peer, which needs no link from here when it has linked to this manager.
            name: What it is about, 1 to 200 characters.
            payload: Content, at most 256 KiB (262144 bytes).
            timeout: Seconds until it gives up, the wait for transfers included.

        Raises:
            MissingArgumentError, CacheTypeError, CacheValueError: A bad argument; this manager's own cluster id.
            NotLinkedError: Neither side has a live link to the other. Nothing was sent.
            LinkBusyError: The peer's inbox is full, or it takes no messages. Nothing was delivered; try again later.
            LinkLostError: The connection ended before the peer confirmed: it may or may not have arrived.
            CacheTimeoutError: A transfer or the peer's answer took too long; the message says whether it may arrive.
            CacheError: The peer is closing.
        """
        self._enter()
        deadline = arguments.deadline("timeout", timeout)
        number = arguments.integer("cluster_id", cluster_id, 0, 2**64 - 1)
        if number == self._cluster_id:
            raise CacheValueError(f"cluster_id is {number}, which is this manager's own; only peers can be notified")
        text, content = _name(name), _payload(payload)
        self._transfers.barrier(number, deadline)
        self._peers.notify(number, text, content, deadline=deadline)

    def notifications(self) -> list[Notification]:
        """Take every notification out of the inbox, oldest first. Never waits.

        Raises:
            CacheValueError: A callback takes them.
        """
        self._enter()
        return self._peers.inbox.drain()

    def wait_notification(self, timeout: float = DEFAULT_TIMEOUT) -> Notification | None:
        """Take the oldest notification out of the inbox, or wait for one.

        Args:
            timeout: Seconds to wait.

        Returns:
            None when none came.

        Raises:
            MissingArgumentError, CacheTypeError, CacheValueError: A bad argument; a callback takes notifications.
            ManagerClosedError: The manager was closed meanwhile.
        """
        self._enter()
        return self._peers.inbox.wait(arguments.deadline("timeout", timeout))

    def on_notification(self, callback: Callable[[Notification], object] | None) -> None:
        """Have every notification, those that wait first, given to a callback, one at a time, in a thread of its own.

        Args:
            callback: What it returns is not looked at. What it raises is logged and told to listeners as an event
                "notification callback failed"; the next one is delivered. It is kept alive, with all it refers to, until
                it is replaced or the manager is closed. None: notifications wait to be polled again; a call that runs
                is not waited for.

        Raises:
            CacheTypeError: It cannot be called.
        """
        self._enter()
        if callback is not None and not callable(callback):
            raise arguments.wrong_type("callback", callback, "a function of one notification, or None")
        self._peers.inbox.listen(callback)


def _name(name: object) -> str:
    arguments.instance("name", name, str)
    assert isinstance(name, str)
    if not 1 <= len(name) <= MAX_NAME:
        raise CacheValueError(f"name has {len(name)} characters; it must have 1 to {MAX_NAME}: put more into payload")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise CacheValueError(f"name is {name!r:.80}, which is no text that UTF-8 can carry: {error.reason}") from None
    return name


def _payload(payload: object) -> bytes:
    arguments.instance("payload", payload, (bytes, bytearray, memoryview))
    assert isinstance(payload, bytes | bytearray | memoryview)
    nbytes = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    if nbytes > MAX_PAYLOAD:
        raise CacheValueError(
            f"payload has {nbytes} bytes; at most {MAX_PAYLOAD} are taken: move more through a cache and send where it is"
        )
    return bytes(payload)
