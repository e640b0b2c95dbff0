"""Every product, in one table: product x transport x origin x place x register function, accepted or refused."""

import itertools

import pytest
from cachecore_ascend_950 import product as line_950
from cachecore_ascend_a2a3.product import HUGE_PAGE, ProductLine, Rules, Transport

from cachecore.driver import MemoryInfo, MemoryOrigin, RegistrationRequest
from cachecore.errors import AlignmentError
from cachecore.types import Placement

PAGE, HUGE = 4096, HUGE_PAGE
BASE = 64 * HUGE
CHECKS = {
    "A2 over HCCS": Rules(ProductLine.A2, Transport.HCCS).check,
    "A2 over RoCE": Rules(ProductLine.A2, Transport.ROCE).check,
    "A3 over HCCS": Rules(ProductLine.A3, Transport.HCCS).check,
    "A3 over RoCE": Rules(ProductLine.A3, Transport.ROCE).check,
    "950": line_950.check_registration,
}
ORIGINS = (MemoryOrigin.ACLRT_MALLOC, MemoryOrigin.VMM, MemoryOrigin.SUB_ALLOCATION, MemoryOrigin.UNKNOWN)
# Page size as the runtime tells it, an address, and whether that lies on its page and on 2 MiB. 4096 bytes behind a
# 2 MiB boundary is a 4 KiB page and no huge one.
PLACES = {
    "huge page, aligned": (HUGE, BASE, True, True),
    "huge page, misaligned": (HUGE, BASE + 512, False, False),
    "small page, aligned": (PAGE, BASE + PAGE, True, False),
    "small page, misaligned": (PAGE, BASE + PAGE + 512, False, False),
    "page not known, 2 MiB aligned": (None, BASE, True, True),
    "page not known, 4 KiB aligned": (None, BASE + PAGE, False, False),
}
FUNCTIONS = ("register_blocks_cache", "register_cache")
TABLE = list(itertools.product(CHECKS, ORIGINS, PLACES, FUNCTIONS))


def accepted(product, origin, place, function):
    """From the sentences of the manual."""
    _, _, on_its_page, on_2_mib = PLACES[place]
    if "HCCS" not in product:
        return True
    if function == "register_cache":
        return on_2_mib
    return origin is MemoryOrigin.ACLRT_MALLOC or on_its_page


@pytest.mark.parametrize(
    ("product", "origin", "place", "function"),
    TABLE,
    ids=[f"{product}-{origin.name}-{place}-{function}" for product, origin, place, function in TABLE],
)
def test_cell(product, origin, place, function):
    page_size, address, _, _ = PLACES[place]
    is_blocks = function == "register_blocks_cache"
    ranges = ((BASE - HUGE, 64), (address, 8192))
    request = RegistrationRequest(function, ranges, Placement.DEVICE, True, is_blocks)
    device = frozenset({Placement.DEVICE})
    infos = [MemoryInfo(device, MemoryOrigin.ACLRT_MALLOC, HUGE), MemoryInfo(device, origin, page_size)]
    if accepted(product, origin, place, function):
        CHECKS[product](request, infos)
        return
    required = HUGE if not is_blocks or page_size is None else page_size
    with pytest.raises(AlignmentError) as caught:
        CHECKS[product](request, infos)
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
