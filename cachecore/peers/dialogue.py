"""What a reader and an owner say to each other over one link, seen from the reader: pings, catalogue, goodbye.

Lives in the service thread, except for the methods that wait. It knows whether the peer answers; what follows from its
answers is the business of `usage` and `liveness`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from cachecore.engine import PeerIdentity
from cachecore.errors import CacheError, LinkLostError
from cachecore.peers.channel import Channel, Ending
from cachecore.peers.events import EventKind
from cachecore.peers.liveness import Lease, Timing, boottime
from cachecore.peers.messages import (
    Changes,
    Farewell,
    Fetch,
    Goodbye,
    Linked,
    MalformedMessageError,
    OtherVersionError,
    OwnerMessage,
    Ping,
    Pong,
    ReaderMessage,
    Ready,
    Retired,
    Retiring,
    SessionGone,
    Snapshot,
    decode_owner_message,
    encode,
)
from cachecore.peers.notices import Notices, Post
from cachecore.peers.request_messages import Answer, Notice, NoticeResult, Notify, NotifyResult
from cachecore.peers.requests import Requests
from cachecore.peers.service import Service
from cachecore.peers.usage import CacheUsage

__all__ = ["Dialogue"]

_logger = logging.getLogger("cachecore.peers")
#: With this many unanswered pings they are sent ten times less often: they would only pile up at a peer that is busy.
_MANY_UNANSWERED = 30


class Dialogue:
    """The messages of one link.

    Args:
        peer: The peer, for messages.
        service: Whose thread this is.
        channel: The connection.
        token: The owner's name of the session.
        timing: Intervals.
        lease: Renewed by answered pings.
        usage: Told what the owner says about its caches.
        report: Takes (kind, detail) of what happens to the link; never waits.
        identity: The peer.
        post: Where its notifications go, and how those to it are numbered.
    """

    def __init__(
        self,
        peer: str,
        service: Service,
        channel: Channel,
        token: str,
        timing: Timing,
        lease: Lease,
        usage: CacheUsage,
        report: Callable[[EventKind, str], None],
        identity: PeerIdentity,
        post: Post,
    ) -> None:
        self._peer = peer
        self._service, self._channel, self._token = service, channel, token
        self._timing, self._lease, self._usage, self._report = timing, lease, usage, report
        #: What this reader asks of the owner.
        self.requests = Requests(peer, service, token, self._send, self._lost_or_none)
        #: Notifications to the owner.
        self.notices = Notices(peer, post.numbers, self._send_notice)
        self._incoming = partial(post.inbox.put, identity)
        #: Called with caches that the peer takes back and this side does not know, never waits; they are to be said
        #: to be retired.
        self.on_unknown: Callable[[tuple[int, ...]], None] = self._send_retired
        #: "LINKING", "LINKED", "STALLED" or "LOST".
        self.state = "LINKING"
        self.lost_because = ""
        #: When it was lost, on `boottime()`.
        self.lost_at = 0.0
        #: Whether the owner knows that this reader has ended.
        self.parted = False
        #: Set when it is lost.
        self.gone = threading.Event()
        #: Catalogues asked for.
        self.fetches = 0
        self._lock = threading.Lock()
        self._closed = False
        self._timers: list[Callable[[], None]] = []
        self._sequence = self._ticks = 0
        self._unanswered: dict[int, float] = {}
        self._ready: Future[Any] | None = None
        self._farewell: Future[Any] | None = None
        self._to_ask: list[Future[Any]] = []
        self._asked: dict[int, list[Future[Any]]] = {}
        self._last_request = self._fetched_for = 0

    # --- any thread ----------------------------------------------------------------------------------------------

    def refresh(self, deadline: float) -> None:
        """Fetch the catalogue now; threads that ask at the same time share one fetch.

        Raises:
            LinkLostError: The link is lost.
            CacheTimeoutError: The peer did not answer before `deadline`.
        """
        future = self._service.future()
        with self._lock:
            if self.state == "LOST":
                raise self.lost_error()
            self._to_ask.append(future)
        self._service.submit(self._fetch)
        self._service.wait(future, deadline, f"{self._peer} ({self.state}) did not send its catalogue")

    def make_ready(
        self, wire_id: str | None, endpoint: bytes, writes: bool, ended: tuple[str, ...], deadline: float
    ) -> None:
        """Tell the owner that reading begins, and over which former links it has ended; wait until it counts this reader.

        Raises:
            LinkLostError, CacheTimeoutError: It did not answer.
        """
        future = self._service.future()

        def send() -> None:
            self._ready = future
            if self.state == "LOST":
                self._service.settle(future, error=self.lost_error())
            elif not self._send_timed(lambda number: Ready(self._token, number, wire_id, endpoint, writes, ended)):
                self.lose("the peer takes no messages")

        self._service.submit(send)
        self._service.wait(future, deadline, f"{self._peer} did not confirm the link")
        self.requests.writes = writes

    def say_goodbye(self, deadline: float) -> None:
        """Let the owner forget this reader at once. If it does not hear, it finds out by itself, later."""

        def send() -> None:
            self._farewell = future
            if not self._send(Goodbye(self._token)):
                self._service.settle(future)

        now = time.monotonic()
        until = max(min(deadline, now + self._timing.farewell), now + 0.05)
        with contextlib.suppress(CacheError):
            future = self._service.future()
            self._service.submit(send)
            self._service.wait(future, until, "no farewell")

    def ping_soon(self) -> None:
        """Ask for a renewal of the lease now instead of at the next interval."""
        self._service.submit(self._ping)

    def say_retired(self, *cache_ids: int) -> None:
        """The caches are let go. Where the message does not get through, the owner asks again."""
        with contextlib.suppress(CacheError):
            self._service.submit(lambda: self._send_retired(cache_ids))

    def abandon(self, reason: str) -> None:
        """Drop the connection, whatever is still running. The owner then waits until the lease is over."""
        self._mark_lost(reason)
        with contextlib.suppress(CacheError):  # without a service thread there is no connection
            self._service.submit(lambda: self.lose(reason, announce=False))

    def lost_error(self) -> LinkLostError:
        """The error of whoever uses a lost link."""
        return LinkLostError(
            f"the link to {self._peer} is lost: {self.lost_because}; call link() again when the peer is back"
        )

    # --- service thread ------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Start to ping and to watch, once the messages of the channel come here."""
        interval = self._timing.ping_interval
        self._timers.append(self._service.every(interval, self._tick))
        self._timers.append(self._service.every(interval / 4, self._watch))

    def look_now(self) -> None:
        """Find out whether the connection is there."""
        self._channel.read_events()

    def receive(self, frames: list[bytes]) -> None:
        """Handle one message of the owner. One that is not understood ends the link."""
        if self.state == "LOST":
            return
        try:
            if len(frames) != 1:
                raise MalformedMessageError(f"a message of {len(frames)} frames instead of one")
            self._handle(decode_owner_message(frames[0]))
        except (MalformedMessageError, OtherVersionError) as error:
            self._report(EventKind.MALFORMED, str(error)[:200])
            self.lose(f"the peer sent a message that was not understood: {str(error)[:200]}")
        except Exception as error:
            _logger.exception("handling a message of %s failed", self._peer)
            self.lose(f"handling a message failed: {type(error).__name__}: {error}")

    def ended(self, ending: Ending) -> None:
        """The connection is gone."""
        self.lose(ending.value)

    def lose(self, reason: str, announce: bool = True) -> None:
        """The link is over."""
        if self._closed:
            return
        self._closed = True
        for cancel in self._timers:
            cancel()
        self._timers.clear()
        self._channel.close()
        self._mark_lost(reason)
        with self._lock:
            waiting, self._to_ask = self._to_ask, []
        for futures in self._asked.values():
            waiting += futures
        self._asked.clear()
        for future in (*waiting, self._ready, self._farewell):
            if future is not None:
                self._service.settle(future, error=self.lost_error())
        self.requests.fail(self.lost_error)
        self.notices.fail(reason)
        if announce:
            self._report(EventKind.LOST, reason)

    def _lost_or_none(self) -> LinkLostError | None:
        return self.lost_error() if self.state == "LOST" else None

    def _mark_lost(self, reason: str) -> None:
        with self._lock:
            if self.state == "LOST":
                return
            self.lost_because, self.lost_at, self.state = reason, boottime(), "LOST"
        self._usage.refuse(self.lost_error, final=True)
        self.gone.set()
        self._lease.wake()

    def _handle(self, message: OwnerMessage) -> None:
        if isinstance(message, Pong):
            self._answered(message.sequence)
            self._expect(message.number)
        elif isinstance(message, Changes):
            if not self._usage.apply(message.base, message.number, message.added, message.removed):
                self._expect(message.number)
        elif isinstance(message, Snapshot):
            self._usage.replace(message.number, message.records)
            for request in [one for one in self._asked if one <= message.request]:
                for future in self._asked.pop(request):
                    self._service.settle(future)
        elif isinstance(message, Answer):
            self.requests.answered(message)
        elif isinstance(message, Notice):
            verdict, detail = self._incoming(message.number, message.name, message.payload)
            self._send(NoticeResult(self._token, message.number, verdict, detail))
        elif isinstance(message, NotifyResult):
            self.notices.answered(message.number, message.verdict, message.detail)
        elif isinstance(message, Retiring):
            unknown = self._usage.retire(message.cache_ids)
            if unknown:
                self.on_unknown(unknown)
        elif isinstance(message, Linked):
            self._answered(message.sequence)
            self._expect(message.number)
            if self._ready is not None and self.state == "LINKING":
                self.state = "LINKED"
                self._service.settle(self._ready)
        elif isinstance(message, SessionGone):
            self._lease.end()
            self.lose(f"the peer has ended the session: {message.reason}")
        elif isinstance(message, Farewell) and self._farewell is not None:
            self.parted = True
            self._service.settle(self._farewell)

    def _send(self, message: ReaderMessage) -> bool:
        return self.state != "LOST" and self._channel.send(encode(message))

    def _send_notice(self, number: int, name: str, payload: bytes) -> bool:
        return self._send(Notify(self._token, number, name, payload))

    def _send_timed(self, make: Callable[[int], ReaderMessage]) -> bool:
        self._sequence += 1
        now = boottime()
        if not self._send(make(self._sequence)):
            return False
        self._unanswered[self._sequence] = now
        return True

    def _send_retired(self, cache_ids: tuple[int, ...]) -> None:
        self._send(Retired(self._token, cache_ids))

    def _tick(self) -> None:
        self._ticks += 1
        if len(self._unanswered) < _MANY_UNANSWERED or self._ticks % 10 == 0:
            self._ping()
        if self._to_ask:
            self._fetch()
        self.requests.tick()

    def _ping(self) -> None:
        self._send_timed(lambda number: Ping(self._token, number))

    def _answered(self, sequence: int) -> None:
        sent = self._unanswered.get(sequence)
        if sent is None:
            return
        self._unanswered = {number: when for number, when in self._unanswered.items() if number > sequence}
        self._lease.renew(sent)
        if self.state == "STALLED" and not self._overdue():
            self.state = "LINKED"
            self._report(EventKind.RESUMED, "it answers again")

    def _overdue(self) -> bool:
        oldest = min(self._unanswered.values(), default=None)
        return oldest is not None and boottime() - oldest > self._timing.stall_after

    def _watch(self) -> None:
        if self.state != "LINKED" or not self._overdue():
            return
        # The answer may have come while this process was busy.
        self._channel.read_events()
        self._channel.read_messages()
        if self.state == "LINKED" and self._overdue():
            self.state = "STALLED"
            self._report(EventKind.STALLED, f"no answer for {self._timing.stall_after:g} s")

    def _fetch(self) -> None:
        """One fetch for everybody who has asked by now."""
        request = self._last_request + 1
        with self._lock:  # first: who asks after the request was sent needs another one
            waiting, self._to_ask = self._to_ask, []
        if self._send(Fetch(self._token, request)):
            self._last_request = request
            self.fetches += 1
            self._asked[request] = waiting
        else:  # the next tick tries again, or the link is lost and everybody was told
            with self._lock:
                self._to_ask += waiting

    def _expect(self, number: int) -> None:
        """The owner is at `number`: ask for what was missed, once for each number."""
        if number > self._usage.number and number > self._fetched_for:
            self._fetched_for = number
            self._fetch()
