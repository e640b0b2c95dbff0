"""Every message between two managers, as typed records, and their bytes.

A message is one frame: three bytes that say "cachecore link", one byte of protocol version, then msgpack of one of the
records below or in `request_messages`. Nothing is pickled; unknown fields, wrong types and values out of range are
refused before any code sees them. A frame of another version is recognised as such, so that both sides can say which
versions met.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Annotated, Final, TypeVar

import msgspec

from cachecore.engine import PeerIdentity
from cachecore.peers.records import U64, CacheRecord, WireId
from cachecore.peers.request_messages import (
    Answer,
    Claim,
    Consume,
    Notice,
    NoticeResult,
    Notify,
    NotifyResult,
    Release,
    WillWrite,
)
from cachecore.peers.wire import Message, Proof, Text, Token

__all__ = [
    "MAX_CATALOGUE_BYTES",
    "MAX_OWNER_FRAME",
    "MAX_READER_FRAME",
    "PROTOCOL_VERSION",
    "Changes",
    "EngineOffer",
    "Farewell",
    "Fetch",
    "Goodbye",
    "Hello",
    "IdentityRecord",
    "Linked",
    "MalformedMessageError",
    "OtherVersionError",
    "OwnerMessage",
    "Ping",
    "Pong",
    "Probe",
    "ReaderMessage",
    "Ready",
    "Refusal",
    "Refused",
    "Retired",
    "Retiring",
    "SessionGone",
    "Snapshot",
    "Welcome",
    "decode_owner_message",
    "decode_reader_message",
    "encode",
]

T = TypeVar("T")

PROTOCOL_VERSION: Final = 2
_MAGIC: Final = b"CCL"
#: Largest frame a listener takes from a reader, in bytes: readers only send short ones.
MAX_READER_FRAME: Final = 1 << 20
#: Largest frame a reader takes from the owner it chose to link to, in bytes.
MAX_OWNER_FRAME: Final = 64 << 20
#: Largest encoded catalogue, in bytes: it must fit one frame beside everything else a Welcome says.
MAX_CATALOGUE_BYTES: Final = 48 << 20

_Rank = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_CacheIds = tuple[U64, ...]


class MalformedMessageError(Exception):
    """A frame that no manager of this version sends."""


class OtherVersionError(Exception):
    """A frame of another protocol version.

    Attributes:
        version: Theirs.
    """

    def __init__(self, version: int) -> None:
        super().__init__(f"protocol version {version}; this side speaks {PROTOCOL_VERSION}")
        self.version = version


class Refusal(enum.Enum):
    """Why an owner refuses a link."""

    DUPLICATE = "another live peer has linked with the same cluster id"
    OWN_ID = "the listener has the same cluster id"
    SELF = "the listener is the caller itself"
    VERSION = "the protocol versions differ"
    CLOSING = "the listener is closing"


class IdentityRecord(Message, frozen=True):
    """`PeerIdentity` on the wire."""

    cluster_id: U64
    host: Annotated[str, msgspec.Meta(max_length=255)]
    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    incarnation: Token

    @classmethod
    def of(cls, identity: PeerIdentity) -> IdentityRecord:
        """The record of an identity."""
        return cls(identity.cluster_id, identity.host[:255], identity.pid, identity.incarnation)

    @property
    def identity(self) -> PeerIdentity:
        """The identity of a record."""
        return PeerIdentity(self.cluster_id, self.host, self.pid, self.incarnation)


class EngineOffer(Message, frozen=True):
    """One engine of the owner: its wire id, the owner's rank for it, and what a reader's engine connects to."""

    wire_id: WireId
    rank: _Rank
    endpoint: bytes


# --- from the reader ---------------------------------------------------------------------------------------------


class Hello(Message, frozen=True, tag="hello"):
    """Asks for a link.

    Attributes:
        identity: Who asks.
        challenge: Random; only code in the reader's own process can answer it (see `process`).
        ended: Sessions of earlier links to this owner over which nothing is read any more.
    """

    identity: IdentityRecord
    challenge: Token
    ended: Annotated[tuple[Token, ...], msgspec.Meta(max_length=1000)]


class Ready(Message, frozen=True, tag="ready"):
    """The reader's engine is connected; reads may begin as soon as this is answered.

    Attributes:
        session: See Welcome.
        sequence: As in a Ping.
        wire_id: The engine; None within one process.
        endpoint: Of the reader's engine: lets the owner's engine hold the reader's process.
        writes: The reader may also write: the owner then never takes silence for the end of it, only proof.
        ended: As in a Hello: those that have ended since.
    """

    session: Token
    sequence: U64
    wire_id: WireId | None
    endpoint: bytes
    writes: bool
    ended: Annotated[tuple[Token, ...], msgspec.Meta(max_length=1000)] = ()


class Ping(Message, frozen=True, tag="ping"):
    """Asks for a Pong, which renews the lease from the moment this was sent."""

    session: Token
    sequence: U64


class Fetch(Message, frozen=True, tag="fetch"):
    """Asks for the whole catalogue."""

    session: Token
    request: U64


class Retired(Message, frozen=True, tag="retired"):
    """Nothing of this reader touches these caches any more, or ever will again."""

    session: Token
    cache_ids: _CacheIds


class Goodbye(Message, frozen=True, tag="goodbye"):
    """Nothing of this reader touches anything any more; the session ends."""

    session: Token


# --- from the owner ----------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True, tag="welcome"):
    """Accepts a Hello.

    Attributes:
        identity: Who answers.
        session: Repeated in everything the reader sends: routing ids can be taken over, this cannot be guessed.
        proof: The answer to the challenge.
        silence: Seconds that this owner waits for a silent reader; the reader's lease is shorter.
        engines: Ways to reach its memory.
        number: Of the last change that `records` contains.
        records: The catalogue.
    """

    identity: IdentityRecord
    session: Token
    proof: Proof
    silence: Annotated[float, msgspec.Meta(gt=0, le=86400)]
    engines: Annotated[tuple[EngineOffer, ...], msgspec.Meta(max_length=64)]
    number: U64
    records: tuple[CacheRecord, ...]


class Refused(Message, frozen=True, tag="refused"):
    """Declines a Hello. Understood by every version: it never changes."""

    reason: Text
    detail: Text


class Linked(Message, frozen=True, tag="linked"):
    """Answers a Ready: the session counts from now on."""

    sequence: U64
    number: U64


class Pong(Message, frozen=True, tag="pong"):
    """Answers a Ping; `number` shows a reader that it missed changes."""

    sequence: U64
    number: U64


class Changes(Message, frozen=True, tag="changes"):
    """What changed from number `base` to `number`. A reader that is not at `base` fetches instead."""

    base: U64
    number: U64
    added: tuple[CacheRecord, ...]
    removed: _CacheIds


class Snapshot(Message, frozen=True, tag="snapshot"):
    """The whole catalogue, as answer to Fetch `request`; request 0 was not asked for."""

    request: U64
    number: U64
    records: tuple[CacheRecord, ...]


class Retiring(Message, frozen=True, tag="retiring"):
    """Start nothing more on these caches, and say Retired when what runs has ended. Repeated until answered."""

    cache_ids: _CacheIds


class SessionGone(Message, frozen=True, tag="gone"):
    """The owner no longer counts on this reader: nothing it reads can be trusted from now on."""

    reason: Text


class Farewell(Message, frozen=True, tag="farewell"):
    """Answers Goodbye."""


class Probe(Message, frozen=True, tag="probe"):
    """Means nothing; sending it shows whether the connection is there."""


ReaderMessage = (
    Hello | Ready | Ping | Fetch | Retired | Goodbye | WillWrite | Consume | Claim | Release | Notify | NoticeResult
)
OwnerMessage = (
    Welcome
    | Refused
    | Linked
    | Pong
    | Changes
    | Snapshot
    | Retiring
    | SessionGone
    | Farewell
    | Probe
    | Answer
    | Notice
    | NotifyResult
)

_encoder = msgspec.msgpack.Encoder()
_reader_decoder: msgspec.msgpack.Decoder[ReaderMessage] = msgspec.msgpack.Decoder(ReaderMessage)
_owner_decoder: msgspec.msgpack.Decoder[OwnerMessage] = msgspec.msgpack.Decoder(OwnerMessage)


def encode(message: ReaderMessage | OwnerMessage) -> bytes:
    """The frame of a message."""
    return _MAGIC + bytes((PROTOCOL_VERSION,)) + _encoder.encode(message)


def decode_reader_message(frame: bytes | memoryview) -> ReaderMessage:
    """What a reader sent.

    Raises:
        MalformedMessageError, OtherVersionError: It is none of this version's messages.
    """
    return _decode(_reader_decoder.decode, frame)


def decode_owner_message(frame: bytes | memoryview) -> OwnerMessage:
    """What an owner sent.

    Raises:
        MalformedMessageError, OtherVersionError: It is none of this version's messages.
    """
    return _decode(_owner_decoder.decode, frame)


def _decode(decode: Callable[[memoryview], T], frame: bytes | memoryview) -> T:
    view = memoryview(frame)
    if len(view) < 5 or bytes(view[:3]) != _MAGIC:
        raise MalformedMessageError(f"{len(view)} bytes that do not start like a message between managers")
    if view[3] != PROTOCOL_VERSION:
        raise OtherVersionError(view[3])
    try:
        return decode(view[4:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, MemoryError) as error:
        raise MalformedMessageError(f"{type(error).__name__}: {error}") from error
