"""Notifications between the links of two managers in one process: exactly once, in order, both ways, never dropped."""

import itertools
import os
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cachecore.engine import PeerIdentity
from cachecore.errors import (
    CacheError,
    CacheTimeoutError,
    CacheValueError,
    LinkBusyError,
    LinkLostError,
    ManagerClosedError,
    NotLinkedError,
)
from cachecore.peers import Peers, Timing, inbox, notices
from cachecore.peers.inbox import Inbox
from cachecore.peers.notices import Notices
from cachecore.peers.request_messages import MAX_PAYLOAD, Verdict
from cachecore.peers.service import Service

FAST = Timing(ping_interval=0.05, stall_after=0.3, lease=1.5, owner_silence=2.0, handshake=1.0, farewell=0.3)


def soon(seconds=20.0):
    return time.monotonic() + seconds


def until(condition, seconds=20.0):
    end = soon(seconds)
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setenv("CACHECORE_KEY_DIR", str(tmp_path))
    made = []

    def one(cluster_id, listen=None):
        events = []
        peers = Peers(
            PeerIdentity(cluster_id, "here", os.getpid(), secrets.token_hex(16)),
            listen=listen,
            events=events.append,
            timing=FAST,
        )
        peers.start()
        peers.events = events
        made.append(peers)
        return peers

    yield one
    for peers in made:
        peers.close(deadline=soon(2))


@pytest.fixture
def owner(make):
    return make(1, "127.0.0.1:0")


@pytest.fixture
def reader(make, owner):
    made = make(2)
    made.link(1, owner.address, deadline=soon())
    return made


@pytest.fixture
def other():
    """A sender that only the inbox knows."""
    return PeerIdentity(9, "elsewhere", 1, "9" * 32)


def names(peers):
    return [item.name for item in peers.inbox.drain()]


def test_one_link_carries_notifications_both_ways_each_once_and_in_order(owner, reader):
    for number in range(20):
        reader.notify(1, f"to owner {number}", b"x" * number, deadline=soon())
        owner.notify(2, f"to reader {number}", b"", deadline=soon())
    received = owner.inbox.drain()
    assert [(item.name, len(item.payload)) for item in received] == [(f"to owner {n}", n) for n in range(20)]
    assert {(item.cluster_id, item.incarnation) for item in received} == {(2, reader.identity.incarnation)}
    assert names(reader) == [f"to reader {n}" for n in range(20)]
    assert names(owner) == names(reader) == []


def test_many_threads_lose_and_repeat_nothing(owner, reader):
    def send(sender, to, number):
        sender.notify(to, str(number), os.urandom(1000), deadline=soon())

    with ThreadPoolExecutor(12) as pool:
        jobs = [pool.submit(send, *pair, number) for number in range(150) for pair in ((reader, 1), (owner, 2))]
        for job in jobs:
            job.result(30)
    for peers in (owner, reader):
        received = peers.inbox.drain()
        assert sorted(int(item.name) for item in received) == list(range(150))
        assert [item.number for item in received] == sorted(item.number for item in received)


def test_the_largest_notification_does_not_end_the_link_and_pings_go_on(owner, reader):
    payload = os.urandom(MAX_PAYLOAD)
    with ThreadPoolExecutor(6) as pool:
        for job in [pool.submit(reader.notify, 1, "n" * 200, payload, deadline=soon()) for _ in range(60)]:
            job.result(30)
    received = owner.inbox.drain()
    assert len(received) == 60 and all(item.payload == payload for item in received)
    assert reader.get(1).state == "LINKED" and reader.get(1).lease_holds()


@pytest.mark.parametrize("limit", [("MAX_ENTRIES", 2), ("MAX_BYTES", 10)])
def test_a_full_inbox_is_an_error_of_the_sender_and_loses_nothing(owner, reader, monkeypatch, limit):
    monkeypatch.setattr(inbox, *limit)
    reader.notify(1, "a", b"1234", deadline=soon())
    reader.notify(1, "b", b"1234", deadline=soon())
    with pytest.raises(LinkBusyError, match=r"'c' not in: 2 notifications of 10 bytes wait"):
        reader.notify(1, "c", b"", deadline=soon())
    assert names(owner) == ["a", "b"]
    reader.notify(1, "d", b"", deadline=soon())
    assert names(owner) == ["d"]


def test_who_is_not_linked_in_either_direction_cannot_be_notified(owner, reader, make):
    with pytest.raises(NotLinkedError, match="cluster 3 cannot be notified"):
        owner.notify(3, "x", b"", deadline=soon())
    with pytest.raises(NotLinkedError):
        make(4).notify(1, "x", b"", deadline=soon())
    reader.get(1).dialogue.abandon("the test drops the connection")
    until(lambda: owner.sessions[0].state == "LOST")
    with pytest.raises(NotLinkedError, match="the test drops the connection"):
        reader.notify(1, "x", b"", deadline=soon())
    with pytest.raises(NotLinkedError):
        owner.notify(2, "x", b"", deadline=soon())
    assert names(owner) == names(reader) == []


def test_without_its_own_link_a_manager_uses_the_peers_link(make):
    prefill, decode = make(1, "127.0.0.1:0"), make(2, "127.0.0.1:0")
    decode.link(1, prefill.address, deadline=soon())
    link = prefill.link(2, decode.address, deadline=soon())
    prefill.notify(2, "over its own", b"", deadline=soon())
    link.dialogue.abandon("the test drops the connection")
    prefill.notify(2, "over the other", b"", deadline=soon())
    assert names(decode) == ["over its own", "over the other"]


def test_a_closing_manager_takes_nothing_that_nobody_could_read(owner, reader):
    reader.notify(1, "before", b"", deadline=soon())
    owner.inbox.close()
    with pytest.raises(CacheError, match="closing"):
        reader.notify(1, "after", b"", deadline=soon())
    with pytest.raises(ManagerClosedError):
        owner.inbox.wait(soon())


# --- the inbox alone ---------------------------------------------------------------------------------------------


def test_a_late_notification_never_passes_for_a_new_one(owner, other):
    put = owner.inbox.put
    assert put(other, 5, "five", b"")[0] is Verdict.YES
    assert put(other, 4, "of a connection that is gone", b"")[0] is Verdict.NO
    assert put(other, 5, "again", b"")[0] is Verdict.NO
    assert put(PeerIdentity(9, "elsewhere", 2, "8" * 32), 1, "of a restarted peer", b"")[0] is Verdict.YES
    assert names(owner) == ["five", "of a restarted peer"]


def test_waiting_takes_one_at_a_time_and_ends_at_the_deadline(owner, other):
    assert owner.inbox.wait(soon(0)) is None
    threading.Timer(0.05, lambda: [owner.inbox.put(other, n, str(n), b"") for n in (1, 2)]).start()
    assert owner.inbox.wait(soon()).name == "1"
    until(lambda: owner.inbox.wait(soon(0)) is not None)


def test_a_callback_gets_all_in_order_and_its_failure_is_told_and_stops_nothing(owner, other, caplog):
    received, threads = [], set()

    def callback(item):
        received.append(item.name)
        threads.add(threading.current_thread().name)
        if item.name == "2":
            raise SystemExit("the callback gives up")

    owner.inbox.put(other, 1, "1", b"")
    owner.inbox.listen(callback)
    for number in (2, 3):
        owner.inbox.put(other, number, str(number), b"")
    until(lambda: len(received) == 3)
    assert received == ["1", "2", "3"] and threads == {"cachecore-1-notifications"}
    until(lambda: owner.events)
    assert [(event.kind, event.peer, event.detail) for event in owner.events] == [
        ("notification callback failed", 9, "SystemExit: the callback gives up")
    ]
    assert "the callback gives up" in caplog.text
    with pytest.raises(CacheValueError, match="on_notification"):
        owner.inbox.drain()
    with pytest.raises(CacheValueError, match="on_notification"):
        owner.inbox.wait(soon())
    owner.inbox.listen(None)
    owner.inbox.put(other, 4, "4", b"")
    assert names(owner) == ["4"]
    owner.inbox.listen(callback)
    owner.inbox.put(other, 5, "5", b"")
    until(lambda: received[-1] == "5")


def test_closing_is_not_held_up_by_a_callback_longer_than_its_deadline(other):
    release, entered = threading.Event(), threading.Event()
    box = Inbox("callbacks", None, lambda sender, detail: None)
    box.listen(lambda item: [entered.set(), release.wait(30)])
    box.put(other, 1, "1", b"")
    assert entered.wait(30)
    box.close()
    assert not box.join(soon(0.01))
    release.set()
    assert box.join(soon())


# --- the queue of one connection alone ---------------------------------------------------------------------------


class Line:
    """A connection on which the test answers."""

    def __init__(self, service):
        self.service, self.sent, self.takes, self.rerouted = service, [], True, []
        self.queue = Notices("cluster 1", itertools.count(1), self.send)

    def send(self, number, name, payload):
        self.sent.append((number, name))
        return self.takes

    def put(self, name):
        made = notices.Notice(name, b"", self.service, self.service.future(), self.rerouted.append)
        self.service.call(lambda: self.queue.put(made), soon())
        return made


@pytest.fixture
def line():
    service = Service("test")
    service.start(lambda: None, soon())
    yield Line(service)
    service.stop(soon())


def test_a_few_are_under_way_and_the_others_follow_in_order(line):
    made = [line.put(str(number)) for number in range(7)]
    assert [name for _, name in line.sent] == ["0", "1", "2", "3"]
    assert made[4].future.cancel()  # nobody waits for it any more
    assert not made[0].future.cancel()  # it may arrive
    line.queue.answered(2, Verdict.YES, "")
    line.queue.answered(2, Verdict.YES, "")  # a peer that answers twice
    assert [name for _, name in line.sent] == ["0", "1", "2", "3", "5"]
    assert made[1].future.result(0) is None and not made[0].future.done()


def test_what_was_sent_is_uncertain_and_what_waited_goes_another_way_when_the_connection_ends(line):
    made = [line.put(str(number)) for number in range(6)]
    line.queue.fail("the connection is gone")
    for notice in made[:4]:
        with pytest.raises(LinkLostError, match=r"may or may not have arrived"):
            notice.future.result(0)
    assert line.rerouted == made[4:]
    assert [name for _, name in line.sent] == ["0", "1", "2", "3"]


def test_a_way_that_is_full_is_an_error_and_nothing_waits_for_it(line):
    line.takes = False
    with pytest.raises(LinkBusyError, match="nothing was sent"):
        line.put("x").future.result(0)
    line.takes = True
    assert not line.put("y").future.done()


@pytest.mark.parametrize(("others", "message"), [(0, "it may or may not arrive"), (4, "it was not sent")])
def test_a_timeout_says_whether_it_may_still_arrive(owner, reader, monkeypatch, others, message):
    release = threading.Event()
    monkeypatch.setattr(owner.inbox, "put", lambda *item: release.wait(30) and (Verdict.YES, ""))
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(reader.notify, 1, "first", b"", deadline=soon()) for _ in range(others)]
        until(lambda: len(reader.get(1).dialogue.notices._under_way) == others)
        with pytest.raises(CacheTimeoutError, match=message):
            reader.notify(1, "late", b"", deadline=soon(0.5))
        release.set()
        for job in jobs:
            job.result(30)
