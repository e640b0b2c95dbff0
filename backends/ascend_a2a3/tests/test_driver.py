"""The driver as the core sees it, on the emulator."""

import dataclasses

import pytest
from cachecore_ascend_a2a3 import options
from cachecore_ascend_a2a3.driver import create_driver
from cachecore_ascend_a2a3.product import (
    A2_SOCS,
    A3_SOCS,
    HUGE_PAGE,
    ProductLine,
    Transport,
    capabilities,
    host_byte_limit,
    product_line,
    serves,
)

from cachecore.driver import Capability, DeviceInfo, MemoryOrigin
from cachecore.errors import CacheTypeError, CacheValueError
from cachecore.testing.driver_conformance import DriverConformance
from cachecore.types import Placement


class TestOverHccs(DriverConformance):
    driver = "cachecore_ascend_a2a3.plugin:DRIVER"
    device = 0

    def live_allocations(self, driver):
        return driver.live_allocations


class TestOverRoce(TestOverHccs):
    device = 1
    options = {"transport": "roce"}


@pytest.fixture
def driver():
    driver = create_driver(0, {})
    driver.bind_thread()
    yield driver
    driver.close()


def test_aligned_memory_satisfies_the_rule_and_is_known_as_aclrt_malloc(driver):
    allocation = driver.allocate_aligned(5000)
    (info,) = driver.describe([(allocation.address, 5000)])
    assert allocation.address % HUGE_PAGE == 0
    assert (info.placements, info.origin, info.page_size) == (
        {Placement.DEVICE},
        MemoryOrigin.ACLRT_MALLOC,
        HUGE_PAGE,
    )


def test_every_capability_has_a_source(driver):
    facts = driver.capabilities()
    assert all(getattr(facts, field.name).source for field in dataclasses.fields(facts))
    assert facts.address_budget.value == 240
    assert facts.max_registered_device_bytes.value == 50 << 30


@pytest.mark.parametrize(
    ("line", "transport", "may"),
    [
        (ProductLine.A2, Transport.HCCS, True),
        (ProductLine.A2, Transport.ROCE, True),
        (ProductLine.A3, Transport.HCCS, False),
        (ProductLine.A3, Transport.ROCE, True),
    ],
)
def test_keys_may_be_consumed_on_a2_and_on_a3_over_roce(line, transport, may):
    fact = Capability(None, "a test")
    facts = capabilities(
        line, transport, host_bytes=fact, host_alignment=fact, device_alignment=fact, copy_knowledge=fact
    )
    assert facts.two_sided_lifetime.value is may


@pytest.mark.parametrize(
    ("version", "limit"),
    [("", 20 << 30), ("24.1.rc3", 20 << 30), ("25.4.9", 20 << 30), ("25.5.0", 1 << 40), ("26.0", 1 << 40)],
)
def test_the_limit_of_host_memory_depends_on_the_driver_version(version, limit):
    assert host_byte_limit(Capability(version, "a test")).value == limit


def test_the_version_can_be_given_where_it_cannot_be_asked():
    driver = create_driver(0, {"hdk_version": "25.5.1"})
    fact = driver.capabilities().max_registered_host_bytes
    assert fact.value == 1 << 40 and "hdk_version" in fact.source
    driver.close()


def test_910b_is_not_taken_for_the_older_910():
    assert {product_line(soc).name for soc in A2_SOCS} == {"A2"}
    assert {product_line(soc).name for soc in A3_SOCS} == {"A3"}
    for soc in (
        "Ascend910",
        "Ascend910A",
        "Ascend910ProB",
        "Ascend910B",
        "Ascend910B9",
        "Ascend910_9399",
        "ascend910b1",
    ):
        assert product_line(soc) is None
        assert not serves(DeviceInfo("ascend", soc, 1, "a test"))
    assert not serves(None)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"transport": "tcp"}, CacheValueError, "'hccs', 'roce'"),
        ({"transport": 1}, CacheTypeError, "transport"),
        ({"page_size": 3000}, CacheValueError, "power of two"),
        ({"page_size": True}, CacheTypeError, "page_size"),
        ({"assume_origin": "malloc"}, CacheValueError, "'aclrtMalloc'"),
        ({"hdk_version": "new"}, CacheValueError, "25.5.0"),
        ({"on_misaligned": "ignore"}, CacheValueError, "'error', 'warn'"),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(given, error, text):
    with pytest.raises(error, match=text) as caught:
        options.read(given)
    assert "options['ascend_a2a3." in str(caught.value)


def test_the_option_wins_over_the_vendors_variable(monkeypatch):
    monkeypatch.setenv(options.ROCE_VARIABLE, "1")
    assert options.read({}).transport is Transport.ROCE
    assert options.read({"transport": "hccs"}).transport is Transport.HCCS
    monkeypatch.setenv(options.ROCE_VARIABLE, "0")
    assert options.read({}).transport is Transport.HCCS
