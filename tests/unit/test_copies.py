"""Copies within a process, held against a plain oracle, and everything that is refused."""

import ctypes
import mmap
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cachecore as cc
from cachecore.outcome import FailureCause, Outcome, OutcomeState

UINT8 = cc.DataType.DT_UINT8
HOST, DEVICE = cc.Placement.HOST, cc.Placement.DEVICE
TENSORS, ROWS, ROW = 3, 6, 40


def desc(tensors=TENSORS, rows=ROWS, row=ROW, data_type=UINT8, **more):
    return cc.CacheDesc(tensors, [rows, row], data_type, **more)


def arrays(cache):
    rows, row = cache.cache_desc.shape
    made = [(ctypes.c_uint8 * (rows * row)).from_address(address) for address in cache.tensor_addrs]
    return [np.frombuffer(raw, np.uint8).reshape(rows, row) for raw in made]


def fill(cache, seed):
    random = np.random.default_rng(seed)
    for array in arrays(cache):
        array[:] = random.integers(0, 256, array.shape, np.uint8)
    return snapshot(cache)


def snapshot(cache):
    return [array.copy() for array in arrays(cache)]


def same(one, other):
    return all((a == b).all() for a, b in zip(one, other, strict=True))


class Caches:
    """One cache of each kind; `cpu` is of create_cpu_cache."""

    def __init__(self, manager):
        self.blocks, self.host_blocks = (
            manager.allocate_blocks_cache(desc()),
            manager.allocate_blocks_cache(desc(placement=HOST)),
        )
        self.plain, self.smaller = manager.allocate_cache(desc()), manager.allocate_cache(desc(row=ROW - 8))
        self.memory = [np.zeros((ROWS, ROW), np.uint8) for _ in range(TENSORS)]
        self.cpu = cc.Cache.create_cpu_cache(desc(placement=HOST), [tensor.ctypes.data for tensor in self.memory])
        self.all = (self.blocks, self.host_blocks, self.plain, self.smaller, self.cpu)


@pytest.fixture(scope="module")
def manager():
    with cc.CacheManager(1, backend="host") as manager:
        yield manager


@pytest.fixture(scope="module")
def caches(manager):
    return Caches(manager)


PROPERTY = settings(max_examples=120, deadline=None)
ids = st.integers(-1, ROWS)  # one too many on either side


@PROPERTY
@given(
    mapping=st.dictionaries(ids, st.lists(ids, max_size=3), max_size=4), seed=st.integers(0, 99), kind=st.integers(0, 3)
)
def test_copied_blocks_equal_the_oracle(manager, caches, mapping, seed, kind):
    before = fill(caches.blocks, seed)
    sources, destinations = set(mapping), [d for listed in mapping.values() for d in listed]
    named = sources | set(destinations)
    allowed = (
        bool(mapping)
        and all(mapping.values())
        and all(0 <= block < ROWS for block in named)
        and len(set(destinations)) == len(destinations)
        and not sources & set(destinations)
    )
    as_given = {
        source: (listed, tuple(listed), np.array(listed, np.int32), memoryview(np.array(listed, np.int64)))[kind]
        for source, listed in mapping.items()
    }
    if not allowed:
        with pytest.raises(ValueError) as caught:
            manager.copy_blocks(caches.blocks, as_given)
        assert isinstance(caught.value, cc.CacheError)
        assert same(arrays(caches.blocks), before)
        return
    manager.copy_blocks(caches.blocks, as_given)
    for tensor in before:
        for source, listed in mapping.items():
            tensor[listed] = tensor[source]
    assert same(arrays(caches.blocks), before)


@PROPERTY
@given(mapping=st.dictionaries(ids, ids, max_size=5), seed=st.integers(0, 99), data=st.data())
def test_swapped_blocks_equal_the_oracle(manager, caches, mapping, seed, data):
    device, host = caches.blocks, data.draw(st.sampled_from([caches.cpu, caches.host_blocks]))
    source, target = data.draw(st.permutations([device, host]))
    read, written = fill(source, seed), fill(target, seed + 1)
    destinations = list(mapping.values())
    allowed = (
        bool(mapping)
        and all(0 <= block < ROWS for block in (*mapping, *destinations))
        and len(set(destinations)) == len(destinations)
    )
    if not allowed:
        with pytest.raises(ValueError):
            manager.swap_blocks(source, target, mapping)
    else:
        manager.swap_blocks(source, target, {np.int64(s): np.array(d) for s, d in mapping.items()})
        for before, after in zip(read, written, strict=True):
            for s, d in mapping.items():
                after[d] = before[s]
    assert same(arrays(source), read) and same(arrays(target), written)


@PROPERTY
@given(data=st.data(), seed=st.integers(0, 99))
def test_copied_entries_equal_the_oracle(manager, caches, data, seed):
    source, target = (data.draw(st.sampled_from([caches.plain, caches.smaller])) for _ in range(2))
    s, d = (data.draw(st.integers(0, ROWS)) for _ in range(2))
    offset = data.draw(st.integers(0, ROW))
    size = data.draw(st.one_of(st.just(-1), st.integers(0, ROW)))
    read, written = fill(source, seed), fill(target, seed + 1)
    have, room = source.cache_desc.shape[1], target.cache_desc.shape[1]
    end = have if size == -1 else offset + size
    overlaps = source is target and s == d
    allowed = max(s, d) < ROWS and offset < min(have, room) and offset < end <= min(have, room) and not overlaps
    if not allowed:
        with pytest.raises(ValueError):
            manager.copy_cache(target, source, d, s, offset, size)
    else:
        manager.copy_cache(target, source, d, s, offset, size)
        rows = written if source is target else read
        for before, after in zip(rows, written, strict=True):
            after[d, offset:end] = before[s, offset:end]
    assert same(arrays(target), written)
    assert source is target or same(arrays(source), read)


def test_an_empty_map_copies_nothing_instead_of_all_of_batch_0(manager, caches):
    """Hole 10 of the reference."""
    before = fill(caches.blocks, 1)
    with pytest.raises(ValueError, match="copy_block_info is empty"):
        manager.copy_blocks(caches.blocks, {})
    with pytest.raises(ValueError, match="src_to_dst is empty"):
        manager.swap_blocks(caches.blocks, caches.cpu, {})
    assert same(arrays(caches.blocks), before)


def test_a_swap_with_a_cache_that_is_gone_is_refused(manager, caches):
    """Hole 11 of the reference: it looks at no cache id."""
    gone = manager.allocate_blocks_cache(desc())
    manager.deallocate_blocks_cache(gone)
    with cc.CacheManager(2, backend="host") as other:
        foreign = other.allocate_blocks_cache(desc())
        for cache in (gone, foreign, cc.Cache(99, desc(), caches.blocks.tensor_addrs, True)):
            for pair in ((cache, caches.cpu), (caches.cpu, cache)):
                with pytest.raises(cc.CacheNotFoundError, match="not registered with this manager"):
                    manager.swap_blocks(*pair, {0: 0})
            with pytest.raises(cc.CacheNotFoundError):
                manager.copy_blocks(cache, {0: [1]})


REFUSED = [
    (lambda m, c: m.copy_blocks(None, {0: [1]}), AttributeError, "cache is None"),
    (lambda m, c: m.copy_blocks(1, {0: [1]}), TypeError, "cache is 1"),
    (lambda m, c: m.copy_blocks(c.plain, {0: [1]}), cc.CacheIncompatibleError, "not paged; use copy_cache"),
    (lambda m, c: m.copy_blocks(c.cpu, {0: [1]}), ValueError, "only swap_blocks takes it"),
    (lambda m, c: m.copy_blocks(c.blocks, None), AttributeError, "copy_block_info is None"),
    (lambda m, c: m.copy_blocks(c.blocks, [(0, 1)]), TypeError, "copy_block_info is .*a mapping"),
    (lambda m, c: m.copy_blocks(c.blocks, {0: 1}), TypeError, r"copy_block_info\[0\] is 1.*list of destination"),
    (lambda m, c: m.copy_blocks(c.blocks, {0: None}), AttributeError, r"copy_block_info\[0\] is None"),
    (lambda m, c: m.copy_blocks(c.blocks, {0: "1"}), TypeError, r"copy_block_info\[0\]"),
    (lambda m, c: m.copy_blocks(c.blocks, {0: [1], 2: []}), ValueError, r"copy_block_info\[2\] is empty"),
    (lambda m, c: m.copy_blocks(c.blocks, {0: [True]}), TypeError, "truth value"),
    (lambda m, c: m.copy_blocks(c.blocks, {0: [1.0]}), TypeError, "copy_block_info"),
    (lambda m, c: m.copy_blocks(c.blocks, {"0": [1]}), TypeError, "copy_block_info"),
    (
        lambda m, c: m.copy_blocks(c.blocks, {0: [ROWS]}),
        ValueError,
        f"destination block .* is {ROWS}; the cache has {ROWS}",
    ),
    (lambda m, c: m.copy_blocks(c.blocks, {2**63: [0]}), ValueError, f"source block .* is {2**63}"),
    (lambda m, c: m.copy_blocks(c.blocks, {0: [-1]}), ValueError, r"copy_block_info\[0\]\[0\] is -1"),
    (lambda m, c: m.copy_blocks(c.blocks, {0: [2], 1: [2]}), ValueError, "is 2, as another is already"),
    (lambda m, c: m.copy_blocks(c.blocks, {4: [5, 4]}), cc.OverlapError, r"copy_block_info\[4\] lists 4"),
    (lambda m, c: m.copy_blocks(c.blocks, {0: [1], 1: [2]}), cc.OverlapError, "must not be written"),
    (lambda m, c: m.copy_blocks(c.blocks, {0: [1]}, timeout=None), AttributeError, "timeout"),
    (lambda m, c: m.swap_blocks(c.blocks, None, {0: 0}), AttributeError, "dst_cache is None"),
    (lambda m, c: m.swap_blocks("x", c.blocks, {0: 0}), TypeError, "src_cache"),
    (lambda m, c: m.swap_blocks(c.plain, c.cpu, {0: 0}), cc.CacheIncompatibleError, "src_cache is cache .* not paged"),
    (lambda m, c: m.swap_blocks(c.blocks, c.blocks, {0: 1}), cc.CacheIncompatibleError, "both DEVICE"),
    (lambda m, c: m.swap_blocks(c.cpu, c.host_blocks, {0: 1}), cc.CacheIncompatibleError, "both HOST"),
    (lambda m, c: m.swap_blocks(c.blocks, c.cpu, {0: [1]}), TypeError, r"src_to_dst\[0\].*id of one block"),
    (lambda m, c: m.swap_blocks(c.blocks, c.cpu, {0: None}), AttributeError, r"src_to_dst\[0\] is None"),
    (lambda m, c: m.swap_blocks(c.blocks, c.cpu, {0: ROWS}), ValueError, "destination block of src_to_dst"),
    (lambda m, c: m.swap_blocks(c.blocks, c.cpu, {0: 1, 2: 1}), ValueError, "is 1, as another is already"),
    (lambda m, c: m.copy_cache(c.plain, None), AttributeError, "src is None"),
    (lambda m, c: m.copy_cache(c.plain, c.blocks), cc.CacheIncompatibleError, "src is cache .* paged"),
    (lambda m, c: m.copy_cache(c.blocks, c.plain), cc.CacheIncompatibleError, "dst is cache .* paged"),
    (lambda m, c: m.copy_cache(c.plain, c.plain, 1, 1), cc.OverlapError, "share bytes"),
    (lambda m, c: m.copy_cache(c.plain, c.plain, ROWS, 0), ValueError, f"dst_batch_index is {ROWS}"),
    (lambda m, c: m.copy_cache(c.plain, c.plain, 0, ROWS), ValueError, f"src_batch_index is {ROWS}"),
    (lambda m, c: m.copy_cache(c.plain, c.plain, -1, 0), ValueError, "dst_batch_index is -1"),
    (lambda m, c: m.copy_cache(c.plain, c.plain, 1, 0, ROW), ValueError, f"offset is {ROW}"),
    (lambda m, c: m.copy_cache(c.plain, c.plain, 1, 0, 0, 0), ValueError, "size is 0"),
    (lambda m, c: m.copy_cache(c.plain, c.plain, 1, 0, 8, ROW), ValueError, f"size is {ROW}"),
    (lambda m, c: m.copy_cache(c.plain, c.plain, 1, 0, 2**63), ValueError, "offset"),
    (lambda m, c: m.copy_cache(c.plain, c.plain, True, 0), TypeError, "dst_batch_index"),
    (lambda m, c: m.copy_cache(c.smaller, c.plain), cc.CacheIncompatibleError, "do not fit"),
    (lambda m, c: m.copy_cache(c.plain, c.plain, 1, req_id=-1), ValueError, "req_id is -1"),
    (lambda m, c: m.copy_cache(c.plain, c.plain, 1, after=3), cc.NotSupportedError, "after is 3"),
]


@pytest.mark.parametrize(("call", "error", "text"), REFUSED, ids=range(len(REFUSED)))
def test_a_copy_that_makes_no_sense_is_refused_by_name(manager, caches, call, error, text):
    before = [fill(cache, seed) for seed, cache in enumerate(caches.all)]
    with pytest.raises(error, match=text) as caught:
        call(manager, caches)
    assert isinstance(caught.value, cc.CacheError)
    assert all(same(arrays(cache), content) for cache, content in zip(caches.all, before, strict=True))
    assert all(manager._registry.by_id(cache.cache_id).running == 0 for cache in manager.caches)


def test_caches_that_do_not_fit_together_are_refused(manager, caches):
    other = manager.allocate_blocks_cache(desc(tensors=2))
    float16 = manager.allocate_blocks_cache(desc(row=ROW // 2, data_type=cc.DataType.DT_FLOAT16))
    larger = manager.allocate_blocks_cache(desc(row=ROW + 1))
    contiguous = manager.allocate_cache(desc(tensors=2))
    with pytest.raises(cc.CacheIncompatibleError, match="dst_cache has 2 tensors and src_cache has 3"):
        manager.swap_blocks(caches.cpu, other, {0: 0})
    with pytest.raises(cc.CacheIncompatibleError, match=r"DT_FLOAT16.*DT_UINT8"):
        manager.swap_blocks(caches.cpu, float16, {0: 0})
    with pytest.raises(cc.CacheIncompatibleError, match="41"):
        manager.swap_blocks(caches.cpu, larger, {0: 0})
    with pytest.raises(cc.CacheIncompatibleError, match="dst has 2 tensors and src has 3"):
        manager.copy_cache(contiguous, caches.plain)


def test_the_memory_of_a_cpu_cache_is_looked_at_at_each_use(manager, caches):
    nbytes = mmap.PAGESIZE
    memory = mmap.mmap(-1, nbytes)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    small = desc(1, 4, 64, placement=HOST)
    device = manager.allocate_blocks_cache(desc(1, 4, 64))
    cpu = cc.Cache.create_cpu_cache(small, [address])
    manager.swap_blocks(device, cpu, {0: 1})
    protect = ctypes.CDLL(None).mprotect
    assert protect(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), mmap.PROT_READ) == 0
    for pair in ((device, cpu), (cpu, device)):
        with pytest.raises(cc.MemoryAccessError, match=r"_cache.tensor_addrs\[0\] is 0x.*read-only"):
            manager.swap_blocks(*pair, {0: 1})
    assert protect(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), mmap.PROT_READ | mmap.PROT_WRITE) == 0
    overlapping = cc.Cache.create_cpu_cache(desc(2, 4, 64, placement=HOST), [address, address + 100])
    two = manager.allocate_blocks_cache(desc(2, 4, 64))
    with pytest.raises(cc.OverlapError, match=r"dst_cache.tensor_addrs\[1\].*overlaps dst_cache.tensor_addrs\[0\]"):
        manager.swap_blocks(two, overlapping, {0: 1})
    # A CPU cache over registered memory may not be read and written at once.
    alias = cc.Cache.create_cpu_cache(small, device.tensor_addrs)
    with pytest.raises(cc.OverlapError):
        manager.swap_blocks(device, alias, {0: 0})
    manager.swap_blocks(device, alias, {0: 1})


class Planned:
    """Answers the copies of a driver as a test plans it."""

    def __init__(self, outcome):
        self.outcome, self.stopped = outcome, False

    def __call__(self, plan, deadline, *more):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def quiescent(self, ticket):
        return self.stopped


def test_a_failed_copy_says_what_landed(manager, caches, monkeypatch):
    failed = Outcome(
        OutcomeState.FAILED, ((0, 1),), ((2, 3),), ((1, 2),), FailureCause.NATIVE, code=5, message="what happened"
    )
    monkeypatch.setattr(manager.backend, "copy", Planned(failed))
    before = manager.stats()
    with pytest.raises(cc.TransferError, match=r"the copy of blocks of cache.*what happened") as caught:
        manager.copy_blocks(caches.blocks, {0: [3, 4]})
    error = caught.value
    assert error.status_code is cc.StatusCode.COPY_CACHE_FAILED
    assert error.landed == (cc.BlockRange(0, 3, 1),) and error.unknown == (cc.BlockRange(0, 4, 1),)
    with pytest.raises(cc.TransferError, match="for request 77"):
        manager.copy_cache(caches.plain, caches.plain, 1, req_id=77)
    after = manager.stats()
    assert after.copies_failed - before.copies_failed == 2 and after.copies == before.copies


def test_a_copy_past_its_deadline_moves_nothing(manager, caches):
    before = fill(caches.blocks, 5)
    with pytest.raises(cc.TransferTimeoutError) as caught:
        manager.copy_blocks(caches.blocks, {0: [1]}, timeout=0)
    assert caught.value.status_code is cc.StatusCode.TIMEOUT and caught.value.landed == ()
    assert same(arrays(caches.blocks), before)


@pytest.mark.parametrize("broken", [False, True], ids=["by its outcome", "by raising"])
def test_a_copy_that_may_still_write_holds_its_caches_and_destinations(broken, monkeypatch):
    everything = Outcome(OutcomeState.UNKNOWN, unknown=((0, TENSORS),), cause=FailureCause.DEADLINE, ticket="ticket")
    manager = cc.CacheManager(3, backend="host")
    caches = Caches(manager)
    planned = Planned(MemoryError("inside") if broken else everything)
    monkeypatch.setattr(manager.backend, "quiescent", planned.quiescent)
    with monkeypatch.context() as patch:
        patch.setattr(manager.backend, "copy", planned)
        with pytest.raises(cc.TransferError, match="quarantined"):
            manager.swap_blocks(caches.cpu, caches.blocks, {0: 2})
    with pytest.raises(cc.CacheBusyError, match="quarantined"):
        manager.copy_blocks(caches.blocks, {0: [2]})
    manager.copy_blocks(caches.blocks, {0: [3]})  # other blocks are free
    with pytest.raises(cc.CacheBusyError):
        manager.deallocate_blocks_cache(caches.blocks, timeout=0.05)
    planned.stopped = True
    if broken:  # nobody will ever know: the manager says what must not be freed
        with pytest.raises(cc.CacheBusyError) as caught:
            manager.close(timeout=0.05)
        assert caught.value.ranges
        return
    manager.deallocate_blocks_cache(caches.blocks, timeout=30)
    manager.close()


def test_a_copy_counts_as_a_transfer_of_its_caches(manager, monkeypatch):
    cache = manager.allocate_blocks_cache(desc())
    entered, leave = threading.Event(), threading.Event()
    copy = manager.backend.copy

    def slow(plan, deadline):
        entered.set()
        assert leave.wait(30)
        return copy(plan, deadline)

    with monkeypatch.context() as patch:
        patch.setattr(manager.backend, "copy", slow)
        copying = threading.Thread(target=manager.copy_blocks, args=(cache, {0: [1]}))
        copying.start()
        assert entered.wait(30)
        with pytest.raises(cc.CacheBusyError):
            manager.deallocate_blocks_cache(cache, timeout=0.05)
        leave.set()
        manager.deallocate_blocks_cache(cache, timeout=30)
        copying.join(30)


def test_a_copy_waits_for_its_event(manager, caches):
    before = fill(caches.blocks, 6)
    event = threading.Event()
    with pytest.raises(cc.TransferTimeoutError, match="did not start"):
        manager.copy_blocks(caches.blocks, {0: [1]}, after=event, timeout=0.05)
    assert same(arrays(caches.blocks), before)
    timer = threading.Timer(0.1, event.set)
    started = time.monotonic()
    timer.start()
    manager.copy_blocks(caches.blocks, {0: [1]}, after=[event], timeout=30)
    assert time.monotonic() - started >= 0.1
    timer.join()


def test_a_tensor_that_moved_is_not_copied(manager):
    class Movable:
        """A torch tensor by duck type, whose storage can be replaced."""

        def __init__(self):
            self.now = np.zeros((4, 8), np.uint8)
            self.shape, self.dtype, self.layout = self.now.shape, "torch.uint8", "torch.strided"

        def is_contiguous(self):
            return True

        def data_ptr(self):
            return self.now.ctypes.data

        def stride(self):
            return (8, 1)

        def element_size(self):
            return 1

    tensor = Movable()
    cache = manager.register_blocks_tensors([tensor])
    manager.copy_blocks(cache, {0: [1]})
    kept, tensor.now = tensor.now, np.zeros((4, 8), np.uint8)
    with pytest.raises(cc.AddressMovedError):
        manager.copy_blocks(cache, {0: [1]})
    tensor.now = kept

    class Event:
        def synchronize(self):
            tensor.now = np.zeros((4, 8), np.uint8)

    kept[0] = 7
    with pytest.raises(cc.AddressMovedError):  # it moves while the copy waits
        manager.copy_blocks(cache, {0: [3]}, after=Event())
    assert not kept[3].any()
    tensor.now = kept
    manager.unregister_cache(cache.cache_id)
