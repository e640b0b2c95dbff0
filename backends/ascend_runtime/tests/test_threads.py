"""Contexts belong to threads: ours have the device's, those of others keep what they have."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from cachecore_ascend_runtime import Runtime

from cachecore.errors import BackendError, CacheTypeError, CacheValueError
from cachecore.outcome import OutcomeState
from cachecore.testing.harness import plan_bytes

T = TypeVar("T")


def in_new_thread(action: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(action).result(60.0)


class Thread:
    """What the runtime says about the calling thread, and what another library does to it."""

    def __init__(self, runtime: Runtime) -> None:
        self.library = ctypes.CDLL(runtime.library)

    def context(self) -> int | None:
        found = ctypes.c_void_p()
        self.library.aclrtGetCurrentContext(ctypes.byref(found))
        return found.value

    def set_device(self, index: int) -> None:
        """As torch.npu.set_device."""
        assert self.library.aclrtSetDevice(index) == 0


@pytest.fixture
def thread(runtime: Runtime) -> Thread:
    return Thread(runtime)


def test_a_thread_without_a_context_works_and_is_bound(runtime: Runtime) -> None:
    def work() -> tuple[int | None, int | None]:
        before = runtime.current_device()
        device = runtime.device(1)
        device.free(device.allocate(64))
        return before, runtime.current_device()

    runtime.device(1)
    assert in_new_thread(work) == (None, 1)


def test_binding_gives_a_thread_the_device_and_again_costs_no_change(runtime: Runtime, thread: Thread) -> None:
    def work() -> list[object]:
        device = runtime.device(1)
        first = device.bind_thread(), runtime.current_device(), thread.context()
        return [*first, device.bind_thread(), thread.context() == first[2]]

    runtime.device(1)
    bound, current, context, again, same = in_new_thread(work)
    assert (bound, current, again, same) == (True, 1, True, True)
    assert context


def test_all_threads_share_the_context_that_everybody_uses(runtime: Runtime, thread: Thread) -> None:
    """The default one of the device, the one that torch_npu has after set_device."""

    def ours() -> int | None:
        runtime.device(0).bind_thread()
        return thread.context()

    def theirs() -> int | None:
        thread.set_device(0)
        return thread.context()

    assert in_new_thread(ours) == in_new_thread(theirs) is not None


def test_a_thread_that_somebody_else_gave_a_device_keeps_it(runtime: Runtime, thread: Thread) -> None:
    """torch remembers the device of a thread and would not notice that it was changed."""

    def work() -> list[object]:
        thread.set_device(1)
        theirs = thread.context()
        device = runtime.device(0)
        seen: list[object] = [device.bind_thread(), thread.context() == theirs]
        address = device.allocate(64)
        seen += [device.describe([(address, 64)])[0].device, thread.context() == theirs]
        pinned = device.allocate_host(64)
        seen += [device.copy(plan_bytes(address, pinned, 64), time.monotonic() + 60).state, thread.context() == theirs]
        device.free(address)
        device.free_host(pinned)
        seen += [device.memory_info()[1] > 0, thread.context() == theirs]
        with pytest.raises(RuntimeError):
            device.free(12345)
        return [*seen, thread.context() == theirs]

    assert in_new_thread(work) == [False, True, 0, True, OutcomeState.DONE, True, True, True, True]


def test_opening_a_device_leaves_the_thread_of_somebody_else_alone(in_process) -> None:
    code = """
import ctypes
from cachecore_ascend_runtime import load
runtime = load()
ctypes.CDLL(runtime.library).aclrtSetDevice(1)
runtime.device(0)
answer(runtime.current_device())
"""
    assert in_process(code, CACHECORE_EMULATE="Ascend910B4:2") == 1


def test_a_thread_of_ours_changes_between_our_devices(runtime: Runtime) -> None:
    def work() -> list[int | None]:
        seen = []
        for index in (0, 1, 0):
            assert runtime.device(index).bind_thread()
            seen.append(runtime.current_device())
        return seen

    assert in_new_thread(work) == [0, 1, 0]


def test_within_bound_the_device_is_current_and_afterwards_the_former_one(runtime: Runtime, thread: Thread) -> None:
    def work() -> list[int | None]:
        thread.set_device(1)
        seen = [runtime.current_device()]
        with runtime.device(0).bound():
            seen.append(runtime.current_device())
            with runtime.device(1).bound():
                seen.append(runtime.current_device())
            seen.append(runtime.current_device())
        seen.append(runtime.current_device())
        with pytest.raises(KeyError), runtime.device(0).bound():
            raise KeyError("from within")
        return [*seen, runtime.current_device()]

    assert in_new_thread(work) == [1, 0, 1, 0, 1, 1]


def test_the_device_is_the_threads_own_or_the_only_one(runtime: Runtime, thread: Thread) -> None:
    def nobody() -> str:
        with pytest.raises(BackendError) as error:
            runtime.choose_device(None)
        return str(error.value)

    def somebody() -> int:
        thread.set_device(1)
        return runtime.choose_device(None)

    text = in_new_thread(nobody)
    assert "torch.npu.set_device(n)" in text and "device=n" in text and "2 are visible" in text
    assert in_new_thread(somebody) == 1
    assert in_new_thread(lambda: runtime.choose_device(0)) == 0
    for wrong in (2, -1):
        with pytest.raises(CacheValueError, match="from 0 to 1"):
            runtime.choose_device(wrong)
    for wrong in (True, "0", 0.0):
        with pytest.raises(CacheTypeError):
            runtime.choose_device(wrong)


def test_one_visible_device_needs_no_choice(in_process) -> None:
    code = """
from cachecore_ascend_runtime import load
runtime = load()
answer([runtime.device_count, runtime.current_device(), runtime.choose_device(None)])
"""
    environment = {"CACHECORE_EMULATE": "Ascend910B4:4", "ASCEND_RT_VISIBLE_DEVICES": "2"}
    assert in_process(code, **environment) == [1, None, 0]


def test_many_threads_open_one_device_once(in_process) -> None:
    code = """
import threading
from concurrent.futures import ThreadPoolExecutor
from cachecore_ascend_runtime import load
start = threading.Barrier(8)
def open_device(_):
    start.wait(30)
    runtime = load()
    device = runtime.device(0)
    address = device.allocate(4096)
    device.free(address)
    return id(runtime), id(device)
with ThreadPoolExecutor(8) as pool:
    answer(len(set(pool.map(open_device, range(8)))))
"""
    assert in_process(code, CACHECORE_EMULATE="Ascend910B4") == 1


def test_threads_that_copy_at_once_do_not_wait_for_each_others_streams(runtime: Runtime) -> None:
    """Each copy has streams of its own: a slow one does not make a quick one late, or its failure another's."""
    device = runtime.device(0)
    library = ctypes.CDLL(runtime.library)
    addresses = [device.allocate(64) for _ in range(4)]
    library.cachecore_emulator_set_faults(b"aclrtMemcpyAsync:1:delay=30; aclrtMemcpyAsync:1:late=507053")
    started = threading.Event()

    def slow() -> OutcomeState:
        started.set()
        return device.copy(plan_bytes(addresses[0], addresses[1], 64), time.monotonic() + 1.0).state

    try:
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(slow)
            started.wait(30.0)
            while not library.cachecore_emulator_calls(b"aclrtMemcpyAsync"):
                time.sleep(0.001)
            quick = device.copy(plan_bytes(addresses[2], addresses[3], 64), time.monotonic() + 60)
            assert quick.state is OutcomeState.DONE
            assert late.result(60.0) is OutcomeState.FAILED
    finally:
        library.cachecore_emulator_set_faults(b"")
        for address in addresses:
            device.free(address)
