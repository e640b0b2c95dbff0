"""What becomes of links when processes die, stop, are busy, fork or just end."""

import os
import signal
import time

import pytest

#: Nobody is given up for being silent in these tests.
PATIENT = {"ping_interval": 0.1, "stall_after": 0.5, "lease": 60.0, "owner_silence": 90.0, "farewell": 0.5}


def until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_a_killed_owner_is_lost_at_once_and_its_successor_is_linked_without_unlink(linked, spawn):
    pair = linked(timing=PATIENT)  # heartbeats would need 3 s
    lost = pair.reader.post("until_state", 1, "LOST")
    pair.owner.signal(signal.SIGKILL)
    assert lost() < 2.5
    with pytest.raises(Exception, match=r"LinkLostError: .*call link\(\) again"):
        pair.reader.ask("lookup", 1, 1)
    assert pair.reader.ask("state", 1)["lease"]  # what it had promised to keep was kept while it lived
    successor = spawn(1, listen=pair.owner.address, timing=PATIENT)
    assert pair.reader.ask("link", 1, successor.address)["cluster"] == 1
    successor.ask("publish", 9)
    assert pair.reader.ask("lookup", 1, 9) == 9
    until(lambda: ["disconnect", 1] in pair.reader.ask("calls"))


def test_a_killed_reader_keeps_the_owner_waiting_until_it_has_been_silent_long_enough(linked):
    pair = linked()
    pair.reader.ask("begin", 1, 1)
    pair.reader.signal(signal.SIGKILL)
    until(lambda: pair.owner.ask("sessions") == [[2, "LOST", "fake/1"]])
    with pytest.raises(Exception, match=r"CacheBusyError: .*cluster 2 .*LOST"):
        pair.owner.ask("retire", 1, seconds=0.1)
    assert 0.5 < pair.owner.ask("retire", 1) < 10
    assert pair.owner.ask("sessions") == []


def test_a_killed_reader_that_an_engine_proves_dead_is_not_waited_for(linked):
    pair = linked(timing=PATIENT, engines=[["fake/1", 1, "", True]])
    pair.reader.ask("begin", 1, 1)
    pair.reader.signal(signal.SIGKILL)
    pair.reader.process.wait(30)
    assert pair.owner.ask("retire", 1) < 10
    watched = [["watch", 2, f"fake/1 of {pair.reader.pid}"], ["unwatch", 2]]
    until(lambda: pair.owner.ask("calls") == watched)


def test_a_killed_reader_makes_room_for_its_successor_at_once(linked, spawn):
    pair = linked(timing=PATIENT)
    pair.reader.signal(signal.SIGKILL)
    successor = spawn(2, timing=PATIENT)
    assert successor.ask("link", 1, pair.owner.address)["cluster"] == 1


def test_a_stopped_owner_is_lost_after_the_heartbeat_time_and_can_be_linked_again(linked):
    pair = linked(timing={**PATIENT, "heartbeat_interval": 0.2, "heartbeat_timeout": 0.8})
    pair.owner.signal(signal.SIGSTOP)
    assert 0.3 < pair.reader.ask("until_state", 1, "LOST") < 10
    with pytest.raises(Exception, match=r"CacheTimeoutError|LinkFailedError"):
        pair.reader.ask("link", 1, pair.owner.address, seconds=0.5)
    pair.owner.signal(signal.SIGCONT)
    assert pair.reader.ask("link", 1, pair.owner.address)["cluster"] == 1
    assert pair.reader.ask("lookup", 1, 1) == 1
    # The owner is told over which old session nothing is read any more, and does not wait for its silence.
    until(lambda: pair.owner.ask("sessions") == [[2, "LINKED", "fake/1"]])


def test_a_stopped_reader_is_waited_for_and_does_not_trust_what_it_read_when_it_wakes(linked):
    pair = linked()
    pair.reader.ask("begin", 1, 1)
    pair.reader.signal(signal.SIGSTOP)
    with pytest.raises(Exception, match="CacheBusyError"):
        pair.owner.ask("retire", 1, seconds=1.0)
    pair.owner.ask("retire", 1)
    pair.reader.signal(signal.SIGCONT)
    assert pair.reader.ask("state", 1)["lease"] is False
    pair.reader.ask("until_state", 1, "LOST")
    pair.reader.ask("end", 1, 1)


def test_a_busy_owner_is_stalled_not_lost_and_comes_back(linked):
    pair = linked(timing={**PATIENT, "lease": 1.5, "owner_silence": 2.0})
    held = pair.owner.post("hold", 4.5)  # longer than heartbeats, lease and silence
    assert pair.reader.ask("until_state", 1, "STALLED") < 4
    with pytest.raises(Exception, match=r"CacheTimeoutError: .*STALLED"):
        pair.reader.ask("lookup", 1, 7, seconds=0.1)
    until(lambda: not pair.reader.ask("state", 1)["lease"])
    held()
    pair.reader.ask("until_state", 1, "LINKED")
    assert pair.reader.ask("state", 1)["lease"]
    seen = pair.reader.until_seen(lambda seen: len(seen) >= 3)
    assert [kind for kind, _ in seen] == ["linked", "link stalled", "link recovered"]
    # Its own busyness did not make it forget the reader.
    assert pair.owner.ask("sessions") == [[2, "LINKED", "fake/1"]]


def test_a_reader_busy_for_longer_than_the_owner_waits_has_no_link_when_it_looks_up(linked):
    pair = linked(timing={**PATIENT, "lease": 1.5, "owner_silence": 2.0})
    held = pair.reader.post("hold", 3.5)
    until(lambda: pair.owner.ask("sessions") == [])
    pair.owner.ask("retire", 1)
    held()
    assert pair.reader.ask("state", 1)["lease"] is False
    pair.reader.ask("until_state", 1, "LOST")
    with pytest.raises(Exception, match=r"LinkLostError: .*session"):
        pair.reader.ask("lookup", 1, 1)


def test_a_busy_owner_answers_a_link_as_soon_as_it_can(spawn):
    owner = spawn(1, listen="127.0.0.1:0", timing={**PATIENT, "handshake": 0.5})
    reader = spawn(2, timing={**PATIENT, "handshake": 0.5})
    held = owner.post("hold", 2.0)
    time.sleep(0.2)
    with pytest.raises(Exception, match=r"CacheTimeoutError: .*(busy, or no manager|nobody has answered)"):
        reader.ask("link", 1, owner.address, seconds=0.7)
    assert reader.ask("link", 1, owner.address)["cluster"] == 1
    held()


def test_a_forked_child_gets_an_error_at_once_and_disturbs_nothing(linked):
    pair = linked()
    for process, command, arguments in (
        (pair.reader, "lookup", {"cluster_id": 1, "model_id": 77}),
        (pair.reader, "link", {"cluster_id": 5, "address": pair.owner.address}),
        (pair.owner, "retire", {"cache_id": 1}),
    ):
        answer = process.ask("forked_child", command, **arguments)
        assert (answer["exit"], answer["error"]) == (0, "ForkedProcessError"), answer
    for process in (pair.reader, pair.owner):
        answer = process.ask("forked_child", "close")
        assert answer["exit"] == 0 and answer["result"]["seconds"] < 5
    assert pair.reader.ask("lookup", 1, 1) == 1
    assert pair.owner.ask("sessions") == [[2, "LINKED", "fake/1"]]


def test_a_forked_child_keeps_neither_the_port_nor_the_link(linked, spawn):
    pair = linked()
    child = pair.owner.ask("fork_and_stay")
    try:
        pair.owner.signal(signal.SIGKILL)
        pair.owner.process.wait(30)
        assert pair.reader.ask("until_state", 1, "LOST") < 10  # the child holds the connection, but nobody beats
        successor = spawn(1, listen=pair.owner.address)
        assert pair.reader.ask("link", 1, successor.address)["cluster"] == 1
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("who", ["owner", "reader"])
@pytest.mark.parametrize("peer_is", ["alive", "stopped", "dead"])
def test_a_program_that_ends_without_closing_ends_promptly_and_in_peace(linked, who, peer_is):
    pair = linked()
    ending, other = (pair.owner, pair.reader) if who == "owner" else (pair.reader, pair.owner)
    if peer_is != "alive":
        other.signal(signal.SIGSTOP if peer_is == "stopped" else signal.SIGKILL)
    started = time.monotonic()
    assert ending.exit(code=7) == 7
    assert time.monotonic() - started < 10
    ending._readers[1].join(30)
    assert ending.errors == ""
    if who == "owner" and peer_is == "alive":
        other.ask("until_state", 1, "LOST")
        assert other.ask("state", 1)["lease"] is False  # it was told: the memory is going away with the process


@pytest.mark.parametrize("peer_is", ["alive", "stopped", "dead"])
def test_closing_is_bounded_whatever_the_peers_do(linked, peer_is):
    pair = linked(timing=PATIENT)
    if peer_is != "alive":
        pair.owner.signal(signal.SIGSTOP if peer_is == "stopped" else signal.SIGKILL)
    closed = pair.reader.ask("close", seconds=30)
    assert closed["unsafe"] == 0 and closed["seconds"] < 10


def test_a_manager_nobody_refers_to_ends_its_threads(linked):
    pair = linked()
    assert pair.reader.ask("drop") == 0
    until(lambda: pair.owner.ask("sessions") == [])
