"""Blocks of random layouts move exactly where a copy byte by byte would put them, and no other byte changes."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cachecore as cc

TYPES = (np.uint8, np.float16, np.float32)
numbers = itertools.count()


class Side:
    """Tensors of random strides in random buffers.

    Attributes:
        layers: For `register_layers`.
        places: By layer name (buffer, offset, block stride, block bytes) of each tensor.
        buffers: The memory.
    """

    def __init__(self, draw, layers, blocks, fill):
        self.blocks, self.layers, self.places, self.buffers = blocks, {}, {}, []
        flat = [(name, *tensor) for name, tensors in layers.items() for tensor in tensors]
        while flat:
            # Tensors that share a buffer are interleaved: each block of the buffer holds one block of each.
            count = draw(st.integers(1, min(4, len(flat))))
            together, flat = flat[:count], flat[count:]
            offsets, end = [], 0
            for _, _, nbytes in together:
                offsets.append(end)
                end += nbytes + draw(st.sampled_from([0, 4, 64])) + (-nbytes) % 4
            if fill is None:
                buffer = np.random.default_rng(next(numbers)).integers(0, 256, blocks * end, np.uint8)
            else:
                buffer = np.full(blocks * end, fill, np.uint8)
            self.buffers.append(buffer)
            for (name, dtype, nbytes), offset in zip(together, offsets, strict=True):
                item = np.dtype(dtype).itemsize
                shape = (blocks, nbytes // item)
                tensor = np.ndarray(shape, dtype, buffer=buffer, offset=offset, strides=(end, item))
                self.layers.setdefault(name, []).append(tensor)
                self.places.setdefault(name, []).append((buffer, offset, end, nbytes))

    def pieces(self, name, tensor, block, cut):
        """Positions in the buffer of the bytes of one block, in order."""
        _, offset, stride, nbytes = self.places[name][tensor]
        start = offset + block * stride
        if cut is None:
            return list(range(start, start + nbytes))
        first, size, count, step = cut
        return [start + first + i * step + j for i in range(count) for j in range(size)]


@st.composite
def cuts(draw, nbytes, total):
    """A slice of `total` bytes of a block of `nbytes`."""
    count = draw(st.sampled_from([n for n in (1, 2, 4) if total % n == 0]))
    size = total // count
    step = draw(st.integers(size, max(size, (nbytes - size) // max(1, count - 1)))) if count > 1 else 0
    first = draw(st.integers(0, nbytes - (count - 1) * step - size))
    return first, size, count, step


@st.composite
def transfers(draw):
    tensors_per_layer = draw(st.integers(1, 3))
    names = [f"layer {i}" for i in range(draw(st.integers(1, 4)))]
    sizes = [(draw(st.sampled_from(TYPES)), 4 * draw(st.integers(2, 20))) for _ in range(tensors_per_layer)]
    sliced = draw(st.booleans())
    here, there = ({}, {})
    for name in names:
        here[name] = [(dtype, nbytes) for dtype, nbytes in sizes]
        there[name] = [(dtype, nbytes * draw(st.sampled_from([1, 2])) if sliced else nbytes) for dtype, nbytes in sizes]
        if sliced:  # the same for every layer
            there[name] = there[names[0]]
    mine, theirs = [None] * tensors_per_layer, [None] * tensors_per_layer
    if sliced:
        for i, ((_, small), (_, large)) in enumerate(zip(here[names[0]], there[names[0]], strict=True)):
            total = draw(st.sampled_from([small // 2, small, 4]))
            mine[i], theirs[i] = draw(cuts(small, total)), draw(cuts(large, total))
    order = draw(st.permutations(names))
    source = Side(draw, {name: there[name] for name in order}, draw(st.integers(1, 9)), None)
    target = Side(draw, here, draw(st.integers(1, 9)), 7)
    pairs = draw(st.integers(1, target.blocks))
    dst = draw(st.permutations(range(target.blocks)))[:pairs]
    src = [draw(st.integers(0, source.blocks - 1)) for _ in dst]
    moved = draw(st.none() | st.lists(st.sampled_from(names), min_size=1, unique=True))
    return source, target, src, dst, moved, theirs, mine


@pytest.fixture(scope="module")
def manager():
    with cc.CacheManager(1, backend="host") as manager:
        yield manager


@pytest.mark.parametrize("push", [False, True])
@given(transfer=transfers())
@settings(max_examples=80, deadline=None)
def test_random_layouts_move_as_bytes_do(manager, push, transfer):
    source, target, src, dst, moved, theirs, mine = transfer
    expected = [buffer.copy() for buffer in target.buffers]
    unchanged = [buffer.copy() for buffer in source.buffers]
    place = {id(buffer): copy for buffer, copy in zip(target.buffers, expected, strict=True)}
    for name in moved or target.layers:
        for tensor in range(len(target.layers[name])):
            read, write = source.places[name][tensor][0], place[id(target.places[name][tensor][0])]
            for from_block, to_block in zip(src, dst, strict=True):
                here = target.pieces(name, tensor, to_block, mine[tensor])
                write[here] = read[source.pieces(name, tensor, from_block, theirs[tensor])]
    key, other = cc.BlocksCacheKey(1), cc.BlocksCacheKey(1, 1)
    caches = [manager.register_layers(source.layers, key=key), manager.register_layers(target.layers, key=other)]
    try:
        arguments = {"layers": moved, "src_slice": theirs, "dst_slice": mine}
        if push:
            manager.push_blocks(other, caches[0], src, dst, **arguments)
        else:
            manager.pull_blocks(key, caches[1], src, dst, **arguments)
    finally:
        for cache in caches:
            manager.unregister_cache(cache.cache_id)
    for found, wanted in zip([*target.buffers, *source.buffers], [*expected, *unchanged], strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_layers_and_tensors_of_one_shape_do_not_mix(manager):
    tensor = np.zeros((4, 16), np.uint8)
    raw = manager.register_blocks_tensors([tensor], blocks_cache_key=cc.BlocksCacheKey(1, 8))
    named = manager.register_layers({"a": [np.zeros((4, 16), np.uint8)]}, key=cc.BlocksCacheKey(1, 9))
    plain = manager.register_blocks_tensors([np.zeros((4, 16), np.uint8)])
    bare = manager.register_layers({"a": [np.zeros((4, 16), np.uint8)]})
    try:
        with pytest.raises(cc.CacheNotFoundError, match="with layers of group ''"):
            manager.pull_blocks(cc.BlocksCacheKey(1, 8), bare, [0], [0])
        with pytest.raises(cc.CacheNotFoundError):
            manager.pull_blocks(cc.BlocksCacheKey(1, 9), plain, [0], [0], tensor_num_per_layer=1)
        by_id = cc.CacheKeyByIdAndIndex(1, named.cache_id)
        with pytest.raises(cc.CacheIncompatibleError, match="register_layers"):
            manager.pull_blocks(by_id, plain, [0], [0], tensor_num_per_layer=1)
        manager.pull_blocks(by_id, bare, [0], [0])
        with pytest.raises(ValueError, match=r"src_layer_range .* have names, use layers"):
            manager.pull_blocks(by_id, bare, [0], [0], src_layer_range=range(1))
        with pytest.raises(cc.CacheIncompatibleError, match="paged; use pull_blocks"):
            manager.pull_cache(by_id, bare)
    finally:
        for cache in (raw, named, plain, bare):
            manager.unregister_cache(cache.cache_id)


def test_an_error_names_tensors_by_their_position_in_the_callers_cache(manager, monkeypatch):
    kinds = [np.zeros((4, 16), np.uint8), np.zeros((4, 8), np.float32)]
    layers = {name: [kind.copy() for kind in kinds] for name in "ab"}
    source = manager.register_layers({n: [k.copy() for k in kinds] for n in "ba"}, key=cc.BlocksCacheKey(1))
    target = manager.register_layers(layers)
    copy = manager.backend.copy
    monkeypatch.setattr(manager.backend, "copy", lambda plan, deadline, *more: copy(plan, deadline - 1e6, *more))
    try:
        with pytest.raises(cc.TransferTimeoutError) as caught:
            manager.pull_blocks(cc.BlocksCacheKey(1), target, [1, 2], [2, 0], layers=["b"])
        found = caught.value
        assert {blocks.tensor for blocks in (*found.landed, *found.unknown)} <= {2, 3}
        plans = [(0, found.outcome.landed), (1, found.outcome.untouched)]
        assert any(ranges for _, ranges in plans), "the outcome says what it knows"
    finally:
        monkeypatch.undo()
        for cache in (source, target):
            manager.unregister_cache(cache.cache_id)
