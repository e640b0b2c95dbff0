"""What a pull or a push moves, held against a plain oracle: between two managers of one process, and inside one."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cachecore as cc

UINT8 = cc.DataType.DT_UINT8
model_ids = itertools.count()


@pytest.fixture(scope="module")
def managers():
    """Two linked managers of this process: (owner, reader)."""
    with (
        cc.CacheManager(1, backend="host", listen="127.0.0.1:0") as owner,
        cc.CacheManager(2, backend="host") as reader,
    ):
        reader.link(1, owner.address, timeout=10)
        yield owner, reader


class Refused(Exception):
    """The oracle's answer to input that must be refused."""


def layer_tensors(layers, tensors, per_layer):
    if tensors % per_layer:
        raise Refused
    if layers is None:
        return range(tensors)
    if not layers or layers.start < 0 or layers.stop * per_layer > tensors:
        raise Refused
    return range(layers.start * per_layer, layers.stop * per_layer)


def pairs_of_tensors(source, target, src_layers, dst_layers, per_layer):
    src = layer_tensors(src_layers, len(source), per_layer)
    dst = layer_tensors(dst_layers, len(target), per_layer)
    if len(src) != len(dst):
        raise Refused
    return list(zip(src, dst, strict=True))


def oracle_blocks(source, target, src_blocks, dst_blocks, pairs):
    """Block by block, with a copy of everything taken before."""
    if not dst_blocks or len(src_blocks) != len(dst_blocks) or len(set(dst_blocks)) != len(dst_blocks):
        raise Refused
    if source[0].shape[1] != target[0].shape[1]:
        raise Refused
    if not all(0 <= s < len(source[0]) for s in src_blocks) or not all(0 <= d < len(target[0]) for d in dst_blocks):
        raise Refused
    for s, d in pairs:
        before = source[s].copy()
        for src_block, dst_block in zip(src_blocks, dst_blocks, strict=True):
            target[d][dst_block] = before[src_block]


def oracle_entry(source, target, src_entry, dst_entry, size, pairs):
    have, room = source[0].shape[1], target[0].shape[1]
    size = have if size == -1 else size
    if not 1 <= size <= have or size > room:
        raise Refused
    if not 0 <= src_entry < len(source[0]) or not 0 <= dst_entry < len(target[0]):
        raise Refused
    for s, d in pairs:
        target[d][dst_entry, :size] = source[s][src_entry, :size].copy()


def oracle_entry_to_blocks(source, target, src_entry, dst_blocks, pairs):
    entry, block = source[0].shape[1], target[0].shape[1]
    if not dst_blocks or len(set(dst_blocks)) != len(dst_blocks) or (len(dst_blocks) - 1) * block >= entry:
        raise Refused
    if not 0 <= src_entry < len(source[0]) or not all(0 <= d < len(target[0]) for d in dst_blocks):
        raise Refused
    for s, d in pairs:
        for i, dst_block in enumerate(dst_blocks):
            piece = source[s][src_entry, i * block : (i + 1) * block].copy()
            target[d][dst_block, : len(piece)] = piece


def made(tensors, rows, row_bytes, seed):
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, (rows, row_bytes), np.uint8) for _ in range(tensors)]


# Wrong values by name; one of them spoils about every third example, the rest must move bytes.
SPOILERS = {
    "per_layer": st.integers(1, 5),
    "src_layers": st.builds(range, st.integers(-1, 3), st.integers(0, 4)),
    "dst_layers": st.builds(range, st.integers(-1, 3), st.integers(0, 4)),
    "src_blocks": st.lists(st.integers(-1, 7), max_size=4),
    "dst_blocks": st.lists(st.integers(-1, 7), max_size=4),
    "entry": st.integers(0, 7),
    "dst_entry": st.integers(0, 7),
    "size": st.integers(0, 50),
}


@st.composite
def cases(draw, kind):
    per_layer = draw(st.integers(1, 3))
    layers = draw(st.integers(1, 2))  # that move; each side may have more
    more_src, more_dst = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    first_src, first_dst = draw(st.integers(0, more_src)), draw(st.integers(0, more_dst))
    row_bytes = draw(st.sampled_from([24, 25, 48]))
    smaller = draw(st.sampled_from([5, 8, 24]))
    # A source entry may be shorter than the target's entry and longer than its blocks.
    src_bytes = row_bytes if kind != "entry" else draw(st.sampled_from([row_bytes, smaller]))
    dst_bytes = row_bytes if kind != "to blocks" else smaller
    src_rows, dst_rows = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    most = dst_rows if kind == "blocks" else min(dst_rows, -(-src_bytes // dst_bytes))
    count = draw(st.integers(1, most))
    case = {
        "source": ((layers + more_src) * per_layer, src_rows, src_bytes),
        "target": ((layers + more_dst) * per_layer, dst_rows, dst_bytes),
        "per_layer": per_layer,
        "src_layers": range(first_src, first_src + layers) if more_src or draw(st.booleans()) else None,
        "dst_layers": range(first_dst, first_dst + layers) if more_dst or draw(st.booleans()) else None,
        "src_blocks": draw(st.lists(st.integers(0, src_rows - 1), min_size=count, max_size=count)),
        "dst_blocks": list(draw(st.permutations(range(dst_rows)))[:count]),
        "entry": draw(st.integers(0, src_rows - 1)),
        "dst_entry": draw(st.integers(0, dst_rows - 1)),
        "size": draw(st.one_of(st.just(-1), st.integers(1, min(src_bytes, dst_bytes)))),
        "seed": draw(st.integers(0, 2**16)),
        "inside": draw(st.booleans()),
    }
    spoiled = draw(st.sampled_from([*SPOILERS, *[None] * 2 * len(SPOILERS)]))
    if spoiled is not None:
        case[spoiled] = draw(SPOILERS[spoiled])
    return case


class Caches:
    """The two caches of one example, unregistered at its end. The one that has keys is at the owner."""

    def __init__(self, managers, case, source_paged, target_paged, push=False):
        self.owner, self.reader = (managers[0], managers[0]) if case["inside"] else managers
        self.source, self.target = made(*case["source"], case["seed"]), made(*case["target"], case["seed"] + 1)
        self.model = next(model_ids)
        if push:
            self.source_at, self.target_at = self.reader, self.owner
            self.source_cache = self._plain(self.reader, self.source, source_paged)
            self.target_cache = self._named(self.owner, self.target, target_paged)
        else:
            self.source_at, self.target_at = self.owner, self.reader
            self.source_cache = self._named(self.owner, self.source, source_paged)
            self.target_cache = self._plain(self.reader, self.target, target_paged)

    def _plain(self, manager, tensors, paged):
        return (manager.register_blocks_tensors if paged else manager.register_cache_tensors)(tensors)

    def _named(self, manager, tensors, paged):
        if paged:
            return manager.register_blocks_tensors(tensors, blocks_cache_key=cc.BlocksCacheKey(1, self.model))
        keys = [cc.CacheKey(1, i, self.model) for i in range(len(tensors[0]))]
        return manager.register_cache_tensors(tensors, cache_keys=keys)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.target_at.unregister_cache(self.target_cache.cache_id, timeout=10)
        self.source_at.unregister_cache(self.source_cache.cache_id, timeout=10)

    def check(self, case, oracle, call):
        """Run both; they agree on refusing, and on every byte of both sides."""
        expected, untouched = [t.copy() for t in self.target], [t.copy() for t in self.source]
        layers = {"src_layer_range": case["src_layers"], "dst_layer_range": case["dst_layers"]}
        try:
            oracle(expected, pairs_of_tensors(self.source, expected, *layers.values(), case["per_layer"]))
        except Refused:
            with pytest.raises((ValueError, KeyError)) as caught:
                call(**layers, tensor_num_per_layer=case["per_layer"], timeout=10)
            assert isinstance(caught.value, cc.CacheError)
        else:
            call(**layers, tensor_num_per_layer=case["per_layer"], timeout=10)
        assert all((a == b).all() for a, b in zip(self.target, expected, strict=True))
        assert all((a == b).all() for a, b in zip(self.source, untouched, strict=True))


PROPERTY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@PROPERTY
@given(cases("blocks"))
def test_blocks_to_blocks(managers, case):
    """Holes 2, 3 and 5: bounds of tensors and of merged runs, block sizes of both sides, runs that were cut."""
    with Caches(managers, case, True, True) as both:
        both.check(
            case,
            lambda target, pairs: oracle_blocks(both.source, target, case["src_blocks"], case["dst_blocks"], pairs),
            lambda **more: both.reader.pull_blocks(
                cc.BlocksCacheKey(1, both.model), both.target_cache, case["src_blocks"], case["dst_blocks"], **more
            ),
        )


@PROPERTY
@given(cases("entry"), st.booleans())
def test_entry_to_entry(managers, case, by_id):
    """Hole 1: the other side's own stride, and bounds of its batch index."""
    with Caches(managers, case, False, False) as both:
        key = cc.CacheKeyByIdAndIndex(1, both.source_cache.cache_id, case["entry"])
        if not by_id:
            key = cc.CacheKey(1, case["entry"], both.model)
        both.check(
            case,
            lambda target, pairs: oracle_entry(
                both.source, target, case["entry"], case["dst_entry"], case["size"], pairs
            ),
            lambda **more: both.reader.pull_cache(key, both.target_cache, case["dst_entry"], case["size"], **more),
        )


@PROPERTY
@given(cases("to blocks"), st.booleans())
def test_entry_to_blocks(managers, case, by_id):
    """Hole 6: entries behind the first were read past their end."""
    with Caches(managers, case, False, True) as both:
        key = cc.CacheKeyByIdAndIndex(1, both.source_cache.cache_id, case["entry"])
        if not by_id:
            key = cc.CacheKey(1, case["entry"], both.model)
        both.check(
            case,
            lambda target, pairs: oracle_entry_to_blocks(both.source, target, case["entry"], case["dst_blocks"], pairs),
            lambda **more: both.reader.pull_blocks(key, both.target_cache, dst_blocks=case["dst_blocks"], **more),
        )


@PROPERTY
@given(cases("blocks"), st.booleans())
def test_pushed_blocks(managers, case, by_id):
    """Holes 2, 3, 5 and 7: bounds, block sizes, runs that were cut, layers that were none. Nothing is written then."""
    with Caches(managers, case, True, True, push=True) as both:
        by_key, by_number = cc.BlocksCacheKey(1, both.model), cc.CacheKeyByIdAndIndex(1, both.target_cache.cache_id)
        key = by_number if by_id else by_key
        both.check(
            case,
            lambda target, pairs: oracle_blocks(both.source, target, case["src_blocks"], case["dst_blocks"], pairs),
            lambda **more: both.reader.push_blocks(
                key, both.source_cache, case["src_blocks"], case["dst_blocks"], **more
            ),
        )


@PROPERTY
@given(cases("entry"), st.booleans())
def test_a_pushed_entry(managers, case, by_id):
    """Holes 1 and 4: each side's own stride and bounds; what has no room does not reach the neighbour."""
    with Caches(managers, case, False, False, push=True) as both:
        key = cc.CacheKeyByIdAndIndex(1, both.target_cache.cache_id, case["dst_entry"])
        if not by_id:
            key = cc.CacheKey(1, case["dst_entry"], both.model)
        both.check(
            case,
            lambda target, pairs: oracle_entry(
                both.source, target, case["entry"], case["dst_entry"], case["size"], pairs
            ),
            lambda **more: both.reader.push_cache(key, both.source_cache, case["entry"], size=case["size"], **more),
        )


def test_pushes_need_the_right_kind_of_cache_at_both_ends(managers, caches):
    """Hole 7 too: too few tensors for one layer pushed nothing, and that was a success."""
    model, _, (paged, plain), (to_paged, to_plain) = caches
    reader = managers[1]
    by_blocks, by_entry = cc.BlocksCacheKey(1, model), cc.CacheKey(1, 7, model)
    with pytest.raises(cc.CacheIncompatibleError, match="use push_cache"):
        reader.push_blocks(by_blocks, to_plain, [0], [0])
    with pytest.raises(cc.CacheIncompatibleError, match="is contiguous; blocks are pushed to paged"):
        reader.push_blocks(by_entry, to_paged, [0], [0])
    with pytest.raises(cc.CacheIncompatibleError, match="use push_blocks"):
        reader.push_cache(by_entry, to_paged)
    with pytest.raises(cc.CacheTypeError, match="push_blocks takes it"):
        reader.push_cache(by_blocks, to_plain)
    with pytest.raises(cc.CacheIncompatibleError, match="paged and has no entries"):
        reader.push_cache(cc.CacheKeyByIdAndIndex(1, paged.cache_id), to_plain)
    with pytest.raises(cc.CacheIncompatibleError, match="tensor_num_per_layer is 3"):
        reader.push_cache(cc.CacheKeyByIdAndIndex(1, plain.cache_id), to_plain, tensor_num_per_layer=3)


def cut(blocks, piece):
    """The bytes of a slice (offset, nbytes, count, stride) of each block, as one row a block."""
    offset, nbytes, count, stride = piece
    return np.concatenate([blocks[:, offset + i * stride :][:, :nbytes] for i in range(count)], axis=1)


def put(blocks, piece, rows):
    """Put rows into a slice of each block."""
    offset, nbytes, count, stride = piece
    for i in range(count):
        blocks[:, offset + i * stride :][:, :nbytes] = rows[:, i * nbytes : (i + 1) * nbytes]


@pytest.mark.parametrize("layerwise", [False, True])
@pytest.mark.parametrize("push", [False, True])
def test_each_tensor_of_a_layer_can_move_another_part_of_its_blocks(managers, push, layerwise):
    owner, reader = managers
    source, target, model = made(4, 6, 48, 1), made(4, 5, 64, 2), next(model_ids)
    expected = [tensor.copy() for tensor in target]
    src = [(0, 24, 1, 0), (8, 4, 3, 12)]  # K: 24 bytes; V: 3 pieces of 4 bytes
    dst = [(16, 8, 3, 16), (40, 12, 1, 0)]  # K: cut otherwise
    key = cc.BlocksCacheKey(1, model)
    named, plain = (target, source) if push else (source, target)
    far, near = owner.register_blocks_tensors(named, blocks_cache_key=key), reader.register_blocks_tensors(plain)
    more = {"src_slice": src, "dst_slice": [cc.BlockSlice(*piece) for piece in dst]}
    if layerwise:
        start = reader.push_blocks_async if push else reader.pull_blocks_async
        start(key, near, [5, 0, 2], [1, 4, 3], layerwise=True, **more).wait(10)
    else:
        (reader.push_blocks if push else reader.pull_blocks)(key, near, [5, 0, 2], [1, 4, 3], **more)
    for tensor in range(4):
        rows = expected[tensor][[1, 4, 3]]
        put(rows, dst[tensor % 2], cut(source[tensor][[5, 0, 2]], src[tensor % 2]))
        expected[tensor][[1, 4, 3]] = rows
        assert (target[tensor] == expected[tensor]).all()
    reader.unregister_cache(near.cache_id, timeout=10)
    owner.unregister_cache(far.cache_id, timeout=10)


def test_caches_of_one_shape_have_no_layer_names(managers, caches):
    model, _, _, (paged, _) = caches
    with pytest.raises(cc.CacheValueError, match="use src_layer_range"):
        managers[1].pull_blocks(cc.BlocksCacheKey(1, model), paged, [0], [0], layers=["0"])


def test_what_was_found_out_about_a_peer_ends_with_its_link():
    with (
        cc.CacheManager(1, backend="host", listen="127.0.0.1:0") as owner,
        cc.CacheManager(2, backend="host") as reader,
    ):
        source, target = [np.ones((2, 8), np.uint8)], [np.zeros((2, 8), np.uint8)]
        first = owner.register_blocks_tensors(source, blocks_cache_key=cc.BlocksCacheKey(1))
        cache = reader.register_blocks_tensors(target)
        for value in (1, 2, 3):
            if value != 2:  # 2: the same link, another cache of the same key
                reader.link(1, owner.address, timeout=10)
            reader.pull_blocks(cc.BlocksCacheKey(1), cache, [0], [0], tensor_num_per_layer=1)
            assert (target[0][0] == value).all()
            owner.unregister_cache(first.cache_id, timeout=10)
            source = [np.full((2, 8), value + 1, np.uint8)]
            first = owner.register_blocks_tensors(source, blocks_cache_key=cc.BlocksCacheKey(1))
            if value == 2:
                reader.unlink(1)


@pytest.fixture
def caches(managers):
    """A paged and a contiguous source with keys, and a target of each kind."""
    owner, reader = managers
    model = next(model_ids)
    arrays = {name: made(2, 4, 32, i) for i, name in enumerate(("paged", "plain", "to_paged", "to_plain"))}
    sources = [
        owner.register_blocks_tensors(arrays["paged"], blocks_cache_key=cc.BlocksCacheKey(1, model)),
        owner.register_cache_tensors(
            arrays["plain"], cache_keys=[cc.CacheKey(1, 7, model), cc.CacheKey(1, prefix_id=8, model_id=model)]
        ),
    ]
    targets = [reader.register_blocks_tensors(arrays["to_paged"]), reader.register_cache_tensors(arrays["to_plain"])]
    yield model, arrays, sources, targets
    for manager, items in ((reader, targets), (owner, sources)):
        for item in items:
            manager.unregister_cache(item.cache_id, timeout=10)


def test_a_prefix_key_names_its_entry(managers, caches):
    model, arrays, _, (_, plain) = caches
    managers[1].pull_cache(cc.CacheKey(1, prefix_id=8, model_id=model), plain, 2)
    assert (arrays["to_plain"][0][2] == arrays["plain"][0][1]).all()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda m, k, c: m.pull_blocks(None, c[0], [0], [0]), AttributeError, "src_cache_key"),
        (lambda m, k, c: m.pull_blocks("key", c[0], [0], [0]), TypeError, "src_cache_key"),
        (lambda m, k, c: m.pull_blocks(k, None, [0], [0]), AttributeError, "dst_cache"),
        (lambda m, k, c: m.pull_blocks(k, 3, [0], [0]), TypeError, "dst_cache"),
        (lambda m, k, c: m.pull_blocks(k, c[0], None, [0]), AttributeError, "src_blocks"),
        (lambda m, k, c: m.pull_blocks(k, c[0], [0], [True]), TypeError, "dst_blocks"),
        (lambda m, k, c: m.pull_blocks(k, c[0], [0.0], [0]), TypeError, "src_blocks"),
        (lambda m, k, c: m.pull_blocks(k, c[0], [-1], [0]), ValueError, r"src_blocks.*-1"),
        (lambda m, k, c: m.pull_blocks(k, c[0], [4], [0]), ValueError, r"src_blocks.*4"),
        (lambda m, k, c: m.pull_blocks(k, c[0], [2**63], [0]), ValueError, "src_blocks"),
        (lambda m, k, c: m.pull_blocks(k, c[0], [0, 1], [3, 3]), ValueError, "dst_blocks"),
        (lambda m, k, c: m.pull_blocks(k, c[0], [], []), ValueError, "empty"),
        (lambda m, k, c: m.pull_blocks(k, c[1], [0], [0]), cc.CacheIncompatibleError, "pull_cache"),
        (lambda m, k, c: m.pull_blocks(k, c[0], [0], [0], tensor_num_per_layer=3), ValueError, "divide"),
        (lambda m, k, c: m.pull_blocks(k, c[0], [0], [0], tensor_num_per_layer=0), ValueError, "tensor_num_per_layer"),
        (lambda m, k, c: m.pull_blocks(k, c[0], [0], [0], src_layer_range=[0, 1]), TypeError, "src_layer_range"),
        (lambda m, k, c: m.pull_blocks(k, c[0], [0], [0], timeout=None), AttributeError, "timeout"),
        (lambda m, k, c: m.pull_blocks(k, c[0], [0], [0], timeout=float("nan")), ValueError, "timeout"),
        (lambda m, k, c: m.pull_blocks(k, c[0], [0], [0], timeout="1"), TypeError, "timeout"),
        (lambda m, k, c: m.pull_blocks(cc.CacheKey(1, 7, k.model_id), c[0], [0], [0]), ValueError, "leave src_blocks"),
        (lambda m, k, c: m.pull_blocks(cc.CacheKey(1), c[0], (), [0]), ValueError, "placeholder"),
        (lambda m, k, c: m.pull_blocks(cc.CacheKey(1, 1, 0, 1), c[0], (), [0]), ValueError, "exactly one"),
        (lambda m, k, c: m.pull_cache(k, c[1]), TypeError, "pull_blocks takes it"),
        (lambda m, k, c: m.pull_cache(cc.CacheKey(1, 7, k.model_id), c[0]), cc.CacheIncompatibleError, "pull_blocks"),
        (lambda m, k, c: m.pull_cache(cc.CacheKey(1, 7, k.model_id), c[1], 4), ValueError, "batch_index"),
        (lambda m, k, c: m.pull_cache(cc.CacheKey(1, 7, k.model_id), c[1], size=0), ValueError, "size"),
        (lambda m, k, c: m.pull_cache(cc.CacheKey(1, 7, k.model_id), c[1], size=33), ValueError, "size"),
        (lambda m, k, c: m.pull_cache(cc.CacheKeyByIdAndIndex(1, 2**40), c[1]), KeyError, "cache"),
        (lambda m, k, c: m.pull_blocks(cc.BlocksCacheKey(1, 2**60), c[0], [0], [0]), KeyError, "remote_accessible"),
        (lambda m, k, c: m.pull_blocks(cc.BlocksCacheKey(9), c[0], [0], [0]), ConnectionError, "link"),
        (lambda m, k, c: m.pull_blocks(k, c[0], [0], [0], unknown=1), TypeError, "unknown"),
    ],
)
def test_a_pull_that_makes_no_sense_is_refused_by_name(managers, caches, call, error, text):
    model, arrays, _, targets = caches
    before = [array.copy() for array in arrays["to_paged"] + arrays["to_plain"]]
    with pytest.raises(error, match=text):
        call(managers[1], cc.BlocksCacheKey(1, model), targets)
    after = arrays["to_paged"] + arrays["to_plain"]
    assert all((a == b).all() for a, b in zip(before, after, strict=True))


def test_a_paged_cache_can_be_named_by_its_id_too(managers, caches):
    _, arrays, (paged, _), targets = caches
    key = cc.CacheKeyByIdAndIndex(1, paged.cache_id)
    with pytest.raises(cc.CacheIncompatibleError, match="paged and has no entries"):
        managers[1].pull_cache(key, targets[1])
    with pytest.raises(cc.CacheValueError, match="leave it 0"):
        managers[1].pull_blocks(cc.CacheKeyByIdAndIndex(1, paged.cache_id, 1), targets[0], [0], [0])
    managers[1].pull_blocks(key, targets[0], [2], [1])
    assert (arrays["to_paged"][1][1] == arrays["paged"][1][2]).all()


def test_caches_of_another_data_type_do_not_mix(managers, caches):
    model, _, _, _ = caches
    target = managers[1].register_blocks_tensors([np.zeros((4, 16), np.float16) for _ in range(2)])
    with pytest.raises(cc.CacheIncompatibleError, match=r"DT_UINT8.*DT_FLOAT16"):
        managers[1].pull_blocks(cc.BlocksCacheKey(1, model), target, [0], [0])
    managers[1].unregister_cache(target.cache_id)


def test_batch_entries_that_are_not_contiguous_are_refused(managers):
    arrays = made(2, 4, 32, 0)
    owner = managers[0]
    source = owner.register_cache_tensors(arrays, cache_keys=[cc.CacheKey(1, 99)], batch_dim_index=1)
    target = owner.register_cache_tensors(made(2, 4, 8, 0))
    with pytest.raises(cc.CacheIncompatibleError, match="not contiguous"):
        owner.pull_cache(cc.CacheKey(1, 99), target)
    for cache in (source, target):
        owner.unregister_cache(cache.cache_id)


def test_a_block_moved_within_one_cache_must_not_be_read_and_written(managers):
    owner = managers[0]
    arrays = made(2, 4, 32, 5)
    key = cc.BlocksCacheKey(1, next(model_ids))
    cache = owner.register_blocks_tensors(arrays, blocks_cache_key=key)
    before = [array.copy() for array in arrays]
    with pytest.raises(cc.OverlapError):
        owner.pull_blocks(key, cache, [0, 1], [1, 2])
    assert all((a == b).all() for a, b in zip(arrays, before, strict=True))
    owner.pull_blocks(key, cache, [0, 1], [2, 3])
    assert all((a[2:] == b[:2]).all() for a, b in zip(arrays, before, strict=True))
    owner.unregister_cache(cache.cache_id)


def test_a_block_list_may_change_while_it_is_checked(managers, caches):
    """The list is copied first: what is checked is what moves."""
    model, arrays, _, (paged, _) = caches

    class Changing(list):
        def __getitem__(self, index):
            raise AssertionError("read item by item")

    managers[1].pull_blocks(cc.BlocksCacheKey(1, model), paged, Changing([1]), np.array([2], np.int32))
    assert (arrays["to_paged"][1][2] == arrays["paged"][1][1]).all()


def test_memory_that_is_not_remotely_accessible_is_not_offered(managers):
    owner, reader = managers
    key = cc.BlocksCacheKey(1, next(model_ids))
    hidden = owner.register_blocks_tensors(made(2, 4, 32, 0), blocks_cache_key=key, remote_accessible=False)
    target = reader.register_blocks_tensors(made(2, 4, 32, 0))
    with pytest.raises(cc.CacheNotFoundError, match="remote_accessible"):
        reader.pull_blocks(key, target, [0], [0])
    for manager, cache in ((owner, hidden), (reader, target)):
        manager.unregister_cache(cache.cache_id)


def test_slices_are_made_for_no_more_tensors_than_there_are(managers, monkeypatch):
    """One for each tensor of a layer: the caller's number of them was believed before it was checked."""
    owner, reader = managers
    key = cc.BlocksCacheKey(1, next(model_ids))
    owner.register_blocks_tensors([np.ones((4, 8), np.uint8)], blocks_cache_key=key)
    cache = reader.register_blocks_tensors([np.zeros((4, 8), np.uint8)])
    made = []
    monkeypatch.setattr(cc.transfers.matching.slices, "checked", lambda *given: made.append(given))
    with pytest.raises(cc.CacheIncompatibleError, match="tensor_num_per_layer"):
        reader.pull_blocks(
            key, cache, [0], [0], src_slice=(0, 4), dst_slice=(0, 4), tensor_num_per_layer=2**32 - 1, timeout=5
        )
    assert made == []
