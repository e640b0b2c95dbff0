"""The reader's side, against an owner that says what the test wants: gaps, lies, silence."""

import contextlib
import os
import secrets
import threading
import time
from collections import deque

import msgspec
import pytest
import zmq

from cachecore.driver import Capability
from cachecore.engine import EngineBinding, EngineCapabilities, PeerIdentity, TransferEngine
from cachecore.errors import (
    CacheBusyError,
    CacheError,
    CacheIncompatibleError,
    CacheNotFoundError,
    CacheTimeoutError,
    LinkFailedError,
    LinkLostError,
    NotLinkedError,
    NotSupportedError,
)
from cachecore.peers import Peers, Timing, manager
from cachecore.peers.addresses import ResolvedAddress
from cachecore.peers.keyfiles import loopback_pair
from cachecore.peers.messages import (
    PROTOCOL_VERSION,
    Changes,
    EngineOffer,
    Farewell,
    Fetch,
    Goodbye,
    Hello,
    IdentityRecord,
    Linked,
    Ping,
    Pong,
    Ready,
    Refused,
    Retired,
    Retiring,
    SessionGone,
    Snapshot,
    Welcome,
    decode_reader_message,
    encode,
)
from cachecore.peers.records import BlocksKeyRecord, CacheRecord, RegionRecord
from cachecore.types import BlocksCacheKey, CacheKeyByIdAndIndex, DataType, Placement

FAST = Timing(ping_interval=0.05, stall_after=0.3, lease=1.5, owner_silence=2.0, handshake=1.0, farewell=0.3)
REGION = RegionRecord(1 << 20, 1 << 16, Placement.HOST, b"shared")


def soon(seconds=20.0):
    return time.monotonic() + seconds


def until(condition, seconds=20.0):
    end = soon(seconds)
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def record(cache_id, wire_id="fake/1", region=REGION):
    keys = (BlocksKeyRecord(cache_id),)
    return CacheRecord(
        cache_id, True, keys, 1, (4, 8), DataType.DT_UINT8, Placement.HOST, 0, (cache_id << 12,), {wire_id: (region,)}
    )


class Engine(TransferEngine):
    """Notes what it is asked to do."""

    def __init__(self, wire_id="fake/1"):
        self.wire_id = wire_id
        self.calls = []
        self.unreachable = None
        self.quiet = True

    def connect(self, peer, endpoint, regions, deadline):
        self.calls.append(("connect", peer.cluster_id, endpoint, len(regions)))
        if self.unreachable:
            raise self.unreachable

    def update(self, peer, added, removed):
        self.calls.append(("update", len(added), len(removed)))

    def disconnect(self, peer, deadline):
        self.calls.append(("disconnect", peer.cluster_id))
        return self.quiet

    def endpoint(self):
        return b"here"

    def capabilities(self):
        unknown = Capability(None, "not asked")
        pairs = Capability(frozenset({(Placement.HOST, Placement.HOST)}), "the test")
        return EngineCapabilities(pairs, *[unknown] * 7)

    def register(self, *args):
        raise AssertionError("not asked")

    deregister = transfer = quiescent = close = register


class Owner(threading.Thread):
    """Answers like an owner, except where the test takes an answer away."""

    def __init__(self):
        super().__init__(daemon=True)
        self.identity = PeerIdentity(1, "elsewhere", 4321, secrets.token_hex(16))
        self.records, self.number = [record(1)], 1
        self.offers = (EngineOffer("fake/1", 1, b"endpoint"),)
        self.answers = {kind: True for kind in (Hello, Ready, Ping, Fetch, Goodbye)}
        self.greeting = None
        self.heard, self.outbox, self.reader, self.stopping = [], deque(), None, False
        self.context = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        public, secret, _ = loopback_pair()
        self.router.curve_server, self.router.linger = True, 0
        self.router.curve_publickey, self.router.curve_secretkey = public.encode(), secret.encode()
        self.address = f"127.0.0.1:{self.router.bind_to_random_port('tcp://127.0.0.1')}"
        self.start()

    def run(self):
        while not self.stopping:
            while self.outbox and self.reader:
                self.router.send_multipart([self.reader, *self.outbox.popleft()])
            if self.router.poll(5):
                self.reader, frame = self.router.recv_multipart()
                message = decode_reader_message(frame)
                self.heard.append(message)
                if self.answers.get(type(message), False):
                    self.outbox.append([encode(self.answer(message))])
        self.context.destroy(linger=0)

    def answer(self, message):
        if isinstance(message, Hello):
            return self.greeting or Welcome(
                IdentityRecord.of(self.identity), "a" * 32, "b" * 64, 2.0, self.offers, self.number, tuple(self.records)
            )
        if isinstance(message, Ready):
            return Linked(message.sequence, self.number)
        if isinstance(message, Ping):
            return Pong(message.sequence, self.number)
        if isinstance(message, Fetch):
            return Snapshot(message.request, self.number, tuple(self.records))
        return Farewell()

    def push(self, *messages):
        for message in messages:
            self.outbox.append([encode(message)] if not isinstance(message, list) else message)

    def count(self, kind):
        return sum(isinstance(message, kind) for message in self.heard)

    def end(self):
        self.stopping = True
        self.join(20)


@pytest.fixture(autouse=True)
def key_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("CACHECORE_KEY_DIR", str(tmp_path))


@pytest.fixture
def owner():
    made = Owner()
    yield made
    made.end()


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def peers(engine):
    events = []
    made = Peers(
        PeerIdentity(2, "here", os.getpid(), secrets.token_hex(16)),
        engines=[EngineBinding("fake", "fake/1", 1, engine)],
        events=events.append,
        timing=FAST,
    )
    made.events = events
    yield made
    made.close(deadline=soon(2))


@pytest.fixture
def link(peers, owner):
    return peers.link(1, owner.address, deadline=soon())


def kinds(peers):
    return [event.kind for event in peers.events]


def test_a_hit_sends_nothing_and_gives_the_same_object(link, owner, engine):
    before = len([one for one in owner.heard if not isinstance(one, Ping)])
    entries = {link.lookup(BlocksCacheKey(1, 1), deadline=soon()).cache for _ in range(100)}
    assert len(entries) == 1 and link.fetches == 0
    assert len([one for one in owner.heard if not isinstance(one, Ping)]) == before
    assert engine.calls == [("connect", 1, b"endpoint", 1)]


def test_a_miss_fetches_once_and_explains(link, owner):
    with pytest.raises(
        CacheNotFoundError, match=r"model_id=9.*keys that exist: BlocksCacheKey\(model_id=1\).*remote_acc"
    ):
        link.lookup(BlocksCacheKey(1, 9), deadline=soon())
    assert link.fetches == 1
    owner.records.append(record(9))
    owner.number = 2
    assert link.lookup(BlocksCacheKey(1, 9), deadline=soon()).cache.cache_id == 9


def test_a_change_that_was_missed_is_noticed_and_fetched(link, owner):
    owner.records = [record(2), record(3)]
    owner.number = 3
    owner.push(Changes(2, 3, (record(3),), ()))  # number 2, which removed 1 and added 2, never came
    until(lambda: link.number == 3)
    until(lambda: {cache.cache_id for cache in link.caches} == {2, 3})  # another thread forgets what is not used
    owner.records = [*owner.records, record(4)]
    owner.number = 4
    until(lambda: link.number == 4)  # nothing was pushed: the number in a Pong is enough
    assert link.lookup(BlocksCacheKey(1, 4), deadline=soon()).cache.cache_id == 4


def test_a_cache_published_later_is_made_known_to_the_engine_once_and_shared_regions_are_counted(link, owner, engine):
    own = RegionRecord(1 << 30, 1 << 16, Placement.HOST, b"own")
    owner.push(Changes(1, 2, (record(2), record(3, "other/1"), record(4, region=own)), ()))
    until(lambda: link.number == 2)
    for _ in range(3):
        link.lookup(BlocksCacheKey(1, 2), deadline=soon())
    assert engine.calls[1:] == []  # its region came with cache 1
    for _ in range(3):
        link.lookup(BlocksCacheKey(1, 4), deadline=soon())
    assert engine.calls[1:] == [("update", 1, 0)]
    with pytest.raises(CacheIncompatibleError, match=r"other/1.*fake/1"):
        link.lookup(BlocksCacheKey(1, 3), deadline=soon())
    owner.push(Retiring((1,)))
    until(lambda: owner.count(Retired) == 1)
    assert engine.calls[2:] == []  # cache 2 still lies in the region
    owner.push(Retiring((2,)))
    until(lambda: owner.count(Retired) == 2)
    assert engine.calls[2:] == [("update", 0, 1)]


@pytest.mark.parametrize(
    ("placement", "regions", "error", "text"),
    [
        (
            Placement.HOST,
            {"other/1": (REGION,), "fake/1": ()},
            CacheIncompatibleError,
            "with other/1 and .* uses fake/1; make",
        ),
        (Placement.HOST, {"fake/1": ()}, CacheIncompatibleError, "with no engine and"),
        (
            Placement.DEVICE,
            {"other/1": (REGION,), "fake/1": ()},
            NotSupportedError,
            "DEVICE memory, which .* fake/1 does not",
        ),
    ],
    ids=["another engine", "no engine", "another placement"],
)
def test_a_cache_out_of_reach_of_the_engine_says_why(link, owner, placement, regions, error, text):
    """Each engine of the owner stands in the record, also where it registered nothing."""
    owner.push(Changes(1, 2, (msgspec.structs.replace(record(2), placement=placement, regions=regions),), ()))
    until(lambda: link.number == 2)
    with pytest.raises(error, match=text):
        link.lookup(BlocksCacheKey(1, 2), deadline=soon())


def test_retiring_waits_for_what_runs_and_refuses_what_would_start(link, owner):
    cache = link.lookup(BlocksCacheKey(1, 1), deadline=soon()).cache
    link.begin(cache)
    link.begin(cache)
    owner.records, owner.number = [], 1
    owner.push(Retiring((1,)), Retiring((1,)))
    until(lambda: cache.retiring)
    with pytest.raises(CacheNotFoundError, match="being unregistered"):
        link.begin(cache)
    with pytest.raises(CacheNotFoundError):
        link.lookup(CacheKeyByIdAndIndex(1, 1, 0), deadline=soon())
    link.end(cache, quiescent=True)
    link.end(cache, quiescent=False)  # over, and may still be writing
    time.sleep(5 * FAST.ping_interval)
    assert owner.count(Retired) == 0
    link.settled(cache)
    until(lambda: owner.count(Retired) == 1)
    assert [one.cache_ids for one in owner.heard if isinstance(one, Retired)] == [(1,)]


def test_a_cache_never_heard_of_is_let_go_at_once_and_the_engine_hears_of_it(link, owner, engine):
    """Some engines must end their native link before the owner can deregister any memory, also what they never knew."""
    owner.push(Retiring((77, 78)))
    until(lambda: owner.count(Retired) == 1)
    assert engine.calls[1:] == [("update", 0, 0)]


def test_the_engine_hears_that_memory_goes_that_it_never_used(link, owner, engine):
    own = RegionRecord(1 << 30, 1 << 16, Placement.HOST, b"own")
    owner.push(Changes(1, 2, (record(2), record(4, region=own)), ()))
    until(lambda: link.number == 2)
    owner.push(Retiring((4,)))
    until(lambda: owner.count(Retired) == 1)
    assert engine.calls[1:] == [("update", 0, 1)]
    owner.push(Retiring((2,)))
    until(lambda: owner.count(Retired) == 2)
    assert engine.calls[2:] == []  # cache 1 lies in the same region


def test_a_removal_while_reading_ends_the_cache_only_after_the_reading(link, owner, engine):
    cache = link.lookup(BlocksCacheKey(1, 1), deadline=soon()).cache
    link.begin(cache)
    owner.number, owner.records = 2, []
    owner.push(Changes(1, 2, (), (1,)))
    until(lambda: cache.retiring)
    assert link.caches == (cache,) and engine.calls[1:] == []
    link.end(cache)
    until(lambda: link.caches == ())
    assert engine.calls[1:] == [("update", 0, 1)]


def test_a_peer_that_does_not_answer_is_stalled_and_recovers(link, owner, peers):
    owner.answers[Ping] = False
    until(lambda: link.state == "STALLED")
    cache = link.lookup(BlocksCacheKey(1, 1), deadline=soon()).cache
    link.begin(cache)  # its memory can be read all the same; whether it counts is the lease's business
    link.end(cache)
    until(lambda: not link.lease_holds())
    assert not link.wait_for_lease(time.monotonic() + 0.05)
    owner.answers[Ping] = True
    assert link.wait_for_lease(soon()) and link.lease_holds()
    until(lambda: link.state == "LINKED")
    until(lambda: kinds(peers) == ["linked", "link stalled", "link recovered"])


def test_a_late_answer_renews_the_lease_only_from_the_sending_of_its_ping(link, owner):
    owner.answers[Ping] = False
    before = owner.count(Ping)
    until(lambda: owner.count(Ping) > before)
    late = [message for message in owner.heard if isinstance(message, Ping)][before]
    time.sleep(0.6)
    owner.push(Pong(late.sequence, 1))
    until(lambda: late.sequence not in link.dialogue._unanswered)
    assert link.lease.remaining <= FAST.lease - 0.6


def test_an_unanswered_fetch_ends_at_the_deadline(link, owner):
    owner.answers[Fetch] = False
    with pytest.raises(CacheTimeoutError, match="did not send its catalogue"):
        link.lookup(BlocksCacheKey(1, 9), deadline=soon(0.1))


def test_an_ended_session_loses_the_link_and_the_lease_and_every_waiter(link, owner, peers, engine):
    owner.answers[Fetch] = owner.answers[Ping] = False
    failures = []

    def look():
        try:
            link.lookup(BlocksCacheKey(1, 9), deadline=soon())
        except LinkLostError as error:
            failures.append(error)

    waiting = threading.Thread(target=look)
    waiting.start()
    until(lambda: owner.count(Fetch) == 1)
    assert link.lease_holds()
    owner.push(SessionGone("enough"))
    waiting.join(20)
    assert [error.state for error in failures] == ["LOST"] and "enough" in str(failures[0])
    assert not link.lease_holds() and not link.wait_for_lease(soon())
    with pytest.raises(LinkLostError, match="enough"):
        link.begin(link.caches[0])
    until(lambda: ("disconnect", 1) in engine.calls)
    until(lambda: kinds(peers) == ["linked", "link lost"])


def test_a_broken_connection_loses_the_link_and_keeps_the_lease_for_what_was_read(link, owner):
    owner.end()
    until(lambda: link.state == "LOST")
    assert link.lease_holds()  # the owner promised to wait, alive or not
    until(lambda: not link.lease_holds())


@pytest.mark.parametrize(
    "frames",
    [
        [b"rubbish"],
        [b"CCL\x01\x91" * 3],
        [encode(Pong(1, 1)), b"more"],
        [encode(Ping("a" * 32, 1))],
        [b"CCL\x07" + encode(Pong(1, 1))[4:]],
    ],
)
def test_a_message_that_makes_no_sense_ends_the_link(link, owner, peers, frames):
    owner.push(frames)
    until(lambda: link.state == "LOST")
    with pytest.raises(LinkLostError, match="not understood"):
        link.lookup(BlocksCacheKey(1, 9), deadline=soon())
    assert peers.counters.malformed_messages == 1


def test_unlink_waits_for_transfers_says_goodbye_and_can_be_repeated(link, owner, peers, engine):
    cache = link.lookup(BlocksCacheKey(1, 1), deadline=soon()).cache
    link.begin(cache)
    with pytest.raises(CacheBusyError, match="1 transfers run") as caught:
        peers.unlink(1, deadline=soon(0.05))
    assert caught.value.peers == (1,) and owner.count(Goodbye) == 0 and link.state == "LINKED"
    with pytest.raises(NotLinkedError, match="being unlinked"):
        link.begin(cache)
    link.end(cache)
    engine.quiet = False
    with pytest.raises(CacheBusyError, match="not quiescent"):
        peers.unlink(1, deadline=soon(0.05))
    engine.quiet = True
    peers.unlink(1, deadline=soon())
    assert owner.count(Goodbye) == 1
    with pytest.raises(NotLinkedError, match="not linked; linked are none"):
        peers.get(1)


def test_unlink_and_close_do_not_wait_long_for_an_owner_that_does_not_answer(link, owner, peers):
    owner.answers[Goodbye] = owner.answers[Ping] = False
    started = time.monotonic()
    assert peers.close(deadline=soon(60)) == ()
    assert time.monotonic() - started < 10


def test_closing_names_the_links_that_may_still_be_writing(link, owner, peers):
    link.begin(link.caches[0])
    assert peers.close(deadline=soon(0.05)) == (link,)


@pytest.mark.parametrize(
    ("greeting", "message"),
    [
        (Refused("DUPLICATE", "detail"), "another live peer has linked with the same cluster id .detail"),
        (Refused("A_REASON_OF_THE_FUTURE", "x"), "A_REASON_OF_THE_FUTURE"),
        (Pong(1, 1), "no manager"),
    ],
)
def test_a_greeting_that_is_no_welcome_fails_the_link(peers, owner, greeting, message):
    owner.greeting = greeting
    with pytest.raises(LinkFailedError, match=message):
        peers.link(None, owner.address, deadline=soon())
    assert peers.links == ()


def test_an_owner_of_another_version_is_named_with_both_versions(peers, owner, monkeypatch):
    owner.answers[Hello] = False
    owner.push([b"CCL\xffwhatever"])
    with pytest.raises(
        LinkFailedError, match=rf"version 255 of the link protocol and this one version {PROTOCOL_VERSION}"
    ):
        peers.link(None, owner.address, deadline=soon())


def test_another_cluster_than_expected_is_an_error_that_names_both(peers, owner, engine):
    with pytest.raises(LinkFailedError, match=r"cluster_id is 7 .* declares cluster 1"):
        peers.link(7, owner.address, deadline=soon())
    assert owner.count(Goodbye) == 1 and engine.calls == [] and peers.links == ()


def test_no_greeting_or_no_confirmation_ends_at_the_deadline_with_nothing_left(peers, owner, engine):
    owner.answers[Hello] = False
    with pytest.raises(CacheTimeoutError, match="sent no greeting"):
        peers.link(1, owner.address, deadline=soon(0.3))
    owner.answers[Hello], owner.answers[Ready] = True, False
    with pytest.raises(CacheTimeoutError, match="did not confirm"):
        peers.link(1, owner.address, deadline=soon(0.3))
    assert [call[0] for call in engine.calls] == ["connect", "disconnect"] and peers.links == ()
    owner.answers[Ready] = True
    peers.link(1, owner.address, deadline=soon())


def test_an_engine_that_cannot_reach_the_peer_fails_the_link_with_its_reason(peers, owner, engine):
    engine.unreachable = LinkFailedError("another machine")
    with pytest.raises(LinkFailedError, match=r"fake \(fake/1\): another machine"):
        peers.link(1, owner.address, deadline=soon())
    assert owner.count(Goodbye) == 1 and peers.links == ()


def test_no_common_engine_names_those_of_both_sides(peers, owner):
    owner.offers = (EngineOffer("hixl/3", 1, b""),)
    with pytest.raises(LinkFailedError, match=r"hixl/3.*fake/1"):
        peers.link(1, owner.address, deadline=soon())


def test_a_cache_taken_back_while_the_engine_connects_is_tried_without(peers, owner, engine):
    calls = engine.calls

    def connect(peer, endpoint, regions, deadline):
        calls.append(("connect", len(regions)))
        if len(calls) == 1:
            owner.number, owner.records = 2, []
            owner.push(Changes(1, 2, (), (1,)))
            until(lambda: owner.outbox == deque())
            time.sleep(0.1)
            raise LinkFailedError("the region is gone")

    engine.connect = connect
    peers.link(1, owner.address, deadline=soon())
    assert calls == [("connect", 1), ("connect", 0)]


def test_threads_that_miss_at_once_share_fetches(link, owner):
    owner.answers[Fetch] = False

    def look():
        with contextlib.suppress(CacheError):
            link.lookup(BlocksCacheKey(1, 9), deadline=soon(3))

    waiting = [threading.Thread(target=look) for _ in range(20)]
    for one in waiting:
        one.start()
    until(lambda: owner.count(Fetch) >= 1)
    time.sleep(0.2)
    owner.push(Snapshot(link.fetches, 1, (record(1),)))
    owner.answers[Fetch] = True
    for one in waiting:
        one.join(20)
    assert owner.count(Fetch) <= 20


def test_transfers_over_a_lost_link_keep_its_engine_until_they_end(link, owner, engine):
    cache = link.lookup(BlocksCacheKey(1, 1), deadline=soon()).cache
    link.begin(cache)
    owner.push(SessionGone("enough"))
    until(lambda: link.state == "LOST")
    time.sleep(5 * FAST.ping_interval)
    assert ("disconnect", 1) not in engine.calls
    engine.quiet = False
    link.end(cache)
    until(lambda: engine.calls.count(("disconnect", 1)) >= 2)  # tried again until it is quiescent
    assert not link.released
    engine.quiet = True
    until(lambda: link.released)


def test_an_engine_that_proves_the_peer_gone_loses_the_link(link):
    link.report_gone("its process ended")
    until(lambda: link.state == "LOST")
    with pytest.raises(LinkLostError, match="its process ended"):
        link.begin(link.caches[0])


def test_a_failed_service_thread_ends_every_wait_with_its_cause(link, owner, peers):
    owner.answers[Fetch] = False
    failures = []

    def look():
        try:
            link.lookup(BlocksCacheKey(1, 9), deadline=soon(60))
        except CacheError as error:
            failures.append(error)

    waiting = threading.Thread(target=look)
    waiting.start()
    until(lambda: owner.count(Fetch) == 1)
    peers._service.submit(lambda: 1 / 0)
    waiting.join(20)
    assert "link service failed: ZeroDivisionError" in str(failures)
    until(lambda: link.state == "LOST")
    for call in (lambda: peers.link(5, owner.address, deadline=soon()), lambda: peers.publish([record(5)])):
        with pytest.raises(CacheError, match="link service failed: ZeroDivisionError") as caught:
            call()
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert peers.close(deadline=soon()) == ()


def test_a_restarted_peer_hears_nothing_of_the_old_link(link, owner, peers):
    busy = threading.Event()
    peers._service.submit(lambda: busy.wait(30) and None)  # the end of the connection goes unnoticed for a while
    owner.end()
    context = zmq.Context()
    successor = context.socket(zmq.ROUTER)
    monitor = successor.get_monitor_socket(zmq.EVENT_ACCEPTED)
    successor.bind(f"tcp://{owner.address}")
    try:
        assert monitor.poll(700) == 0, "it connected again by itself"
    finally:
        busy.set()
        successor.disable_monitor()
        context.destroy(linger=0)
    until(lambda: link.state == "LOST")


def test_every_address_of_a_name_is_tried(peers, owner, monkeypatch):
    host, port = owner.address.rsplit(":", 1)
    found = [ResolvedAddress("127.0.0.9", int(port)), ResolvedAddress(host, int(port))]
    monkeypatch.setattr(manager, "resolve", lambda *arguments, **more: found)
    assert peers.link(1, "name:1", deadline=soon()).address == owner.address
    monkeypatch.setattr(manager, "resolve", lambda *arguments, **more: found[:1] * 2)
    with pytest.raises(LinkFailedError, match=r"127\.0\.0\.9.*; address 127\.0\.0\.9"):
        peers.link(3, "name:1", deadline=soon())
