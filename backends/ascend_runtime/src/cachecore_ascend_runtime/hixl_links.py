"""The native links of one engine.

Several peers of one process listen at one address and share the link, and so do the managers of this process.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

from cachecore_ascend_runtime.hixl_link import NativeLink
from cachecore_ascend_runtime.hixl_native import NativeEngine

__all__ = ["Links"]

#: Memory is deregistered range by range: seconds until links that were cut for one may be made again.
_PAUSE_AFTER_CUT: Final = 0.02


class Links:
    """The links of one native engine. Thread-safe.

    Args:
        native: The engine.

    Attributes:
        changed: Notified at every change of any link.
        registrations: Counts what this side has registered; a link made before is not up to date.
        holders: Threads that want all links down; none is made meanwhile.
    """

    def __init__(self, native: NativeEngine) -> None:
        self.native = native
        self.changed = threading.Condition()
        self.registrations = 0
        self.holders = 0
        self._links: dict[str, NativeLink] = {}

    def registered(self) -> None:
        """Memory was registered on this side."""
        with self.changed:
            self.registrations += 1

    def join(self, remote: str) -> NativeLink:
        """The link to this address, for one more user; nothing is connected yet. `leave` must follow."""
        with self.changed:
            link = self._links.get(remote)
            if link is None:
                link = self._links[remote] = NativeLink(self, remote)
            link.users += 1
            return link

    def leave(self, link: NativeLink, deadline: float) -> bool:
        """One user less; the last one cuts the link. False: it could not be cut, and the user stays.

        The user has no transfer on it.
        """
        with self.changed:
            if link.users > 1:
                link.users -= 1
                return True
        if not link.cut(deadline):
            return False
        with self.changed:
            link.users -= 1
            if not link.users and self._links.get(link.remote) is link:
                del self._links[link.remote]
        return True

    @contextlib.contextmanager
    def cut(self, deadline: float) -> Iterator[list[str]]:
        """Within the block every link is down and stays it, except those yielded: transfers run on them."""
        with self.changed:
            self.holders += 1
            links = list(self._links.values())
        try:
            yield [link.remote for link in links if not link.cut(deadline, _PAUSE_AFTER_CUT)]
        finally:
            with self.changed:
                self.holders -= 1
                self.changed.notify_all()
