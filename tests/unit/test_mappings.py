"""Registration can trust what is said about addresses: mapped, readable and writable, ordinary memory."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from cachecore import _core, errors

PAGE = mmap.PAGESIZE


class Pages:
    """Anonymous pages whose protection can be changed."""

    def __init__(self, count: int) -> None:
        self._bytes = mmap.mmap(-1, count * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._bytes))

    def protect(self, page: int, protection: int) -> int:
        """Returns the address of the page."""
        libc = ctypes.CDLL(None, use_errno=True)
        address = self.base + page * PAGE
        assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), protection) == 0
        return address


def describe(address: int, nbytes: int) -> _core.RangeMapping:
    [found] = _core.describe_mappings([(address, nbytes)])
    return found


def test_memory_of_this_process_is_accessible_to_its_last_byte() -> None:
    pages = Pages(4)
    found = describe(pages.base + 1, 4 * PAGE - 1)
    assert (found.accessible, found.fault_address, found.permissions, found.special) == (True, 0, "rw-p", False)


@pytest.mark.parametrize(
    ("protection", "permissions"), [(mmap.PROT_READ, "r--p"), (0, "---p"), (mmap.PROT_READ | mmap.PROT_EXEC, "r-xp")]
)
def test_a_page_that_is_not_writable_is_found_anywhere_in_a_range(protection: int, permissions: str) -> None:
    pages = Pages(5)
    bad = pages.protect(2, protection)
    found = describe(pages.base, 5 * PAGE)
    assert (found.accessible, found.fault_address, found.permissions) == (False, bad, permissions)
    assert describe(bad + PAGE - 1, 1).fault_address == bad + PAGE - 1
    assert describe(pages.base, 2 * PAGE).accessible
    assert not describe(pages.base, 2 * PAGE + 1).accessible
    assert describe(bad + PAGE, 2 * PAGE).accessible


def test_neighbouring_mappings_count_together() -> None:
    pages = Pages(3)
    pages.protect(1, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    assert describe(pages.base, 3 * PAGE).accessible


def test_a_hole_is_named_by_its_first_byte() -> None:
    block = _core.SharedBlock(2 * PAGE)
    end = block.address + 2 * PAGE
    block.close()
    found = describe(end - 2 * PAGE + 5, 10)
    assert (found.accessible, found.fault_address, found.permissions) == (False, end - 2 * PAGE + 5, "unmapped")


@pytest.mark.parametrize(("address", "nbytes"), [(0, 1), (2**64 - 1, 1), (2**64 - 1, 2), (2**63, 2**63), (4096, 0)])
def test_impossible_ranges_are_unmapped(address: int, nbytes: int) -> None:
    found = describe(address, nbytes)
    assert (found.accessible, found.permissions, found.fault_address) == (False, "unmapped", address)


def test_answers_come_in_the_order_of_the_questions() -> None:
    pages = Pages(2)
    bad = pages.protect(1, mmap.PROT_READ)
    found = _core.describe_mappings([(bad, PAGE), (pages.base, PAGE)] * 200)
    assert [item.accessible for item in found] == [False, True] * 200


def test_kernel_pages_are_special_and_files_and_shared_memory_are_not(tmp_path: Path) -> None:
    vdso = next(line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[vdso]"))
    found = describe(int(vdso.split("-")[0], 16), PAGE)
    assert (found.special, found.accessible, found.path) == (True, False, "[vdso]")

    block = _core.SharedBlock(PAGE)
    assert "memfd:cachecore" in describe(block.address, PAGE).path
    path = tmp_path / "two words"
    path.write_bytes(bytes(PAGE))
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), PAGE)
    found = describe(ctypes.addressof(ctypes.c_char.from_buffer(mapped)), PAGE)
    assert (found.accessible, found.special, found.path, found.permissions) == (True, False, str(path), "rw-s")
    assert not describe(block.address, PAGE).special


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm")
def test_posix_shared_memory_is_ordinary_although_it_lies_under_dev() -> None:
    path = Path("/dev/shm") / f"cachecore-test-{os.getpid()}"
    try:
        path.write_bytes(bytes(PAGE))
        with path.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), PAGE)
    finally:
        path.unlink(missing_ok=True)
    found = describe(ctypes.addressof(ctypes.c_char.from_buffer(mapped)), PAGE)
    assert (found.accessible, found.special) == (True, False)


def test_ranges_that_are_no_pairs_of_integers_are_refused() -> None:
    for bad in ([(1, 2, 3)], [(1,)], [(-1, 1)]):
        with pytest.raises(errors.CacheValueError, match="range"):
            _core.describe_mappings(bad)  # type: ignore[arg-type]
    with pytest.raises(errors.CacheTypeError, match=r"range\[1\] is 1.0"):
        _core.describe_mappings([(1, 1.0)])  # type: ignore[list-item]
