"""Registration is all or nothing over every engine, counted by region, and undone only when nothing uses it."""

import dataclasses
import threading
import time
from types import SimpleNamespace

import pytest

from cachecore.driver import Capability
from cachecore.engine import EngineBinding, Registration
from cachecore.errors import (
    AddressBudgetError,
    AlignmentError,
    CacheKeyExistsError,
    CacheNotFoundError,
    EngineError,
    MemoryAccessError,
    OverlapError,
    PlacementError,
    RegistrationRefusedError,
    StillReachableError,
)
from cachecore.registration.registry import Registry
from cachecore.testing.reference import ReferenceDriver
from cachecore.types import BlocksCacheKey, CacheDesc, CacheKey, CacheKeyByIdAndIndex, DataType, Placement

PAGE = 4096


class Engine:
    """Counts; fails the n-th region it is asked for, or refuses to let go."""

    def __init__(self, fail_at=None, sticky=False, placements=tuple(Placement)):
        self.live, self.calls, self.fail_at, self.sticky = [], 0, fail_at, sticky
        self.pairs = Capability(frozenset((a, b) for a in placements for b in placements), "a test")

    def capabilities(self):
        return SimpleNamespace(placement_pairs=self.pairs)

    def register(self, regions):
        self.calls += 1
        if self.fail_at is not None and self.fail_at < len(regions):
            region = regions[self.fail_at]
            raise EngineError(f"region {region.base:#x} ({region.nbytes} bytes): code 7", operation="register", code=7)
        made = [Registration(region, b"d") for region in regions]
        self.live += made
        return made

    def deregister(self, registration):
        if self.sticky:
            raise StillReachableError("peers are connected")
        self.live.remove(registration)


def bound(engine):
    return EngineBinding("test", "test/1", 0, engine)


@pytest.fixture
def driver():
    driver = ReferenceDriver()
    yield driver
    driver.close()


@pytest.fixture
def memory(driver):
    return driver.allocate(64 * PAGE, Placement.DEVICE).address


def desc(tensors, placement=Placement.DEVICE, nbytes=PAGE):
    return CacheDesc(tensors, [4, nbytes // 4], DataType.DT_INT8, placement)


def register(registry, addrs, *, remote=True, placement=Placement.DEVICE, nbytes=PAGE, **details):
    return registry.register(
        "register_blocks_cache",
        desc(len(addrs), placement, nbytes),
        tuple(addrs),
        is_blocks="keys" not in details,
        remote_accessible=remote,
        **details,
    )


def test_ids_count_from_one_and_are_never_used_twice(driver, memory):
    registry = Registry(1, driver, [], [])
    first = register(registry, [memory])
    registry.remove(first)
    assert [first.cache.cache_id, register(registry, [memory]).cache.cache_id] == [1, 2]


def test_a_failing_engine_leaves_nothing_registered_anywhere(driver, memory):
    good, bad = Engine(), Engine(fail_at=2)
    registry = Registry(1, driver, [bound(good), bound(bad)], [])
    addrs = [memory + i * PAGE for i in range(4)]
    with pytest.raises(EngineError, match=f"{addrs[2]:#x}"):
        register(registry, addrs, blocks_key=BlocksCacheKey(1))
    assert good.live == [] and registry.usage() == (0, 0, 0)
    bad.fail_at = None
    register(registry, addrs, blocks_key=BlocksCacheKey(1))
    assert len(good.live) == len(bad.live) == 4


def test_an_engine_is_told_only_of_memory_it_can_move(driver, memory):
    host_only, both = Engine(placements=[Placement.HOST]), Engine()
    registry = Registry(1, driver, [bound(host_only), bound(both)], [])
    register(registry, [memory])
    assert host_only.live == [] and len(both.live) == 1
    register(registry, [memory + PAGE], placement=Placement.HOST)
    assert len(host_only.live) == 1 and len(both.live) == 2


def test_a_roll_back_that_fails_says_what_must_not_be_freed(driver, memory):
    registry = Registry(1, driver, [bound(Engine(sticky=True)), bound(Engine(fail_at=0))], [])
    with pytest.raises(StillReachableError, match=f"{memory:#x}.*Do not free"):
        register(registry, [memory])


def test_memory_that_was_deregistered_half_way_is_registered_again(driver, memory):
    first, second = Engine(), Engine()
    registry = Registry(1, driver, [bound(first), bound(second)], [])
    cache = register(registry, [memory, memory + PAGE])
    first.sticky = True
    registry.retire(cache)
    with pytest.raises(StillReachableError):
        registry.remove(cache)
    assert len(first.live) > len(second.live)
    register(registry, [memory])
    register(registry, [memory + PAGE])
    assert len(first.live) == len(second.live) == 2


def test_a_failure_after_the_engines_undoes_them(driver, memory):
    engine = Engine()
    registry = Registry(1, driver, [bound(engine)], [])

    def broken(cache):
        raise ConnectionError("no peers")

    with pytest.raises(ConnectionError):
        register(registry, [memory], joined=broken)
    assert engine.live == [] and registry.usage() == (0, 0, 0)


def test_an_exact_repeat_shares_one_registration_until_the_last_is_gone(driver, memory):
    engine = Engine()
    registry = Registry(1, driver, [bound(engine)], [])
    first, second = register(registry, [memory]), register(registry, [memory])
    assert engine.calls == 1 and len(engine.live) == 1
    registry.remove(first)
    assert len(engine.live) == 1 and registry.usage() == (1, 1, PAGE)
    registry.remove(second)
    assert engine.live == [] and registry.usage() == (0, 0, 0)


def test_a_private_region_becomes_remote_with_its_first_remote_cache_only(driver, memory):
    engine = Engine()
    registry = Registry(1, driver, [bound(engine)], [])
    private = register(registry, [memory], remote=False)
    assert engine.live == []
    shared = register(registry, [memory])
    assert len(engine.live) == 1
    registry.remove(shared)
    assert engine.live == []
    registry.remove(private)
    assert registry.usage() == (0, 0, 0)


def test_eight_threads_with_one_range_make_one_native_registration(driver, memory):
    engine = Engine()
    registry = Registry(1, driver, [bound(engine)], [])
    barrier = threading.Barrier(8)

    def run():
        barrier.wait()
        register(registry, [memory])

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(engine.live) == 1 and registry.usage() == (8, 8, PAGE)


def test_the_budget_counts_both_kinds_and_is_freed_by_unregistering(driver):
    base = driver.allocate(241 * PAGE, Placement.DEVICE).address
    addrs = [base + i * PAGE for i in range(241)]
    registry = Registry(1, driver, [], [])
    with pytest.raises(AddressBudgetError, match="asks for 241"):
        register(registry, addrs)
    blocks = register(registry, addrs[:200])
    register(registry, addrs[200:240], keys=[])
    with pytest.raises(AddressBudgetError, match="240 of 240 are registered, 0 are left"):
        register(registry, addrs[240:])
    registry.remove(blocks)
    register(registry, addrs[240:])


def test_the_byte_limit_of_the_driver_counts_each_region_once(driver, memory):
    class Small(ReferenceDriver):
        def capabilities(self):
            return dataclasses.replace(
                super().capabilities(), max_registered_device_bytes=Capability(4 * PAGE, "a test")
            )

    registry = Registry(1, Small(), [], [])
    pages = [memory + i * PAGE for i in range(5)]
    first = register(registry, pages[:3])
    register(registry, pages[:3])  # the same memory again adds nothing
    register(registry, pages[3:], placement=Placement.HOST)  # the other placement has a limit of its own
    with pytest.raises(ValueError, match=f"asks for {2 * PAGE} bytes of DEVICE memory; {3 * PAGE} of {4 * PAGE} are"):
        register(registry, [memory + 8 * PAGE, memory + 9 * PAGE])
    assert registry.usage()[0] == 3 and first in registry.caches()


@pytest.mark.parametrize(
    ("addrs", "error", "text"),
    [
        (lambda m: [m, m], OverlapError, "one call"),
        (lambda m: [m, m + PAGE - 2], OverlapError, "one call"),
        (lambda m: [m + 33 * PAGE - 2], OverlapError, "cache 1"),
        (lambda m: [2 * PAGE], MemoryAccessError, "not mapped"),
        (lambda m: [m + 1], AlignmentError, "multiple of 2"),
    ],
)
def test_a_refused_registration_reaches_no_engine(driver, memory, addrs, error, text):
    engine = Engine()
    registry = Registry(1, driver, [bound(engine)], [])
    register(registry, [memory + 32 * PAGE])
    with pytest.raises(error, match=text):
        register(registry, addrs(memory))
    assert engine.calls == 1 and registry.usage()[0] == 1


def test_one_memory_has_one_placement(driver, memory):
    registry = Registry(1, driver, [], [])
    register(registry, [memory])
    with pytest.raises(PlacementError, match="registered as DEVICE"):
        register(registry, [memory], placement=Placement.HOST)


def test_keys_find_their_cache_until_it_retires(driver, memory):
    registry = Registry(1, driver, [], [])
    blocks = register(registry, [memory], blocks_key=BlocksCacheKey(1, 7))
    entries = register(registry, [memory + PAGE], keys=[CacheKey(1), CacheKey(1, 5)])
    assert registry.by_key(BlocksCacheKey(1, 7)) == (blocks, 0)
    assert registry.by_key(CacheKey(1, 5)) == (entries, 1)
    assert registry.by_key(CacheKeyByIdAndIndex(1, entries.cache.cache_id, 3)) == (entries, 3)
    with pytest.raises(ValueError, match="batch_index"):
        registry.by_key(CacheKeyByIdAndIndex(1, entries.cache.cache_id, 4))
    with pytest.raises(CacheKeyExistsError):
        register(registry, [memory + 2 * PAGE], keys=[CacheKey(1, 5)])
    registry.retire(blocks)
    with pytest.raises(CacheNotFoundError):
        registry.by_key(BlocksCacheKey(1, 7))
    # Until its memory is gone the key stays taken: two caches under one key would be a coin toss for the peer.
    with pytest.raises(CacheKeyExistsError):
        register(registry, [memory + 2 * PAGE], blocks_key=BlocksCacheKey(1, 7))
    registry.remove(blocks)
    register(registry, [memory + 2 * PAGE], blocks_key=BlocksCacheKey(1, 7))


def test_a_policy_that_fails_refuses(driver, memory):
    class Policy:
        def check_registration(self, function, cluster_id, ranges):
            raise KeyError("table not loaded")

    registry = Registry(1, driver, [], [Policy()])
    with pytest.raises(RegistrationRefusedError, match="Policy: KeyError: 'table not loaded'"):
        register(registry, [memory])


def test_a_policy_that_registers_is_refused_instead_of_waiting_for_itself(driver, memory):
    class Policy:
        def check_registration(self, function, cluster_id, ranges):
            register(registry, [memory + PAGE])

    registry = Registry(1, driver, [], [Policy()])
    with pytest.raises(RegistrationRefusedError, match="a policy only looks"):
        register(registry, [memory])
    registry._policies = ()
    register(registry, [memory])


def test_waiting_for_transfers_ends_with_the_last_one_or_at_the_deadline(driver, memory):
    registry = Registry(1, driver, [], [])
    cache = register(registry, [memory])
    registry.begin(cache)
    registry.begin(cache)
    registry.retire(cache)
    with pytest.raises(CacheNotFoundError, match="being unregistered"):
        registry.begin(cache)
    assert registry.wait_idle([cache], time.monotonic() + 0.02) == [cache]
    registry.end(cache)
    timer = threading.Timer(0.05, registry.end, [cache])
    timer.start()
    assert registry.wait_idle([cache], time.monotonic() + 30) == []
    timer.join()


def test_deregistration_that_fails_keeps_the_cache_and_can_be_repeated(driver, memory):
    engine = Engine()
    registry = Registry(1, driver, [bound(engine)], [])
    cache = register(registry, [memory, memory + PAGE])
    engine.sticky = True
    with pytest.raises(StillReachableError):
        registry.remove(cache)
    assert registry.usage() == (1, 2, 2 * PAGE)
    engine.sticky = False
    registry.remove(cache)
    assert engine.live == [] and registry.usage() == (0, 0, 0)
