"""Code written for the vendor's CacheManager finds each of its methods, with the same parameters in the same order.

Names, order and defaults from CANN 9.x, Ascend LLM-DataDist, CacheManager. What follows them here is keyword-only.
"""

import inspect

import pytest

import cachecore as cc

LAYERS = {"src_layer_range": None, "dst_layer_range": None, "tensor_num_per_layer": 2}
NONE = inspect.Parameter.empty

#: Parameters that may be given by position, with their defaults, and those the vendor takes by keyword.
METHODS = {
    "register_cache": ({"cache_desc": NONE, "addrs": NONE, "cache_keys": (), "remote_accessible": None}, {}),
    "register_blocks_cache": (
        {"cache_desc": NONE, "addrs": NONE, "blocks_cache_key": None, "remote_accessible": None},
        {},
    ),
    "unregister_cache": ({"cache_id": NONE}, {}),
    "allocate_cache": ({"cache_desc": NONE, "cache_keys": ()}, {}),
    "allocate_blocks_cache": ({"cache_desc": NONE, "blocks_cache_key": None}, {}),
    "deallocate_cache": ({"cache": NONE}, {}),
    "deallocate_blocks_cache": ({"cache": NONE}, {}),
    "remove_cache_key": ({"cache_key": NONE}, {}),
    "pull_cache": ({"cache_key": NONE, "cache": NONE, "batch_index": 0, "size": -1}, LAYERS),
    "pull_blocks": ({"src_cache_key": NONE, "dst_cache": NONE, "src_blocks": (), "dst_blocks": ()}, LAYERS),
    "push_cache": (
        {
            "dst_cache_key": NONE,
            "src_cache": NONE,
            "src_batch_index": 0,
            "src_layer_range": None,
            "dst_layer_range": None,
            "size": -1,
            "tensor_num_per_layer": 2,
        },
        {},
    ),
    "push_blocks": ({"dst_cache_key": NONE, "src_cache": NONE, "src_blocks": (), "dst_blocks": (), **LAYERS}, {}),
    "transfer_cache_async": (
        {
            "src_cache": NONE,
            "layer_synchronizer": NONE,
            "transfer_configs": NONE,
            "src_block_indices": None,
            "dst_block_indices": None,
            "dst_block_memory_size": None,
        },
        {},
    ),
    "copy_cache": (
        {
            "dst": NONE,
            "src": NONE,
            "dst_batch_index": 0,
            "src_batch_index": 0,
            "offset": 0,
            "size": -1,
            "req_id": None,
        },
        {},
    ),
    "copy_blocks": ({"cache": NONE, "copy_block_info": NONE}, {}),
    "swap_blocks": ({"src_cache": NONE, "dst_cache": NONE, "src_to_dst": NONE}, {}),
    "remap_registered_memory": ({"mem_infos": NONE}, {}),
}


@pytest.mark.parametrize("name", METHODS)
def test_parameters_are_those_of_the_vendor(name):
    positional, by_keyword = METHODS[name]
    found = dict(inspect.signature(getattr(cc.CacheManager, name)).parameters)
    del found["self"]
    given = {p.name: p.default for p in found.values() if p.kind is p.POSITIONAL_OR_KEYWORD}
    assert list(given.items()) == list(positional.items())
    own = {p.name: p for p in found.values() if p.kind is p.KEYWORD_ONLY}
    assert {key: own[key].default for key in by_keyword} == by_keyword
    assert all(p.default is not NONE for p in own.values()), "what we added can be left out"
