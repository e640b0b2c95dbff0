"""Memory shared with another process cannot be shrunk under it, and is given back when closed."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from cachecore import _core, errors

PAGE = mmap.PAGESIZE


@pytest.fixture
def block() -> Iterator[_core.SharedBlock]:
    with closing(_core.SharedBlock(3 * PAGE + 1)) as shared:
        yield shared


@pytest.mark.parametrize("alignment", [0, 1, PAGE, 2 * 2**20, 2**30])
def test_memory_is_aligned_zeroed_and_writable_to_its_end(alignment: int) -> None:
    with closing(_core.SharedBlock(5 * PAGE, alignment)) as shared:
        assert shared.address % max(alignment, PAGE) == 0
        [found] = _core.describe_mappings([(shared.address, shared.nbytes)])
        assert found.accessible
        assert ctypes.string_at(shared.address, shared.nbytes) == bytes(5 * PAGE)
        ctypes.memset(shared.address, 1, shared.nbytes)


def test_another_process_sees_what_is_written(block: _core.SharedBlock) -> None:
    ctypes.memmove(block.address, b"from owner", 10)
    code = f"""
import ctypes
from cachecore._core import map_shared
block = map_shared({block.fd}, {block.nbytes}, writable=True)
assert ctypes.string_at(block.address, 10) == b"from owner"
ctypes.memmove(block.address + {block.nbytes} - 4, b"back", 4)
"""
    subprocess.run([sys.executable, "-I", "-c", code], check=True, pass_fds=[block.fd], timeout=60)
    assert ctypes.string_at(block.address + block.nbytes - 4, 4) == b"back"


def test_the_owner_cannot_change_the_size(block: _core.SharedBlock) -> None:
    for size in (0, 2**20):
        with pytest.raises(PermissionError):
            os.ftruncate(block.fd, size)


def test_a_mapping_without_writing_is_read_only(block: _core.SharedBlock) -> None:
    with closing(_core.map_shared(block.fd, block.nbytes)) as mapped:
        [found] = _core.describe_mappings([(mapped.address, mapped.nbytes)])
        assert (found.accessible, found.permissions, mapped.fd) == (False, "r--s", -1)


def test_prefault_makes_every_page_present() -> None:
    with closing(_core.SharedBlock(64 * PAGE)) as lazy, closing(_core.SharedBlock(64 * PAGE, prefault=True)) as present:
        assert os.fstat(lazy.fd).st_blocks == 0
        assert os.fstat(present.fd).st_blocks * 512 >= 64 * PAGE


def test_memory_that_its_owner_could_take_away_is_not_mapped(block: _core.SharedBlock) -> None:
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(unsealed, PAGE)
        with pytest.raises(errors.CacheValueError, match="sealed against shrinking"):
            _core.map_shared(unsealed, PAGE)
    finally:
        os.close(unsealed)
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        file.truncate(PAGE)
        with pytest.raises(errors.CacheValueError, match="seal"):
            _core.map_shared(file.fileno(), PAGE)
    with pytest.raises(errors.CacheValueError, match=r"errno 9"):
        _core.map_shared(-1, PAGE)
    _core.map_shared(block.fd, 4 * PAGE).close()
    with pytest.raises(errors.CacheValueError, match=rf"has {4 * PAGE} bytes"):
        _core.map_shared(block.fd, 4 * PAGE + 1)


def test_close_gives_memory_and_descriptor_back(block: _core.SharedBlock) -> None:
    address, fd = block.address, block.fd
    block.close()
    block.close()
    assert block.fd == -1
    [found] = _core.describe_mappings([(address, 1)])
    assert "memfd:cachecore" not in found.path
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    with pytest.raises(errors.CacheValueError, match="was closed"):
        _ = block.address


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"nbytes": 0}, errors.CacheValueError, "nbytes is 0"),
        ({"nbytes": 2**63}, errors.CacheValueError, "nbytes is 9223372036854775808"),
        ({"nbytes": PAGE, "alignment": 3}, errors.CacheValueError, "alignment is 3"),
        ({"nbytes": PAGE, "alignment": 2**41}, errors.CacheValueError, "alignment is 2199023255552"),
        ({"nbytes": 1.0}, errors.CacheTypeError, "nbytes is 1.0"),
        ({"nbytes": 2**62}, errors.CacheOutOfMemoryError, "4611686018427387904 bytes .* ask for less"),
    ],
)
def test_memory_that_cannot_be_had_is_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(error, match=message):
        _core.SharedBlock(**arguments)
    assert set(os.listdir("/proc/self/fd")) == before, "no descriptor stays behind"
