import contextlib
import ctypes
import mmap
import os
import subprocess
import sys
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np
import pytest

from cachecore.driver import DeviceInfo, MemoryOrigin
from cachecore.errors import CacheOutOfMemoryError, CacheTypeError, CacheValueError
from cachecore.host.driver import HostDriver, create_driver
from cachecore.host.plugin import DRIVER
from cachecore.outcome import FailureCause, OutcomeState
from cachecore.plugins import discover
from cachecore.testing import MemoryHarness
from cachecore.testing.harness import plan_bytes
from cachecore.types import Placement

PAGE = mmap.PAGESIZE
FOREVER = float("inf")


@pytest.fixture
def driver():
    made = HostDriver()
    yield made
    made.close()


def describe(driver, base, nbytes):
    return driver.describe([(base, nbytes)])[0]


def address_of(buffer):
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


# --- describe -----------------------------------------------------------------------------------------------------


def test_memory_of_every_usual_origin_is_accepted(driver, tmp_path):
    """What callers bring: numpy, malloc, anonymous and shared mappings, files, small and large."""
    small, large = np.zeros(100, np.uint8), np.zeros(64 << 20, np.uint8)
    malloc = ctypes.create_string_buffer(1000)
    anonymous = mmap.mmap(-1, 3 * PAGE)
    private = mmap.mmap(-1, 3 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    (tmp_path / "file").write_bytes(bytes(3 * PAGE))
    shared = shared_memory.SharedMemory(create=True, size=3 * PAGE)
    try:
        with open(tmp_path / "file", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            ranges = [
                (small.ctypes.data, 100),
                (large.ctypes.data, large.nbytes),
                (ctypes.addressof(malloc), 1000),
                (address_of(anonymous), 3 * PAGE),
                (address_of(private) + 5, PAGE),
                (address_of(mapped), 3 * PAGE),
                (address_of(shared.buf), 3 * PAGE),
            ]
            infos = driver.describe(ranges)
        assert [info.placements for info in infos] == [set(Placement)] * len(ranges)
        assert {info.origin for info in infos} == {MemoryOrigin.HOST_PLAIN}
    finally:
        shared.close()
        shared.unlink()


def test_memory_that_cannot_be_used_is_refused_with_the_reason(driver):
    with MemoryHarness(driver, foreign=True) as memory:
        address = memory.allocate(4 * PAGE)
        memory.hide(address + 2 * PAGE, PAGE)
        closed = describe(driver, address, 4 * PAGE)
        assert closed.placements == frozenset()
        assert f"{address + 2 * PAGE:#x} ({2 * PAGE} bytes from the start)" in closed.reason
        assert "without read access" in closed.reason
        assert describe(driver, address, 2 * PAGE).placements == set(Placement)
    gone = describe(driver, address, PAGE)
    assert gone.placements == frozenset()
    assert f"{address:#x} is not mapped" in gone.reason
    assert "is empty" in describe(driver, address, 0).reason
    assert "past the address space" in describe(driver, 2**64 - 1, 2).reason


def test_read_only_memory_is_refused(driver):
    constant = np.frombuffer(mmap.mmap(-1, PAGE, prot=mmap.PROT_READ), np.uint8)
    info = describe(driver, constant.ctypes.data, PAGE)
    assert info.placements == frozenset()
    assert "mapped read-only" in info.reason


def test_memory_that_is_no_memory_is_refused(driver):
    """Pages of the kernel stand for those of a device: the processor must not copy to and from either."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [line.split()[0] for line in lines if line.endswith("[vvar]")]
    if not spans:
        pytest.skip("this kernel maps no pages of its own")
    start, end = (int(part, 16) for part in spans[0].split("-"))
    info = describe(driver, start, end - start)
    assert info.placements == frozenset()
    assert "[vvar]" in info.reason


def test_own_memory_is_known_with_its_block(driver):
    allocation = driver.allocate(3 << 20, Placement.DEVICE)
    info = describe(driver, allocation.address + 100, 1000)
    assert (info.origin, info.block_base, info.block_bytes) == (
        MemoryOrigin.HOST_SHARED,
        allocation.address,
        allocation.nbytes,
    )


# --- allocate -----------------------------------------------------------------------------------------------------


def test_alignment_is_64_kib_at_least_and_up_to_1_gib_on_request(driver):
    assert all(driver.allocate(n, Placement.HOST).address % 65536 == 0 for n in (1, 5000, 70_000, 3 << 20))
    assert driver.allocate(5000, Placement.HOST, 1 << 30).address % (1 << 30) == 0
    with pytest.raises(CacheValueError, match="alignment is 2147483648"):
        driver.allocate(5000, Placement.HOST, 2 << 30)


def memory_files():
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing itself
            if "memfd:cachecore" in os.readlink(f"/proc/self/fd/{name}"):
                found.add(int(name))
    return found


def test_each_allocation_is_one_sealed_file_that_goes_when_freed(driver):
    before = memory_files()
    allocation = driver.allocate(5000, Placement.HOST)
    (file,) = memory_files() - before
    assert not os.get_inheritable(file)
    with pytest.raises(PermissionError):
        os.ftruncate(file, 0)
    driver.free(allocation)
    assert memory_files() == before


# --- copy ---------------------------------------------------------------------------------------------------------


def test_memory_that_was_freed_is_an_outcome_and_no_crash(driver):
    """It is not own memory any more, so that the kernel checks the addresses."""
    source, target = (driver.allocate(1 << 20, Placement.HOST) for _ in range(2))
    plan = plan_bytes(target.address, source.address, 1 << 20)
    assert driver.owns(plan, local=True) and driver.owns(plan, local=False)
    driver.free(source)
    outcome = driver.copy(plan, FOREVER)
    assert (outcome.state, outcome.cause) == (OutcomeState.FAILED, FailureCause.REMOTE_FAULT)
    assert f"{source.address:#x}" in outcome.message
    driver.free(target)
    assert driver.copy(plan, FOREVER).state is OutcomeState.FAILED


def test_only_a_range_that_is_own_memory_as_a_whole_is_copied_without_checks(driver):
    own = driver.allocate(1 << 20, Placement.HOST)
    assert not driver.owns(plan_bytes(own.address, own.address + 1, 1 << 20), local=False)
    assert not driver.owns(plan_bytes(own.address - 1, own.address, 10), local=True)


# --- selection, options, processes --------------------------------------------------------------------------------


def test_it_matches_only_where_no_accelerator_was_seen():
    assert DRIVER.matches(None)
    assert not DRIVER.matches(DeviceInfo("ascend", "Ascend910B4", 1, "test"))


def test_the_built_in_plugin_is_found_and_whole():
    found = discover(refresh=True)
    assert DRIVER in found.drivers
    assert "local/1" in [spec.wire_id for spec in found.engines]
    assert "host" not in [plugin.name for plugin in found.broken]


@pytest.mark.parametrize(
    ("device", "options", "error", "text"),
    [
        (1, {}, CacheValueError, "device is 1"),
        (None, {"threads": 0}, CacheValueError, "host.threads"),
        (None, {"threads": True}, CacheTypeError, "host.threads"),
        (None, {"prefault": 1}, CacheTypeError, "host.prefault"),
    ],
)
def test_options_out_of_range_are_named(device, options, error, text):
    with pytest.raises(error, match=text):
        create_driver(device, options)


def test_a_fork_does_not_use_the_driver_of_its_parent():
    """Nor does its end free what the parent has."""
    program = """
import os
from cachecore.errors import ForkedProcessError
from cachecore.host.driver import HostDriver
from cachecore.testing.harness import MemoryHarness, plan_bytes
from cachecore.types import Placement

driver = HostDriver()
memory = MemoryHarness(driver)
kept = driver.allocate(4096, Placement.HOST)
memory.write(kept.address, b"parent")
child = os.fork()
if child == 0:
    refused = 0
    for call in (
        lambda: driver.allocate(1, Placement.HOST),
        lambda: driver.free(kept),
        lambda: driver.copy(plan_bytes(kept.address, kept.address + 8, 8), 0.0),
    ):
        try:
            call()
        except ForkedProcessError:
            refused += 1
    driver.close()
    os._exit(refused)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
assert memory.read(kept.address, 6) == b"parent"
driver.free(kept)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd="/")


def test_more_memory_than_there_is_is_an_error_and_not_the_end_of_the_process(driver):
    with pytest.raises(CacheOutOfMemoryError, match="nbytes is"):
        driver.allocate(2**50, Placement.DEVICE)
    assert driver.allocate(PAGE, Placement.DEVICE).nbytes == PAGE
