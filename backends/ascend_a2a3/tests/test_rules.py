"""What options change in the alignment rule, and host memory. Which device memory is accepted says the table in
tests/backends/test_registration_table.py, for every product."""

import pytest
from cachecore_ascend_a2a3.product import HUGE_PAGE, MisalignedMemoryWarning, ProductLine, Rules, Transport

from cachecore.driver import MemoryInfo, MemoryOrigin, RegistrationRequest
from cachecore.errors import AlignmentError, CacheValueError
from cachecore.types import Placement

PAGE, HUGE = 4096, HUGE_PAGE
BASE = 64 * HUGE


def request(address, *, is_blocks=True, placement=Placement.DEVICE, remote=True, function=None):
    name = function or ("register_blocks_cache" if is_blocks else "register_cache")
    return RegistrationRequest(name, ((BASE - HUGE, 64), (address, 8192)), placement, remote, is_blocks)


def infos(origin, page_size, reason=""):
    good = MemoryInfo(frozenset({Placement.DEVICE}), MemoryOrigin.ACLRT_MALLOC, HUGE)
    return [good, MemoryInfo(frozenset({Placement.DEVICE}), origin, page_size, reason=reason)]


def test_memory_that_does_not_travel_is_not_asked_to_be_aligned():
    rules = Rules(ProductLine.A2, Transport.HCCS)
    rules.check(request(BASE + 512, remote=False), infos(MemoryOrigin.VMM, HUGE))


def test_an_assumed_origin_is_used_only_where_the_runtime_cannot_tell():
    rules = Rules(ProductLine.A2, Transport.HCCS, assume_origin=MemoryOrigin.ACLRT_MALLOC)
    rules.check(request(BASE + 512), infos(MemoryOrigin.UNKNOWN, HUGE))
    with pytest.raises(AlignmentError):
        rules.check(request(BASE + 512), infos(MemoryOrigin.VMM, HUGE))


def test_an_assumed_page_size_is_used_only_where_the_runtime_cannot_tell():
    rules = Rules(ProductLine.A2, Transport.HCCS, page_size=PAGE)
    rules.check(request(BASE + PAGE), infos(MemoryOrigin.VMM, None))
    with pytest.raises(AlignmentError):
        rules.check(request(BASE + PAGE), infos(MemoryOrigin.VMM, HUGE))


def test_a_warning_instead_of_an_error_only_on_request():
    rules = Rules(ProductLine.A2, Transport.HCCS, on_misaligned="warn")
    with pytest.warns(MisalignedMemoryWarning, match="linking may fail"):
        rules.check(request(BASE + 512), infos(MemoryOrigin.VMM, HUGE))


@pytest.mark.parametrize("line", ProductLine)
def test_host_memory_travels_over_roce_only_and_from_aclrt_malloc_host_only(line):
    pinned = infos(MemoryOrigin.HOST_PINNED, PAGE)[1:] * 2
    plain = infos(MemoryOrigin.HOST_PLAIN, PAGE, "no pinned allocation contains it")[1:] * 2
    host = request(BASE + 8, placement=Placement.HOST)
    with pytest.raises(CacheValueError, match="only device memory"):
        Rules(line, Transport.HCCS).check(host, pinned)
    Rules(line, Transport.ROCE).check(host, pinned)
    with pytest.raises(CacheValueError, match=r"addrs\[0\].*aclrtMallocHost"):
        Rules(line, Transport.ROCE).check(host, plain)
    Rules(line, Transport.HCCS).check(request(BASE + 8, placement=Placement.HOST, remote=False), plain)
