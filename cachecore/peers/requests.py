"""What a linked reader asks of the owner, one question with one answer at a time: seen from the reader.

A question that gets no answer before its deadline may have been heard all the same; who asked says so, and a claim is
given back.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from cachecore.errors import CacheError, CacheTimeoutError, LeaseExpiredError, LinkBusyError, LinkLostError
from cachecore.peers.messages import ReaderMessage
from cachecore.peers.records import EntryKeyRecord
from cachecore.peers.request_messages import Answer, Claim, Consume, Release, Verdict, WillWrite
from cachecore.peers.service import Service

__all__ = ["Requests"]

_LARGEST_RELEASE = 1000


class Requests:
    """The questions of one link. Thread-safe; those who ask wait, the rest runs in the service thread.

    Args:
        peer: The owner, for messages.
        service: Whose thread sends.
        token: The owner's name of the session.
        send: Sends a message in the service thread; returns whether it is on its way.
        lost: The error of a link that is lost, None while it is not.
    """

    def __init__(
        self,
        peer: str,
        service: Service,
        token: str,
        send: Callable[[ReaderMessage], bool],
        lost: Callable[[], LinkLostError | None],
    ) -> None:
        self._peer, self._service, self._token = peer, service, token
        self._send, self._lost = send, lost
        #: Whether the owner knows that this reader may also write.
        self.writes = False
        self._numbers = itertools.count(1)
        self._asked: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._claims: dict[str, list[int]] = {}
        #: The service thread's own: a number is here only when its claim has been sent, or never will be.
        self._to_release: list[int] = []

    # --- any thread ----------------------------------------------------------------------------------------------

    def will_write(self, deadline: float) -> None:
        """See `Link.will_write`."""
        if not self.writes:
            self._ask(
                next(self._numbers), lambda number: WillWrite(self._token, number), deadline, "take note of writes"
            )
            self.writes = True

    def consume(self, cache_id: int, key: EntryKeyRecord, deadline: float) -> bool:
        """See `Link.consume`."""
        number = next(self._numbers)
        try:
            answer = self._ask(
                number,
                lambda number: Consume(self._token, number, cache_id, key),
                deadline,
                "confirm that a key is used up",
            )
        except (LinkLostError, CacheTimeoutError) as error:
            error.args = (f"{error}; the key may or may not be used up",)
            raise
        if answer.verdict in (Verdict.YES, Verdict.NO):
            return answer.verdict is Verdict.YES
        raise CacheError(f"{self._peer} failed to drop a key of its cache {cache_id}: {answer.detail}")

    def claim(self, lease_id: str, deadline: float) -> None:
        """See `Link.claim`."""
        number = next(self._numbers)
        try:
            answer = self._ask(number, lambda number: Claim(self._token, number, lease_id), deadline, "confirm a lease")
        except BaseException:
            self._release(number)  # it may have been granted; the owner passes over what it never granted
            raise
        if answer.verdict is not Verdict.YES:
            raise LeaseExpiredError(
                f"{self._peer} does not grant the lease {lease_id}: {answer.detail}. Nothing moved; ask there for the blocks "
                "and a lease of them again"
            )
        with self._lock:
            self._claims.setdefault(lease_id, []).append(number)

    def release_claim(self, lease_id: str) -> None:
        """See `Link.release_claim`."""
        with self._lock:
            numbers = self._claims[lease_id]
            number = numbers.pop()
            if not numbers:
                del self._claims[lease_id]
        self._release(number)

    # --- service thread ------------------------------------------------------------------------------------------

    def answered(self, answer: Answer) -> None:
        """The owner has answered."""
        future = self._asked.pop(answer.request, None)
        if future is not None:
            self._service.settle(future, answer)

    def tick(self) -> None:
        """Send what could not be sent before."""
        while self._to_release:
            claims = self._to_release[:_LARGEST_RELEASE]
            if not self._send(Release(self._token, tuple(claims))):
                return
            del self._to_release[: len(claims)]

    def fail(self, lost: Callable[[], LinkLostError]) -> None:
        """The link is lost: nobody answers any more. Each who waits gets an error of its own, which it may add to."""
        asked, self._asked = self._asked, {}
        for future in asked.values():
            self._service.settle(future, error=lost())

    # --- inside --------------------------------------------------------------------------------------------------

    def _ask(self, number: int, make: Callable[[int], ReaderMessage], deadline: float, what: str) -> Answer:
        """Ask and wait.

        Raises:
            LinkLostError: The link is lost.
            LinkBusyError: The peer takes no messages; nothing was sent.
            CacheTimeoutError: No answer before the deadline.
        """
        future = self._service.future()

        def send() -> None:
            lost = self._lost()
            if lost is not None:
                self._service.settle(future, error=lost)
            elif self._send(make(number)):
                self._asked[number] = future
            else:
                self._service.settle(
                    future,
                    error=LinkBusyError(f"{self._peer} takes no messages now: its queue is full; try again later"),
                )

        self._service.submit(send)
        answer: Answer = self._service.wait(future, deadline, f"{self._peer} did not {what}")
        return answer

    def _release(self, number: int) -> None:
        def release() -> None:  # behind the claim, which may still wait to be sent: a release before it is passed over
            self._to_release.append(number)
            self.tick()

        try:
            self._service.submit(release)
        except CacheError:  # without a service thread there is no session that a claim could be part of
            return
