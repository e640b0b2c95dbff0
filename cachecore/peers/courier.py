"""Notifications of one manager: to whichever connection there is to a peer, and the inbox for those of peers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

from cachecore.errors import CacheTimeoutError, NotLinkedError
from cachecore.peers.events import EventKind, PeerEvent, Tally
from cachecore.peers.inbox import Inbox
from cachecore.peers.links import LinkTable
from cachecore.peers.notices import Notice, Post
from cachecore.peers.service import Service
from cachecore.peers.sessions import Sessions

__all__ = ["Courier", "make_post"]


def make_post(cluster_id: int, bind_thread: Callable[[], None] | None, tally: Tally) -> Post:
    """The inbox of a manager, which reports callbacks that fail, and the numbers of what it sends."""
    inbox = Inbox(
        f"cachecore-{cluster_id}-notifications",
        bind_thread,
        lambda sender, detail: tally.add(PeerEvent(EventKind.CALLBACK_FAILED, sender, detail)),
    )
    return Post(inbox, itertools.count(1))


class Courier:
    """Sends notifications of one manager. Thread-safe.

    Args:
        links: Links that it made.
        sessions: Links that peers made to it.
    """

    def __init__(self, links: LinkTable, sessions: Sessions) -> None:
        self._links, self._sessions = links, sessions

    def send(self, service: Service | None, cluster_id: int, name: str, payload: bytes, deadline: float) -> None:
        """See `Peers.notify`; without a service there is no connection to anybody."""
        if service is None:
            raise self._unreachable(cluster_id)
        route = partial(self._route, cluster_id)
        notice = Notice(name, payload, service, service.future(), route)
        service.submit(partial(route, notice))
        try:
            service.wait(notice.future, deadline, f"cluster {cluster_id} did not confirm the notification {name!r:.80}")
        except CacheTimeoutError as error:
            sent = not notice.future.cancelled()
            error.args = (f"{error}; it {'may or may not arrive' if sent else 'was not sent'}",)
            raise

    def _route(self, cluster_id: int, notice: Notice) -> None:
        """Send it by the connection there is. In the service thread."""
        link = self._links.find(cluster_id)
        if link is not None and link.state in ("LINKED", "STALLED"):
            link.dialogue.notices.put(notice)
        elif not self._sessions.notify(cluster_id, notice):
            notice.service.settle(notice.future, error=self._unreachable(cluster_id))

    def _unreachable(self, cluster_id: int) -> NotLinkedError:
        link = self._links.find(cluster_id)
        lost = f" (the link to it is lost: {link.dialogue.lost_because})" if link is not None else ""
        return NotLinkedError(
            f"cluster {cluster_id} cannot be notified: it is not linked in either direction{lost}; call link() here or "
            "there"
        )
