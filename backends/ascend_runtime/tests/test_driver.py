"""The base class of the drivers beyond what the core's suite asks: memory by policy, deadlines, busy memory, the end."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator

import pytest
from cachecore_ascend_runtime import AscendDriver, AscendError, AscendOutOfMemoryError, MallocPolicy, Runtime

from cachecore.driver import Allocation, Capabilities, Capability, MemoryOrigin
from cachecore.errors import (
    CacheBusyError,
    CacheOutOfMemoryError,
    CacheTimeoutError,
    CacheValueError,
    NotSupportedError,
    StatusCode,
)
from cachecore.outcome import OutcomeState
from cachecore.testing.harness import plan_bytes
from cachecore.testing.outcomes import settled
from cachecore.types import Placement

HERE = "a product made for tests"
HUGE = 2 << 20


class Product(AscendDriver):
    name = "product"
    policy = MallocPolicy.HUGE_FIRST
    needed = 64

    def capabilities(self) -> Capabilities:
        return Capabilities(
            address_budget=Capability(240, HERE),
            max_registered_device_bytes=Capability(None, HERE),
            max_registered_host_bytes=Capability(None, HERE),
            host_alignment=self.host_alignment(),
            device_alignment=Capability(self.needed, HERE),
            remote_access_optional=Capability(True, HERE),
            allocate_caches=Capability(True, HERE),
            copy_and_swap_blocks=Capability(True, HERE),
            copy_failure_knowledge=self.copy_knowledge(),
        )

    def check_registration(self, request, infos):
        """Nothing is refused."""

    def malloc_policy(self, nbytes: int) -> MallocPolicy:
        return self.policy


@pytest.fixture
def driver(emulator) -> Iterator[Product]:
    made = Product(0)
    yield made
    emulator.faults()
    made.close()
    assert made.live_allocations == 0


def test_memory_meant_for_hccs_has_huge_pages_and_starts_its_block(driver: Product) -> None:
    """Allocated with HUGE_ONLY, it needs no more than was asked for to be aligned, and stays what aclrtMalloc gave."""
    driver.policy, driver.needed = MallocPolicy.HUGE_ONLY, HUGE
    allocation = driver.allocate(8 << 20, Placement.DEVICE)
    info = driver.describe([(allocation.address, 8 << 20)])[0]
    assert allocation.address % HUGE == 0
    assert (info.page_size, info.origin, info.block_base) == (HUGE, MemoryOrigin.ACLRT_MALLOC, allocation.address)


def test_an_alignment_that_does_not_come_by_itself_is_cut_from_more(driver: Product) -> None:
    driver.policy = MallocPolicy.NORMAL_ONLY
    made = [driver.allocate(5000, Placement.DEVICE, 1 << 24) for _ in range(3)]
    assert all(one.address % (1 << 24) == 0 for one in made)
    origins = {driver.describe([(one.address, 5000)])[0].origin for one in made}
    assert origins <= {MemoryOrigin.ACLRT_MALLOC, MemoryOrigin.SUB_ALLOCATION}
    before = driver.device_handle.memory_info()[0]
    for one in made:
        driver.free(one)  # at the address the runtime gave, or it would refuse
    assert driver.device_handle.memory_info()[0] > before


def test_too_little_device_memory_is_a_device_out_of_memory(driver: Product, emulator) -> None:
    emulator.faults("aclrtMalloc:1:code=207001")
    with pytest.raises(AscendOutOfMemoryError, match="aclrtMalloc failed with 207001") as error:
        driver.allocate(4096, Placement.DEVICE)
    assert error.value.status_code is StatusCode.DEVICE_OUT_OF_MEMORY
    assert error.value.code == 207001
    assert "empty_cache" in str(error.value)
    total = driver.device_handle.memory_info()[1]
    with pytest.raises(CacheOutOfMemoryError, match=str(total)):
        driver.allocate(total + 1, Placement.DEVICE)
    assert driver.live_allocations == 0


def test_a_refusal_of_another_kind_keeps_its_code_and_text(driver: Product, emulator) -> None:
    emulator.faults("aclrtMallocHost:1:code=507899")
    with pytest.raises(
        AscendError, match=r"aclrtMallocHost failed with 507899 \(internal error of the driver\)"
    ) as error:
        driver.allocate(4096, Placement.HOST)
    assert (error.value.operation, error.value.code) == ("aclrtMallocHost", 507899)
    assert error.value.detail and error.value.detail in str(error.value)
    assert not isinstance(error.value, MemoryError)


def test_memory_that_the_runtime_does_not_free_stays_allocated(driver: Product, emulator) -> None:
    allocation = driver.allocate(4096, Placement.DEVICE)
    emulator.faults("aclrtFree:1:code=207002")
    with pytest.raises(AscendError, match="207002"):
        driver.free(allocation)
    assert driver.live_allocations == 1
    driver.free(allocation)
    assert driver.live_allocations == 0


def test_close_frees_the_rest_when_one_is_refused_and_can_be_repeated(driver: Product, emulator) -> None:
    for _ in range(3):
        driver.allocate(4096, Placement.DEVICE)
    emulator.faults("aclrtFree:2:code=207002")
    with pytest.raises(AscendError):
        driver.close()
    assert driver.live_allocations == 1
    driver.close()
    assert driver.live_allocations == 0
    driver.close()


def test_memory_of_another_driver_is_not_freed(driver: Product) -> None:
    other = Product(0)
    allocation = other.allocate(64, Placement.DEVICE)
    with pytest.raises(CacheValueError, match="not live in this driver"):
        driver.free(allocation)
    with pytest.raises(CacheValueError):
        driver.free(Allocation(allocation.address, 64, Placement.DEVICE))
    other.close()


def test_memory_under_a_copy_that_may_still_run_is_not_freed(driver: Product, emulator) -> None:
    source, target, apart = (driver.allocate(4096, Placement.DEVICE) for _ in range(3))
    emulator.faults("aclrtMemcpyAsync:1:delay=1; aclrtStreamAbort:*:code=507000")
    outcome = driver.copy(plan_bytes(target.address, source.address, 4096), time.monotonic() + 0.1)
    assert outcome.state is OutcomeState.UNKNOWN
    for busy in (source, target):
        with pytest.raises(CacheBusyError, match="must not be freed") as error:
            driver.free(busy)
        assert (busy.address, 4096) in error.value.ranges
    driver.free(apart)
    assert driver.live_allocations == 2
    settled(driver.quiescent, outcome)
    driver.free(source)
    driver.free(target)


def test_close_waits_for_a_copy_that_may_still_run(emulator) -> None:
    driver = Product(0)
    source, target = (driver.allocate(4096, Placement.DEVICE) for _ in range(2))
    emulator.faults("aclrtMemcpyAsync:1:delay=1; aclrtStreamAbort:*:code=507000")
    outcome = driver.copy(plan_bytes(target.address, source.address, 4096), time.monotonic() + 0.1)
    assert outcome.state is OutcomeState.UNKNOWN
    driver.close()
    assert driver.live_allocations == 0
    assert driver.quiescent(outcome.ticket)


def test_close_names_what_must_not_be_freed_when_a_copy_does_not_end(emulator, monkeypatch) -> None:
    monkeypatch.setattr("cachecore_ascend_runtime.driver._SETTLE_SECONDS", 0.2)
    driver = Product(0)
    source, target, apart = (driver.allocate(4096, Placement.DEVICE) for _ in range(3))
    emulator.faults("aclrtMemcpyAsync:1:delay=2; aclrtStreamAbort:*:code=507000")
    outcome = driver.copy(plan_bytes(target.address, source.address, 4096), time.monotonic() + 0.1)
    with pytest.raises(CacheBusyError) as error:
        driver.close()
    assert {base for base, _ in error.value.ranges} == {source.address, target.address}
    assert driver.live_allocations == 2, "what nobody uses is freed all the same"
    with pytest.raises(CacheValueError):
        driver.free(apart)
    settled(driver.quiescent, outcome)
    driver.close()
    assert driver.live_allocations == 0


def test_own_memory_is_known_also_to_an_old_runtime(in_process) -> None:
    code = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("product_of_tests", PATH)
module = importlib.util.module_from_spec(spec)
sys.modules["product_of_tests"] = module
spec.loader.exec_module(module)
from cachecore.types import Placement
class Ordinary(module.Product):
    ordinary_host_memory = True
found = []
for cls in (module.Product, Ordinary):
    driver = cls(None)
    for placement, alignment in ((Placement.DEVICE, 0), (Placement.DEVICE, 1 << 26), (Placement.HOST, 0)):
        one = driver.allocate(100_000, placement, alignment)
        info = driver.describe([(one.address, 100_000)])[0]
        found.append([info.origin.name, [place.name for place in info.placements], one.address % max(alignment, 64), info.reason])
        inside = driver.describe([(one.address + 64, 64)])[0]
        found.append([inside.origin.name, [place.name for place in inside.placements], 0, inside.reason])
    driver.close()
answer(found)
""".replace("PATH", repr(__file__))
    found = in_process(code, CACHECORE_EMULATE="Ascend910B4", CACHECORE_EMULATE_HIDE="newer")
    device, cut, pinned, pinned_inside = found[0], found[2], found[4], found[5]
    assert device == ["ACLRT_MALLOC", ["DEVICE"], 0, ""]
    assert found[1][0] == "SUB_ALLOCATION"
    assert cut[0] in ("ACLRT_MALLOC", "SUB_ALLOCATION") and cut[2] == 0
    assert pinned == ["HOST_PINNED", ["HOST"], 0, ""] and pinned_inside[0] == "HOST_PINNED"
    assert found[10][:3] == ["HOST_SHARED", ["HOST"], 0]


def test_the_harness_writes_and_reads_memory_that_the_processor_cannot_touch(runtime: Runtime) -> None:
    from cachecore.testing import MemoryHarness

    driver = Product(1)
    with MemoryHarness(driver) as memory:
        address = memory.allocate(100_000, Placement.DEVICE)
        memory.write(address + 3, b"some bytes")
        assert memory.read(address + 3, 10) == b"some bytes"
    driver.close()


class RecordedEvent:
    """As torch.npu.Event shows itself, behind a copy of eight bytes on a stream of its own."""

    def __init__(self, emulator, driver: Product) -> None:
        memory = driver.allocate(64, Placement.DEVICE)
        event, stream, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t(8)
        start = ctypes.c_void_p(memory.address)
        with driver.device_handle.bound():
            emulator.call("aclrtCreateEvent", ctypes.byref(event))
            emulator.call("aclrtCreateStream", ctypes.byref(stream))
            emulator.call("aclrtMemcpyAsync", start, size, ctypes.c_void_p(memory.address + 8), size, 3, stream)
            emulator.call("aclrtRecordEvent", event, stream)
        self.npu_event = event.value


def test_a_thread_waits_for_an_event_of_the_device_or_of_the_host(driver: Product, emulator) -> None:
    emulator.faults("aclrtMemcpyAsync:1:delay=0.5")
    event = RecordedEvent(emulator, driver)
    with pytest.raises(CacheTimeoutError, match="did not happen"):
        driver.wait_event(event, time.monotonic() + 0.05)
    driver.wait_event(event, time.monotonic() + 20)
    driver.wait_event(event.npu_event, time.monotonic() + 20)
    on_host = threading.Event()
    with pytest.raises(CacheTimeoutError, match="did not happen"):
        driver.wait_event(on_host, time.monotonic() + 0.05)
    on_host.set()
    driver.wait_event(on_host, time.monotonic())
    with pytest.raises(NotSupportedError, match=r"recorded torch\.npu\.Event"):
        driver.wait_event("event", time.monotonic() + 1)
