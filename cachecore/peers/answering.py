"""What an owner answers to the questions of its readers.

Everything runs in the service thread with the lock of `Sessions` held, except for what may wait: that is done by the
worker, and the answer follows later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from cachecore.lease_table import LeaseTable
from cachecore.peers.inbox import Inbox
from cachecore.peers.messages import OwnerMessage
from cachecore.peers.records import CacheRecord, EntryKeyRecord
from cachecore.peers.request_messages import (
    Answer,
    Claim,
    Consume,
    NoticeResult,
    Notify,
    NotifyResult,
    Release,
    Verdict,
    WillWrite,
)
from cachecore.peers.session import Session
from cachecore.peers.worker import Worker
from cachecore.types import CacheKey

__all__ = ["Answering", "ReaderQuestion"]

_logger = logging.getLogger("cachecore.peers")

ReaderQuestion = WillWrite | Consume | Claim | Release | Notify | NoticeResult


class Answering:
    """Answers one kind of message each.

    Args:
        cluster_id: Of this manager.
        worker: For what may wait.
        leases: The leases that this manager granted.
        inbox: For notifications of readers.
        on_consumed: (cache id, key) -> whether a key was there and is dropped now. Called in the worker.
        record: The record of a cache that readers may start to read, None for others.
        republish: Publishes other keys of a cache; any thread.
        answer: Sends a session something.
        answer_later: The same behind all changes that were published, from any thread.
    """

    def __init__(
        self,
        cluster_id: int,
        worker: Worker,
        leases: LeaseTable,
        inbox: Inbox,
        on_consumed: Callable[[int, CacheKey], bool] | None,
        record: Callable[[int], CacheRecord | None],
        republish: Callable[[int, EntryKeyRecord], None],
        answer: Callable[[Session, OwnerMessage], object],
        answer_later: Callable[[Session, OwnerMessage], None],
    ) -> None:
        self._cluster_id, self._worker, self._on_consumed = cluster_id, worker, on_consumed
        self._leases, self._inbox = leases, inbox
        self._record, self._republish, self._answer, self._answer_later = record, republish, answer, answer_later

    def handle(self, session: Session, message: ReaderQuestion) -> None:
        """Answer, now or later."""
        if isinstance(message, WillWrite):
            session.writes = True
            self._answer(session, Answer(message.request, Verdict.YES, ""))
        elif isinstance(message, Claim):
            refusal = "this session does not count yet"
            if session.ready:
                refusal = self._leases.claim(message.lease, session.token, message.request, session.peer.cluster_id)
            self._answer(session, Answer(message.request, Verdict.NO if refusal else Verdict.YES, refusal))
        elif isinstance(message, Release):
            self._leases.release(session.token, message.claims)
        elif isinstance(message, Notify):
            verdict, detail = self._inbox.put(session.peer, message.number, message.name, message.payload)
            self._answer(session, NotifyResult(message.number, verdict, detail))
        elif isinstance(message, NoticeResult):
            session.notices.answered(message.number, message.verdict, message.detail)
        else:
            self._consume(session, message)

    def _consume(self, session: Session, message: Consume) -> None:
        record = self._record(message.cache_id)
        if self._on_consumed is None or record is None or message.key not in record.keys:
            self._answer(session, Answer(message.request, Verdict.NO, ""))
            return
        # The registry may be busy registering with an engine: nobody's pings wait for that.
        self._worker.submit(partial(self._drop_key, session, message, self._on_consumed))

    def _drop_key(self, session: Session, message: Consume, on_consumed: Callable[[int, CacheKey], bool]) -> None:
        key = message.key
        try:
            dropped = on_consumed(
                message.cache_id,
                CacheKey(self._cluster_id, req_id=key.req_id, model_id=key.model_id, prefix_id=key.prefix_id),
            )
            if dropped:
                self._republish(message.cache_id, key)
            answer = Answer(message.request, Verdict.YES if dropped else Verdict.NO, "")
        except Exception as error:
            _logger.exception(
                "dropping a key of cache %d for cluster %d failed", message.cache_id, session.peer.cluster_id
            )
            answer = Answer(message.request, Verdict.FAILED, f"{type(error).__name__}: {error}"[:1000])
        self._answer_later(session, answer)
