"""What readers ask and owners answer: writes, keys that are used up. Both sides are real, each in a thread of its own."""

import os
import secrets
import threading
import time

import msgspec
import pytest

from cachecore.engine import EngineBinding, PeerIdentity, TransferEngine
from cachecore.errors import CacheBusyError, CacheError, CacheTimeoutError, LeaseExpiredError, LinkLostError
from cachecore.leases import pack_blocks
from cachecore.peers import CacheRecord, EntryKeyRecord, Peers, RegionRecord, Timing
from cachecore.types import NO_ID, CacheKey, CacheKeyByIdAndIndex, DataType, Placement

FAST = Timing(ping_interval=0.05, stall_after=0.3, lease=1.5, owner_silence=2.0, handshake=1.0, farewell=0.3)


def soon(seconds=20.0):
    return time.monotonic() + seconds


def until(condition, seconds=20.0):
    end = soon(seconds)
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


class Engine(TransferEngine):
    wire_id = "fake/1"

    def connect(self, peer, endpoint, regions, deadline):
        pass

    def update(self, peer, added, removed):
        pass

    def disconnect(self, peer, deadline):
        return True

    def endpoint(self):
        return b"here"

    def capabilities(self):
        raise AssertionError("not asked")

    register = deregister = transfer = quiescent = close = capabilities


def record(cache_id, *requests):
    keys = tuple(EntryKeyRecord(0, request, NO_ID, index) for index, request in enumerate(requests))
    region = RegionRecord(1 << 20, 1 << 16, Placement.HOST, b"shared")
    return CacheRecord(
        cache_id, False, keys, 1, (4, 8), DataType.DT_UINT8, Placement.HOST, 0, (1 << 20,), {"fake/1": (region,)}
    )


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Managers' links without managers; all of them are closed in the end."""
    monkeypatch.setenv("CACHECORE_KEY_DIR", str(tmp_path))
    made = []

    def one(cluster_id, **options):
        peers = Peers(
            PeerIdentity(cluster_id, "here", os.getpid(), secrets.token_hex(16)),
            engines=[EngineBinding("fake", "fake/1", 1, Engine())],
            timing=FAST,
            **options,
        )
        peers.start()
        made.append(peers)
        return peers

    yield one
    for peers in made:
        peers.close(deadline=soon(2))


@pytest.fixture
def owner(make):
    used_up = []

    def consume(cache_id, key):
        if key in used_up:
            return False
        used_up.append(key)
        return True

    made = make(1, listen="127.0.0.1:0", on_consumed=consume)
    made.used_up = used_up
    return made


def test_a_reader_that_will_write_is_counted_as_a_writer_before_it_writes(owner, make):
    link = make(2).link(1, owner.address, deadline=soon())
    assert [session.writes for session in owner.sessions] == [False]
    link.will_write(soon())
    assert [session.writes for session in owner.sessions] == [True]
    link.dialogue.abandon("the test drops the connection")
    link.will_write(soon())  # the owner knows already: nothing is asked


def test_writes_that_the_owner_does_not_know_of_are_refused(owner, make):
    link = make(2).link(1, owner.address, deadline=soon())
    link.dialogue.abandon("the test drops the connection")
    with pytest.raises(LinkLostError):
        link.will_write(soon())


def test_one_of_several_readers_uses_a_key_up_and_all_see_it_gone(owner, make):
    owner.publish([record(1, 7, 8)])
    links = [make(number).link(1, owner.address, deadline=soon()) for number in range(2, 6)]
    entries = [link.lookup(CacheKey(1, req_id=7), deadline=soon()) for link in links]
    start, results = threading.Barrier(len(links)), []

    def take(link, entry):
        start.wait()
        results.append(link.consume(entry.cache, entry.batch_index, CacheKey(1, req_id=7), soon()))

    threads = [threading.Thread(target=take, args=pair) for pair in zip(links, entries, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(results) == [False] * 3 + [True]
    assert owner.used_up == [CacheKey(1, req_id=7)]
    for link, entry in zip(links, entries, strict=True):
        until(lambda link=link: link.number == 2)
        assert link.lookup(CacheKey(1, req_id=8), deadline=soon()) == (entry.cache, 1), "the same object"
        with pytest.raises(CacheError, match="offers no such cache"):
            link.lookup(CacheKey(1, req_id=7), deadline=soon())


def test_a_key_that_was_never_published_and_one_nobody_may_use_up_are_not_used_up(owner, make):
    owner.publish([record(1, 7)])
    deaf = make(9, listen="127.0.0.1:0")
    deaf.publish([record(1, 7)])
    reader = make(2)
    for cluster, address in ((1, owner.address), (9, deaf.address)):
        link = reader.link(cluster, address, deadline=soon())
        cache = link.lookup(CacheKeyByIdAndIndex(cluster, 1, 0), deadline=soon()).cache
        assert not link.consume(cache, 0, CacheKey(cluster, req_id=6), soon())
        assert not link.consume(cache, 1, CacheKey(cluster, req_id=7), soon()), "the key is of another entry"
        assert link.consume(cache, 0, CacheKey(cluster, req_id=7), soon()) is (cluster == 1)


def test_an_owner_that_fails_to_drop_a_key_says_so_and_the_link_lives(make, caplog):
    owner = make(1, listen="127.0.0.1:0", on_consumed=lambda cache_id, key: 1 // 0)
    owner.publish([record(1, 7)])
    link = make(2).link(1, owner.address, deadline=soon())
    entry = link.lookup(CacheKey(1, req_id=7), deadline=soon())
    with pytest.raises(CacheError, match="ZeroDivisionError"):
        link.consume(entry.cache, 0, CacheKey(1, req_id=7), soon())
    assert link.lookup(CacheKey(1, req_id=7), deadline=soon()) == entry


def test_other_keys_are_known_at_once_and_running_transfers_go_on(owner, make):
    owner.publish([record(1, 7)])
    link = make(2).link(1, owner.address, deadline=soon())
    entry = link.lookup(CacheKey(1, req_id=7), deadline=soon())
    link.begin(entry.cache)
    owner.republish(msgspec.structs.replace(record(1), keys=(EntryKeyRecord(3, 9, NO_ID, 2),)))
    assert link.lookup(CacheKey(1, req_id=9, model_id=3), deadline=soon()) == (entry.cache, 2)
    assert not entry.cache.retiring and link.running == 1
    link.end(entry.cache)
    owner.retire([1], deadline=soon())


def writers(owner):
    return [(session.state, session.writes) for session in owner.sessions]


def lost_writer(owner, reader):
    """A link that wrote, whose end no silence proves to the owner."""
    link = reader.link(1, owner.address, deadline=soon())
    link.will_write(soon())
    link.dialogue.abandon("the test drops the connection")
    until(lambda: writers(owner) == [("LOST", True)])
    return link


def test_linking_again_ends_what_the_owner_waits_for_since_the_former_link_wrote(owner, make):
    reader = make(2)
    lost_writer(owner, reader)
    reader.link(1, owner.address, deadline=soon())
    assert writers(owner) == [("LINKED", False)]


def test_the_end_of_a_writer_is_told_however_late_and_after_an_unlink(owner, make):
    reader = make(2)
    link = lost_writer(owner, reader)
    reader.unlink(1, deadline=soon())
    assert writers(owner) == [("LOST", True)] and link.released
    reader.link(1, owner.address, deadline=soon())
    until(lambda: writers(owner) == [("LINKED", False)])
    table = reader._links
    assert not table._untold and not table._departed
    second = reader.get(1)
    second.will_write(soon())
    second.dialogue.abandon("the test drops the connection")
    until(lambda: second.released)
    with table._lock:
        table._departed.append(table._links.pop(1))
    second.dialogue.lost_at -= 1000.0
    until(lambda: not table._departed)
    reader.link(1, owner.address, deadline=soon())
    until(lambda: writers(owner) == [("LINKED", False)])


@pytest.mark.filterwarnings("ignore::cachecore.InsecureLinkWarning")
def test_the_end_of_a_writer_is_told_by_whatever_address_the_owner_is_linked_anew(make):
    owner, reader = make(1, listen="0.0.0.0:0", insecure=True), make(2, insecure=True)
    port = owner.address.rsplit(":", 1)[1]
    first, second = f"127.0.0.1:{port}", f"127.0.0.2:{port}"

    def lose():
        link = reader.get(1)
        link.will_write(soon())
        link.dialogue.abandon("the test drops the connection")
        until(lambda: link.released and writers(owner) == [("LOST", True)])

    reader.link(1, first, deadline=soon())
    lose()
    reader.link(1, second, deadline=soon())
    assert writers(owner) == [("LINKED", False)]
    lose()
    reader.unlink(1, deadline=soon())
    reader.link(1, first, deadline=soon())
    assert writers(owner) == [("LINKED", False)]
    assert not reader._links._untold and not reader._links._departed


# --- block leases ------------------------------------------------------------------------------------------------


def readers(owner):
    return [info.readers for info in owner.leases.infos]


def test_a_claim_keeps_the_blocks_until_it_is_released(owner, make):
    lease = owner.leases.grant(1, pack_blocks([1, 2]), 60.0)
    links = [make(number).link(1, owner.address, deadline=soon()) for number in (2, 3)]
    for link in links:
        link.claim(lease.lease_id, soon())
    links[0].claim(lease.lease_id, soon())
    assert readers(owner) == [(2, 3, 2)]
    with pytest.raises(CacheBusyError) as caught:
        owner.leases.revoke(lease, soon(0))
    assert caught.value.peers == (2, 3)
    with pytest.raises(LeaseExpiredError, match="it was released"):
        links[0].claim(lease.lease_id, soon())
    for link in (links[0], links[0], links[1]):
        link.release_claim(lease.lease_id)
    owner.leases.revoke(lease, soon())
    with pytest.raises(LeaseExpiredError, match="never granted"):
        links[1].claim(lease.lease_id, soon())


def test_a_claim_that_was_not_answered_in_time_keeps_nothing(owner, make):
    lease = owner.leases.grant(1, pack_blocks([1, 2]), 60.0)
    link = make(2).link(1, owner.address, deadline=soon())
    link.claim(lease.lease_id, soon())
    with pytest.raises(CacheTimeoutError, match="did not confirm a lease"):
        link.claim(lease.lease_id, soon(0))
    link.will_write(soon())  # answered after the late claim and its release
    assert readers(owner) == [(2,)], "the claim of the other pull is not touched"


def test_a_claim_that_is_sent_only_after_its_deadline_keeps_nothing(owner, make):
    lease = owner.leases.grant(1, pack_blocks([1, 2]), 60.0)
    link = make(2).link(1, owner.address, deadline=soon())
    requests, go = link.dialogue.requests, threading.Event()

    def late():
        go.wait(20)
        requests.tick()  # as the timer or another pull's release does at any time

    requests._service.submit(late)
    with pytest.raises(CacheTimeoutError, match="did not confirm a lease"):
        link.claim(lease.lease_id, soon(0))
    go.set()
    link.will_write(soon())  # answered after the late claim and its release
    assert readers(owner) == [()]
    owner.leases.revoke(lease, soon(0))


def test_a_reader_that_unlinks_or_is_silent_for_too_long_claims_nothing_any_more(owner, make):
    lease = owner.leases.grant(1, pack_blocks([1, 2]), 60.0)
    polite, silent = make(2), make(3)
    for reader in (polite, silent):
        reader.link(1, owner.address, deadline=soon()).claim(lease.lease_id, soon())
    polite.unlink(1, deadline=soon())
    until(lambda: readers(owner) == [(3,)])
    silent.get(1).dialogue.abandon("the test drops the connection")
    assert silent.get(1).lease_holds() and readers(owner) == [(3,)], "what it reads now still counts"
    until(lambda: readers(owner) == [()])
    assert not silent.get(1).lease_holds()


def test_what_one_question_adds_to_the_error_of_a_lost_link_is_not_told_to_another(make):
    owner, reader = make(1, listen="127.0.0.1:0"), make(2)
    owner.publish([record(1, 5)])
    link = reader.link(1, owner.address, deadline=soon())
    link.dialogue.requests.answered = lambda answer: None  # as if the owner never answered
    told = {}

    def ask(name, question):
        try:
            question()
        except LinkLostError as error:
            told[name] = str(error)

    entry = link.lookup(CacheKey(1, 5), deadline=soon()).cache
    questions = {
        "consume": lambda: link.consume(entry, 0, CacheKey(1, 5), soon()),
        "claim": lambda: link.claim("ab" * 16, soon()),
    }
    threads = [threading.Thread(target=ask, args=item) for item in questions.items()]
    for thread in threads:
        thread.start()
    until(lambda: len(link.dialogue.requests._asked) == 2)
    link.report_gone("the engine says so")
    for thread in threads:
        thread.join(20)
    assert "may or may not be used up" in told["consume"] and "used up" not in told["claim"]


def test_layouts_are_compared_once_for_many_changes_that_come_together(make):
    looks, go = [], threading.Event()

    def compare(caches):
        looks.append(len(caches))
        return ()

    owner, reader = make(1, listen="127.0.0.1:0"), make(2, compare_layouts=compare)
    link = reader.link(1, owner.address, deadline=soon())
    until(lambda: looks == [0])
    reader._worker.submit(lambda: go.wait(20))
    for cache_id in range(1, 51):
        owner.publish([record(cache_id)])
        until(lambda: link.number == owner._sessions._catalogue.number)
    go.set()
    until(lambda: looks[-1] == 50)
    assert looks == [0, 50]
