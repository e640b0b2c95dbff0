"""A notification as a value."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Notification"]


@dataclass(frozen=True)
class Notification:
    """A short message of another manager.

    Attributes:
        cluster_id: Who sent it.
        incarnation: The life of that manager; a restarted one has another.
        name: What it is about, 1 to 200 characters.
        payload: Its content, up to 256 KiB.
        number: Grows with every notification that this life of the sender sent, to whomever.
    """

    cluster_id: int
    incarnation: str
    name: str
    payload: bytes
    number: int

    def __repr__(self) -> str:
        return f"<Notification {self.number} {self.name!r} of cluster {self.cluster_id}, {len(self.payload)} bytes>"
