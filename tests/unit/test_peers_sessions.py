"""The owner's side alone: what it answers, whom it waits for and when it stops to. The listener is a test double."""

import itertools
import threading
import time

import msgspec
import pytest

from cachecore.engine import PeerIdentity
from cachecore.errors import CacheBusyError, CacheError
from cachecore.lease_table import LeaseTable
from cachecore.peers import sessions as module
from cachecore.peers.events import EventKind
from cachecore.peers.inbox import Inbox
from cachecore.peers.listener import Delivery
from cachecore.peers.liveness import Timing
from cachecore.peers.messages import (
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
    decode_owner_message,
    encode,
)
from cachecore.peers.notices import Post
from cachecore.peers.records import CacheRecord, EntryKeyRecord
from cachecore.peers.request_messages import Answer, Claim, Consume, Release, Verdict, WillWrite
from cachecore.peers.sessions import Sessions
from cachecore.types import NO_ID, DataType, Placement

OWNER = PeerIdentity(1, "owner", 100, "0" * 32)
TIMING = Timing()


def peer(cluster_id=2, life=1, pid=200):
    return PeerIdentity(cluster_id, "reader", pid, f"{life:032x}")


def record(cache_id):
    return CacheRecord(cache_id, True, (), 1, (4, 8), DataType.DT_UINT8, Placement.HOST, 0, (cache_id << 12,), {})


class Wire:
    """What the listener does, with every message kept and connections that end when the test says so."""

    def __init__(self):
        self.sent, self.gone, self.full, self.drained = [], set(), set(), True

    def send(self, routing_id, frame):
        if routing_id in self.gone:
            return Delivery.GONE
        if routing_id in self.full:
            return Delivery.FULL
        self.sent.append((routing_id, decode_owner_message(frame)))
        return Delivery.SENT

    def read_messages(self, limit):
        return self.drained

    def take(self, routing_id, *kinds):
        """Messages of these kinds to one reader; they are gone from the list afterwards."""
        found = [message for to, message in self.sent if to == routing_id and isinstance(message, kinds)]
        self.sent = [one for one in self.sent if one[0] != routing_id or not isinstance(one[1], kinds)]
        return found


class Owner:
    def __init__(self):
        self.wire, self.dead, self.watched, self.events = Wire(), {}, {}, []
        self.inbox = Inbox("callbacks", None, lambda sender, detail: None)
        self.leases = LeaseTable(OWNER, lambda: module.boottime())
        self.sessions = Sessions(
            OWNER,
            TIMING,
            lambda: (EngineOffer("fake/1", 1, b"here"),),
            self,
            lambda function: function(),
            self.events.append,
            self,
            self.leases,
            Post(self.inbox, itertools.count(1)),
            lambda cache_id, key: self.consumed.pop(0),
        )
        self.sessions.serve(self.wire)

    def submit(self, job):  # the worker's
        job()

    def alive(self, who):
        return self.dead.get(who.pid)

    def watch(self, who, wire_id, endpoint):
        self.watched[who] = (wire_id, endpoint)

    def unwatch(self, who, wire_id):
        assert self.watched.pop(who)[0] == wire_id

    def say(self, routing_id, message):
        frames = [encode(message)] if not isinstance(message, list) else message
        self.sessions.receive(routing_id, frames, "127.0.0.1")

    def hello(self, routing_id, who, ended=()):
        self.say(routing_id, Hello(IdentityRecord.of(who), "f" * 32, ended))
        return self.wire.take(routing_id, Welcome, Refused)[0]

    def link(self, routing_id, who=None, writes=False, ended=()):
        welcome = self.hello(routing_id, who or peer(), ended)
        self.say(routing_id, Ready(welcome.session, 1, "fake/1", b"there", writes))
        assert len(self.wire.take(routing_id, Linked)) == 1
        return welcome.session

    def retire(self, *cache_ids, seconds=0.0):
        self.sessions.retire(cache_ids, time.monotonic() + seconds)

    def states(self):
        return [info.state for info in self.sessions.infos]


@pytest.fixture
def owner():
    return Owner()


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(module, "boottime", lambda: now[0])
    return now


def test_a_reader_is_told_everything_then_only_what_changed(owner):
    owner.sessions.publish([record(1)])
    welcome = owner.hello(b"a", peer())
    assert (welcome.identity.identity, welcome.number, welcome.records) == (OWNER, 1, (record(1),))
    assert welcome.engines == (EngineOffer("fake/1", 1, b"here"),)
    owner.sessions.publish([record(2), record(3)])
    assert owner.wire.take(b"a", Changes) == [Changes(1, 2, (record(2), record(3)), ())]
    owner.retire(2)
    assert owner.wire.take(b"a", Changes, Retiring) == [Changes(2, 3, (), (2,))]  # it is not linked yet
    owner.say(b"a", Fetch(welcome.session, 7))
    assert owner.wire.take(b"a", Snapshot) == [Snapshot(7, 3, (record(1), record(3)))]


def test_retirement_waits_for_every_reader_and_names_those_that_hold_it(owner):
    owner.sessions.publish([record(1), record(2)])
    a, b = owner.link(b"a"), owner.link(b"b", peer(3, 2))
    with pytest.raises(CacheBusyError, match=r"caches \[1\] may still be read by cluster 2 .* cluster 3") as caught:
        owner.retire(1)
    assert (caught.value.peers, caught.value.ranges) == ((2, 3), ((4096, 32),))
    assert owner.wire.take(b"a", Retiring) == [Retiring((1,))]
    owner.say(b"a", Retired(a, (1,)))
    with pytest.raises(CacheBusyError) as caught:
        owner.retire(1)
    assert caught.value.peers == (3,)
    waiting = threading.Thread(target=owner.retire, args=(1,), kwargs={"seconds": 30.0})
    waiting.start()
    owner.say(b"b", Retired(b, (1,)))
    waiting.join(30)
    assert not waiting.is_alive()
    assert owner.wire.take(b"a", Changes) == [Changes(1, 2, (), (1,))]


def test_a_request_to_let_go_is_repeated_until_it_is_answered(owner):
    owner.sessions.publish([record(1)])
    token = owner.link(b"a")
    owner.wire.full.add(b"a")  # the first one does not get through
    with pytest.raises(CacheBusyError):
        owner.retire(1)
    owner.wire.full.clear()
    owner.sessions.check()
    owner.sessions.check()
    assert owner.wire.take(b"a", Retiring) == [Retiring((1,))] * 2
    owner.say(b"a", Retired(token, (1,)))
    owner.sessions.check()
    assert owner.wire.take(b"a", Retiring) == []


def test_a_late_message_never_offers_what_is_about_to_go(owner):
    token = owner.link(b"a")
    owner.wire.full.add(b"a")
    owner.sessions.publish([record(1), record(2)])
    with pytest.raises(CacheBusyError):
        owner.retire(1)
    owner.wire.full.clear()
    owner.say(b"a", Ping(token, 5))
    assert owner.wire.take(b"a", Changes) == [Changes(0, 1, (record(2),), ())]


def test_a_reader_that_becomes_ready_during_a_retirement_is_waited_for(owner):
    owner.sessions.publish([record(1)])
    first = owner.link(b"a")
    welcome = owner.hello(b"b", peer(3, 2))
    with pytest.raises(CacheBusyError):
        owner.retire(1)
    owner.say(b"b", Ready(welcome.session, 1, "fake/1", b"there", False))
    owner.say(b"a", Retired(first, (1,)))
    with pytest.raises(CacheBusyError) as caught:
        owner.retire(1)
    assert caught.value.peers == (3,)


def test_the_end_of_a_connection_alone_does_not_release_memory_but_silence_does(owner, clock):
    owner.sessions.publish([record(1)])
    token = owner.link(b"a")
    clock[0] += 5.0
    owner.say(b"a", Ping(token, 9))
    assert owner.wire.take(b"a", Pong) == [Pong(9, 1)]
    owner.wire.gone.add(b"a")
    owner.sessions.connection_lost()
    assert owner.states() == ["LOST"]
    clock[0] += TIMING.owner_silence - 0.1
    owner.sessions.check()
    with pytest.raises(CacheBusyError):
        owner.retire(1)
    clock[0] += 0.1
    owner.sessions.check()
    owner.retire(1)
    assert owner.states() == []
    assert [event.kind for event in owner.events][-2:] == [EventKind.SESSION_LOST, EventKind.SESSION_ENDED]


def test_a_silent_reader_learns_that_its_session_is_gone_when_it_speaks_again(owner, clock):
    token = owner.link(b"a")
    clock[0] += TIMING.owner_silence
    owner.sessions.check()
    assert owner.states() == []
    owner.wire.take(b"a", SessionGone)
    owner.say(b"a", Ping(token, 9))
    assert len(owner.wire.take(b"a", SessionGone)) == 1 and owner.wire.take(b"a", Pong) == []


def test_silence_is_not_judged_before_what_has_come_is_read(owner, clock):
    owner.link(b"a")
    owner.wire.drained = False  # this process was busy: pings are waiting in the socket
    clock[0] += 10 * TIMING.owner_silence
    owner.sessions.check()
    assert owner.states() == ["LINKED"]


def test_a_process_proven_dead_is_not_waited_for(owner):
    owner.sessions.publish([record(1)])
    owner.link(b"a")
    owner.dead[200] = False  # peer_alive says False: dead
    owner.sessions.check()
    assert owner.states() == ["LINKED"]  # its connection lives, so the proof is about somebody else
    owner.wire.gone.add(b"a")
    owner.sessions.connection_lost()
    owner.retire(1)


@pytest.mark.parametrize("alive", [True, None])
def test_without_proof_a_lost_reader_is_waited_for(owner, alive):
    owner.sessions.publish([record(1)])
    owner.link(b"a")
    owner.dead[200] = alive
    owner.wire.gone.add(b"a")
    owner.sessions.connection_lost()
    with pytest.raises(CacheBusyError):
        owner.retire(1)


def test_silence_does_not_end_a_peer_that_may_write(owner, clock):
    owner.link(b"a", writes=True)
    owner.wire.gone.add(b"a")
    clock[0] += 10 * TIMING.owner_silence
    owner.sessions.check()
    assert owner.states() == ["LOST"]
    owner.dead[200] = False
    owner.sessions.check()
    assert owner.states() == []


def test_a_second_peer_with_the_same_cluster_id_is_refused_while_the_first_lives(owner):
    owner.link(b"a")
    refused = owner.hello(b"b", peer(life=2, pid=201))
    assert refused.reason == "DUPLICATE" and "process 200" in refused.detail
    owner.wire.gone.add(b"a")
    owner.link(b"b", peer(life=2, pid=201))
    assert owner.states() == ["LOST", "LINKED"]


def test_looking_again_does_not_disturb_a_link_and_linking_again_replaces_it(owner):
    owner.sessions.publish([record(1)])
    first = owner.link(b"a")
    owner.hello(b"b", peer())
    owner.say(b"a", Ping(first, 3))
    assert len(owner.wire.take(b"a", Pong)) == 1
    owner.link(b"c", peer())
    assert sorted(owner.states()) == ["LINKED", "LOST"]
    # The reader says over which old link nothing is read any more.
    owner.link(b"d", peer(), ended=(first,))
    assert len(owner.states()) == 2
    with pytest.raises(CacheBusyError):
        owner.retire(1)


def test_only_the_same_life_can_say_that_an_old_session_has_ended(owner):
    first = owner.link(b"a")
    owner.link(b"b", peer(3, 9), ended=(first,))
    assert owner.states() == ["LINKED", "LINKED"]


@pytest.mark.parametrize(
    ("who", "reason"),
    [(PeerIdentity(5, "x", 1, OWNER.incarnation), "SELF"), (PeerIdentity(1, "x", 1, "9" * 32), "OWN_ID")],
)
def test_the_owner_itself_and_its_namesake_are_refused(owner, who, reason):
    assert owner.hello(b"a", who).reason == reason
    assert owner.states() == []


def test_a_token_of_another_session_opens_nothing(owner):
    owner.sessions.publish([record(1)])
    victim = owner.link(b"a")
    owner.link(b"b", peer(3, 2))
    with pytest.raises(CacheBusyError):
        owner.retire(1)
    owner.say(b"b", Retired(victim, (1,)))
    owner.say(b"c", Goodbye(victim))
    with pytest.raises(CacheBusyError) as caught:
        owner.retire(1)
    assert caught.value.peers == (2, 3)


@pytest.mark.parametrize("frames", [[b"garbage"], [b"", b""], [], [encode(Pong(1, 1))], [b"CCL\xffabc"]])
def test_a_hostile_message_ends_its_own_session_only_and_counts_as_a_reader_until_its_lease_is_over(
    owner, clock, frames
):
    owner.sessions.publish([record(1)])
    owner.link(b"a")
    good = owner.link(b"b", peer(3, 2))
    owner.say(b"a", frames)
    assert owner.states() == ["LOST", "LINKED"]
    assert [event.kind for event in owner.events].count(EventKind.MALFORMED) == 1
    assert len(owner.wire.take(b"a", SessionGone)) == 1
    owner.say(b"b", Ping(good, 1))
    assert len(owner.wire.take(b"b", Pong)) == 1
    with pytest.raises(CacheBusyError) as caught:
        owner.retire(1)
    assert caught.value.peers == (2, 3)


def test_a_fault_of_our_own_in_handling_one_message_hurts_nobody_else(owner, monkeypatch, caplog):
    a, b = owner.link(b"a"), owner.link(b"b", peer(3, 2))
    monkeypatch.setattr(owner.sessions, "_update", lambda session: 1 / 0 if session.peer.cluster_id == 2 else None)
    owner.say(b"a", Ping(a, 1))
    owner.say(b"b", Ping(b, 1))
    assert owner.states() == ["LOST", "LINKED"] and "ZeroDivisionError" in caplog.text
    assert len(owner.wire.take(b"b", Pong)) == 1


def test_goodbye_ends_a_session_at_once_and_is_answered(owner):
    owner.sessions.publish([record(1)])
    token = owner.link(b"a")
    owner.say(b"a", Goodbye(token))
    assert owner.wire.take(b"a", Farewell) == [Farewell()]
    owner.retire(1)


def test_a_handshake_that_breaks_off_leaves_no_session(owner):
    owner.hello(b"a", peer())
    owner.wire.gone.add(b"a")
    owner.sessions.connection_lost()
    assert owner.states() == []


def test_the_process_of_a_reader_is_held_as_long_as_it_counts(owner, clock):
    owner.link(b"a")
    assert owner.watched == {peer(): ("fake/1", b"there")}
    owner.link(b"b", peer())  # linked anew; the old session still counts
    clock[0] += TIMING.owner_silence - 1
    owner.say(b"b", Ping(owner.sessions._sessions[1].token, 5))
    clock[0] += 1
    owner.sessions.check()
    assert owner.states() == ["LINKED"] and list(owner.watched) == [peer()]
    owner.say(b"b", Goodbye(owner.sessions._sessions[0].token))
    assert owner.watched == {}


def test_closing_tells_every_reader_and_takes_no_new_ones(owner):
    owner.link(b"a")
    owner.sessions.close()
    assert owner.wire.take(b"a", SessionGone)[0].reason == "the manager was closed"
    assert owner.hello(b"b", peer(3, 2)).reason == "CLOSING"


def test_a_failed_service_thread_ends_a_waiting_retirement(owner):
    owner.sessions.publish([record(1)])
    owner.link(b"a")
    errors = []

    def wait():
        try:
            owner.retire(1, seconds=60.0)
        except CacheError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    owner.sessions.fail(CacheError("the link service failed"))
    waiting.join(30)
    assert [str(error) for error in errors] == ["the link service failed"]


# --- what readers ask ----------------------------------------------------------------------------------------------


def test_a_reader_that_announces_writes_is_given_up_on_proof_only(owner, clock):
    token = owner.link(b"a")
    owner.say(b"a", WillWrite(token, 4))
    assert owner.wire.take(b"a", Answer) == [Answer(4, Verdict.YES, "")]
    owner.wire.gone.add(b"a")
    clock[0] += 10 * TIMING.owner_silence
    owner.sessions.check()
    assert owner.states() == ["LOST"]
    owner.dead[200] = False
    owner.sessions.check()
    assert owner.states() == []


def test_claims_last_as_long_as_the_reader_may_be_reading(owner, clock):
    lease = owner.leases.grant(1, bytes(8), 3600.0)
    token = owner.link(b"a")
    owner.say(b"a", Claim(token, 1, lease.lease_id))
    owner.say(b"a", Claim(token, 2, "f" * 32))
    assert [answer.verdict for answer in owner.wire.take(b"a", Answer)] == [Verdict.YES, Verdict.NO]
    owner.wire.gone.add(b"a")
    owner.sessions.connection_lost()
    owner.link(b"b", peer())  # linked anew: what runs over the old link still counts
    clock[0] += TIMING.owner_silence - 0.1
    owner.sessions.check()
    assert [info.readers for info in owner.leases.infos] == [(2,)]
    clock[0] += 0.1
    owner.sessions.check()
    assert [info.readers for info in owner.leases.infos] == [()]


def test_nobody_claims_before_it_counts_as_a_reader_and_nobody_releases_for_another(owner):
    lease = owner.leases.grant(1, bytes(8), 3600.0)
    a, b = owner.link(b"a"), owner.link(b"b", peer(3, 2))
    owner.say(b"a", Claim(a, 1, lease.lease_id))
    owner.say(b"b", Release(b, (1,)))
    owner.say(b"c", Release(a, (1,)))  # without the session's connection a token opens nothing
    early = owner.hello(b"d", peer(4, 4)).session
    owner.say(b"d", Claim(early, 1, lease.lease_id))
    assert owner.wire.take(b"d", Answer)[0].verdict is Verdict.NO
    assert [info.readers for info in owner.leases.infos] == [(2,)]
    owner.say(b"a", Release(a, (1, 7)))
    assert [info.readers for info in owner.leases.infos] == [()]


def test_a_key_that_is_used_up_is_gone_for_everybody_before_the_answer(owner):
    key = EntryKeyRecord(0, 5, NO_ID, 1)
    owner.consumed = [True, False]
    owner.sessions.publish([msgspec.structs.replace(record(1), is_blocks=False, keys=(key,))])
    a, b = owner.link(b"a"), owner.link(b"b", peer(3, 2))
    owner.say(b"a", Consume(a, 1, 1, key))
    (changes, answer) = owner.wire.take(b"a", Changes, Answer)
    assert (changes.added[0].keys, answer) == ((), Answer(1, Verdict.YES, ""))
    owner.say(b"b", Consume(b, 1, 1, key))
    assert owner.wire.take(b"b", Answer) == [Answer(1, Verdict.NO, "")] and owner.consumed == [False]
