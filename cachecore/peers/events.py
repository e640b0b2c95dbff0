"""What happens to links and sessions, for logs, listeners and statistics."""

from __future__ import annotations

import enum
import inspect
import math
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cachecore.engine import PeerIdentity
from cachecore.events import Event
from cachecore.peers.worker import Worker

__all__ = ["EventKind", "PeerEvent", "PeersCounters", "Tally"]


class EventKind(enum.Enum):
    """What happened; the value is `cachecore.events.Event.kind`.

    The first group is about links this manager made, the second about peers that linked to it, the last about
    notifications of either.
    """

    LINKED = "linked"
    STALLED = "link stalled"
    RESUMED = "link recovered"
    LOST = "link lost"
    UNLINKED = "unlinked"
    LAYOUTS_DIFFER = "layouts differ"

    SESSION_STARTED = "session opened"
    SESSION_LOST = "session lost"
    SESSION_ENDED = "session ended"
    REFUSED = "link refused"
    MALFORMED = "message not understood"

    CALLBACK_FAILED = "notification callback failed"


@dataclass(frozen=True)
class PeerEvent:
    """One thing that happened.

    Attributes:
        kind: What.
        peer: To whom; None when that is not known.
        detail: One sentence for people.
    """

    kind: EventKind
    peer: PeerIdentity | None
    detail: str


@dataclass(frozen=True)
class PeersCounters:
    """Totals since the manager started. Each field is a count.

    Attributes:
        links_made: Links that were established.
        links_lost: Links that ended without an unlink.
        sessions_started: Peers that have linked to this manager.
        sessions_refused: Peers that were refused, with an answer.
        strangers_denied: Connections with a key that is not admitted.
        malformed_messages: Messages that were not understood.
        fetches: Times a whole catalogue was asked for over links of this manager.
        listener_pauses: Times the listener stopped accepting connections to protect the process.
    """

    links_made: int = 0
    links_lost: int = 0
    sessions_started: int = 0
    sessions_refused: int = 0
    strangers_denied: int = 0
    malformed_messages: int = 0
    fetches: int = 0
    listener_pauses: int = 0


#: What a misbehaving peer can cause as often as it likes: the listener hears of it once a second at most.
_LIMITED = frozenset({EventKind.REFUSED, EventKind.MALFORMED})


class Tally:
    """Counts events and hands them to a listener, in the worker's thread: whoever reports one never waits.

    Args:
        cluster_id: Of the manager.
        worker: Whose thread calls the listener.
        listener: Called with each event; of a bound method the object is not kept alive.
    """

    def __init__(self, cluster_id: int, worker: Worker, listener: Callable[[Event], None] | None) -> None:
        self._cluster_id = cluster_id
        self._worker = worker
        self._lock = threading.Lock()
        self._counts: Counter[EventKind] = Counter()
        self._passed_on: dict[EventKind, float] = {}
        self._listener: Callable[[], Callable[[Event], None] | None] = lambda: listener
        if inspect.ismethod(listener):
            # The manager's own method would keep the manager, and so its threads, alive for ever.
            self._listener = weakref.WeakMethod(listener)

    def add(self, event: PeerEvent) -> None:
        """Count an event and pass it on; never waits."""
        with self._lock:
            self._counts[event.kind] += 1
            if event.kind in _LIMITED:
                now = time.monotonic()
                if now - self._passed_on.get(event.kind, -math.inf) < 1.0:
                    return
                self._passed_on[event.kind] = now
        listener = self._listener()
        if listener is not None:
            peer = None if event.peer is None else event.peer.cluster_id
            self._worker.submit(partial(listener, Event(event.kind.value, self._cluster_id, peer, detail=event.detail)))

    def count(self, kind: EventKind) -> int:
        """How often this has happened."""
        return self._counts[kind]
