"""What a peer may say about named layers: everything is checked before anybody plans with it."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecore.engine import Region, Registration
from cachecore.peers.layer_records import LayersRecord, layers_record
from cachecore.peers.messages import Changes, MalformedMessageError, Ping, decode_owner_message, encode
from cachecore.peers.records import BlocksKeyRecord, CacheRecord, EntryKeyRecord, region_records
from cachecore.peers.remote import RemoteCache, RemoteCatalogue
from cachecore.shape import BlockKind, LayersShape
from cachecore.types import NO_ID, BlocksCacheKey, DataType, Placement

HEAD = encode(Ping("0123456789abcdef" * 2, 1))[:4]
KINDS = (BlockKind(DataType.DT_BF16, (4, 8), 100), BlockKind(DataType.DT_FLOAT8_E4M3FN, (), 1))


def shape(group="g", addrs=(4096, 8192, 2**40), blocks=5):
    return LayersShape("cache 7", group, Placement.DEVICE, blocks, ("a", "b"), (2, 1), addrs, KINDS, (0, 1, 0))


def regions(*ranges):
    return region_records([Registration(Region(*one, Placement.DEVICE), b"d") for one in ranges])


def record(**changes):
    values = {
        "cache_id": 7,
        "is_blocks": True,
        "keys": (BlocksKeyRecord(3),),
        "num_tensors": 3,
        "shape": (5,),
        "data_type": DataType.DT_UINT8,
        "placement": Placement.DEVICE,
        "batch_dim": 0,
        "addrs": (),
        "regions": {"fake/1": regions((4096, 5000), (2**40, 464))},
        "layers": layers_record(shape()),
    }
    return {**values, **changes}


def test_layers_survive_the_wire():
    changes = Changes(0, 1, (CacheRecord(**record()),), ())
    assert decode_owner_message(encode(changes)) == changes
    cache = RemoteCache(changes.added[0])
    found, sent = cache.shape, shape()
    for name in ("group", "placement", "num_blocks", "layer_names", "starts", "addrs", "kinds", "kind_of"):
        assert getattr(found, name) == getattr(sent, name), name
    assert changes.added[0].ranges == ((4096, 464), (8192, 5), (2**40, 464))
    assert repr(cache) == "<RemoteCache 7 2 layers, 3 tensors>"


def test_hundreds_of_tensors_are_told_in_few_bytes():
    many = LayersShape(
        "x", "", Placement.DEVICE, 1000, [f"model.layers.{i}.attn" for i in range(61)], [4] * 61,
        [2**40 + (i << 21) for i in range(244)], KINDS, [0, 0, 1, 1] * 61,
    )  # fmt: skip
    assert len(msgspec.msgpack.encode(layers_record(many))) < 244 * 12 + 61 * 24 + 300


@pytest.mark.parametrize(
    "changes",
    [
        {"is_blocks": False, "keys": ()},
        {"keys": (EntryKeyRecord(0, 5, NO_ID, 1),)},
        {"num_tensors": 2},
        {"shape": (4,)},
        {"shape": (5, 1)},
        {"data_type": DataType.DT_INT8},
        {"addrs": (4096, 8192, 2**40)},
        {"regions": {"fake/1": regions((4096, 5000))}},
        {"regions": {"fake/1": regions((4096, 5000), (2**40, 463))}},
        {"regions": {"fake/1": regions((4097, 5000), (2**40, 464))}},
    ],
)
def test_a_cache_of_layers_that_does_not_add_up_is_malformed(changes):
    body = {"type": "changes", "base": 0, "number": 1, "added": [record(**changes)], "removed": []}
    with pytest.raises(MalformedMessageError):
        decode_owner_message(HEAD + msgspec.msgpack.encode(body))


@pytest.mark.parametrize(
    "changes",
    [
        {"group": "g" * 201},
        {"num_blocks": 0},
        {"num_blocks": 2**63 - 1},  # the last block is beyond the address space
        {"names": ()},
        {"names": ("a", "a")},
        {"names": ("a", "")},
        {"names": ("a", "b" * 201)},
        {"names": ("a",)},
        {"counts": struct.pack("<2I", 3, 0)},
        {"counts": struct.pack("<2I", 2, 2)},
        {"counts": struct.pack("<2I", 2**31, 2**31)},
        {"counts": b"\1\2\3"},
        {"addrs": struct.pack("<3Q", 4096, 8192, 0)},
        {"addrs": struct.pack("<3Q", 4096, 8192, 2**64 - 463)},
        {"addrs": struct.pack("<2Q", 4096, 8192)},
        {"kind_of": struct.pack("<3I", 0, 1, 2)},
        {"kind_of": struct.pack("<2I", 0, 1)},
        {"kinds": ()},
        {"kinds": ([27, [4, 8], 63], [36, [], 1])},  # blocks that overlap
        {"kinds": ([13, [4, 8], 64], [36, [], 1])},  # text has no size
        {"kinds": ([27, [4, 0], 64], [36, [], 1])},
        {"kinds": ([27, [2**62, 2**62], 64], [36, [], 1])},
        {"kinds": ([27, [1] * 32, 64], [36, [], 1])},
    ],
)
def test_layers_that_do_not_add_up_are_malformed(changes):
    body = {**msgspec.structs.asdict(layers_record(shape())), **changes}
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=LayersRecord)


@given(st.dictionaries(st.sampled_from(["counts", "addrs", "kind_of"]), st.binary(max_size=40)))
def test_packed_numbers_are_refused_or_make_a_layout(changes):
    body = {**msgspec.structs.asdict(layers_record(shape())), **changes}
    try:
        found = msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=LayersRecord)
    except msgspec.ValidationError:
        return
    made = found.shape("x", Placement.DEVICE)
    assert made.num_tensors == found.num_tensors == made.starts[-1] == len(made.kind_of)


def test_a_key_and_a_group_find_their_cache_and_neither_alone_does():
    catalogue = RemoteCatalogue()
    key = BlocksCacheKey(9, 3)
    one, other = (
        RemoteCache(CacheRecord(**record(cache_id=i, layers=layers_record(shape(group)))))
        for i, group in ((7, "g"), (8, ""))
    )
    catalogue.add(one)
    catalogue.add(other)
    assert catalogue.find(key, "g") == (one, 0) and catalogue.find(key, "") == (other, 0)
    assert catalogue.find(key) is None and catalogue.find(key, "h") is None
    assert catalogue.find(BlocksCacheKey(9, 4), "g") is None
    assert "with layers of group 'g'" in catalogue.describe_keys()
    catalogue.forget(one)
    assert catalogue.find(key, "g") is None and catalogue.find(key, "") == (other, 0)
