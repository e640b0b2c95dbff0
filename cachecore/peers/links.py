"""The links one manager has made: at most one live one for each cluster, and what is left of lost ones."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from cachecore.engine import EngineBinding, PeerIdentity
from cachecore.errors import (
    AlreadyLinkedError,
    CacheBusyError,
    CacheError,
    CacheValueError,
    LinkFailedError,
    ManagerClosedError,
    NotLinkedError,
)
from cachecore.peers.addresses import ResolvedAddress
from cachecore.peers.events import EventKind, PeerEvent, Tally
from cachecore.peers.link import Link
from cachecore.peers.linking import Dialer
from cachecore.peers.liveness import Timing, boottime
from cachecore.peers.security import CurveKeys

__all__ = ["LinkTable"]

_logger = logging.getLogger("cachecore.peers")
_REMEMBERED_ENDINGS = 1000


class LinkTable:
    """Thread-safe.

    Args:
        identity: Of this manager.
        engines: Of this manager.
        timing: Intervals.
        tally: Counts and passes on what happens.
    """

    def __init__(self, identity: PeerIdentity, engines: Sequence[EngineBinding], timing: Timing, tally: Tally) -> None:
        self._identity, self._engines, self._timing, self._tally = identity, tuple(engines), timing, tally
        self._lock = threading.Lock()
        self._links: dict[int, Link] = {}
        #: Lost links that were replaced while something of them was left.
        self._departed: list[Link] = []
        #: Sessions that have ended and wrote: their owner waits until it hears of it. Not without end, for
        #: owners that never come back.
        self._untold: deque[_Untold] = deque(maxlen=_REMEMBERED_ENDINGS)
        self._linking: set[int] = set()
        self._closed = False
        self._past_fetches = 0

    @property
    def links(self) -> tuple[Link, ...]:
        """Every link, also lost ones that were neither replaced nor unlinked."""
        with self._lock:
            return tuple(self._links.values())

    @property
    def fetches(self) -> int:
        """Catalogues asked for over all links ever."""
        with self._lock:
            return self._past_fetches + sum(link.fetches for link in (*self._links.values(), *self._departed))

    def find(self, cluster_id: int) -> Link | None:
        """The link to a cluster, in whatever state; a dictionary look-up."""
        return self._links.get(cluster_id)

    def get(self, cluster_id: int) -> Link:
        """The link to a cluster, in whatever state.

        Raises:
            NotLinkedError: There is none.
        """
        link = self._links.get(cluster_id)
        if link is None:
            linked = sorted(one.identity.cluster_id for one in self.links)
            raise NotLinkedError(
                f"cluster {cluster_id} is not linked; linked are {linked or 'none'}: call link({cluster_id}, address) first"
            )
        return link

    def check_other_id(self, cluster_id: int, error: type[CacheError] = CacheValueError) -> None:
        """Refuse this manager's own cluster id."""
        if cluster_id == self._identity.cluster_id:
            raise error(
                f"cluster_id is {cluster_id}, which is this manager's own; managers that link need different ids, and a "
                "manager cannot link to itself"
            )

    def make(
        self,
        dialer: Dialer,
        cluster_id: int | None,
        addresses: Sequence[ResolvedAddress],
        keys: CurveKeys | None,
        deadline: float,
        writes: bool,
    ) -> Link:
        """Link to whoever listens there; see `Peers.link`."""
        reserved: set[int] = set()
        try:
            if cluster_id is not None:
                self._reserve(dialer, cluster_id, reserved, deadline)
            link, welcome, same_process = dialer.greet(addresses, keys, self._ended, deadline)
            try:
                declared = link.identity.cluster_id
                self._check_declared(link, cluster_id)
                if declared not in reserved:
                    self._reserve(dialer, declared, reserved, deadline)
                self._give_way(link, deadline)
                if not same_process:
                    dialer.choose_engine(link, welcome.engines, self._engines, deadline)
                link.make_ready(deadline, writes, self._ended(link.address, link.identity.incarnation))
                self._enter(link)
            except BaseException:
                self._undo(link)
                raise
        finally:
            with self._lock:
                self._linking -= reserved
        self._tally.add(PeerEvent(EventKind.LINKED, link.identity, f"to {link.address}, engine {link.wire_id}"))
        _logger.info("linked to cluster %d at %s with engine %s", declared, link.address, link.wire_id)
        return link

    def unlink(self, cluster_id: int, deadline: float) -> None:
        """Undo a link; see `Peers.unlink`."""
        link = self.get(cluster_id)
        link.unlink(deadline)
        with self._lock:
            if self._links.get(cluster_id) is link:
                del self._links[cluster_id]
                self._past_fetches += link.fetches
                if link.writes and not link.dialogue.parted:
                    self._untold.append(_Untold.of(link))
        self._tally.add(PeerEvent(EventKind.UNLINKED, link.identity, "unlinked"))

    def close(self, deadline: float) -> tuple[Link, ...]:
        """Undo every link. Returns those over which something may still be moving."""
        with self._lock:
            self._closed = True
            links = [*self._links.values(), *self._departed]
            self._links.clear()
            self._departed.clear()
        return tuple(link for link in links if not _close(link, deadline))

    def fail(self, error: CacheError) -> None:
        """The service thread has failed, and every link with it."""
        for link in (*self.links, *self._departed):
            link.dialogue.lose(str(error))

    def clean_up(self) -> None:
        """From time to time: give up what engines hold of lost links, and forget those of which nothing is left."""
        since = boottime() - 2 * self._timing.owner_silence
        with self._lock:
            for link in (*self._links.values(), *self._departed):
                link.retry_clean_up()
            gone = [one for one in self._departed if one.released and one.dialogue.lost_at <= since]
            # An owner gives a silent reader up by itself, but one that wrote only when it hears of it.
            self._untold.extend(_Untold.of(one) for one in gone if one.writes)
            self._forget(gone)

    # --- inside --------------------------------------------------------------------------------------------------

    def _check_declared(self, link: Link, expected: int | None) -> None:
        peer = link.identity
        if expected is not None and peer.cluster_id != expected:
            raise LinkFailedError(
                f"cluster_id is {expected} and the manager at {link.address} declares cluster {peer.cluster_id} (process "
                f"{peer.pid} on {peer.host}); correct the id or the address, or give None"
            )
        self.check_other_id(peer.cluster_id, LinkFailedError)

    def _reserve(self, dialer: Dialer, cluster_id: int, reserved: set[int], deadline: float) -> None:
        """Make sure that nobody else links to this cluster now, and that nobody has."""
        with self._lock:
            existing = self._links.get(cluster_id)
            if cluster_id in self._linking:
                raise AlreadyLinkedError(f"cluster {cluster_id} is being linked by another thread")
            self._linking.add(cluster_id)
            reserved.add(cluster_id)
        if existing is None:
            return
        if existing.state != "LOST":  # its end may not have been noticed yet
            dialer.service.call(existing.dialogue.look_now, deadline)
        if existing.state != "LOST":
            raise AlreadyLinkedError(
                f"cluster {cluster_id} is linked already, to {existing.address} ({existing.state}); unlink it first"
            )

    def _give_way(self, new: Link, deadline: float) -> None:
        """A lost link to the very same peer must be over for the engine, which knows peers by their identity."""
        with self._lock:
            links = [*self._departed, *self._links.values()]
        for link in links:
            if link.identity.incarnation != new.identity.incarnation or link.released:
                continue
            if not (link.quiet and link.release_engine(deadline)):
                raise CacheBusyError(
                    f"transfers over the lost link to cluster {new.identity.cluster_id} are not quiescent; link again when "
                    "they are",
                    peers=(new.identity.cluster_id,),
                )

    def _enter(self, link: Link) -> None:
        """The link counts. Its owner has been told what has ended with it, so that need not be remembered."""
        address, incarnation = link.address, link.identity.incarnation
        cluster_id = link.identity.cluster_id
        with self._lock:
            if self._closed:
                raise ManagerClosedError("the manager was closed while it linked")
            old = self._links.get(cluster_id)
            if old is not None:
                self._departed.append(old)
            self._links[cluster_id] = link
            self._forget([one for one in self._departed if one.released and _same_owner(one, address, incarnation)])
            untold = (one for one in self._untold if not _same_owner(one, address, incarnation))
            self._untold = deque(untold, _REMEMBERED_ENDINGS)

    def _undo(self, link: Link) -> None:
        """A link that could not be completed leaves nothing behind."""
        try:
            link.unlink(time.monotonic() + self._timing.farewell)
        except Exception:
            _logger.exception("giving up the unfinished link to cluster %d failed", link.identity.cluster_id)
            link.dialogue.abandon("linking failed")
            with self._lock:
                self._departed.append(link)

    def _forget(self, links: Sequence[Link]) -> None:
        self._past_fetches += sum(link.fetches for link in links)
        self._departed = [link for link in self._departed if link not in links]

    def _ended(self, address: ResolvedAddress | str, incarnation: str | None = None) -> tuple[str, ...]:
        """Sessions with this owner over which nothing moves any more and which it may still wait for.

        Args:
            address: Where it listens, or one of the addresses where it does.
            incarnation: Its own, once it is known: tells it by whatever address it was linked before.
        """
        since = boottime() - 2 * self._timing.owner_silence
        with self._lock:
            links = [*self._links.values(), *self._departed]
            untold = [one.token for one in self._untold if _same_owner(one, str(address), incarnation)]
        ended = [link for link in links if link.released and _same_owner(link, str(address), incarnation)]
        tokens = [link.token for link in ended if link.writes or link.dialogue.lost_at > since]
        return tuple(untold + tokens)[:_REMEMBERED_ENDINGS]


class _Untold(NamedTuple):
    address: str
    identity: PeerIdentity
    token: str

    @classmethod
    def of(cls, link: Link) -> _Untold:
        return cls(link.address, link.identity, link.token)


def _same_owner(former: Link | _Untold, address: str, incarnation: str | None) -> bool:
    """By its address alone too: an owner passes over sessions that it never had."""
    return former.address == address or former.identity.incarnation == incarnation


def _close(link: Link, deadline: float) -> bool:
    """Whether nothing of it is left."""
    try:
        link.unlink(deadline)
    except CacheBusyError as error:
        _logger.warning("%s", error)
        link.dialogue.abandon("the manager was closed")
        return False
    except Exception:
        _logger.exception("unlinking cluster %d failed", link.identity.cluster_id)
        link.dialogue.abandon("the manager was closed")
        return link.released
    return True
