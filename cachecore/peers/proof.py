"""What the engines of this manager can prove about the processes of its readers.

An owner may forget a reader at once only when its process is proven dead; a process id that somebody announced proves
nothing. An engine that works within one machine can hold the reader's process (a pidfd) and say when it has ended.
Both methods used here are optional parts of an engine:

* `watch(peer, endpoint)` holds the process behind an endpoint of the peer's engine; raises when it cannot prove which.
* `unwatch(peer)` lets it go.
* `peer_alive(peer)` says True, False (proven dead), or None for "do not know". It must not wait.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from cachecore.engine import EngineBinding, PeerIdentity
from cachecore.peers.worker import Worker

__all__ = ["ProcessProof"]

_logger = logging.getLogger("cachecore.peers")


class ProcessProof:
    """Asks the engines. Thread-safe.

    Args:
        engines: Of this manager.
        worker: Whose thread makes the calls that may wait.
    """

    def __init__(self, engines: Sequence[EngineBinding], worker: Worker) -> None:
        self._engines: dict[str, Any] = {binding.wire_id: binding.engine for binding in engines}
        self._worker = worker

    def watch(self, peer: PeerIdentity, wire_id: str | None, endpoint: bytes) -> None:
        """Hold the process of a reader that uses this engine, if the engine can. Returns at once."""
        engine: Any = self._engines.get(wire_id or "")
        if endpoint and hasattr(engine, "watch"):
            self._worker.submit(partial(self._watch, engine, peer, endpoint))

    def unwatch(self, peer: PeerIdentity, wire_id: str | None) -> None:
        """Let it go. Returns at once."""
        engine: Any = self._engines.get(wire_id or "")
        if hasattr(engine, "unwatch"):
            self._worker.submit(partial(engine.unwatch, peer))

    def alive(self, peer: PeerIdentity) -> bool | None:
        """True, False (proven dead), or None when no engine knows."""
        answer: bool | None = None
        for wire_id, engine in self._engines.items():
            ask = getattr(engine, "peer_alive", None)
            if ask is None:
                continue
            try:
                alive = ask(peer)
            except Exception:
                _logger.exception("engine %s failed to say whether process %d lives", wire_id, peer.pid)
                continue
            if alive is False:
                return False
            answer = alive if answer is None else answer
        return answer

    @staticmethod
    def _watch(engine: Any, peer: PeerIdentity, endpoint: bytes) -> None:
        try:
            engine.watch(peer, endpoint)
        except Exception as error:  # noqa: BLE001  # then its silence must be waited for, which is the rule
            _logger.info("process %d of cluster %d is not watched: %s", peer.pid, peer.cluster_id, error)
