import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecore.engine import Region, Registration
from cachecore.peers import messages
from cachecore.peers.messages import (
    Changes,
    MalformedMessageError,
    OtherVersionError,
    Ping,
    Retired,
    decode_owner_message,
    decode_reader_message,
    encode,
)
from cachecore.peers.records import BlocksKeyRecord, CacheRecord, EntryKeyRecord, key_records, region_records
from cachecore.peers.request_messages import (
    MAX_PAYLOAD,
    Answer,
    Claim,
    Consume,
    Notice,
    NoticeResult,
    Notify,
    NotifyResult,
    Release,
    Verdict,
    WillWrite,
)
from cachecore.types import NO_ID, BlocksCacheKey, CacheKey, DataType, Placement

TOKEN = "0123456789abcdef" * 2
HEAD = encode(Ping(TOKEN, 1))[:4]


def record(**changes):
    values = {
        "cache_id": 1,
        "is_blocks": True,
        "keys": (BlocksKeyRecord(0),),
        "num_tensors": 2,
        "shape": (4, 8),
        "data_type": DataType.DT_FLOAT16,
        "placement": Placement.HOST,
        "batch_dim": 0,
        "addrs": (4096, 8192),
        "regions": {"fake/1": region_records([Registration(Region(4096, 8192, Placement.HOST), b"where")])},
    }
    return {**values, **changes}


def raw(body):
    return HEAD + msgspec.msgpack.encode(body)


def test_messages_survive_the_wire():
    changes = Changes(2**64 - 2, 2**64 - 1, (CacheRecord(**record()),), (7, 8))
    assert decode_owner_message(encode(changes)) == changes
    for said in (
        Retired(TOKEN, (2**63,)),
        WillWrite(TOKEN, 1),
        Claim(TOKEN, 2, TOKEN),
        Release(TOKEN, (2, 3)),
        Consume(TOKEN, 3, 7, EntryKeyRecord(0, 5, NO_ID, 1)),
        Notify(TOKEN, 4, "n" * 200, bytes(MAX_PAYLOAD)),
        NoticeResult(TOKEN, 5, Verdict.FULL, "full"),
    ):
        assert decode_reader_message(encode(said)) == said
    for said in (Answer(1, Verdict.NO, "why"), Notice(2, "n", b"\x00"), NotifyResult(3, Verdict.YES, "")):
        assert decode_owner_message(encode(said)) == said


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        HEAD,
        b"XXX" + HEAD[3:] + b"\x80",
        HEAD + b"\x91" * 100_000,  # nested deeper than any decoder may follow
        HEAD + b"\xdd\xff\xff\xff\xff",  # promises four billion items
        HEAD + b"\xc1",
        raw({"type": "ping", "session": TOKEN, "sequence": -1}),
        raw({"type": "ping", "session": TOKEN, "sequence": 1, "more": 1}),
        raw({"type": "ping", "session": TOKEN, "sequence": True}),
        raw({"type": "ping", "session": TOKEN, "sequence": 1.0}),
        raw({"type": "ping", "session": TOKEN + "\n", "sequence": 1}),
        raw({"type": "ping", "session": TOKEN}),
        raw({"type": "pong", "sequence": 1, "number": 1}),  # what only an owner sends
        raw({"type": "surprise"}),
        raw({"type": "retired", "session": TOKEN, "cache_ids": [1, -1]}),
        raw({"type": "notify", "session": TOKEN, "number": 1, "name": "", "payload": b""}),
        raw({"type": "notify", "session": TOKEN, "number": 1, "name": "n" * 201, "payload": b""}),
        raw({"type": "notify", "session": TOKEN, "number": 1, "name": "n", "payload": bytes((256 << 10) + 1)}),
        raw({"type": "notify", "session": TOKEN, "number": 1, "name": "n", "payload": "text"}),
        raw({"type": "notice", "number": 1, "name": "n", "payload": b""}),  # what only an owner sends
        raw({"type": "notice result", "session": TOKEN, "number": 1, "verdict": 4, "detail": ""}),
        raw({"type": "claim", "session": TOKEN, "request": 1, "lease": "short"}),
        raw({"type": "release", "session": TOKEN, "claims": [1] * 10_001}),
        raw(
            {"type": "consume", "session": TOKEN, "request": 1, "cache_id": 1, "key": {"type": "blocks", "model_id": 0}}
        ),
        encode(Ping(TOKEN, 1)) + b"\x00",
        HEAD + b"\x82\xa4type\xa4ping\xa7session\xa2\xff\xfe",  # not UTF-8
    ],
)
def test_frames_that_no_reader_sends_are_malformed(frame):
    with pytest.raises(MalformedMessageError):
        decode_reader_message(frame)


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_unexpected(body):
    for frame in (body, HEAD + body):
        for decode in (decode_reader_message, decode_owner_message):
            with contextlib.suppress(MalformedMessageError, OtherVersionError):
                decode(frame)


def test_another_version_is_told_apart_from_rubbish(monkeypatch):
    own = messages.PROTOCOL_VERSION
    monkeypatch.setattr(messages, "PROTOCOL_VERSION", own + 1)
    frame = encode(Ping(TOKEN, 1))
    monkeypatch.undo()
    with pytest.raises(OtherVersionError, match=f"protocol version {own + 1}; this side speaks {own}"):
        decode_reader_message(frame)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_tensors": 3},
        {"num_tensors": 0, "addrs": ()},
        {"shape": ()},
        {"shape": (0, 8)},
        {"shape": (2**62,) * 32},
        {"shape": (1,) * 33},
        {"batch_dim": 2},
        {"data_type": 13},
        {"data_type": 99},
        {"placement": 2},
        {"addrs": (0, 8192)},
        {"addrs": (4096, 2**64 - 63)},
        {"keys": ({"type": "entry", "model_id": 0, "req_id": 1, "prefix_id": NO_ID, "batch_index": 0},)},
        {"is_blocks": False},
        {"cache_id": -1},
        {"regions": {"fake/1": [[0, 10, 0, b""]]}},
        {"regions": {"fake/1": [[2**64 - 5, 10, 0, b""]]}},
        {"regions": {"": []}},
    ],
)
def test_records_that_do_not_add_up_are_malformed(changes):
    body = {"type": "changes", "base": 0, "number": 1, "added": [record(**changes)], "removed": []}
    with pytest.raises(MalformedMessageError):
        decode_owner_message(raw(body))


def test_a_key_names_the_entry_at_its_position():
    keys = [CacheKey(1, req_id=5), CacheKey(1), CacheKey(1, prefix_id=9, model_id=3)]
    assert key_records(keys) == (EntryKeyRecord(0, 5, NO_ID, 0), EntryKeyRecord(3, NO_ID, 9, 2))
    assert key_records([BlocksCacheKey(1, 4)]) == (BlocksKeyRecord(4),)
    with pytest.raises(ValueError, match="batch entry 4 of 4"):
        CacheRecord(**record(is_blocks=False, keys=(EntryKeyRecord(0, 5, NO_ID, 4),)))
