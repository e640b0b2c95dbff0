import msgspec
import pytest

from cachecore.errors import CacheError, CacheNotFoundError, CacheValueError
from cachecore.peers import catalogue as module
from cachecore.peers.catalogue import Catalogue
from cachecore.peers.messages import Changes, Snapshot
from cachecore.peers.records import CacheRecord, EntryKeyRecord
from cachecore.types import DataType, Placement


def record(cache_id, descriptor=b""):
    regions = {"fake/1": ((4096, 4096, Placement.HOST, descriptor),)} if descriptor else {}
    return CacheRecord(cache_id, False, (), 1, (4,), DataType.DT_UINT8, Placement.HOST, 0, (4096,), regions)


def ids(message):
    added = message.added if isinstance(message, Changes) else message.records
    return [one.cache_id for one in added]


def test_a_reader_gets_exactly_what_it_has_missed():
    catalogue = Catalogue()
    catalogue.add([record(1), record(2)])
    catalogue.add([record(3)])
    catalogue.retire([2])
    catalogue.remove([2])
    assert catalogue.since(1) == Changes(1, 3, (record(3),), (2,))
    assert catalogue.since(2) == Changes(2, 3, (), (2,))
    assert catalogue.since(3) == Changes(3, 3, (), ())


def test_what_is_retiring_is_never_offered_again_even_to_those_who_missed_it():
    catalogue = Catalogue()
    catalogue.add([record(1), record(2)])
    catalogue.retire([1])
    assert ids(catalogue.since(0)) == [2]
    assert ids(catalogue.snapshot(1)) == [2]
    assert catalogue.record(1) is not None


def test_an_id_is_never_used_twice():
    catalogue = Catalogue()
    catalogue.add([record(1)])
    with pytest.raises(CacheError, match="published before"):
        catalogue.add([record(2), record(1)])
    with pytest.raises(CacheError, match="published before"):
        catalogue.add([record(3), record(3)])
    assert ids(catalogue.snapshot(0)) == [1]


def test_only_what_is_published_can_be_retired():
    catalogue = Catalogue()
    catalogue.add([record(1)])
    with pytest.raises(CacheNotFoundError, match=r"\[2\]"):
        catalogue.retire([1, 2])
    assert not catalogue.retiring


def test_removals_that_are_forgotten_are_replaced_by_everything(monkeypatch):
    monkeypatch.setattr(module, "_REMEMBERED_REMOVALS", 3)
    catalogue = Catalogue()
    for cache_id in range(1, 6):
        catalogue.add([record(cache_id)])
    for cache_id in range(1, 5):
        catalogue.remove([cache_id])
    assert isinstance(catalogue.since(5), Snapshot)
    assert catalogue.since(6) == Changes(6, 9, (), (2, 3, 4))
    assert ids(catalogue.since(0)) == [5]


def test_a_catalogue_that_would_not_fit_a_message_is_refused_before_it_is_sent(monkeypatch):
    monkeypatch.setattr(module, "MAX_CATALOGUE_BYTES", 5000)
    catalogue = Catalogue()
    catalogue.add([record(1, bytes(3000))])
    with pytest.raises(CacheValueError, match="of at most 5000"):
        catalogue.add([record(2, bytes(3000))])
    assert (catalogue.number, ids(catalogue.snapshot(0))) == (1, [1])
    catalogue.remove([1])
    catalogue.add([record(2, bytes(3000))])


def test_other_keys_of_a_cache_are_one_change_and_nothing_else_of_it_can_change(monkeypatch):
    catalogue = Catalogue()
    catalogue.add([record(1), record(2)])
    named = msgspec.structs.replace(record(1), keys=(EntryKeyRecord(0, 5, 6, 0),))
    assert catalogue.replace(named) and not catalogue.replace(named)
    assert catalogue.since(1) == Changes(1, 2, (named,), ())
    with pytest.raises(CacheError, match="another geometry"):
        catalogue.replace(msgspec.structs.replace(named, addrs=(8192,)))
    with pytest.raises(CacheNotFoundError, match="cache 3 is not published"):
        catalogue.replace(record(3))
    monkeypatch.setattr(module, "MAX_CATALOGUE_BYTES", catalogue._bytes + 10)
    with pytest.raises(CacheValueError, match="at most"):
        catalogue.replace(msgspec.structs.replace(record(2), keys=named.keys))
    catalogue.replace(record(1))
    catalogue.replace(record(1))
    assert (catalogue.number, catalogue.since(1)) == (3, Changes(1, 3, (record(1),), ()))
