"""Host memory, names and limits of the 950. That device memory is accepted at any address says the table in
tests/backends/test_registration_table.py, for every product."""

import pytest
from cachecore_ascend_950 import product

from cachecore.driver import Capability, Knowledge, MemoryInfo, MemoryOrigin, RegistrationRequest
from cachecore.errors import CacheValueError
from cachecore.types import Placement


@pytest.mark.parametrize("origin", [MemoryOrigin.HOST_PLAIN, MemoryOrigin.UNKNOWN])
def test_ordinary_host_memory_is_accepted(origin):
    request = RegistrationRequest("register", ((4097, 8192),), Placement.HOST, True)
    product.check_registration(request, [MemoryInfo(frozenset({Placement.HOST}), origin)])


def test_pinned_host_memory_is_refused_with_the_way_out():
    request = RegistrationRequest("register", ((4097, 8192),), Placement.HOST, True)
    info = MemoryInfo(frozenset({Placement.HOST}), MemoryOrigin.HOST_PINNED)
    with pytest.raises(CacheValueError, match=r"addrs\[0\] is 0x1001.*aclrtMallocHost.*ordinary memory"):
        product.check_registration(request, [info])


@pytest.mark.parametrize("soc", ["Ascend950PR_9599", "Ascend950DT_9582", "Ascend950", "ascend950x", "ASCEND950PR"])
def test_any_name_with_ascend950_in_it_is_the_product(soc):
    assert product.is_950(soc)


@pytest.mark.parametrize("soc", ["Ascend910B4", "Ascend910_9392", "Ascend310P3", "", "950"])
def test_other_names_are_not(soc):
    assert not product.is_950(soc)


def test_every_capability_has_a_source_and_says_what_is_not_supported():
    capabilities = product.capabilities(
        host_alignment=Capability(65536, "test"),
        device_alignment=Capability(64, "test"),
        copy_knowledge=Capability(Knowledge.PREFIX, "test"),
    )
    assert all(getattr(capabilities, name).source for name in type(capabilities).__dataclass_fields__)
    assert capabilities.allocate_caches.value is False and capabilities.copy_and_swap_blocks.value is False
    assert capabilities.remote_access_optional.value is False
    assert capabilities.two_sided_lifetime.value is False and capabilities.registration_status.value is False
