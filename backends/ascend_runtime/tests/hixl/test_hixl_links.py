"""Native links: made and cut when memory changes, shared by the peers of one address, and what statuses come to."""

import ctypes
import time
from dataclasses import replace

import pytest

from cachecore.engine import Operation, RemoteRegion
from cachecore.errors import CacheValueError, LinkFailedError
from cachecore.outcome import OutcomeState

READ = Operation.READ
LINKS = ("connect", "disconnect", "transfer_async")


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([103900], "103900 PARAM_INVALID"),
        ([103901], "103901 TIMEOUT"),
        ([103905], "103905 UNSUPPORTED"),
        ([203900], "203900 RESOURCE_EXHAUSTED"),
        ([503900], r"503900 FAILED .*On Atlas of tests look first at the memory registered on both sides: alignment"),
        ([RuntimeError("no route")], r"hixl\.connect raised RuntimeError: no route"),
        ([103903, 503900], "503900"),
    ],
)
def test_a_link_that_cannot_be_made_says_why_and_leaves_nothing(world, double, answers, words):
    engine = world.engine()
    double.planned["connect"] = list(answers)
    with pytest.raises(LinkFailedError, match=rf"127\.0\.0\.1:999 could not be made.*{words}"):
        engine.connect(world.peer, world.endpoint(), [], world.soon())
    assert not double.linked
    engine.connect(world.peer, world.endpoint(), [], world.soon())
    assert double.linked


def test_a_link_that_nobody_here_made_is_ended_before_it_is_used(world, double):
    """Nobody knows which memory it sees."""
    engine = world.engine()
    double.linked["127.0.0.1:999"] = 1
    engine.connect(world.peer, world.endpoint(), [], world.soon())
    assert double.names(*LINKS) == ["connect", "disconnect", "connect"]


def test_a_second_connect_of_a_peer_is_refused_and_the_first_one_works(world, double):
    engine, _, remote, plan = world.connected()
    with pytest.raises(LinkFailedError, match="connected already"):
        engine.connect(world.peer, world.endpoint(), [remote], world.soon())
    assert engine.transfer(world.peer, plan, READ, world.soon()).state is OutcomeState.DONE


def test_memory_registered_here_after_the_link_is_moved(world, double):
    engine, _, remote, _ = world.connected()
    late = world.region()
    engine.register([late])
    outcome = engine.transfer(world.peer, world.plan(late, remote, 4), READ, world.soon())
    assert outcome.state is OutcomeState.DONE
    assert double.names(*LINKS) == ["connect", "disconnect", "connect", "transfer_async"]
    engine.transfer(world.peer, world.plan(late, remote, 4), READ, world.soon())
    assert double.names(*LINKS)[4:] == ["transfer_async"], "the link was made again although nothing had changed"


def test_memory_registered_there_after_the_link_is_moved(world, double):
    engine, here, _, _ = world.connected()
    late = world.region()
    ctypes.memmove(late.base, b"late" * 1024, 4096)
    added = RemoteRegion(late.base, late.nbytes, late.placement, b"")
    plan = world.plan(here, added, 4)
    assert "leaves the regions" in engine.transfer(world.peer, plan, READ, world.soon()).message
    engine.update(world.peer, [added], [])
    assert engine.transfer(world.peer, plan, READ, world.soon()).state is OutcomeState.DONE
    assert ctypes.string_at(here.base, 4096) == b"late" * 1024
    assert double.names(*LINKS) == ["connect", "disconnect", "connect", "transfer_async"]


def test_memory_taken_back_cuts_the_link_at_once_and_is_not_moved_again(world, double):
    engine, here, remote, plan = world.connected()
    kept = world.region()
    engine.update(world.peer, [RemoteRegion(kept.base, kept.nbytes, kept.placement, b"")], [])
    engine.update(world.peer, [], [remote])
    assert not double.linked, "its owner could not deregister it"
    outcome = engine.transfer(world.peer, plan, READ, world.soon())
    assert outcome.state is OutcomeState.FAILED and outcome.untouched == ((0, 4),)
    begun = time.monotonic()
    plan = world.plan(here, RemoteRegion(kept.base, kept.nbytes, kept.placement, b""), 4)
    assert engine.transfer(world.peer, plan, READ, world.soon()).state is OutcomeState.DONE
    assert time.monotonic() - begun > 0.2, "the link was made again before its owner could deregister"


def test_memory_taken_back_that_was_never_known_cuts_the_link_too(world, double):
    engine, _, _, plan = world.connected()
    engine.update(world.peer, [], [])
    assert not double.linked, "its owner could not deregister it"
    assert engine.transfer(world.peer, plan, READ, world.soon()).state is OutcomeState.DONE


def test_memory_taken_back_under_a_long_transfer_cuts_the_link_when_that_ends(world, double, eventually, monkeypatch):
    monkeypatch.setattr("cachecore_ascend_runtime.hixl_engine._PATIENCE", 0.05)
    engine, _, remote, plan = world.connected()
    gone = replace(remote, base=remote.base + remote.nbytes)
    double.stuck, outcomes = True, []
    first = world.pull(engine, plan, outcomes)
    eventually(lambda: double.requests)
    engine.update(world.peer, [], [gone])
    second = world.pull(engine, plan, outcomes)
    time.sleep(0.05)
    assert len(double.requests) == 1, "a transfer began on a link that is to be cut"
    double.stuck = False
    first.join(30.0)
    assert len(outcomes) == 1 and not double.linked
    second.join(30.0)
    assert [outcome.state for outcome in outcomes] == [OutcomeState.DONE] * 2
    assert double.names(*LINKS) == ["connect", "transfer_async", "disconnect", "connect", "transfer_async"]


def test_peers_of_one_address_share_a_link_until_the_last_is_gone(world, double):
    engine, _, remote, plan = world.connected()
    sibling = replace(world.peer, cluster_id=8, incarnation="00" * 16)
    other = world.engine()
    other.connect(sibling, world.endpoint(), [remote], world.soon())
    # What that manager of the peer's process registered may be younger than the link.
    assert double.names(*LINKS) == ["connect", "disconnect", "connect"]
    assert engine.disconnect(world.peer, world.soon()) and double.linked
    assert other.transfer(sibling, plan, READ, world.soon()).state is OutcomeState.DONE
    assert engine.transfer(world.peer, plan, READ, world.soon()).untouched == ((0, 4),)
    assert other.disconnect(sibling, world.soon()) and not double.linked


def test_a_disconnect_that_fails_is_not_quiescent_and_can_be_repeated(world, double):
    engine, _, _, _ = world.connected()
    double.planned["disconnect"] = [103901]
    assert not engine.disconnect(world.peer, world.soon())
    assert engine.disconnect(world.peer, world.soon())
    assert engine.disconnect(world.peer, world.soon()), "there is nothing left to wait for"


def test_a_link_that_is_gone_already_is_quiescent(world, double):
    engine, _, _, _ = world.connected()
    double.linked.clear()
    assert engine.disconnect(world.peer, world.soon())


def test_disconnecting_waits_for_what_runs(world, double, eventually):
    engine, _, _, plan = world.connected()
    double.stuck = True
    thread = world.pull(engine, plan, [])
    eventually(lambda: double.requests)
    assert not engine.disconnect(world.peer, time.monotonic() + 0.05)
    assert engine.transfer(world.peer, plan, READ, world.soon()).untouched == ((0, 4),)
    double.stuck = False
    assert engine.disconnect(world.peer, world.soon())
    thread.join(30.0)
    assert not double.linked


def test_an_update_of_a_stranger_is_refused(world):
    with pytest.raises(CacheValueError, match="not connected"):
        world.engine().update(world.peer, [], [])
