"""The driver as the core sees it, on the emulator."""

import pytest

import cachecore as cc
from cachecore.driver import MemoryOrigin
from cachecore.testing.driver_conformance import DriverConformance


class TestDriver(DriverConformance):
    driver = "cachecore_ascend_950.plugin:DRIVER"

    def live_allocations(self, driver):
        return driver.live_allocations


@pytest.fixture
def manager():
    with cc.CacheManager(1) as manager:
        yield manager


def desc(placement=cc.Placement.DEVICE):
    return cc.CacheDesc(1, [4, 1024], cc.DataType.DT_UINT8, placement)


def test_the_driver_is_chosen_and_takes_any_device_address(manager):
    assert manager.backend.name == "ascend_950" and manager.backend.emulated
    block = manager.backend.allocate(1 << 20, cc.Placement.DEVICE).address
    for register in (manager.register_blocks_cache, manager.register_cache):
        for address in (block, block + 512, block + 1):
            cache = register(desc(), [address])
            manager.unregister_cache(cache.cache_id)


def test_host_memory_of_the_driver_is_ordinary_and_always_remotely_accessible(manager):
    address = manager.backend.allocate(4096, cc.Placement.HOST).address
    (info,) = manager.backend.describe([(address, 4096)])
    assert info.origin in (MemoryOrigin.HOST_PLAIN, MemoryOrigin.HOST_SHARED)
    cache = manager.register_blocks_cache(desc(cc.Placement.HOST), [address])
    manager.unregister_cache(cache.cache_id)
    with pytest.raises(cc.NotSupportedError, match="always on") as caught:
        manager.register_blocks_cache(desc(cc.Placement.HOST), [address], remote_accessible=False)
    assert caught.value.product == "ascend_950"


def test_pinned_host_memory_is_refused_with_the_way_out(manager):
    device = manager.backend.device_handle
    address = device.allocate_host(4096)
    try:
        with pytest.raises(cc.CacheValueError, match="ordinary memory"):
            manager.register_blocks_cache(desc(cc.Placement.HOST), [address])
    finally:
        device.free_host(address)
