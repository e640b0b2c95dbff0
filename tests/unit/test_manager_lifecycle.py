"""What a manager asks of its driver and engines, in which order and from which threads, seen by doubles that record."""

import threading

import numpy as np
import pytest

import cachecore as cc
from cachecore import plugins
from cachecore.driver import DriverSpec
from cachecore.engine import EngineSpec, Region
from cachecore.outcome import FailureCause, Outcome, OutcomeState
from cachecore.plugins import Plugins
from cachecore.testing.reference import ReferenceDriver, ReferenceEngine

log = []
bound = threading.local()


def note(what):
    assert getattr(bound, "device", None) == 0, f"{what} in a thread that was not bound to the device"
    log.append(what)


class Driver(ReferenceDriver):
    def bind_thread(self):
        bound.device = 0

    def describe(self, ranges):
        note("describe")
        return super().describe(ranges)

    def copy(self, plan, deadline):
        note("copy")
        return super().copy(plan, deadline)

    def close(self):
        log.append("driver close")
        super().close()


class Engine(ReferenceEngine):
    outcome = None

    def register(self, regions):
        note("register")
        return super().register(regions)

    def deregister(self, registration):
        note("deregister")
        super().deregister(registration)

    def close(self, deadline):
        log.append("engine close")
        return super().close(deadline)


class Listener:
    def on_event(self, event):
        log.append(event.kind)


engines = []


def make_engine(driver, options):
    engines.append(Engine())
    return engines[-1]


@pytest.fixture
def doubles(monkeypatch):
    log.clear()
    engines.clear()
    found = Plugins(
        (),
        (),
        (DriverSpec("double", "records", lambda device: device is None, lambda device, options: Driver()),),
        (EngineSpec("double", "reference/1", 1, lambda driver: True, make_engine),),
        (),
        (Listener(),),
    )
    monkeypatch.setattr(plugins, "discover", lambda: found)


def tensors():
    return [np.arange(64, dtype=np.uint8).reshape(8, 8) for _ in range(2)]


def test_closing_unlinks_then_deregisters_then_finalizes_and_leaves_nothing(doubles, monkeypatch):
    owner = cc.CacheManager(1, listen="127.0.0.1:0")
    owner.register_blocks_tensors(tensors(), blocks_cache_key=cc.BlocksCacheKey(1))
    reader = cc.CacheManager(2)
    target = reader.register_blocks_tensors(tensors())
    reader.link(1, owner.address, timeout=10)
    reader.pull_blocks(cc.BlocksCacheKey(1), target, [1], [2])
    log.clear()
    deregister = Engine.deregister

    def look(self, registration):
        log.append(f"{len(reader.links)} links")
        deregister(self, registration)

    monkeypatch.setattr(Engine, "deregister", look)
    reader.close()
    end = [entry for entry in log if entry in ("0 links", "1 links", "deregister", "engine close", "driver close")]
    assert end == ["0 links", "deregister"] * 2 + ["engine close", "driver close"]
    owner.close()
    assert [engine.live_regions for engine in engines] == [0, 0]


def test_every_thread_binds_the_device_before_it_touches_the_driver_or_an_engine(doubles):
    """The doubles fail the call otherwise; a transfer from a thread nobody has seen is the sharpest case."""
    with cc.CacheManager(1, listen="127.0.0.1:0") as owner, cc.CacheManager(2) as reader:
        failures = []

        def run():
            try:
                source = owner.register_blocks_tensors(tensors(), blocks_cache_key=cc.BlocksCacheKey(1))
                target = reader.register_blocks_tensors(tensors())
                reader.link(1, owner.address, timeout=10)
                reader.pull_blocks(cc.BlocksCacheKey(1), target, [1], [2])
                threading.Thread(target=owner.unregister_cache, args=(source.cache_id,)).start()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(60)
        assert not failures, failures
    assert {"register", "describe", "copy", "deregister"} <= set(log)


def test_listeners_hear_what_happens(doubles):
    with cc.CacheManager(1) as manager:
        cache = manager.register_blocks_tensors(tensors())
        manager.unregister_cache(cache.cache_id)
    assert [entry for entry in log if entry in ("registered", "unregistered")] == ["registered", "unregistered"]


def test_close_waits_for_a_running_transfer_and_names_what_is_still_in_use(doubles, monkeypatch):
    manager = cc.CacheManager(1)
    manager.register_blocks_tensors(tensors(), blocks_cache_key=cc.BlocksCacheKey(1))
    target = manager.register_blocks_tensors(tensors())
    running, go_on = threading.Event(), threading.Event()

    def slow(self, plan, deadline):
        running.set()
        go_on.wait(30)
        return Outcome.done(plan.chunks)

    monkeypatch.setattr(Driver, "copy", slow)
    thread = threading.Thread(target=manager.pull_blocks, args=(cc.BlocksCacheKey(1), target, [1], [2]))
    thread.start()
    assert running.wait(30)
    with pytest.raises(cc.CacheBusyError) as caught:
        manager.close(timeout=0.05)
    assert {base for base, _ in caught.value.ranges} >= set(target.tensor_addrs)
    assert "driver close" not in log
    with pytest.raises(cc.ManagerClosedError):
        manager.register_blocks_tensors(tensors())
    go_on.set()
    thread.join(30)
    manager.close()
    assert log[-1] == "driver close"


def test_close_that_cannot_reach_quiescence_says_what_must_not_be_freed(doubles, monkeypatch):
    manager = cc.CacheManager(1)
    manager.register_blocks_tensors(tensors(), blocks_cache_key=cc.BlocksCacheKey(1))
    target = manager.register_blocks_tensors(tensors())
    stopped = threading.Event()

    def stuck(self, plan, deadline):
        return Outcome(OutcomeState.UNKNOWN, unknown=((0, plan.chunks),), cause=FailureCause.DEADLINE, ticket="ticket")

    monkeypatch.setattr(Driver, "copy", stuck)
    monkeypatch.setattr(Driver, "quiescent", lambda self, ticket: stopped.is_set())
    with pytest.raises(cc.TransferTimeoutError):
        manager.pull_blocks(cc.BlocksCacheKey(1), target, [1], [2], timeout=0.05)
    with pytest.raises(cc.CacheBusyError, match="in use"):
        manager.unregister_cache(target.cache_id, timeout=0.05)
    with pytest.raises(cc.CacheBusyError, match=r"must\s+not be freed"):
        manager.close(timeout=0.05)
    stopped.set()
    manager.close(timeout=30)


def test_close_counts_what_the_engine_says_when_it_is_closed(doubles, monkeypatch):
    """An engine may refuse to let go while a peer is connected, and end that peer's access when it is closed."""
    manager = cc.CacheManager(1)
    cache = manager.register_blocks_tensors(tensors())
    left = [Region(cache.tensor_addrs[0], 64, cc.Placement.DEVICE)]

    def refuses(self, registration):
        raise cc.StillReachableError("cluster 2 is connected")

    monkeypatch.setattr(Engine, "deregister", refuses)
    monkeypatch.setattr(Engine, "close", lambda self, deadline: list(left))
    with pytest.raises(cc.StillReachableError):
        manager.unregister_cache(cache.cache_id)
    with pytest.raises(cc.CacheBusyError, match="Do not free") as caught:
        manager.close()
    assert caught.value.ranges == ((cache.tensor_addrs[0], 64),) and "driver close" not in log
    left.clear()
    manager.close()
    assert log[-1] == "driver close"


def test_unregistering_twice_at_once_unregisters_once(doubles):
    with cc.CacheManager(1) as manager:
        cache = manager.register_blocks_tensors(tensors())
        results = []

        def run():
            try:
                manager.unregister_cache(cache.cache_id)
                results.append("done")
            except cc.CacheNotFoundError:
                results.append("gone")

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(results) == ["done"] + ["gone"] * 7


def test_a_manager_that_cannot_be_made_leaves_nothing_behind(doubles):
    with cc.CacheManager(1, listen="127.0.0.1:0") as manager, pytest.raises(cc.CacheError, match="already in use"):
        cc.CacheManager(2, listen=manager.address)
    assert log.count("driver close") == log.count("engine close") == 2


@pytest.mark.parametrize("allocated", [False, True])
def test_a_cache_that_could_neither_be_offered_nor_undone_keeps_nothing_from_closing(monkeypatch, allocated):
    memory = np.zeros((4, 64), np.uint8)
    desc = cc.CacheDesc(1, [4, 64], cc.DataType.DT_UINT8)

    def refuse(*args):
        raise cc.CacheValueError("the catalogue is full")

    def stuck(registration):
        raise cc.StillReachableError("a peer is connected")

    with cc.CacheManager(1, backend="host") as manager:
        with monkeypatch.context() as patched:
            patched.setattr(manager._peers, "publish", refuse)
            patched.setattr(manager._engines[0].engine, "deregister", stuck)
            with pytest.raises(cc.StillReachableError):
                if allocated:
                    manager.allocate_blocks_cache(desc)
                else:
                    manager.register_blocks_cache(desc, [memory.ctypes.data])
        (kept,) = manager._registry.caches()
        assert manager.caches == () and kept.running == 0
