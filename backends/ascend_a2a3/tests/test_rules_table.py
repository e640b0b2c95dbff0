"""Every cell of: product line x transport x origin x aligned or not x register function."""

import itertools

import pytest
from cachecore_ascend_a2a3.product import HUGE_PAGE, MisalignedMemoryWarning, ProductLine, Rules, Transport

from cachecore.driver import MemoryInfo, MemoryOrigin, RegistrationRequest
from cachecore.errors import AlignmentError, CacheValueError
from cachecore.types import Placement

PAGE, HUGE = 4096, HUGE_PAGE
BASE = 64 * HUGE
DEVICE_ORIGINS = (MemoryOrigin.ACLRT_MALLOC, MemoryOrigin.VMM, MemoryOrigin.SUB_ALLOCATION, MemoryOrigin.UNKNOWN)
# Page size as the runtime tells it, and an address that is on such a page or only 512 bytes behind it. The last one
# lies on a 4 KiB page and on no huge one.
PLACES = {
    "huge page, aligned": (HUGE, BASE, True, True),
    "huge page, misaligned": (HUGE, BASE + 512, False, False),
    "small page, aligned": (PAGE, BASE + PAGE, True, False),
    "small page, misaligned": (PAGE, BASE + PAGE + 512, False, False),
    "page not known, 2 MiB aligned": (None, BASE, True, True),
    "page not known, 4 KiB aligned": (None, BASE + PAGE, False, False),
}
TABLE = list(itertools.product(ProductLine, Transport, DEVICE_ORIGINS, PLACES, (True, False)))


def expected(transport, origin, place, is_blocks):
    """Accepted or not, from the sentences of the manual."""
    _, _, on_its_page, on_2_mib = PLACES[place]
    if transport is Transport.ROCE:
        return True
    if not is_blocks:
        return on_2_mib
    return origin is MemoryOrigin.ACLRT_MALLOC or on_its_page


def request(address, *, is_blocks=True, placement=Placement.DEVICE, remote=True, function=None):
    name = function or ("register_blocks_cache" if is_blocks else "register_cache")
    return RegistrationRequest(name, ((BASE - HUGE, 64), (address, 8192)), placement, remote, is_blocks)


def infos(origin, page_size, reason=""):
    good = MemoryInfo(frozenset({Placement.DEVICE}), MemoryOrigin.ACLRT_MALLOC, HUGE)
    return [good, MemoryInfo(frozenset({Placement.DEVICE}), origin, page_size, reason=reason)]


@pytest.mark.parametrize(
    ("line", "transport", "origin", "place", "is_blocks"),
    TABLE,
    ids=[f"{a.name}-{b.name}-{c.name}-{d}-{'blocks' if e else 'contiguous'}" for a, b, c, d, e in TABLE],
)
def test_cell(line, transport, origin, place, is_blocks):
    page_size, address, _, _ = PLACES[place]
    rules = Rules(line, transport)
    if expected(transport, origin, place, is_blocks):
        rules.check(request(address, is_blocks=is_blocks), infos(origin, page_size))
        return
    required = HUGE if not is_blocks or page_size is None else page_size
    with pytest.raises(AlignmentError) as caught:
        rules.check(request(address, is_blocks=is_blocks), infos(origin, page_size))
    error = caught.value
    assert (error.tensor_index, error.address, error.alignment) == (1, address, required)
    assert error.origin == origin.value
    text = str(error)
    for part in (
        "addrs[1]",
        f"{address:#x}",
        origin.value,
        "page size",
        f"{address % required} bytes behind",
        f"{required - address % required} before",
        "allocate_aligned",
        "aligned_view",
    ):
        assert part in text, part


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
