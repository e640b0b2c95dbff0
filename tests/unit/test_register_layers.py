"""`register_layers` on the host driver: what it takes, merges, shares, refuses and keeps alive."""

import gc
import mmap
import time
import weakref

import numpy as np
import pytest

import cachecore as cc
from cachecore.events import Listeners
from cachecore.tensors import look

F16 = cc.DataType.DT_FLOAT16


@pytest.fixture
def manager():
    with cc.CacheManager(1, backend="host", listen="127.0.0.1:0") as manager:
        yield manager


def regions(manager):
    return sorted((region.base, region.nbytes) for region in manager._registry._regions.values())


def address(array):
    return array.__array_interface__["data"][0]


def view(buffer, dtype, shape, offset, stride):
    """Blocks of `shape[1:]` every `stride` bytes of `buffer`."""
    inner = np.empty(shape[1:], dtype).strides
    return np.ndarray(shape, dtype, buffer=buffer, offset=offset, strides=(stride, *inner))


class Torch:
    """What a torch tensor shows to somebody who does not import torch."""

    layout = "torch.strided"

    def __init__(self, array, dtype="torch.float16"):
        self.array, self.dtype, self.shape = array, dtype, array.shape

    def data_ptr(self):
        return address(self.array)

    def is_contiguous(self):
        return self.array.flags.c_contiguous

    def stride(self):
        return tuple(stride // self.array.itemsize for stride in self.array.strides)

    def untyped_storage(self):
        return Storage(self.array if self.array.base is None else self.array.base)


class Storage:
    def __init__(self, array):
        self.array = array

    def data_ptr(self):
        return address(self.array)

    def nbytes(self):
        return self.array.nbytes


def test_layers_of_any_layout_are_one_cache(manager):
    pages = np.zeros(8 * 1000, np.uint8)
    keys = view(pages, np.float16, (8, 16, 4), 0, 1000)
    scales = view(pages, np.float32, (8, 5), 900, 1000)
    both = np.zeros((2, 8, 64), np.int8)
    key = cc.BlocksCacheKey(1, 3)
    cache = manager.register_layers({"a": [keys, scales], "b": [both[0], both[1], keys]}, key=key)
    assert (cache.cache_id, cache.key, cache.group, cache.layer_names) == (1, key, "", ("a", "b"))
    assert (cache.num_blocks, cache.num_tensors, cache.is_blocks_cache) == (8, 5, True)
    tensors = (keys, scales, both[0], both[1], keys)
    assert cache.tensor_addrs == [address(tensor) for tensor in tensors]
    assert cache.describe("a") == (
        cc.LayerTensor(address(keys), (8, 16, 4), F16, 128, 1000),
        cc.LayerTensor(address(scales), (8, 5), cc.DataType.DT_FLOAT, 20, 1000),
    )
    with pytest.raises(ValueError, match="layer_name is 'z'; cache 1 has 2 layers: 'a', 'b'"):
        cache.describe("z")
    # From the first byte of a view to the last one: not the 80 bytes behind the last scale.
    assert regions(manager) == sorted([(address(pages), 7 * 1000 + 920), (address(both), both.nbytes)])
    assert manager.caches == (cache,) and manager.stats().registered_addresses == 2
    manager.unregister_cache(cache.cache_id)
    assert manager.caches == () and regions(manager) == []


@pytest.mark.parametrize("kind", ["numpy", "torch", "memoryview", "mmap"])
def test_tensors_are_merged_by_the_memory_they_were_cut_from(manager, kind):
    def cut(buffer, first, last):
        if kind == "torch":
            return Torch(buffer[first:last].view(np.float16).reshape(4, -1))
        if kind == "memoryview":
            return memoryview(buffer)[first:last].cast("B", (4, (last - first) // 4))
        return np.frombuffer(buffer, np.uint8)[first:last].reshape(4, -1)

    buffers = [mmap.mmap(-1, 4096) if kind == "mmap" else np.zeros(4096, np.uint8) for _ in range(2)]
    layers = {f"l{i}": [cut(buffers[i % 2], 64 * i, 64 * i + 32)] for i in range(8)}
    manager.register_layers(layers)
    starts = [address(np.frombuffer(buffer, np.uint8)) for buffer in buffers]
    assert regions(manager) == sorted([(starts[0], 6 * 64 + 32), (starts[1] + 64, 6 * 64 + 32)])


def test_where_only_addresses_are_known_the_driver_says_what_was_allocated_else_adjacency_does(manager):
    allocation = manager.backend.allocate(4096, cc.Placement.DEVICE)
    base = allocation.address
    specs = [cc.TensorSpec(base + at, (4, 16), (64, 1), cc.DataType.DT_UINT8) for at in (1024, 0, 16, 3000)]
    manager.register_layers({"a": specs[:2], "b": specs[2:]})
    assert regions(manager) == [(base, 3000 + 3 * 64 + 16)]
    plain = np.zeros(4096, np.uint8)
    specs = [cc.TensorSpec(address(plain) + at, [4, 16], None, cc.DataType.DT_UINT8) for at in (0, 64, 200)]
    manager.register_layers({"a": specs})
    assert regions(manager)[:2] == [(address(plain), 128), (address(plain) + 200, 64)] or regions(manager)[1:] == [
        (address(plain), 128),
        (address(plain) + 200, 64),
    ]
    for cache in manager.caches:
        manager.unregister_cache(cache.cache_id)
    manager.backend.free(allocation)


def test_the_budget_counts_regions_and_is_checked_before_anything_is_registered(manager):
    buffers = [np.zeros(4 * 64, np.uint8) for _ in range(61)]
    fewer = {f"l{i}": [buffers[i][64 * j : 64 * j + 64].reshape(4, 16) for j in range(4)] for i in range(61)}
    cache = manager.register_layers(fewer)
    assert (cache.num_tensors, manager.stats().registered_addresses) == (244, 61)
    many = {f"l{i}": [np.zeros((4, 16), np.uint8) for _ in range(5)] for i in range(60)}
    with pytest.raises(cc.AddressBudgetError, match="layers asks for 300 regions for 300 tensors; 61 of 240") as caught:
        manager.register_layers(many)
    assert (caught.value.used, caught.value.asked, caught.value.limit) == (61, 300, 240)
    assert manager.caches == (cache,)


def test_groups_share_one_buffer_and_its_region_stays_until_the_last_is_gone(manager):
    pages = np.zeros(8 * 4096, np.uint8)
    attention = pages.view(np.float16).reshape(8, 2, -1)
    key = cc.BlocksCacheKey(1)
    first = manager.register_layers({"attention": [attention[:, 0], attention[:, 1]]}, key=key, group="attention")
    conv, ssm = view(pages, np.float16, (4, 3, 64), 0, 8192), view(pages, np.float32, (4, 16, 16), 512, 8192)
    second = manager.register_layers({"mamba": [conv, ssm]}, key=key, group="state")
    assert regions(manager) == [(address(pages), pages.nbytes)] and manager.stats().registered_addresses == 1
    with pytest.raises(cc.CacheKeyExistsError, match=r"key is .* and group 'state', which together name cache 2"):
        manager.register_layers({"mamba": [conv]}, key=key, group="state")
    manager.unregister_cache(first.cache_id)
    assert regions(manager) == [(address(pages), pages.nbytes)]
    assert manager._registry.by_key(key, "state")[0].cache is second
    with pytest.raises(cc.CacheNotFoundError, match="with layers of group 'attention'"):
        manager._registry.by_key(key, "attention")
    manager.unregister_cache(second.cache_id)
    assert regions(manager) == []


def test_what_may_not_share_memory(manager):
    pages = np.zeros((8, 4096), np.uint8)
    desc = cc.CacheDesc(1, [4, 4096], cc.DataType.DT_UINT8)
    key, other = cc.BlocksCacheKey(1), cc.BlocksCacheKey(1, 1)
    raw = manager.register_blocks_cache(desc, [address(pages)], key)
    with pytest.raises(
        cc.OverlapError, match=r"layers\['a'\]\[0\] at .* overlaps cache 1 .*whose tensors have one shape"
    ):
        manager.register_layers({"a": [pages]})
    with pytest.raises(cc.OverlapError, match="cache 1"):
        manager.register_layers({"a": [pages[:4]]})  # exactly its range
    with pytest.raises(cc.CacheKeyExistsError, match="cache 1, a cache whose tensors have one shape"):
        manager.register_layers({"a": [pages[4:]]}, key=key)
    manager.unregister_cache(raw.cache_id)
    manager.register_layers({"a": [pages[:4]]}, key=key, group="x")
    with pytest.raises(cc.OverlapError, match=r"addrs\[0\] at .* overlaps cache 2.*only be shared by register_layers"):
        manager.register_blocks_cache(desc, [address(pages)])
    with pytest.raises(cc.CacheKeyExistsError, match="live cache"):
        manager.register_blocks_cache(desc, [address(pages[4:])], key)
    with pytest.raises(cc.OverlapError, match="with one key may share memory"):
        manager.register_layers({"a": [pages[:4]]}, key=other)
    with pytest.raises(
        cc.OverlapError, match=r"cannot grow: .*or first the one.*first the whole buffer, with this key"
    ):
        manager.register_layers({"a": [pages]}, key=key, group="y")
    with pytest.raises(cc.PlacementError, match="one placement"):
        spec = cc.TensorSpec(address(pages), (4, 4096), None, cc.DataType.DT_UINT8, cc.Placement.HOST)
        manager.register_layers({"a": [spec]}, key=key, group="y", remote_accessible=True)
    assert len(manager.caches) == 1
    # Around the registered region, in the same allocation, there is room: the new region stops before it.
    manager.register_layers({"a": [pages[:2], pages[4:6]], "b": [pages[6:]]}, key=key, group="y")
    assert regions(manager) == [(address(pages), 4 * 4096), (address(pages) + 4 * 4096, 4 * 4096)]
    allocated = manager.allocate_blocks_cache(desc)
    spec = cc.TensorSpec(allocated.tensor_addrs[0], (4, 4096), None, cc.DataType.DT_UINT8)
    with pytest.raises(cc.OverlapError, match=r"overlaps cache 4 .*the manager allocated that memory"):
        manager.register_layers({"a": [spec]})


BLOCKS = np.zeros((8, 4, 32), np.float16)


class WithoutAddress:
    """An array interface that leaves the data to a buffer, which is not there."""

    dtype = np.dtype("u1")
    __array_interface__ = {"version": 3, "typestr": "|u1", "shape": (4, 8), "data": None}


@pytest.mark.parametrize(
    ("layers", "error", "text"),
    [
        (None, AttributeError, "layers is None"),
        ([BLOCKS], TypeError, "mapping of layer names"),
        ({}, ValueError, "0 layers"),
        ({1: [BLOCKS]}, TypeError, "name in layers"),
        ({"": [BLOCKS]}, ValueError, "0 characters"),
        ({"n" * 201: [BLOCKS]}, ValueError, "201 characters"),
        ({"a": BLOCKS}, TypeError, r"(?s)layers\['a'\] is .*list or tuple"),
        ({"a": None}, AttributeError, r"layers\['a'\] is None"),
        ({"a": []}, ValueError, r"layers\['a'\] is empty"),
        ({"a": [BLOCKS, None]}, AttributeError, r"layers\['a'\]\[1\] is None"),
        ({"a": [BLOCKS, 7]}, TypeError, r"layers\['a'\]\[1\] is 7.*TensorSpec"),
        ({"a": [BLOCKS], "b": [BLOCKS[:4]]}, cc.CacheIncompatibleError, r"layers\['b'\]\[0\] has 4 blocks.*has 8"),
        ({"a": [BLOCKS[:, :, ::2]]}, ValueError, r"stride of 4 bytes in dimension 2 .*which is 2 there"),
        ({"a": [BLOCKS[:, ::2]]}, ValueError, r"stride of 128 bytes in dimension 1 .*which is 64 there"),
        (
            {"a": [BLOCKS[:, :, ::2].transpose(0, 2, 1)]},
            ValueError,
            "stride of 4 bytes in dimension 1 .*which is 2 there",
        ),
        (
            {"a": [memoryview(bytearray(8)).cast("B", (8,) + (1,) * 32)]},
            cc.CacheValueError,
            r"layers\['a'\]\[0\] has 33 dim.* 1 to 32",
        ),
        ({"a\udcff": [BLOCKS]}, cc.CacheValueError, r"a name in layers is 'a\\udcff'.*character 1 .*UTF-8"),
        ({"a": [WithoutAddress()]}, cc.CacheTypeError, r"(?s)layers\['a'\]\[0\] is .*TensorSpec"),
        ({"a": [BLOCKS[::-1]]}, ValueError, "stride of -256 bytes in dimension 0 .*a block has 256 bytes"),
        ({"a": [np.lib.stride_tricks.as_strided(BLOCKS, (8, 4, 32), (128, 64, 2))]}, ValueError, "128 bytes in dim"),
        ({"a": [cc.TensorSpec(4096, (8, 4), None, F16)]}, cc.MemoryAccessError, r"layers\['a'\]\[0\].*not mapped"),
        ({"a": [cc.TensorSpec(2**64 - 32, (8, 4), None, F16)]}, ValueError, "past the end of the address space"),
        ({"a": [b"read only"]}, ValueError, "read-only"),
        ({"a": [np.zeros((0, 4))]}, ValueError, "above 0"),
    ],
)
def test_layers_that_cannot_be_a_cache_are_refused(manager, layers, error, text):
    with pytest.raises(error, match=text) as caught:
        manager.register_layers(layers)
    assert isinstance(caught.value, cc.CacheError)
    assert manager.caches == () and regions(manager) == []


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"key": cc.CacheKey(1, 1)}, TypeError, "key is"),
        ({"key": cc.BlocksCacheKey(2)}, ValueError, "cluster_id 2"),
        ({"group": None}, AttributeError, "group is None"),
        ({"group": "g" * 201}, ValueError, "201 characters"),
        ({"group": "g\udcff"}, cc.CacheValueError, r"group is 'g\\udcff'.*character 1 .*UTF-8"),
        ({"remote_accessible": 1}, TypeError, "remote_accessible"),
    ],
)
def test_the_other_arguments_are_checked(manager, arguments, error, text):
    with pytest.raises(error, match=text):
        manager.register_layers({"a": [BLOCKS]}, **arguments)
    assert manager.caches == ()


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ((0, (8,), None, F16), ValueError, "address is 0"),
        ((None, (8,), None, F16), AttributeError, "address"),
        ((4096, (), None, F16), ValueError, "0 dimensions"),
        ((4096, (8, 0), None, F16), ValueError, r"shape\[1\] is 0"),
        ((4096, 8, None, F16), TypeError, "shape"),
        ((4096, (8, 4), (8,), F16), ValueError, "1 strides and shape 2"),
        ((4096, (8,), None, cc.DataType.DT_STRING), ValueError, "DT_STRING"),
        ((4096, (8,), None, "f2"), TypeError, "data_type"),
        ((4096, (8,), None, F16, "host"), TypeError, "placement"),
    ],
)
def test_a_tensor_spec_is_checked_when_it_is_made(fields, error, text):
    with pytest.raises(error, match=text):
        cc.TensorSpec(*fields)


def test_tensors_of_one_call_have_one_placement(manager):
    specs = [
        cc.TensorSpec(address(BLOCKS[4 * i :]), (4, 128), None, F16, placement)
        for i, placement in enumerate(cc.Placement)
    ]
    with pytest.raises(cc.PlacementError, match=r"layers\['a'\]\[1\] is DEVICE memory and layers\['a'\]\[0\] is HOST"):
        manager.register_layers({"a": specs})
    # Of host memory peers see nothing unless they are meant to.
    assert not manager.register_layers({"a": specs[:1]}).remote_accessible
    assert manager.register_layers({"a": [BLOCKS[4:]]}).remote_accessible


def test_a_block_of_one_tensor_may_be_an_element_and_one_block_has_no_stride(manager):
    column = np.zeros((8, 3), np.float32)[:, 1]
    one = np.lib.stride_tricks.as_strided(BLOCKS, (1, 4, 32), (0, 64, 2))
    cache = manager.register_layers({"a": [column]})
    assert cache.describe("a")[0].block_bytes == 4 and cache.describe("a")[0].block_stride == 12
    assert manager.register_layers({"a": [one]}, group="one").describe("a")[0].block_stride == 256


def test_a_block_may_show_its_dimensions_in_another_order_than_memory_has_them(manager):
    key = cc.BlocksCacheKey(1, 5)
    memory = np.arange(8 * 4 * 1 * 3 * 5, dtype=np.int16).reshape(8, 4, 1, 3, 5)  # blocks, heads, 1, tokens, dim
    shown = memory.transpose(0, 3, 2, 1, 4)
    served = manager.register_layers({"numpy": [shown], "torch": [Torch(shown, "torch.int16")]}, key=key)
    for name in served.layer_names:
        assert served.describe(name) == (cc.LayerTensor(address(memory), memory.shape, cc.DataType.DT_INT16, 120, 120),)
    with cc.CacheManager(2, backend="host") as reader:
        mine = np.zeros_like(memory)
        target = reader.register_layers({"numpy": [mine]}, key=cc.BlocksCacheKey(2, 5))
        assert reader.link(1, manager.address).layout_differences == ()
        reader.pull_blocks(key, target, [3], [6])
        assert (mine[6] == memory[3]).all()


def test_layers_are_kept_alive_until_they_are_unregistered(manager):
    tensor = np.zeros((8, 64), np.uint8)
    alive = weakref.ref(tensor)
    cache = manager.register_layers({"a": [tensor]})
    del tensor
    gc.collect()
    assert alive() is not None
    manager.unregister_cache(cache.cache_id)
    gc.collect()
    assert alive() is None


def test_a_layer_that_moved_is_an_error_before_a_transfer(manager):
    tensor, source = np.zeros((8, 64), np.uint8), np.ones((8, 64), np.uint8)
    target = manager.register_layers({"a": [BLOCKS], "b": [tensor]})
    manager.register_layers({"a": [np.ones_like(BLOCKS)], "b": [source]}, key=cc.BlocksCacheKey(1))
    tensor.resize((4096, 64), refcheck=False)
    with pytest.raises(cc.AddressMovedError, match=r"layers\['b'\]\[0\] was registered at"):
        manager.pull_blocks(cc.BlocksCacheKey(1), target, [1], [1], layers=["b"])


def test_a_layers_cache_of_another_manager_or_an_unregistered_one_is_not_found(manager):
    cache = manager.register_layers({"a": [BLOCKS]})
    with cc.CacheManager(2, backend="host") as other:
        theirs = other.register_layers({"a": [np.zeros_like(BLOCKS)]})
        assert theirs.cache_id == cache.cache_id
        with pytest.raises(KeyError, match="another manager's"):
            manager.unregister_cache(theirs)
    manager.unregister_cache(cache)
    assert manager.caches == ()
    with pytest.raises(KeyError, match="not registered with this manager"):
        manager.pull_blocks(cc.BlocksCacheKey(1), cache, [1], [1])


def test_storage_is_known_for_whatever_shows_it():
    owner = np.zeros((4, 64), np.uint8)
    for tensor in (owner, owner[1:, 8:], owner.reshape(8, 32)[::2], memoryview(owner)[1:], Torch(owner[2:])):
        assert look("t", tensor).storage == (address(owner), 256)
    array = bytearray(256)
    start = address(np.frombuffer(array, np.uint8))
    for tensor in (array, memoryview(array)[64:], np.frombuffer(array, np.uint8)[32:64], np.frombuffer(array)[2:]):
        assert look("t", tensor).storage == (start, 256)


def test_differences_of_layouts_show_at_the_peer_and_in_an_event(manager, monkeypatch):
    events = []
    monkeypatch.setattr(Listeners, "send", lambda self, event: events.append(event))
    manager.register_layers({"a": [BLOCKS], "b": [BLOCKS]}, key=cc.BlocksCacheKey(1, 5), group="g")
    with cc.CacheManager(2, backend="host") as reader:
        reader.register_layers({"a": [np.zeros((3, 4, 32), np.float16)]}, key=cc.BlocksCacheKey(2, 5), group="g")
        peer = reader.link(1, manager.address)
        assert peer.layout_differences == ()
        # Only caches of the same model and group are compared.
        manager.register_layers({"a": [np.zeros((2, 7), np.uint8)]}, key=cc.BlocksCacheKey(1, 5), group="h")
        reader.register_layers({"a": [np.zeros((2, 8), np.uint8)]}, key=cc.BlocksCacheKey(2, 5), group="h")
        reader._peers.get(1).dialogue.refresh(float("inf"))
        (text,) = peer.layout_differences
        assert "'a' has 8 bytes in cache 2 and 7 in cache 2 of the peer" in text
        end = time.monotonic() + 10  # the link's thread may have seen it first, and shows it before it tells of it
        while not (differing := [event for event in events if event.kind == "layouts differ"]):
            assert time.monotonic() < end
            time.sleep(0.005)
    assert [(event.cluster_id, event.peer, event.detail) for event in differing] == [(2, 1, text)]
