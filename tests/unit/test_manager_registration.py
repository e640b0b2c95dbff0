"""The register functions of a manager on the host driver: what they take, refuse and keep alive."""

import ctypes
import gc
import mmap
import os
import threading
import time
import weakref
from multiprocessing import shared_memory

import numpy as np
import pytest

import cachecore as cc
from cachecore.driver import UNKNOWN

FLOAT16 = cc.DataType.DT_FLOAT16


@pytest.fixture
def manager():
    with cc.CacheManager(1, backend="host") as manager:
        yield manager


@pytest.fixture
def tensors():
    return [np.zeros((8, 512), np.float16) for _ in range(4)]


def desc(tensors=4, blocks=8, **more):
    return cc.CacheDesc(tensors, [blocks, 512], FLOAT16, **more)


def addresses(tensors):
    return [tensor.ctypes.data for tensor in tensors]


def test_registering_gives_a_cache_and_unregistering_frees_its_id_key_and_budget(manager, tensors):
    given = desc()
    cache = manager.register_blocks_cache(given, addresses(tensors), cc.BlocksCacheKey(1, 3))
    assert (cache.cache_id, cache.is_blocks_cache, cache.tensor_addrs) == (1, True, addresses(tensors))
    assert cache.cache_desc == given and cache.cache_desc is not given
    assert manager.caches == (cache,)
    stats = manager.stats()
    assert (stats.registered_caches, stats.registered_addresses, stats.registered_bytes) == (1, 4, 4 * 8192)
    manager.unregister_cache(cache.cache_id)
    assert manager.caches == () and manager.stats().registered_addresses == 0
    again = manager.register_cache(desc(), addresses(tensors), [cc.CacheKey(1, 5)])
    assert (again.cache_id, again.is_blocks_cache) == (2, False)


def test_what_register_blocks_cache_refuses_and_how(manager, tensors):
    one = addresses(tensors)
    manager.register_blocks_cache(desc(1), one[3:], cc.BlocksCacheKey(1))
    page = mmap.PAGESIZE
    hole = mmap.mmap(-1, 4 * page)
    unmapped = ctypes.addressof(ctypes.c_char.from_buffer(hole))
    hole_info = hole  # keep the name until it is closed below
    many = np.zeros((241, 2), np.float16)
    cases = [
        ((cc.CacheDesc(241, [1, 2], FLOAT16), addresses(list(many))), cc.AddressBudgetError, "asks for 241 addresses"),
        ((desc(2), [one[0], 0]), ValueError, r"addrs\[1\] is 0"),
        ((desc(2), [one[0], np.True_]), TypeError, r"addrs\[1\] is .*True.* not a truth value"),
        ((desc(3), one[:2]), ValueError, "addrs has 2 addresses and cache_desc.num_tensors is 3"),
        ((desc(2), [one[0], one[0] + 4096]), cc.OverlapError, r"addrs\[1\] at .* overlaps addrs\[0\]"),
        ((desc(1), [one[3] + 2]), cc.OverlapError, r"addrs\[0\] at .* overlaps cache 1"),
        ((desc(1), [page]), cc.MemoryAccessError, "not mapped"),
        ((None, one), AttributeError, "cache_desc is None"),
        ((desc(4), None), AttributeError, "addrs is None"),
        ((desc(1), [float(one[0])]), TypeError, r"addrs\[0\] is .* of type float"),
        ((desc(1), [None]), AttributeError, r"addrs\[0\] is None"),
        ((desc(1), ["1"]), TypeError, r"addrs\[0\]"),
        ((desc(1), [2**64]), ValueError, r"addrs\[0\]"),
        ((desc(1), [2**64 - 2]), ValueError, "past the address space"),
        ((desc(1), [-1]), ValueError, r"addrs\[0\]"),
        (("desc", one), TypeError, "cache_desc"),
        ((desc(1), one[:1], cc.BlocksCacheKey(1)), cc.CacheKeyExistsError, "names a live cache"),
        ((desc(1), one[:1], cc.BlocksCacheKey(2)), ValueError, "cluster_id 2"),
        ((desc(1), one[:1], cc.CacheKey(1, 1)), TypeError, "blocks_cache_key"),
        ((desc(1), one[:1], None, 1), TypeError, "remote_accessible"),
    ]
    for arguments, error, text in cases:
        with pytest.raises(error, match=text) as caught:
            manager.register_blocks_cache(*arguments)
        assert isinstance(caught.value, cc.CacheError)
        assert len(str(caught.value)) > 30, "a message says argument, value, rule and remedy"
        assert manager.stats().registered_caches == 1
    del hole_info, unmapped


def test_the_vendors_first_steps_work_with_register_cache_too(manager, tensors):
    addrs = addresses(tensors)
    for arguments, error, text in [
        ((desc(), addrs, [cc.CacheKey(1, i) for i in range(9)]), ValueError, "9 keys and the cache 8"),
        ((desc(), addrs, [cc.CacheKey(1, 1), cc.CacheKey(1, 1)]), cc.CacheKeyExistsError, "in the list already"),
        ((desc(), addrs, None), AttributeError, "cache_keys"),
        ((desc(), addrs, cc.CacheKey(1, 1)), TypeError, "cache_keys"),
    ]:
        with pytest.raises(error, match=text):
            manager.register_cache(*arguments)
    assert manager.caches == ()


@pytest.mark.parametrize("protection", ["none", "read-only", "partly"])
def test_memory_a_host_copy_could_not_touch_is_refused(manager, protection):
    libc = ctypes.CDLL(None, use_errno=True)
    page = mmap.PAGESIZE
    region = mmap.mmap(-1, 8 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(region))
    start, length, flags = {
        "none": (address, 8 * page, 0),
        "read-only": (address, 8 * page, 1),
        "partly": (address + 4 * page, page, 0),
    }[protection]
    assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(length), flags) == 0
    try:
        # Device memory that the host may not touch looks like this too.
        with pytest.raises(cc.MemoryAccessError, match=r"addrs\[0\]"):
            manager.register_blocks_cache(cc.CacheDesc(1, [8, page], cc.DataType.DT_INT8), [address])
        assert manager.caches == ()
    finally:
        assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(8 * page), 3) == 0


def test_every_kind_of_host_memory_is_taken(manager):
    block = shared_memory.SharedMemory(create=True, size=8192)
    try:
        shared = np.ndarray((8, 512), np.float16, buffer=block.buf)
        mapped = np.frombuffer(mmap.mmap(-1, 8192), np.float16).reshape(8, 512)
        heap = np.zeros((9, 512), np.float16)[1:]  # at an offset of its allocation
        for tensor in (shared, mapped, heap):
            for placement in cc.Placement:
                cache = manager.register_blocks_cache(desc(1, placement=placement), [tensor.ctypes.data])
                manager.unregister_cache(cache.cache_id)
        del shared
    finally:
        block.close()
        block.unlink()


def test_tensors_give_their_descriptor_and_are_kept_alive_until_unregistered(manager):
    tensor = np.zeros((8, 512), np.float16)
    alive = weakref.ref(tensor)
    cache = manager.register_blocks_tensors([tensor, bytearray(8192)][:1], blocks_cache_key=cc.BlocksCacheKey(1))
    assert cache.cache_desc == desc(1) and cache.tensor_addrs == [tensor.ctypes.data]
    del tensor
    gc.collect()
    assert alive() is not None
    manager.unregister_cache(cache.cache_id)
    gc.collect()
    assert alive() is None


class Torch:
    """What a torch tensor shows to somebody who does not import torch."""

    layout = "torch.strided"

    def __init__(self, array, dtype):
        self.array, self.dtype, self.shape = array, dtype, array.shape

    def data_ptr(self):
        return self.array.ctypes.data

    def is_contiguous(self):
        return self.array.flags.c_contiguous


def test_tensors_of_other_libraries_are_taken_by_what_they_show(manager):
    array = np.zeros((8, 512), np.uint16)
    cache = manager.register_cache_tensors([Torch(array, "torch.bfloat16")], cache_keys=[cc.CacheKey(1, 4)])
    assert cache.cache_desc.data_type is cc.DataType.DT_BF16
    cache = manager.register_blocks_tensors([bytearray(64)])
    assert (cache.cache_desc.data_type, cache.cache_desc.shape) == (cc.DataType.DT_UINT8, [64])


@pytest.mark.parametrize(
    ("tensors", "error", "text"),
    [
        (lambda a: None, AttributeError, "tensors is None"),
        (lambda a: [], ValueError, "empty"),
        (lambda a: a, TypeError, "list or tuple"),
        (lambda a: [a, None], AttributeError, r"tensors\[1\]"),
        (lambda a: [a, 3], TypeError, r"tensors\[1\]"),
        (lambda a: [a[:, ::2]], ValueError, "C-contiguous"),
        (lambda a: [a, np.zeros((8, 256), np.float16)], ValueError, r"tensors\[1\] is DT_FLOAT16 \[8, 256\]"),
        (lambda a: [a, np.zeros((8, 512), np.int16)], ValueError, "one shape and data type"),
        (lambda a: [np.zeros((0, 4))], ValueError, "above 0"),
        (lambda a: [np.zeros((8, 4), "M8[s]")], TypeError, "dtype"),
        (lambda a: [np.zeros((8, 4), ">f4")], TypeError, "byte"),
        (lambda a: [b"read only"], ValueError, "read-only"),
        (lambda a: [np.broadcast_to(a, (2, 8, 512))], ValueError, "tensors"),
    ],
)
def test_tensors_that_cannot_be_a_cache_are_refused(manager, tensors, error, text):
    with pytest.raises(error, match=text):
        manager.register_blocks_tensors(tensors(np.zeros((8, 512), np.float16)))
    assert manager.caches == ()


def test_an_array_that_gave_back_its_end_in_place_is_an_error_before_a_transfer(manager):
    tensor = np.zeros((64, 512), np.uint8)
    target = manager.register_blocks_tensors([tensor])
    manager.register_blocks_tensors([np.ones((64, 512), np.uint8)], blocks_cache_key=cc.BlocksCacheKey(1))
    tensor.resize((8, 512), refcheck=False)
    with pytest.raises(cc.AddressMovedError, match=r"with 32768 bytes and is at .* with 4096 now"):
        manager.pull_blocks(cc.BlocksCacheKey(1), target, [60], [60], tensor_num_per_layer=1)


class Replaced(Torch):
    """A tensor whose storage can be replaced."""

    def __init__(self):
        super().__init__(np.zeros((4, 512), np.uint8), "torch.uint8")
        self.old = self.array  # kept, to see whether it is written

    def replace(self):
        self.array = np.zeros((4, 512), np.uint8)


@pytest.mark.parametrize("method", ["pull_blocks", "push_blocks"])
def test_a_moved_tensor_of_the_cache_that_a_key_names_is_an_error_too(manager, method):
    tensor, mine = Replaced(), np.ones((4, 512), np.uint8)
    manager.register_blocks_tensors([tensor], blocks_cache_key=cc.BlocksCacheKey(1))
    own = manager.register_blocks_tensors([mine])
    tensor.replace()
    with pytest.raises(cc.AddressMovedError):
        getattr(manager, method)(cc.BlocksCacheKey(1), own, [0], [0], tensor_num_per_layer=1)
    assert not tensor.old.any() and mine.all()


def test_a_tensor_that_moves_while_its_transfer_waits_is_not_written(manager):
    tensor, go = Replaced(), threading.Event()
    manager.register_blocks_tensors([np.ones((4, 512), np.uint8)], blocks_cache_key=cc.BlocksCacheKey(1))
    own = manager.register_blocks_tensors([tensor])
    transfer = manager.pull_blocks_async(cc.BlocksCacheKey(1), own, [0], [0], tensor_num_per_layer=1, after=go)
    end = time.monotonic() + 10
    while not manager.stats().transfers_running and time.monotonic() < end:
        time.sleep(0.005)
    tensor.replace()
    go.set()
    with pytest.raises(cc.AddressMovedError):
        transfer.wait(10)
    assert not tensor.old.any()


def test_a_tensor_that_moves_in_the_moment_of_its_event_is_not_written(manager):
    tensor = Replaced()

    class Event:
        def synchronize(self):
            tensor.replace()

    manager.register_blocks_tensors([np.ones((4, 512), np.uint8)], blocks_cache_key=cc.BlocksCacheKey(1))
    own = manager.register_blocks_tensors([tensor])
    with pytest.raises(cc.AddressMovedError):
        manager.pull_blocks(cc.BlocksCacheKey(1), own, [0], [0], tensor_num_per_layer=1, after=Event())
    assert not tensor.old.any()


def test_a_descriptor_that_changes_while_it_is_registered_changes_nothing(manager, monkeypatch):
    memory, desc = np.zeros((4, 512), np.uint8), cc.CacheDesc(1, [4, 512], cc.DataType.DT_UINT8)
    describe = manager.backend.describe

    def late(ranges):
        desc.update_dim(0, 400)  # by another thread
        return describe(ranges)

    monkeypatch.setattr(manager.backend, "describe", late)
    cache = manager.register_blocks_cache(desc, [memory.ctypes.data])
    assert cache.cache_desc.shape == [4, 512] and desc.shape == [400, 512]


def test_a_key_with_both_ids_names_nothing_and_is_refused(manager):
    with pytest.raises(cc.CacheValueError, match=r"cache_keys\[0\].*both req_id and prefix_id"):
        manager.register_cache_tensors([np.zeros((4, 64))], cache_keys=[cc.CacheKey(1, req_id=5, prefix_id=7)])


def test_a_tensor_that_moved_is_an_error_before_a_transfer(manager):
    tensor = np.zeros((8, 512), np.float16)
    target = manager.register_blocks_tensors([tensor])
    source = manager.register_blocks_tensors([np.ones((8, 512), np.float16)], blocks_cache_key=cc.BlocksCacheKey(1))
    tensor.resize((4096, 512), refcheck=False)
    with pytest.raises(cc.AddressMovedError, match=r"tensors\[0\] was registered at"):
        manager.pull_blocks(cc.BlocksCacheKey(1), target, [1], [1], tensor_num_per_layer=1)
    assert source in manager.caches


def test_unregistering_what_is_not_there_is_an_error(manager, tensors):
    cache = manager.register_blocks_cache(desc(), addresses(tensors))
    manager.unregister_cache(cache.cache_id)
    for gone in (cache.cache_id, 77, -1, 0):
        with pytest.raises(KeyError, match="not registered") as caught:
            manager.unregister_cache(gone)
        assert caught.value.status_code is cc.StatusCode.KV_CACHE_NOT_EXIST
    with pytest.raises(TypeError):
        manager.unregister_cache("1")


def test_a_closed_manager_refuses_and_has_given_everything_back(tensors):
    with cc.CacheManager(1, backend="host") as manager:
        manager.register_blocks_cache(desc(), addresses(tensors))
    manager.close()
    with pytest.raises(cc.ManagerClosedError):
        manager.register_blocks_cache(desc(), addresses(tensors))
    assert manager.caches == ()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"cluster_id": None}, AttributeError, "cluster_id"),
        ({"cluster_id": True}, TypeError, "cluster_id"),
        ({"cluster_id": -1}, ValueError, "cluster_id"),
        ({"device": "0"}, TypeError, "device"),
        ({"backend": "warp"}, cc.BackendError, "'warp' is not installed"),
        ({"engine": "warp"}, cc.BackendError, "'warp' is not installed"),
        ({"listen": 26000}, TypeError, "listen"),
        ({"insecure": 1}, TypeError, "insecure"),
        ({"options": {"host.unknown": 1}}, ValueError, "unknown name"),
        ({"security": "key"}, TypeError, "security"),
    ],
)
def test_a_manager_refuses_bad_arguments(arguments, error, text):
    with pytest.raises(error, match=text):
        cc.CacheManager(**{"cluster_id": 1, "backend": "host", **arguments})


def test_a_forked_child_is_told_at_once(manager, tensors):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            manager.register_blocks_cache(desc(), addresses(tensors))
        except cc.ForkedProcessError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    text = os.read(read, 4096).decode()
    os.close(read)
    os.waitpid(child, 0)
    assert "fork" in text and str(os.getpid()) in text


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # forking beside threads, which is the point
def test_a_forked_child_may_not_even_look_at_the_manager(manager):
    """Another thread of the parent may have held a lock: nobody would ever release it in the child."""
    child = os.fork()
    if child == 0:
        told = 0
        for look in (manager.stats, lambda: manager.caches, lambda: manager.links, lambda: manager.leases):
            try:
                look()
            except cc.ForkedProcessError:
                told += 1
        os._exit(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4


def test_every_capability_of_the_host_has_a_value_and_a_source(manager):
    capabilities = manager.backend.capabilities()
    for name in type(capabilities).__dataclass_fields__:
        fact = getattr(capabilities, name)
        assert fact.source and fact.value is not UNKNOWN, name
    assert capabilities.address_budget.value == 240
