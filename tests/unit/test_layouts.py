"""Tensors of two caches belong together by the name of their layer; what does not fit is named."""

import pytest

from cachecore.errors import CacheIncompatibleError, CacheTypeError, CacheValueError
from cachecore.shape import BlockKind, LayersShape
from cachecore.slices import BlockSlice
from cachecore.transfers.layouts import compare, match
from cachecore.types import DataType, Placement

F16, U8, F32 = DataType.DT_FLOAT16, DataType.DT_UINT8, DataType.DT_FLOAT
KEY, SCALE, STATE = BlockKind(F16, (4, 8), 64), BlockKind(U8, (4,), 100), BlockKind(F32, (4,), 16)


def shape(owner, layers, base=0, blocks=10, group=""):
    """A cache whose tensor i is at base + 0x1000 * i."""
    kinds = list(dict.fromkeys(kind for tensors in layers.values() for kind in tensors))
    flat = [kind for tensors in layers.values() for kind in tensors]
    addrs = [base + 0x1000 * (i + 1) for i in range(len(flat))]
    counts = [len(tensors) for tensors in layers.values()]
    which = [kinds.index(kind) for kind in flat]
    return LayersShape(owner, group, Placement.DEVICE, blocks, list(layers), counts, addrs, kinds, which)


def pairs(parts):
    return [
        (local, remote, part.local.block_bytes, part.local_slice, part.remote_slice)
        for part in parts
        for local, remote in zip(part.local.bases, part.remote.bases, strict=True)
    ]


def test_layers_are_paired_by_name_whatever_their_order_and_equal_geometry_is_one_part():
    local = shape("here", {"a": [KEY, KEY, SCALE], "b": [KEY, KEY, SCALE]})
    remote = shape("there", {"b": [KEY, KEY, SCALE], "a": [KEY, KEY, SCALE]}, base=0x100000, blocks=99)
    found = match(local, remote)
    assert (found.names, len(found.parts)) == (("a", "b"), 2)
    assert [(a, b) for a, b, *_ in pairs(found.parts)] == [
        (0x1000, 0x104000),
        (0x2000, 0x105000),
        (0x4000, 0x101000),
        (0x5000, 0x102000),
        (0x3000, 0x106000),
        (0x6000, 0x103000),
    ]
    assert list(found.tensor_indexes) == [0, 1, 3, 4, 2, 5]
    assert [(a, b) for a, b, *_ in pairs(found.layer_parts(1))] == [
        (0x4000, 0x101000),
        (0x5000, 0x102000),
        (0x6000, 0x103000),
    ]
    assert list(found.layer_tensor_indexes(1)) == [3, 4, 5]
    part = found.parts[0]
    assert (part.local.blocks, part.remote.blocks, part.local.block_stride) == (10, 99, 64)
    assert match(local, remote) is found, "the next pull finds it again"


def test_layers_of_the_smaller_side_move_unless_some_are_named():
    stage = shape("here", {"b": [KEY]})
    model = shape("there", {"a": [KEY], "b": [KEY], "c": [KEY]})
    assert match(stage, model).names == match(model, stage).names == ("b",)
    other = shape("there", {"b": [KEY], "d": [KEY]})
    assert match(model, other, ["b"]).names == ("b",)
    with pytest.raises(CacheIncompatibleError, match=r"does not have layer 'd' of there.*layers=\["):
        match(model, other)


def test_each_tensor_of_a_layer_has_its_slice():
    local, remote = shape("here", {"a": [KEY, SCALE]}), shape("there", {"a": [KEY, SCALE]})
    found = match(local, remote, None, [(0, 32), None], [BlockSlice(8, 8, 4, 16), None])
    assert [line[2:] for line in pairs(found.parts)] == [
        (64, BlockSlice(0, 32), BlockSlice(8, 8, 4, 16)),
        (4, None, None),
    ]
    assert match(local, remote, None, (0, 4), (0, 4)).parts[1].local_slice == BlockSlice(0, 4)
    with pytest.raises(CacheValueError, match="src_slice has 3 slices and a layer has 2 tensors"):
        match(local, remote, None, None, [None] * 3)


@pytest.mark.parametrize(
    ("mine", "theirs", "layers", "error", "text"),
    [
        ([KEY, KEY], [KEY], None, CacheIncompatibleError, "layer 'a' has 2 tensors in here and 1 in there"),
        (
            [KEY],
            [STATE],
            None,
            CacheIncompatibleError,
            "tensor 0 of layer 'a' holds DT_FLOAT16 in here and DT_FLOAT in",
        ),
        (
            [KEY],
            [BlockKind(F16, (2, 8), 64)],
            None,
            CacheIncompatibleError,
            "a block of tensor 0 of layer 'a' has 64 bytes in here and 32 in there.*src_slice and dst_slice",
        ),
        ([KEY], [KEY], ["a", "z"], CacheIncompatibleError, r"layers\[1\] is 'z', which here does not have"),
        ([KEY], [KEY], ["a", "a"], CacheValueError, "'a' twice"),
        ([KEY], [KEY], [], CacheValueError, "layers is empty"),
        ([KEY], [KEY], "a", CacheTypeError, "layers is 'a'"),
        ([KEY], [KEY], [0], CacheTypeError, r"layers\[0\]"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_first_difference(mine, theirs, layers, error, text):
    with pytest.raises(error, match=text):
        match(shape("here", {"a": mine}), shape("there", {"a": theirs}), layers)


def test_slices_bridge_blocks_of_different_bytes_and_no_data_types():
    half = BlockKind(F16, (2, 8), 64)
    assert match(shape("here", {"a": [KEY]}), shape("there", {"a": [half]}), None, (0, 32), None).names == ("a",)
    with pytest.raises(CacheIncompatibleError, match="DT_FLOAT "):
        match(shape("here", {"a": [KEY]}), shape("there", {"a": [STATE]}), None, (0, 16), None)


def test_comparing_says_each_kind_of_difference_once_and_nothing_about_numbers_of_blocks():
    layers = {f"l{i}": [KEY, SCALE] for i in range(60)}
    assert compare(shape("here", layers), shape("there", layers, blocks=3)) == ()
    halved = {name: [BlockKind(F16, (2, 8), 32), SCALE] for name in layers}
    (one,) = compare(shape("here", layers), shape("there", halved))
    assert one == ("a block of tensor 0 of layer 'l0' has 64 bytes in here and 32 in there, and 59 more like it.")
    stage = {"l0": [KEY, SCALE], "l1": [STATE, SCALE]}
    (one,) = compare(shape("here", layers), shape("there", stage))
    assert "DT_FLOAT16" in one and "'l1'" in one, "a stage that lacks layers is no difference"
    (one,) = compare(shape("here", {"a": [KEY], "b": [KEY]}), shape("there", {"b": [KEY], "c": [KEY]}))
    assert "does not have layer 'a' of here, which does not have layer 'c'" in one
    (one,) = compare(shape("here", {"a": [KEY]}), shape("there", {"b": [KEY]}))
    assert "no layer in common" in one


def test_comparing_says_where_the_dimensions_of_a_block_have_another_order_and_a_transfer_does_not_mind():
    heads_first, extended, flat = (BlockKind(F16, dims, 64) for dims in ((8, 4), (4, 1, 8), (32,)))
    here, there = shape("here", {"a": [KEY, KEY, KEY]}), shape("there", {"a": [extended, heads_first, flat]})
    (one,) = compare(here, there)
    assert one.startswith("a block of tensor 1 of layer 'a' is [4, 8] in here and [8, 4] in there")
    assert match(here, there).names == ("a",)


def test_layers_of_another_group_have_another_block_list():
    with pytest.raises(CacheIncompatibleError, match=r"here is of group 'g' and there of group 'h'.*of one group"):
        match(shape("here", {"a": [KEY]}, group="g"), shape("there", {"a": [KEY]}, group="h"))
