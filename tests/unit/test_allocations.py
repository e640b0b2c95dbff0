"""Allocated caches: where their memory comes from and goes, and what is refused."""

import ctypes
import pickle
import threading
import time

import numpy as np
import pytest

import cachecore as cc
from cachecore.driver import UNKNOWN, Allocation, Capability
from cachecore.host import driver as host_driver
from cachecore.options import read as read_options
from cachecore.registration.allocations import tensor_stride

UINT8 = cc.DataType.DT_UINT8
TWO_SIDED = {"manager.remote_cache_accessible": False}


def desc(tensors=3, rows=4, row_bytes=1000, **more):
    return cc.CacheDesc(tensors, [rows, row_bytes], UINT8, **more)


def array(cache, tensor):
    rows, row_bytes = cache.cache_desc.shape
    raw = (ctypes.c_uint8 * (rows * row_bytes)).from_address(cache.tensor_addrs[tensor])
    return np.frombuffer(raw, np.uint8).reshape(rows, row_bytes)


def live(manager):
    return manager.backend.live_allocations


@pytest.fixture
def manager():
    with cc.CacheManager(1, backend="host") as manager:
        yield manager


def test_tensors_lie_in_one_allocation_that_costs_no_address_and_is_freed(manager):
    cache = manager.allocate_blocks_cache(desc(300), cc.BlocksCacheKey(1))
    assert (cache.cache_id, cache.is_blocks_cache, len(cache.tensor_addrs)) == (1, True, 300)
    assert live(manager) == 1
    for tensor in (0, 299):
        array(cache, tensor)[:] = tensor % 256
    assert (array(cache, 0) == 0).all() and (array(cache, 299) == 299 % 256).all()
    stats = manager.stats()
    stride = tensor_stride(4000, 65536)
    assert (stats.registered_addresses, stats.allocated_caches) == (0, 1)
    assert stats.allocated_bytes == stats.registered_bytes == 299 * stride + 4000
    assert manager.caches == (cache,)
    manager.deallocate_blocks_cache(cache)
    assert live(manager) == 0 and manager.caches == () and manager.stats().allocated_bytes == 0
    with pytest.raises(KeyError, match="not registered"):
        manager.deallocate_blocks_cache(cache)


@pytest.mark.parametrize(
    ("nbytes", "alignment", "stride"),
    [
        (1, 64, 512),
        (512, 65536, 512),
        (513, 65536, 1024),
        (65536, 65536, 65536),
        (65537, 65536, 131072),
        (3 << 20, 2 << 20, 4 << 20),
        (1 << 20, 2 << 20, 1 << 20),
    ],
)
def test_tensors_are_aligned_and_less_than_half_of_an_allocation_is_empty(nbytes, alignment, stride):
    assert tensor_stride(nbytes, alignment) == stride


def test_closing_frees_what_is_left():
    manager = cc.CacheManager(1, backend="host")
    manager.allocate_cache(desc())
    manager.allocate_blocks_cache(desc())
    manager.close()
    assert live(manager) == 0


REFUSED = [
    (lambda m: m.allocate_cache(None), AttributeError, "cache_desc is None"),
    (lambda m: m.allocate_cache("desc"), TypeError, "cache_desc"),
    (lambda m: m.allocate_cache(desc(), None), AttributeError, "cache_keys is None"),
    (lambda m: m.allocate_cache(desc(), [cc.BlocksCacheKey(1)]), TypeError, r"cache_keys\[0\]"),
    (lambda m: m.allocate_cache(desc(), [cc.CacheKey(2, 1)]), ValueError, "cluster_id 2"),
    (lambda m: m.allocate_cache(desc(), [cc.CacheKey(1, i) for i in range(5)]), ValueError, "5 keys and the cache 4"),
    (
        lambda m: m.allocate_cache(desc(), [cc.CacheKey(1, 5)] * 2),
        cc.CacheKeyExistsError,
        r"cache_keys\[1\].*in the list",
    ),
    (lambda m: m.allocate_cache(desc(), [cc.CacheKey(1, 1)]), cc.CacheKeyExistsError, "names an entry of a live cache"),
    (lambda m: m.allocate_blocks_cache(desc(), cc.BlocksCacheKey(1)), cc.CacheKeyExistsError, "names a live cache"),
    (lambda m: m.allocate_blocks_cache(desc(), cc.CacheKey(1, 9)), TypeError, "blocks_cache_key"),
    (lambda m: m.allocate_cache(desc(), remote_accessible=1), TypeError, "remote_accessible"),
    (lambda m: m.deallocate_cache(None), AttributeError, "cache is None"),
    (lambda m: m.deallocate_cache(1), TypeError, "cache is 1"),
    (lambda m: m.remove_cache_key(None), AttributeError, "cache_key is None"),
    (lambda m: m.remove_cache_key(cc.BlocksCacheKey(1)), TypeError, "cache_key"),
    (lambda m: m.remove_cache_key(cc.CacheKey(1)), ValueError, "placeholder"),
    (lambda m: m.remove_cache_key(cc.CacheKey(2, 1)), ValueError, "cluster_id 2 and this manager is cluster 1"),
    (lambda m: m.remove_cache_key(cc.CacheKey(1, 77)), KeyError, "names no cache of this manager"),
]


@pytest.mark.parametrize(("call", "error", "text"), REFUSED, ids=range(len(REFUSED)))
def test_what_makes_no_sense_is_refused_and_costs_no_memory(manager, call, error, text):
    manager.allocate_cache(desc(), [cc.CacheKey(1, 1)])
    manager.allocate_blocks_cache(desc(), cc.BlocksCacheKey(1))
    before = manager.stats()
    with pytest.raises(error, match=text) as caught:
        call(manager)
    assert isinstance(caught.value, cc.CacheError)
    assert live(manager) == 2 and manager.stats() == before


def test_each_way_back_names_the_right_one_for_another_kind_of_cache(manager):
    tensors = [np.zeros((4, 8), np.uint8)]
    registered, allocated = manager.register_cache_tensors(tensors), manager.allocate_cache(desc())
    blocks = manager.allocate_blocks_cache(desc())
    cpu = cc.Cache.create_cpu_cache(desc(1, placement=cc.Placement.HOST), [tensors[0].ctypes.data])
    cases = [
        (lambda: manager.deallocate_cache(registered), rf"unregister_cache\({registered.cache_id}\)"),
        (lambda: manager.deallocate_cache(blocks), "deallocate_blocks_cache"),
        (lambda: manager.deallocate_blocks_cache(allocated), "use deallocate_cache in place"),
        (lambda: manager.unregister_cache(allocated.cache_id), "use deallocate_cache"),
        (lambda: manager.unregister_cache(blocks.cache_id), "use deallocate_blocks_cache"),
        (lambda: manager.deallocate_cache(cpu), "create_cpu_cache"),
    ]
    for call, text in cases:
        with pytest.raises(ValueError, match=text):
            call()
    assert len(manager.caches) == 3
    with cc.CacheManager(2, backend="host") as other, pytest.raises(KeyError, match="registered: none"):
        other.deallocate_cache(allocated)


def test_too_little_memory_says_how_much_was_asked_for_and_which_kind(manager):
    for placement, code in (
        (cc.Placement.DEVICE, cc.StatusCode.DEVICE_OUT_OF_MEMORY),
        (cc.Placement.HOST, cc.StatusCode.OUT_OF_MEMORY),
    ):
        for rows in (2**40, 2**62):
            with pytest.raises(
                cc.CacheOutOfMemoryError, match=rf"allocate_cache asks for \d{{14,}} bytes.*{rows}"
            ) as error:
                manager.allocate_cache(
                    desc(2, rows, 64, placement=placement)
                ) if rows < 2**50 else manager.allocate_cache(desc(2, rows, 2, placement=placement))
            assert error.value.status_code is code and isinstance(error.value, MemoryError)
            assert pickle.loads(pickle.dumps(error.value)).status_code is code
    assert live(manager) == 0


def test_what_fails_while_it_is_registered_leaves_no_memory_behind(manager, monkeypatch):
    for where, problem in ((manager._registry, "register"), (manager._peers, "publish")):
        with monkeypatch.context() as patch:
            patch.setattr(where, problem, lambda *a, **k: (_ for _ in ()).throw(cc.EngineError("planned")))
            with pytest.raises(cc.EngineError, match="planned"):
                manager.allocate_blocks_cache(desc(), cc.BlocksCacheKey(1))
        assert live(manager) == 0 and manager.caches == ()
    manager.allocate_blocks_cache(desc(), cc.BlocksCacheKey(1))  # the key is free


def test_memory_that_an_engine_cannot_let_go_of_is_not_freed(manager, monkeypatch):
    cache = manager.allocate_blocks_cache(desc())
    (binding,) = manager._engines
    with monkeypatch.context() as patch:

        def stuck(registration):
            raise cc.StillReachableError("a peer is connected")

        patch.setattr(binding.engine, "deregister", stuck)
        with pytest.raises(cc.StillReachableError):
            manager.deallocate_blocks_cache(cache)
        assert live(manager) == 1
        with pytest.raises(KeyError, match="being unregistered"):
            manager.copy_blocks(cache, {0: [1]})
    manager.deallocate_blocks_cache(cache)  # can be repeated
    assert live(manager) == 0


def test_memory_that_the_driver_cannot_free_now_stays_and_the_call_can_be_repeated(manager, monkeypatch):
    cache = manager.allocate_blocks_cache(desc())
    with monkeypatch.context() as patch:

        def busy(allocation):
            assert isinstance(allocation, Allocation)
            raise cc.CacheBusyError("a copy is still running")

        patch.setattr(manager.backend, "free", busy)
        with pytest.raises(cc.CacheBusyError):
            manager.deallocate_blocks_cache(cache)
    manager.deallocate_blocks_cache(cache)
    assert live(manager) == 0


def test_deallocating_waits_for_a_transfer_and_gives_up_at_its_deadline(manager):
    cache = manager.allocate_blocks_cache(desc())
    local = manager._registry.by_id(cache.cache_id)
    manager._registry.begin(local)
    with pytest.raises(cc.CacheBusyError) as caught:
        manager.deallocate_blocks_cache(cache, timeout=0.05)
    assert caught.value.ranges == ((local.allocation.address, local.allocation.nbytes),) and live(manager) == 1
    end = threading.Timer(0.1, manager._registry.end, [local])
    end.start()
    manager.deallocate_blocks_cache(cache, timeout=30)
    end.join()
    assert live(manager) == 0


@pytest.mark.parametrize(("value", "text"), [(False, "does not offer"), (UNKNOWN, "is not known to offer")], ids=str)
def test_a_product_without_allocated_caches_refuses_with_its_source_and_the_way_out(manager, monkeypatch, value, text):
    facts = manager.backend.capabilities()
    object.__setattr__(facts, "allocate_caches", Capability(value, "page 7 of the manual"))
    with pytest.raises(cc.NotSupportedError, match=f"{text}.*page 7 of the manual.*register_blocks_cache") as caught:
        manager.allocate_blocks_cache(desc())
    assert (caught.value.product, caught.value.feature) == ("host", "allocate_blocks_cache")
    with pytest.raises(cc.NotSupportedError, match="register_cache"):
        manager.allocate_cache(desc())


# --- keys -------------------------------------------------------------------------------------------------------------


def test_placeholders_keep_their_entry_and_a_removed_key_moves_no_other(manager):
    unused = cc.CacheKey(1)
    keys = [unused, cc.CacheKey(1, 5), unused, cc.CacheKey(1, prefix_id=6)]
    source, target = manager.allocate_cache(desc(), keys), manager.allocate_cache(desc())
    for row in range(4):
        array(source, 0)[row] = row + 1
    manager.pull_cache(keys[1], target, 0, tensor_num_per_layer=1)
    manager.remove_cache_key(keys[1])
    with pytest.raises(KeyError, match="names no cache"):
        manager.pull_cache(keys[1], target, 1, tensor_num_per_layer=1)
    with pytest.raises(KeyError, match="or not any more"):
        manager.remove_cache_key(keys[1])
    manager.pull_cache(keys[3], target, 2, tensor_num_per_layer=1)
    assert list(array(target, 0)[:, 7]) == [2, 0, 4, 0]
    # The key is free again, for another cache too.
    manager.allocate_cache(desc(), [keys[1]])


def test_the_key_of_a_registered_cache_can_be_removed_and_the_cache_stays(manager):
    tensors = [np.zeros((4, 8), np.uint8)]
    cache = manager.register_cache_tensors(tensors, cache_keys=[cc.CacheKey(1, 5)])
    manager.remove_cache_key(cc.CacheKey(1, 5))
    assert manager.caches == (cache,)
    manager.unregister_cache(cache.cache_id)


def test_one_sided_pulls_consume_nothing(manager):
    key = cc.CacheKey(1, 5)
    source, target = manager.allocate_cache(desc(), [key]), manager.allocate_cache(desc())
    for _ in range(2):
        manager.pull_cache(key, target, tensor_num_per_layer=1)
    manager.deallocate_cache(source)  # a key does not keep it
    assert live(manager) == 1


@pytest.fixture
def two_sided():
    with cc.CacheManager(1, backend="host", options=TWO_SIDED) as manager:
        yield manager


def test_a_two_sided_pull_consumes_the_key_of_a_request_once(two_sided):
    key = cc.CacheKey(1, 5)
    two_sided.allocate_cache(desc(), [key])
    target = two_sided.allocate_cache(desc())
    two_sided.pull_cache(key, target, tensor_num_per_layer=1)
    with pytest.raises(cc.CacheNotFoundError):
        two_sided.pull_cache(key, target, tensor_num_per_layer=1)


def test_what_a_two_sided_pull_does_not_consume(two_sided):
    request, prefix, other = cc.CacheKey(1, 5), cc.CacheKey(1, prefix_id=6), cc.CacheKey(1, 8)
    source = two_sided.allocate_cache(desc(), [request, prefix])
    registered = two_sided.register_cache_tensors([np.zeros((4, 1000), np.uint8) for _ in range(3)], cache_keys=[other])
    target, blocks = two_sided.allocate_cache(desc()), two_sided.allocate_blocks_cache(desc())
    by_id = cc.CacheKeyByIdAndIndex(1, source.cache_id, 0)
    for _ in range(2):
        two_sided.pull_cache(prefix, target, tensor_num_per_layer=1)
        two_sided.pull_cache(other, target, tensor_num_per_layer=1)
        two_sided.pull_cache(by_id, target, tensor_num_per_layer=1)
        two_sided.pull_blocks(request, blocks, (), [0], tensor_num_per_layer=1)
        two_sided.pull_cache(
            request, target, src_layer_range=range(1), dst_layer_range=range(1), tensor_num_per_layer=1
        )
        with pytest.raises(cc.TransferTimeoutError):
            two_sided.pull_cache(request, target, tensor_num_per_layer=1, timeout=0)
    two_sided.pull_cache(request, target, tensor_num_per_layer=1)  # is still there
    two_sided.unregister_cache(registered.cache_id)


def test_what_a_peer_asks_to_consume_is_judged_by_the_owner(two_sided, manager):
    request, prefix, other = cc.CacheKey(1, 5), cc.CacheKey(1, prefix_id=6), cc.CacheKey(1, 8)
    cache = two_sided.allocate_cache(desc(), [request, prefix])
    registered = two_sided.register_cache_tensors([np.zeros((4, 8), np.uint8)], cache_keys=[other])
    one_sided = manager.allocate_cache(desc(), [request])
    assert not two_sided._on_consumed(registered.cache_id, other)
    assert not two_sided._on_consumed(cache.cache_id, prefix)
    assert not two_sided._on_consumed(cache.cache_id, other)
    assert not two_sided._on_consumed(99, request)
    assert not manager._on_consumed(one_sided.cache_id, request)
    assert two_sided._on_consumed(cache.cache_id, request)
    assert not two_sided._on_consumed(cache.cache_id, request)


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def test_a_released_cache_lives_until_its_last_key_is_consumed_or_removed(two_sided):
    keys = [cc.CacheKey(1, 5), cc.CacheKey(1, prefix_id=6)]
    source, target = two_sided.allocate_cache(desc(), keys), two_sided.allocate_cache(desc())
    two_sided.deallocate_cache(source)
    assert two_sided.caches == (target,) and live(two_sided) == 2
    for call in (lambda: two_sided.deallocate_cache(source), lambda: two_sided.copy_cache(source, source, 1)):
        with pytest.raises(cc.CacheNotFoundError, match="deallocated"):
            call()
    two_sided.pull_cache(keys[0], target, tensor_num_per_layer=1)
    assert live(two_sided) == 2
    two_sided.remove_cache_key(keys[1])
    assert live(two_sided) == 1
    # The same with a pull as the last user: freed from a thread of its own.
    two_sided.deallocate_cache(two_sided.allocate_cache(desc(), keys[:1]))
    two_sided.pull_cache(keys[0], target, tensor_num_per_layer=1)
    wait_until(lambda: live(two_sided) == 1)


def test_listeners_are_told_of_allocations_and_keys(two_sided, monkeypatch):
    events = []
    monkeypatch.setattr(two_sided._listeners, "send", lambda event: events.append((event.kind, event.cache_id)))
    blocks = two_sided.allocate_blocks_cache(desc())
    plain = two_sided.allocate_cache(desc(), [cc.CacheKey(1, 5)])
    two_sided.deallocate_blocks_cache(blocks)
    two_sided.deallocate_cache(plain)
    two_sided.remove_cache_key(cc.CacheKey(1, 5))
    assert events == [
        ("allocated", 1),
        ("allocated", 2),
        ("deallocated", 1),
        ("released", 2),
        ("key removed", 2),
        ("deallocated", 2),
    ]


def test_a_two_sided_cache_without_keys_is_freed_at_once(two_sided):
    two_sided.deallocate_cache(two_sided.allocate_cache(desc(), [cc.CacheKey(1)]))
    assert live(two_sided) == 0


def test_a_released_cache_that_is_still_read_is_freed_after_its_reader(two_sided):
    key = cc.CacheKey(1, 5)
    source = two_sided.allocate_cache(desc(), [key])
    local = two_sided._registry.by_id(source.cache_id)
    two_sided.deallocate_cache(source)
    two_sided._registry.begin(local)
    two_sided.remove_cache_key(key, timeout=0.01)
    assert live(two_sided) == 1
    two_sided._registry.end(local)
    wait_until(lambda: live(two_sided) == 0)


def test_of_two_pulls_with_one_key_one_counts(two_sided):
    key = cc.CacheKey(1, 5)
    two_sided.allocate_cache(desc(rows=1), [key])
    local = two_sided._registry.by_key(key)[0]
    targets = [two_sided.allocate_cache(desc(rows=1)) for _ in range(4)]
    both = threading.Barrier(4)
    counted, errors = [], []
    consume = two_sided._allocations.consume_own

    def together(cache, consumed):  # all have moved their bytes before the first one consumes
        both.wait(30)
        consume(cache, consumed)

    two_sided._ends._consume = together

    def pull(target):
        try:
            two_sided.pull_cache(key, target, tensor_num_per_layer=1)
            counted.append(target)
        except cc.CacheNotFoundError as error:
            errors.append(error)

    threads = [threading.Thread(target=pull, args=[target]) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(counted) == 1 and len(errors) == 3 and "another pull" in str(errors[0])
    assert local.running == 0


@pytest.mark.parametrize(
    ("value", "text"), [(False, "does not have it"), (UNKNOWN, "is not known to have it")], ids=str
)
def test_a_product_that_cannot_switch_remote_access_off_refuses_two_sided_keys(value, text):
    driver = host_driver.HostDriver()
    object.__setattr__(driver.capabilities(), "two_sided_lifetime", Capability(value, "page 8 of the manual"))
    with pytest.raises(cc.NotSupportedError, match=f"{text}.*page 8") as caught:
        read_options(TWO_SIDED, driver)
    assert (caught.value.product, caught.value.feature) == ("host", "remote_cache_accessible=False")
    assert read_options({}, driver).remote_cache_accessible is True
    with pytest.raises(TypeError, match="remote_cache_accessible"):
        read_options({"manager.remote_cache_accessible": 0}, driver)


def test_allocated_memory_cannot_be_registered_beside_its_cache(manager):
    cache = manager.allocate_blocks_cache(desc(1), cc.BlocksCacheKey(1))  # one tensor: its range is the region's
    for call in (
        lambda: manager.register_blocks_cache(desc(1), cache.tensor_addrs),
        lambda: manager.register_cache(desc(1, 2), cache.tensor_addrs),
    ):
        with pytest.raises(cc.OverlapError, match=r"addrs\[0\].*overlaps cache 1.*use that cache"):
            call()
    view = array(cache, 0)
    with pytest.raises(cc.OverlapError, match="cache 1"):
        manager.register_layers({"layer": [view]}, key=cc.BlocksCacheKey(1, 5))
    manager.deallocate_blocks_cache(cache)


def test_memory_that_somebody_freed_while_it_was_registered_is_not_shared(manager):
    stale = manager.backend.allocate(4000, cc.Placement.DEVICE)
    manager.register_blocks_cache(desc(1), [stale.address])
    give = manager.backend.allocate

    def again(nbytes, placement):
        made = give(nbytes, placement)
        return Allocation(stale.address, nbytes, placement, made.token)

    manager.backend.allocate = again
    with pytest.raises(cc.OverlapError, match=r"the memory that was allocated at .* overlaps cache 1.*freed while"):
        manager.allocate_blocks_cache(desc(1))
    del manager.backend.allocate
    assert live(manager) == 1


@pytest.mark.parametrize("layerwise", [False, True])
def test_an_asynchronous_pull_consumes_its_key_when_it_has_ended(two_sided, layerwise):
    key = cc.CacheKey(1, 5)
    two_sided.allocate_cache(desc(4), [key])
    target = two_sided.allocate_cache(desc(4))
    two_sided.pull_cache_async(key, target, layerwise=layerwise).wait(30)
    with pytest.raises(cc.CacheNotFoundError):
        two_sided.pull_cache_async(key, target)


def test_two_managers_of_one_process_consume_through_their_link(two_sided):
    key = cc.CacheKey(3, 5)
    with (
        cc.CacheManager(3, backend="host", listen="127.0.0.1:0", options=TWO_SIDED) as owner,
        cc.CacheManager(4, backend="host") as reader,
    ):
        owner.deallocate_cache(owner.allocate_cache(desc(2), [key]))
        target = reader.allocate_cache(desc(2))
        reader.link(3, owner.address, timeout=10)
        reader.pull_cache(key, target)
        with pytest.raises(cc.CacheNotFoundError):
            reader.pull_cache(key, target)
        wait_until(lambda: live(owner) == 0)


def test_a_pull_whose_key_is_removed_meanwhile_does_not_count(two_sided):
    key = cc.CacheKey(1, 5)
    two_sided.allocate_cache(desc(rows=1), [key])
    target = two_sided.allocate_cache(desc(rows=1))
    consume = two_sided._allocations.consume_own

    def removed_before(cache, consumed):
        two_sided.remove_cache_key(key)
        consume(cache, consumed)

    two_sided._ends._consume = removed_before
    with pytest.raises(cc.CacheNotFoundError, match="or removed by its owner"):
        two_sided.pull_cache(key, target, tensor_num_per_layer=1)
    assert (two_sided.stats().pulls, two_sided.stats().pulls_failed) == (0, 1)


def test_of_two_threads_that_release_a_cache_one_does(two_sided):
    cache = two_sided.allocate_cache(desc(), [cc.CacheKey(1, 5)])
    local, results = two_sided._registry.by_id(cache.cache_id), []
    release = two_sided._registry.release
    both = threading.Barrier(2)

    def together(given):  # both have looked whether it was released before
        both.wait(30)
        return release(given)

    two_sided._registry.release = together

    def deallocate():
        try:
            results.append(two_sided.deallocate_cache(cache))
        except cc.CacheNotFoundError as error:
            results.append(type(error))

    threads = [threading.Thread(target=deallocate) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert set(results) == {None, cc.CacheNotFoundError} and local.released
