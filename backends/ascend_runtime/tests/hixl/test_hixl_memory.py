"""Registrations: all or nothing, counted, and deregistered only where nobody can reach the memory any more."""

import threading
import time
from dataclasses import replace

import pytest
from cachecore_ascend_runtime import hixl_links, hixl_memory
from cachecore_ascend_runtime.hixl_profile import DEVICE_TO_DEVICE

from cachecore.driver import Capability
from cachecore.engine import Operation, PeerIdentity, Region
from cachecore.errors import (
    CacheValueError,
    EngineError,
    LinkFailedError,
    NotSupportedError,
    PlacementError,
    StillReachableError,
)
from cachecore.types import Placement

READ = Operation.READ
MEMORY = ("register_mem", "deregister_mem")
ADDRESS = "127.0.0.1:999"


def test_a_failed_registration_takes_back_the_ones_before_it(world, double):
    engine, regions = world.engine(), [world.region() for _ in range(3)]
    double.planned["register_mem"] = [0, 0, 203900]
    with pytest.raises(EngineError, match=rf"regions\[2\] \(4096 bytes at {regions[2].base:#x}.*203900") as caught:
        engine.register(regions)
    assert caught.value.code == 203900 and caught.value.operation == "hixl.register_mem"
    taken_back = [call[1] for call in double.calls if call[0] == "deregister_mem"]
    assert taken_back == [regions[1].base, regions[0].base]
    assert engine.live_regions == 0 and not double.registered
    for one in engine.register(regions):
        engine.deregister(one)
    assert not double.registered


def test_what_cannot_be_taken_back_is_reported_and_taken_back_later(world, double):
    engine, regions = world.engine(), [world.region() for _ in range(2)]
    double.planned["register_mem"], double.readers = [0, 103900], 1
    with pytest.raises(StillReachableError, match=f"{regions[0].base:#x}.*Do not free"):
        engine.register(regions)
    other = world.engine()
    assert [region.base for region in engine.close(0.0)] == [regions[0].base]
    double.readers = 0
    assert other.close(0.0) == []


def test_one_range_is_registered_once_and_counted_over_all_managers(world, double):
    first, second, region = world.engine(), world.engine(), world.region()
    made = [first.register([region])[0], *first.register([region]), *second.register([region])]
    assert double.names(*MEMORY) == ["register_mem"]
    for engine, one in zip((first, second), made[1:], strict=True):
        engine.deregister(one)
    assert double.names(*MEMORY) == ["register_mem"]
    first.deregister(made[0])
    assert double.names(*MEMORY) == ["register_mem", "deregister_mem"]
    with pytest.raises(CacheValueError, match="not live"):
        first.deregister(made[0])


def test_placement_is_the_type_of_memory(world, double):
    world.engine().register([world.region(), world.region(placement=Placement.HOST)])
    assert [call[3] for call in double.calls if call[0] == "register_mem"] == [0, 1]


def test_ranges_that_hixl_cannot_keep_apart_are_refused_before_it_is_asked(world, double):
    engine, region = world.engine(), world.region(8192)
    engine.register([region])
    with pytest.raises(EngineError, match=f"overlaps 8192 bytes at {region.base:#x}"):
        engine.register([replace(region, base=region.base + 4096)])
    with pytest.raises(PlacementError, match="registered with HIXL as DEVICE"):
        engine.register([replace(region, placement=Placement.HOST)])
    with pytest.raises(EngineError, match="no range"):
        engine.register([Region(2**64 - 4096, 8192, Placement.DEVICE)])
    assert double.names(*MEMORY) == ["register_mem"]


def test_memory_that_the_product_cannot_move_is_refused_by_name(world):
    world.driver.profile = replace(world.driver.profile, placement_pairs=Capability(DEVICE_TO_DEVICE, "a test"))
    with pytest.raises(NotSupportedError, match="HOST memory; HIXL on Atlas of tests over hccs:device moves DEVICE"):
        world.engine().register([world.region(placement=Placement.HOST)])


# --- with links -------------------------------------------------------------------------------------------------------


def test_deregistering_cuts_our_links_first_and_they_come_back(world, double):
    engine, _, _, plan = world.connected()
    (other,) = engine.register([world.region()])
    double.calls.clear()
    engine.deregister(other)
    assert double.names() == ["disconnect", "deregister_mem"]
    assert engine.transfer(world.peer, plan, READ, world.soon()).landed == ((0, 4),)
    assert double.names()[2:] == ["connect", "transfer_async"]


def test_several_ranges_are_deregistered_in_one_cut(world, double, monkeypatch):
    """A transfer that waits may make the link again only when no other range follows."""
    monkeypatch.setattr(hixl_links, "_PAUSE_AFTER_CUT", 0.5)
    engine, _, _, plan = world.connected()
    made = engine.register([world.region() for _ in range(8)])
    outcomes = []
    for one in made[:4]:
        engine.deregister(one)
    thread = world.pull(engine, plan, outcomes)
    for one in made[4:]:
        engine.deregister(one)
    thread.join(30.0)
    assert outcomes[0].landed == ((0, 4),)
    assert double.names("disconnect") == ["disconnect"]


def test_memory_that_a_peer_still_reaches_stays_registered_and_says_who(world, double):
    engine = world.engine()
    (made,) = engine.register([world.region()])
    reader = PeerIdentity(9, "far", 123, "ef" * 16)
    engine.watch(reader, world.endpoint("10.0.0.9:26300"))
    double.readers = 1
    with pytest.raises(StillReachableError, match=r"cluster 9 \(process 123 on far, engine 10\.0\.0\.9:26300\)"):
        engine.deregister(made)
    assert engine.live_regions == len(double.registered) == 1
    engine.unwatch(reader)  # the core gives up a silent reader; its native link may be there all the same
    with pytest.raises(StillReachableError, match=r"cluster 9 .*does not answer"):
        engine.deregister(made)
    double.readers = 0
    engine.deregister(made)
    assert not double.registered


def test_a_peer_that_goes_in_time_is_waited_for(world, double):
    engine = world.engine()
    (made,) = engine.register([world.region()])
    double.readers = 1
    timer = threading.Timer(0.1, setattr, (double, "readers", 0))
    timer.start()
    engine.deregister(made)
    timer.join()
    assert not double.registered


def test_nothing_is_deregistered_under_a_transfer(world, double, eventually):
    engine, _, _, plan = world.connected()
    (made,) = engine.register([world.region()])
    double.stuck = True
    thread = world.pull(engine, plan, [])
    eventually(lambda: double.requests)
    with pytest.raises(StillReachableError, match=f"still run to {ADDRESS}"):
        engine.deregister(made)
    assert double.names("deregister_mem", "disconnect") == ["disconnect"], "the link was cut under a transfer"
    double.stuck = False
    thread.join(30.0)
    engine.deregister(made)


def test_no_transfer_begins_while_memory_is_taken_away(world, double, eventually, monkeypatch):
    monkeypatch.setattr(hixl_memory, "_PATIENCE", 30.0)
    engine, _, _, plan = world.connected()
    (made,) = engine.register([world.region()])
    double.stuck, outcomes = True, []
    threads = [world.pull(engine, plan, outcomes)]
    eventually(lambda: double.requests)
    threads.append(threading.Thread(target=lambda: engine.deregister(made)))
    threads[1].start()
    eventually(lambda: engine._shared.links.holders)
    threads.append(world.pull(engine, plan, outcomes))
    time.sleep(0.05)
    double.stuck = False
    for thread in threads:
        thread.join(30.0)
    assert [len(outcome.landed) for outcome in outcomes] == [1, 1]
    order = double.names("deregister_mem", "connect", "disconnect", "transfer_async")[-5:]
    assert order == ["transfer_async", "disconnect", "deregister_mem", "connect", "transfer_async"]


def test_closing_gives_back_everything_in_order(world, double):
    engine, _, _, _ = world.connected()
    double.calls.clear()
    assert engine.close(world.soon()) == []
    assert double.names() == ["disconnect", "finalize"]
    assert engine.disconnect(world.peer, 0.0) and engine.live_regions == 0
    with pytest.raises(EngineError, match="closed"):
        engine.connect(world.peer, world.endpoint(), [], world.soon())


def test_closing_beside_another_manager_takes_only_ones_own(world, double):
    engine, here, _, _ = world.connected()
    other = world.engine()
    kept = world.region()
    other.register([kept, here])
    engine.register([world.region()])
    assert engine.close(world.soon()) == []
    assert {key[0] for key in double.registered.values()} == {kept.base, here.base}
    with pytest.raises(LinkFailedError, match="deadline passed"):
        other.connect(world.peer, world.endpoint(), [], 0.0)
