import pytest

from cachecore.errors import CacheValueError
from cachecore.peers.records import BlocksKeyRecord, CacheRecord, EntryKeyRecord
from cachecore.peers.remote import RemoteCache, RemoteCatalogue
from cachecore.types import NO_ID, BlocksCacheKey, CacheKey, CacheKeyByIdAndIndex, DataType, Placement


def cache(cache_id, *keys, blocks=False, shape=(3, 8)):
    addrs = (cache_id << 20, (cache_id << 20) + 4096)
    return RemoteCache(
        CacheRecord(cache_id, blocks, keys, 2, shape, DataType.DT_UINT8, Placement.HOST, 0, addrs, {"fake/1": ()})
    )


@pytest.fixture
def catalogue():
    made = RemoteCatalogue()
    made.add(cache(1, BlocksKeyRecord(7), blocks=True))
    made.add(cache(2, EntryKeyRecord(0, 5, NO_ID, 1), EntryKeyRecord(0, NO_ID, 5, 2), EntryKeyRecord(4, 5, NO_ID, 0)))
    return made


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (BlocksCacheKey(9, 7), (1, 0)),
        (BlocksCacheKey(9, 8), None),
        (CacheKey(9, req_id=5), (2, 1)),
        (CacheKey(9, prefix_id=5), (2, 2)),
        (CacheKey(9, req_id=5, model_id=4), (2, 0)),
        (CacheKey(9, req_id=6), None),
        (CacheKeyByIdAndIndex(9, 2, 2), (2, 2)),
        (CacheKeyByIdAndIndex(9, 3), None),
    ],
)
def test_a_key_finds_its_cache_and_entry(catalogue, key, expected):
    found = catalogue.find(key)
    assert (found and (found.cache.cache_id, found.batch_index)) == expected


@pytest.mark.parametrize("key", [CacheKeyByIdAndIndex(9, 2, 3), CacheKey(9), CacheKey(9, req_id=5, prefix_id=5)])
def test_keys_that_cannot_name_one_entry_are_refused(catalogue, key):
    with pytest.raises(CacheValueError, match=r"batch entries|placeholder|both"):
        catalogue.find(key)


def test_a_retiring_cache_is_not_found_by_any_key(catalogue):
    catalogue.get(2).retiring = True
    assert catalogue.find(CacheKey(9, req_id=5)) is None
    assert catalogue.find(CacheKeyByIdAndIndex(9, 2, 0)) is None


def test_a_key_given_to_a_new_cache_stays_when_the_old_one_goes(catalogue):
    old, new = catalogue.get(1), cache(3, BlocksKeyRecord(7), blocks=True)
    catalogue.add(new)
    catalogue.forget(old)
    assert catalogue.find(BlocksCacheKey(9, 7)).cache is new
    assert catalogue.get(1) is None


def test_the_bases_are_ready_for_planning(catalogue):
    bases = catalogue.get(1).shape.bases
    assert (bases.format, bases.itemsize, bases.readonly, list(bases)) == ("Q", 8, True, [1 << 20, (1 << 20) + 4096])


def test_the_message_about_a_missing_key_shows_a_few(catalogue):
    for number in range(10, 30):
        catalogue.add(cache(number, BlocksKeyRecord(number), blocks=True))
    text = catalogue.describe_keys()
    assert "BlocksCacheKey(model_id=7)" in text and "and 19 more" in text and len(text) < 400
    assert RemoteCatalogue().describe_keys() == "it offers no cache at all"


def test_new_keys_name_the_same_object_and_old_ones_nothing(catalogue):
    old = catalogue.get(2)
    renamed = cache(2, EntryKeyRecord(0, 5, NO_ID, 0), EntryKeyRecord(0, 8, NO_ID, 2)).record
    catalogue.rename(old, renamed)
    assert catalogue.find(CacheKey(9, req_id=5)) == (old, 0)
    assert catalogue.find(CacheKey(9, req_id=8)) == (old, 2)
    assert (
        catalogue.find(CacheKey(9, prefix_id=5)) is None and catalogue.find(CacheKey(9, req_id=5, model_id=4)) is None
    )
    assert catalogue.get(2) is old
