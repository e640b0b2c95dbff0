"""What a manager tells listeners: links that come and go, caches that are registered and unregistered."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Event", "Listener"]

_log = logging.getLogger("cachecore")


@dataclass(frozen=True)
class Event:
    """Something that happened to a manager. Never sent from the path of a transfer.

    Attributes:
        kind: "registered", "unregistered"; "allocated", "deallocated", "released" (kept by its keys only), "key removed";
            "linked", "link lost", "link stalled", "link recovered", "unlinked",
            "layouts differ",
            "session opened", "session lost", "session ended", "link refused", "message not understood",
            "notification callback failed".
        cluster_id: The manager's own id.
        peer: The other side's cluster id, None where there is none.
        cache_id: The cache, None where there is none.
        detail: One sentence for people.
    """

    kind: str
    cluster_id: int
    peer: int | None = None
    cache_id: int | None = None
    detail: str = ""


class Listener(Protocol):
    """What a plugin's `cachecore_listeners` hook returns."""

    def on_event(self, event: Event) -> None:
        """Called in the thread where it happened; must return quickly and not call the manager."""


class Listeners:
    """Sends events to all listeners; one that raises is reported with a traceback and hurts nobody else."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = tuple(listeners)
        self.failures = 0

    def send(self, event: Event) -> None:
        """Call every listener."""
        for listener in self._listeners:
            try:
                listener.on_event(event)
            except Exception:  # noqa: BLE001
                # An observer must not decide whether memory gets registered; the count shows in stats().
                self.failures += 1
                _log.exception("listener %r failed on %s", listener, event)
