"""Rules that hold on every product."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecore.driver import MemoryInfo, MemoryOrigin
from cachecore.errors import (
    AddressBudgetError,
    CacheIncompatibleError,
    CacheKeyExistsError,
    CacheValueError,
    MemoryAccessError,
    NotSupportedError,
    OverlapError,
    PlacementError,
)
from cachecore.registration import rules
from cachecore.types import NO_ID, BlocksCacheKey, CacheDesc, CacheKey, DataType, Placement


def owned(ranges, owner):
    return [rules.OwnedRange(base, nbytes, f"{owner}[{i}]") for i, (base, nbytes) in enumerate(ranges)]


RANGES = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12)), max_size=6)


def shares(first, second):
    return bool(set(range(first[0], sum(first))) & set(range(second[0], sum(second))))


@given(RANGES, RANGES)
def test_overlap_is_refused_exactly_when_bytes_are_shared(new, candidates):
    live = []
    for item in candidates:  # live regions never overlap each other
        if not any(shares(item, other) for other in live):
            live.append(item)
    clash = any(shares(a, b) for i, a in enumerate(new) for b in new[:i])
    clash = clash or any(shares(a, b) and a != b for a in new for b in live)
    if clash:
        with pytest.raises(OverlapError, match="overlaps"):
            rules.check_no_overlap(owned(new, "addrs"), owned(live, "cache"))
    else:
        rules.check_no_overlap(owned(new, "addrs"), owned(live, "cache"))


def test_an_overlap_names_both_owners_and_the_bytes():
    with pytest.raises(OverlapError, match=r"addrs\[0\] at \[0x1000, 0x2000\) overlaps cache 7 at .* by 256 bytes"):
        rules.check_no_overlap(
            [rules.OwnedRange(0x1000, 0x1000, "addrs[0]")], [rules.OwnedRange(0x1F00, 0x1000, "cache 7")]
        )


def test_the_budget_says_used_asked_and_left():
    rules.check_budget(200, 40, 240)
    with pytest.raises(AddressBudgetError, match=r"asks for 41 addresses; 200 of 240 are registered, 40 are left") as e:
        rules.check_budget(200, 41, 240)
    assert (e.value.used, e.value.asked, e.value.limit) == (200, 41, 240)


def test_memory_that_may_not_be_registered_is_refused_with_the_reason():
    good = MemoryInfo(frozenset({Placement.HOST}))
    bad = MemoryInfo(frozenset(), reason="0x2000 is not mapped")
    with pytest.raises(MemoryAccessError, match=r"addrs\[1\] is 0x2000 .* 0x2000 is not mapped"):
        rules.check_mapped([(0x1000, 1), (0x2000, 1)], [good, bad])


@pytest.mark.parametrize(
    ("placements", "accepted"),
    [
        ({Placement.HOST}, {Placement.HOST}),
        ({Placement.DEVICE}, {Placement.DEVICE}),
        ({Placement.HOST, Placement.DEVICE}, {Placement.HOST, Placement.DEVICE}),
        (None, {Placement.HOST}),
    ],
)
def test_placement_is_what_the_runtime_says_and_host_where_it_cannot_tell(placements, accepted):
    info = MemoryInfo(None if placements is None else frozenset(placements), MemoryOrigin.UNKNOWN)
    for placement in Placement:
        if placement in accepted:
            rules.check_placement(placement, [(4096, 1)], [info])
        else:
            with pytest.raises(PlacementError, match=placement.name):
                rules.check_placement(placement, [(4096, 1)], [info])


def test_remote_access_is_on_for_device_memory_and_off_for_host_memory_unless_told():
    def chosen(value, placement, optional=True):
        return rules.default_remote_accessible(value, placement, optional, "950")

    assert chosen(None, Placement.DEVICE) is True
    assert chosen(None, Placement.HOST) is False
    assert chosen(True, Placement.HOST) is True
    assert chosen(False, Placement.DEVICE) is False
    with pytest.raises(TypeError, match="remote_accessible"):
        chosen(1, Placement.HOST)
    # Where the product has no other memory it is always on, and False is not silently ignored.
    assert chosen(None, Placement.HOST, optional=False) is True
    with pytest.raises(NotSupportedError, match="always on") as caught:
        chosen(False, Placement.DEVICE, optional=False)
    assert (caught.value.product, caught.value.feature) == ("950", "remote_accessible=False")


def test_a_blocks_key_is_ours_and_free():
    assert rules.checked_blocks_key(None, 1, []) is None
    key = BlocksCacheKey(1, 5)
    assert rules.checked_blocks_key(key, 1, [BlocksCacheKey(1, 4)]) is key
    with pytest.raises(CacheKeyExistsError, match="names a live cache"):
        rules.checked_blocks_key(key, 1, [key])
    with pytest.raises(CacheValueError, match="this manager is cluster 2"):
        rules.checked_blocks_key(key, 2, [])
    with pytest.raises(TypeError, match="BlocksCacheKey"):
        rules.checked_blocks_key(CacheKey(1, 1), 1, [])


def test_entry_keys_are_at_most_one_an_entry_distinct_and_free():
    desc = CacheDesc(2, [3, 4], DataType.DT_INT8)
    one, two, empty = CacheKey(1, 1), CacheKey(1, prefix_id=2), CacheKey(1, NO_ID)
    assert rules.checked_cache_keys([empty, one, two], desc, 1, []) == (empty, one, two)
    assert rules.checked_cache_keys([empty, empty, empty], desc, 1, []) == (empty,) * 3
    for keys, error, text in (
        ([one, two, empty, empty], CacheValueError, "4 keys and the cache 3"),
        ([one, one], CacheKeyExistsError, "in the list already"),
        ([two], CacheKeyExistsError, "names an entry of a live cache"),
        ([CacheKey(9, 1)], CacheValueError, "cluster_id 9"),
        (one, TypeError, "list or tuple"),
        ([1], TypeError, "CacheKey"),
        (None, AttributeError, "cache_keys"),
    ):
        with pytest.raises(error, match=text):
            rules.checked_cache_keys(keys, desc, 1, [two])


def test_layers_are_ranges_of_consecutive_tensors():
    check = lambda layers, tensors=8, per_layer=2: rules.check_layers(
        "src_layer_range", layers, tensors, per_layer, side="source"
    )
    assert check(None) == (0, 8)
    assert check(range(1, 3)) == (2, 6)
    assert check(range(8), per_layer=1) == (0, 8)
    for layers, text in ((range(0, 4, 2), "step 1"), (range(2, 2), "empty"), (range(3, 5), "layers 0 to 3")):
        with pytest.raises(CacheValueError, match=text):
            check(layers)
    with pytest.raises(CacheValueError):
        check(range(-1, 2))
    with pytest.raises(TypeError, match="range of layers"):
        check((0, 1))
    # Fewer tensors than a layer has must not become "nothing to move, success".
    for tensors, per_layer in ((1, 2), (7, 2)):
        with pytest.raises(CacheIncompatibleError, match="do not divide"):
            check(None, tensors, per_layer)
