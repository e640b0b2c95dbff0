"""What the vendor's API asks about registered memory: the status of a link, remapping after a fault."""

import pickle

import pytest

import cachecore as cc
from cachecore.driver import UNKNOWN, Capability

DEVICE, HOST = cc.Memtype.MEM_TYPE_DEVICE, cc.Memtype.MEM_TYPE_HOST


@pytest.fixture
def manager():
    with cc.CacheManager(1, backend="host") as manager:
        yield manager


def test_mem_info_is_a_checked_value():
    info = cc.MemInfo(DEVICE, 4096, 100)
    assert (info.mem_type, info.addr, info.size) == (DEVICE, 4096, 100)
    assert pickle.loads(pickle.dumps(info)) == info == cc.MemInfo(DEVICE, 4096, 100) != cc.MemInfo(HOST, 4096, 100)
    assert len({info, cc.MemInfo(DEVICE, 4096, 100)}) == 1
    with pytest.raises(AttributeError):
        info.size = 5
    for wrong, error, text in (
        ((None, 1, 1), AttributeError, "mem_type is None"),
        ((0, 1, 1), TypeError, "a Memtype"),
        ((DEVICE, None, 1), AttributeError, "addr is None"),
        ((DEVICE, 0, 1), ValueError, "addr is 0"),
        ((DEVICE, 1, 0), ValueError, "size is 0"),
        ((DEVICE, True, 1), TypeError, "addr"),
        ((DEVICE, 2**64 - 1, 2), ValueError, "past the address space"),
    ):
        with pytest.raises(error, match=text):
            cc.MemInfo(*wrong)


def test_remapping_is_refused_with_product_and_feature_after_its_arguments(manager):
    for wrong, error, text in (
        (None, AttributeError, "mem_infos is None"),
        (5, TypeError, "mem_infos is 5"),
        ([], ValueError, "mem_infos is empty"),
        ([cc.MemInfo(DEVICE, 1, 1), None], AttributeError, r"mem_infos\[1\] is None"),
        ([cc.MemInfo(HOST, 1, 1)], ValueError, r"mem_infos\[0\].*only device memory"),
    ):
        with pytest.raises(error, match=text):
            manager.remap_registered_memory(wrong)
    for right in (cc.MemInfo(DEVICE, 1, 1), [cc.MemInfo(DEVICE, 1, 1)], (cc.MemInfo(DEVICE, 1, 1),)):
        with pytest.raises(cc.NotSupportedError, match="register them again") as caught:
            manager.remap_registered_memory(right)
        assert (caught.value.product, caught.value.feature) == ("host", "remap_registered_memory")
        assert caught.value.status_code is cc.StatusCode.FEATURE_NOT_ENABLED


def test_the_status_of_registrations_is_asked_by_link(manager):
    with pytest.raises(AttributeError, match="comm_id is None"):
        manager.query_register_mem_status(None)
    with pytest.raises(TypeError, match="comm_id"):
        manager.query_register_mem_status("1")
    with pytest.raises(cc.NotLinkedError):
        manager.query_register_mem_status(7)
    with cc.CacheManager(7, backend="host", listen="127.0.0.1:0") as peer:
        manager.link(7, peer.address, timeout=10)
        assert manager.query_register_mem_status(7) is cc.RegisterMemStatus.OK


@pytest.mark.parametrize(
    ("value", "text"), [(False, "does not offer it"), (UNKNOWN, "is not known to offer it")], ids=str
)
def test_a_product_without_the_status_says_so(manager, value, text):
    object.__setattr__(manager.backend.capabilities(), "registration_status", Capability(value, "page 9"))
    with pytest.raises(cc.NotSupportedError, match=rf"{text} \(page 9\)") as caught:
        manager.query_register_mem_status(7)
    assert caught.value.feature == "query_register_mem_status"
