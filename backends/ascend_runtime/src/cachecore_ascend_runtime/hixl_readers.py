"""Who connects to this side. The native engine does not say, so the core's word is kept, for messages."""

from __future__ import annotations

import threading
from typing import Final

from cachecore.engine import PeerIdentity

__all__ = ["Readers"]

#: How many are remembered that the core has given up: their native links may live on, as those of a stopped process do.
_MOST_LEFT: Final = 8


class Readers:
    """The peers that have linked to a manager. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._present: dict[PeerIdentity, str] = {}
        self._left: dict[PeerIdentity, str] = {}

    def add(self, peer: PeerIdentity, address: str) -> None:
        """A peer, and where its engine listens."""
        with self._lock:
            self._left.pop(peer, None)
            self._present[peer] = address

    def left(self, peer: PeerIdentity) -> None:
        """The core counts it as a reader no more."""
        with self._lock:
            address = self._present.pop(peer, None)
            if address is not None:
                self._left[peer] = address
                for oldest in list(self._left)[:-_MOST_LEFT]:
                    del self._left[oldest]

    def describe(self) -> str:
        """All of them, for a message."""
        with self._lock:
            named = [_name(peer, address) for peer, address in self._present.items()]
            named += [
                f"{_name(peer, address)}, which has left or does not answer" for peer, address in self._left.items()
            ]
        return "; ".join(named) or "a peer that is not known here"


def _name(peer: PeerIdentity, address: str) -> str:
    return f"cluster {peer.cluster_id} (process {peer.pid} on {peer.host}, engine {address})"
