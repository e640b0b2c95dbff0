"""Sending notifications to one peer over one connection: a few are under way, the others wait their turn.

The small number bounds what can be queued before a ping, and paces a fast sender to what its peer takes in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from cachecore.errors import CacheError, LinkBusyError, LinkLostError
from cachecore.peers.inbox import Inbox
from cachecore.peers.request_messages import Verdict
from cachecore.peers.service import Service

__all__ = ["Notice", "Notices", "Post"]

#: Notifications of one connection that are sent and not answered.
_UNDER_WAY: Final = 4


@dataclass(frozen=True)
class Post:
    """What all connections of one manager share.

    Attributes:
        inbox: Where notifications of peers go.
        numbers: Of the notifications it sends, ascending.
    """

    inbox: Inbox
    numbers: Iterator[int]


@dataclass(frozen=True)
class Notice:
    """One notification on its way out.

    Attributes:
        name: Of the notification.
        payload: Of the notification.
        service: Whose thread sends it.
        future: Settled when it has arrived or cannot any more. Cancelled means that it was never sent.
        route: Finds a connection for it; called again where the one it waited for is gone.
    """

    name: str
    payload: bytes
    service: Service
    future: Future[Any]
    route: Callable[[Notice], None]


class Notices:
    """The queue of one connection. Service thread.

    Args:
        peer: The receiver, for messages.
        numbers: Of the notifications of this manager.
        send: Sends (number, name, payload); returns whether it is on its way.
    """

    def __init__(self, peer: str, numbers: Iterator[int], send: Callable[[int, str, bytes], bool]) -> None:
        self._peer, self._numbers, self._send = peer, numbers, send
        self._waiting: deque[Notice] = deque()
        self._under_way: dict[int, Notice] = {}
        self._open = True

    def put(self, notice: Notice) -> None:
        """Send it, now or when others have been answered."""
        # Of those that nobody waits for any more the payload is not kept.
        self._waiting = deque(one for one in self._waiting if not one.future.done())
        self._waiting.append(notice)
        self._go_on()

    def answered(self, number: int, verdict: Verdict, detail: str) -> None:
        """The peer has said what became of one."""
        notice = self._under_way.pop(number, None)
        if notice is not None:
            error: CacheError | None = None
            if verdict is Verdict.FULL:
                error = LinkBusyError(
                    f"{self._peer} took the notification {notice.name!r:.80} not in: {detail}. It was not delivered; "
                    "repeat it when the peer has read some"
                )
            elif verdict is not Verdict.YES:
                error = CacheError(f"{self._peer} did not take the notification {notice.name!r:.80}: {detail}")
            notice.service.settle(notice.future, error=error)
        self._go_on()

    def fail(self, reason: str) -> None:
        """The connection is gone: those under way may have arrived, the others look for another one."""
        self._open = False
        under_way, self._under_way = self._under_way, {}
        waiting, self._waiting = self._waiting, deque()
        for notice in under_way.values():
            notice.service.settle(notice.future, error=_uncertain(self._peer, reason, notice))
        for notice in waiting:
            notice.route(notice)

    def _go_on(self) -> None:
        while self._waiting and len(self._under_way) < _UNDER_WAY and self._open:
            notice = self._waiting.popleft()
            if notice.future.done():  # nobody waits for it any more
                continue
            number = next(self._numbers)
            # A future that runs cannot be cancelled: whoever stops waiting now knows that it may arrive.
            if not (notice.future.running() or notice.future.set_running_or_notify_cancel()):
                continue
            sent = self._send(number, notice.name, notice.payload)  # may find that the connection is gone
            if sent:
                self._under_way[number] = notice
            elif not self._is_open():
                notice.route(notice)
            else:
                error = LinkBusyError(f"{self._peer} takes no messages now: its queue is full; nothing was sent")
                notice.service.settle(notice.future, error=error)

    def _is_open(self) -> bool:
        return self._open


def _uncertain(peer: str, reason: str, notice: Notice) -> LinkLostError:
    return LinkLostError(
        f"the connection to {peer} ended ({reason}) before it confirmed the notification {notice.name!r:.80}; it may or "
        "may not have arrived. Link again and repeat it only if the receiver can tell a repeat"
    )
