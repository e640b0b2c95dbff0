"""A linked peer, as the user sees it."""

from __future__ import annotations

from cachecore.peers import Link

__all__ = ["Peer"]


class Peer:
    """The other side of a link made by `CacheManager.link`."""

    __slots__ = ("_link",)

    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def cluster_id(self) -> int:
        """Its cluster id."""
        return self._link.identity.cluster_id

    @property
    def address(self) -> str:
        """The address it was linked at."""
        return self._link.address

    @property
    def host(self) -> str:
        """The name of its machine, as it says."""
        return self._link.identity.host

    @property
    def pid(self) -> int:
        """Its process id, in its own namespace."""
        return self._link.identity.pid

    @property
    def incarnation(self) -> str:
        """128 random bits, hexadecimal; a restarted peer has others."""
        return self._link.identity.incarnation

    @property
    def engine(self) -> str:
        """What moves the bytes: an engine's wire id, or "same process"."""
        return self._link.wire_id or "same process"

    @property
    def state(self) -> str:
        """LINKED; STALLED: its process is there and does not answer; LOST: link again."""
        return self._link.state

    @property
    def layout_differences(self) -> tuple[str, ...]:
        """Where caches of named layers of both sides with one model id and group differ, one sentence for each.

        Layer names, numbers of tensors, data types and bytes of a block are compared; numbers of blocks may differ. It
        is no error: slices bridge different bytes of a block, and `layers` names those that both sides have.
        """
        return self._link.layout_differences

    def __repr__(self) -> str:
        return f"<Peer cluster {self.cluster_id} at {self.address} by {self.engine}, {self.state}>"
