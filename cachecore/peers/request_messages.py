"""Messages of what a linked reader asks of an owner, and of notifications, which go both ways.

A reader asks with a number of its choice and the owner's `Answer` repeats it. A notification has a number that the
sending manager uses once, over whichever link or session it goes.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec

from cachecore.peers.records import U64, EntryKeyRecord
from cachecore.peers.wire import Message, Text, Token

__all__ = [
    "MAX_NAME",
    "MAX_PAYLOAD",
    "Answer",
    "Claim",
    "Consume",
    "Notice",
    "NoticeResult",
    "Notify",
    "NotifyResult",
    "Release",
    "Verdict",
    "WillWrite",
]

#: Largest name of a notification, in characters.
MAX_NAME: Final = 200
#: Largest payload of a notification, in bytes: it must not hold up the pings behind it.
MAX_PAYLOAD: Final = 256 << 10

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
_Payload = Annotated[bytes, msgspec.Meta(max_length=MAX_PAYLOAD)]


class Verdict(enum.IntEnum):
    """What became of a request."""

    YES = 0
    NO = 1
    #: There is no room for it now.
    FULL = 2
    #: The owner's own code failed.
    FAILED = 3


# --- from the reader ---------------------------------------------------------------------------------------------


class WillWrite(Message, frozen=True, tag="will write"):
    """From now on this reader may also write: never take silence for the end of it, only proof."""

    session: Token
    request: U64


class Consume(Message, frozen=True, tag="consume"):
    """Drop this key: what it names has been taken. Answered YES to exactly one reader."""

    session: Token
    request: U64
    cache_id: U64
    key: EntryKeyRecord


class Claim(Message, frozen=True, tag="claim"):
    """A transfer under this lease begins; its blocks must stay until `Release` of this request, or the session's end."""

    session: Token
    request: U64
    lease: Token


class Release(Message, frozen=True, tag="release"):
    """The transfers of these claims have ended. Not answered; one that was never granted is passed over."""

    session: Token
    claims: Annotated[tuple[U64, ...], msgspec.Meta(max_length=10_000)]


class Notify(Message, frozen=True, tag="notify"):
    """A notification from the reader."""

    session: Token
    number: U64
    name: _Name
    payload: _Payload


class NoticeResult(Message, frozen=True, tag="notice result"):
    """Answers a Notice."""

    session: Token
    number: U64
    verdict: Verdict
    detail: Text


# --- from the owner ----------------------------------------------------------------------------------------------


class Answer(Message, frozen=True, tag="answer"):
    """Answers WillWrite, Consume and Claim."""

    request: U64
    verdict: Verdict
    detail: Text


class Notice(Message, frozen=True, tag="notice"):
    """A notification from the owner."""

    number: U64
    name: _Name
    payload: _Payload


class NotifyResult(Message, frozen=True, tag="notify result"):
    """Answers a Notify."""

    number: U64
    verdict: Verdict
    detail: Text
