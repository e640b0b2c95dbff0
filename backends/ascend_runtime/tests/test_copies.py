"""Copies: against an oracle of bytes, between two devices, and what a failure leaves known and what not."""

from __future__ import annotations

import ctypes
import math
import mmap
import random
import time
from collections.abc import Callable, Iterator

import pytest
from cachecore_ascend_runtime import Device, Runtime, _runtime
from cachecore_ascend_runtime.copies import outcome_of
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecore.errors import CacheTypeError
from cachecore.outcome import FailureCause, Outcome, OutcomeState
from cachecore.planning import CopyPlan, Geometry, plan_blocks
from cachecore.testing.harness import plan_bytes
from cachecore.testing.outcomes import check_coverage, chunk_states, settled

SIZE = 1 << 16
BOUNDED = settings(max_examples=40, deadline=None, database=None, derandomize=True)


def soon() -> float:
    return time.monotonic() + 60.0


class Memory:
    """One piece of memory of each kind, filled and read through pinned memory and through nothing that is tested here."""

    def __init__(self, runtime: Runtime) -> None:
        self.devices = [runtime.device(0), runtime.device(1)]
        self.ordinary = mmap.mmap(-1, SIZE)
        self.places = {
            "ordinary": ctypes.addressof(ctypes.c_char.from_buffer(self.ordinary)),
            "pinned": self.devices[0].allocate_host(SIZE),
            "device 0": self.devices[0].allocate(SIZE),
            "device 1": self.devices[1].allocate(SIZE),
        }
        self.library = ctypes.CDLL(runtime.library)

    def _on_device(self, place: str) -> Device | None:
        return self.devices[int(place[-1])] if place.startswith("device") else None

    def fill(self, place: str, content: bytes) -> None:
        buffer = ctypes.create_string_buffer(content, len(content))
        self._move(place, ctypes.addressof(buffer), len(content), 1)

    def read(self, place: str, nbytes: int = SIZE) -> bytes:
        buffer = ctypes.create_string_buffer(nbytes)
        self._move(place, ctypes.addressof(buffer), nbytes, 2)
        return buffer.raw

    def _move(self, place: str, host: int, nbytes: int, kind: int) -> None:
        here = self.places[place]
        device = self._on_device(place)
        target, source = (here, host) if kind == 1 else (host, here)
        if device is None:
            ctypes.memmove(target, source, nbytes)
            return
        with device.bound():
            size = ctypes.c_size_t(nbytes)
            assert self.library.aclrtMemcpy(ctypes.c_void_p(target), size, ctypes.c_void_p(source), size, kind) == 0

    def close(self) -> None:
        self.devices[0].free_host(self.places["pinned"])
        self.devices[0].free(self.places["device 0"])
        self.devices[1].free(self.places["device 1"])


@pytest.fixture
def memory(runtime: Runtime) -> Iterator[Memory]:
    found = Memory(runtime)
    yield found
    found.close()


def plan_pairs(target: int, source: int, block: int, pairs: list[tuple[int, int]], tensors: int = 1) -> CopyPlan:
    """Blocks of `tensors` tensors that share the two pieces of memory, 16 blocks each."""
    span = 16 * block
    return plan_blocks(
        Geometry([target + t * span for t in range(tensors)], blocks=16, block_bytes=block),
        Geometry([source + t * span for t in range(tensors)], blocks=16, block_bytes=block),
        [to for to, _ in pairs],
        [origin for _, origin in pairs],
    )


def expected(old: bytes, new: bytes, block: int, pairs: list[tuple[int, int]], tensors: int) -> bytes:
    result = bytearray(old)
    for tensor in range(tensors):
        for to, origin in pairs:
            at, origin_at = (16 * tensor + to) * block, (16 * tensor + origin) * block
            result[at : at + block] = new[origin_at : origin_at + block]
    return bytes(result)


def test_copies_between_all_kinds_of_memory_move_the_plan_and_nothing_else(memory: Memory) -> None:
    """Windows of every size, so that pieces end at and within their limits."""
    places = sorted(memory.places)
    rng = random.Random(1)

    @BOUNDED
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(places))
        target = data.draw(st.sampled_from([place for place in places if place != source]))
        block = data.draw(st.integers(1, 700))
        numbers = st.integers(0, 15)
        pairs = data.draw(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=16, unique_by=lambda p: p[0]))
        tensors = data.draw(st.integers(1, 5))
        limits = {
            "streams": data.draw(st.integers(1, 4)),
            "window_items": data.draw(st.sampled_from([1, 2, 3, 1024])),
            "window_bytes": data.draw(st.sampled_from([1, 37, 512, 1 << 20])),
            "plain_window_bytes": data.draw(st.sampled_from([1, 37, 512, 1 << 20])),
        }
        old, new = rng.randbytes(SIZE), rng.randbytes(SIZE)
        memory.fill(source, new)
        memory.fill(target, old)
        plan = plan_pairs(memory.places[target], memory.places[source], block, pairs, tensors)
        # A copy between two devices may be asked of either.
        device = memory.devices[data.draw(st.integers(0, 1))]
        report = _runtime.copy(device._native, plan.groups(), soon(), **limits)
        assert not report.host_only
        assert outcome_of(report, plan) == Outcome.done(plan.chunks)
        assert memory.read(target) == expected(old, new, block, pairs, tensors)
        assert memory.read(source) == new

    check()


def test_a_plan_over_several_kinds_of_memory_is_moved(memory: Memory) -> None:
    """Pair by pair another direction; ordinary to ordinary among them, which the core moves only on its own."""
    order = ["ordinary", "device 0", "pinned", "device 1"]
    quarter = SIZE // 4
    content = {place: random.Random(place).randbytes(SIZE) for place in order}
    for place in order:
        memory.fill(place, content[place])
    moves = [(to, source) for to in order for source in order if to != source or to == "ordinary"]
    bases = {place: memory.places[place] for place in order}
    plan = plan_blocks(
        Geometry([bases[to] + 128 * index for index, (to, _) in enumerate(moves)], blocks=1, block_bytes=100),
        Geometry([bases[source] + 2 * quarter + 128 * index for index, (_, source) in enumerate(moves)], blocks=1, block_bytes=100),
        [0],
        [0],
    )  # fmt: skip
    assert memory.devices[0].copy(plan, soon()) == Outcome.done(plan.chunks)
    for place in order:
        result = bytearray(content[place])
        for index, (to, source) in enumerate(moves):
            if to == place:
                start = 2 * quarter + 128 * index
                result[128 * index : 128 * index + 100] = content[source][start : start + 100]
        assert memory.read(place) == result


def test_ordinary_memory_on_both_sides_is_the_cores_business(memory: Memory) -> None:
    buffers = [mmap.mmap(-1, SIZE) for _ in range(2)]
    target, source = (ctypes.addressof(ctypes.c_char.from_buffer(buffer)) for buffer in buffers)
    buffers[1][:] = random.Random(2).randbytes(SIZE)
    plan = plan_bytes(target, source, SIZE)
    assert _runtime.copy(memory.devices[0]._native, plan.groups(), soon()).host_only
    assert memory.devices[0].copy(plan, soon()) == Outcome.done(1)
    assert buffers[0][:] == buffers[1][:]


# --- how ------------------------------------------------------------------------------------------------------------


def move(memory: Memory, target: str, source: str, **limits: int) -> Callable[[], Outcome]:
    """Sixteen blocks in reverse order, which do not merge."""
    plan = plan_pairs(memory.places[target], memory.places[source], 64, [(15 - i, i) for i in range(16)])
    assert plan.chunks == 16
    return lambda: outcome_of(_runtime.copy(memory.devices[0]._native, plan.groups(), soon(), **limits), plan)


@pytest.mark.parametrize(
    ("target", "source"), [("device 0", "pinned"), ("pinned", "device 0"), ("ordinary", "device 0")]
)
def test_copies_between_host_and_device_are_batches(emulator, memory: Memory, target: str, source: str) -> None:
    assert move(memory, target, source)().state is OutcomeState.DONE
    assert (emulator.calls("aclrtMemcpyBatchAsync"), emulator.calls("aclrtMemcpyAsync")) == (1, 0)
    emulator.faults()
    assert move(memory, target, source, window_items=5)().state is OutcomeState.DONE
    assert emulator.calls("aclrtMemcpyBatchAsync") == 4


def test_copies_between_devices_are_single_pieces(emulator, memory: Memory) -> None:
    """The runtime forbids batches there."""
    assert move(memory, "device 1", "device 0")().state is OutcomeState.DONE
    assert (emulator.calls("aclrtMemcpyBatchAsync"), emulator.calls("aclrtMemcpyAsync")) == (0, 16)


@pytest.mark.parametrize(
    ("hidden", "batches", "pieces"),
    [("aclrtMemcpyBatchAsync", 1, 0), ("aclrtMemcpyBatchAsync,aclrtMemcpyBatch", 0, 16), ("newer", 0, 16)],
)
def test_an_older_runtime_copies_with_what_it_has(in_process, hidden: str, batches: int, pieces: int) -> None:
    code = """
import ctypes, time
from cachecore.planning import Geometry, plan_blocks
from cachecore_ascend_runtime import load
runtime = load()
device = runtime.device(0)
there, back = device.allocate(4096), device.allocate_host(4096)
here = device.allocate_host(4096)
content = bytes(range(256)) * 16
ctypes.memmove(here, content, 4096)
def plan(to, source):
    order = list(range(16))
    return plan_blocks(Geometry([to], blocks=16, block_bytes=256), Geometry([source], blocks=16, block_bytes=256), order[::-1], order)
def copy(to, source):
    return device.copy(plan(to, source), time.monotonic() + 60).state.value
states = [copy(there, here), copy(back, there)]
library = ctypes.CDLL(runtime.library)
answer([states, ctypes.string_at(back, 4096) == content,
        library.cachecore_emulator_calls(b"aclrtMemcpyBatch"), library.cachecore_emulator_calls(b"aclrtMemcpyAsync")])
"""
    result = in_process(code, CACHECORE_EMULATE="Ascend910B4", CACHECORE_EMULATE_HIDE=hidden)
    assert result == [["done", "done"], True, 2 * batches, 2 * pieces]


def test_a_driver_without_batches_is_asked_once(in_process) -> None:
    code = """
import ctypes, time
from cachecore.testing.harness import plan_bytes
from cachecore_ascend_runtime import load
runtime = load()
device = runtime.device(0)
there, here = device.allocate(64), device.allocate_host(64)
states = [device.copy(plan_bytes(there, here, 64), time.monotonic() + 60).state.value for _ in range(3)]
library = ctypes.CDLL(runtime.library)
answer([states, library.cachecore_emulator_calls(b"aclrtMemcpyBatchAsync"),
        library.cachecore_emulator_calls(b"aclrtMemcpyAsync"), list(runtime.refused_by_driver)])
"""
    result = in_process(
        code, CACHECORE_EMULATE="Ascend910B4", CACHECORE_EMULATE_FAULTS="aclrtMemcpyBatchAsync:*:code=207000"
    )
    assert result == [["done"] * 3, 1, 3, ["aclrtMemcpyBatchAsync"]]


# --- failures -------------------------------------------------------------------------------------------------------


def check_honest(
    memory: Memory, target: str, source: str, outcome: Outcome, plan: CopyPlan, old: bytes, new: bytes
) -> None:
    """What is called landed landed, what is called untouched is as before."""
    check_coverage(outcome, plan.chunks)
    found = memory.read(target)
    for index, state in enumerate(chunk_states(outcome, plan.chunks)):
        to, origin = (15 - index) * 64, index * 64
        if state == "landed":
            assert found[to : to + 64] == new[origin : origin + 64]
        elif state == "untouched":
            assert found[to : to + 64] == old[to : to + 64]


@pytest.mark.parametrize(
    ("target", "source", "fault", "limits", "landed", "unknown"),
    [
        # A batch is unordered: nothing is known about any piece of it, everything about the windows around it.
        ("device 0", "pinned", "aclrtMemcpyBatchAsync:2:code=507899", {"window_items": 4}, 4, 4),
        ("device 0", "ordinary", "aclrtMemcpyBatchAsync:3:code=507899", {"window_items": 4}, 8, 4),
        ("pinned", "device 0", "aclrtMemcpyBatchAsync:1:late=507053", {}, 0, 16),
        ("device 1", "device 0", "aclrtSynchronizeStreamWithTimeout:2:code=507899", {"window_items": 4, "streams": 1}, 4, 4),
        # What was started before the piece that was refused ran to its end.
        ("device 1", "device 0", "aclrtMemcpyAsync:7:code=207001", {"streams": 1}, 6, 1),
        ("device 1", "device 0", "aclrtMemcpyAsync:7:code=207001", {"streams": 3}, 6, 1),
        ("device 1", "device 0", "aclrtMemcpyAsync:7:code=207001", {"window_items": 4, "streams": 2}, 6, 1),
        ("device 1", "device 0", "aclrtCreateStream:1:code=207005", {}, 0, 0),
    ],
)  # fmt: skip
def test_after_a_failure_the_outcome_says_what_is_known(
    emulator, memory: Memory, target: str, source: str, fault: str, limits: dict[str, int], landed: int, unknown: int
) -> None:
    rng = random.Random(3)
    old, new = rng.randbytes(SIZE), rng.randbytes(SIZE)
    memory.fill(source, new)
    memory.fill(target, old)
    for device in memory.devices:
        device.trim()  # so that streams are made anew
    plan = plan_pairs(memory.places[target], memory.places[source], 64, [(15 - i, i) for i in range(16)])
    emulator.faults(fault)
    outcome = outcome_of(_runtime.copy(memory.devices[0]._native, plan.groups(), soon(), **limits), plan)
    emulator.faults()
    assert (outcome.state, outcome.cause) == (OutcomeState.FAILED, FailureCause.NATIVE)
    function, _, action = fault.split(":")
    assert str(outcome.code) == action.split("=")[1]
    assert f"failed with {outcome.code}" in outcome.message
    if "late" not in fault:
        assert outcome.message.startswith(function)
    states = chunk_states(outcome, plan.chunks)
    assert (states.count("landed"), states.count("unknown")) == (landed, unknown)
    check_honest(memory, target, source, outcome, plan, old, new)
    assert move(memory, target, source)().state is OutcomeState.DONE, "the device works on after a failure"


def test_a_piece_that_the_runtime_names_as_wrong_is_untouched(emulator, memory: Memory) -> None:
    """One chunk of the batch runs past the device memory: the runtime checks before it copies, and says which."""
    base = memory.devices[0].allocate(8 << 20)
    try:
        block, _ = divmod(8 << 20, 8)
        # The last block of the destination lies behind the allocation and its rounding.
        plan = plan_blocks(
            Geometry([base], blocks=16, block_bytes=block),
            Geometry([memory.devices[0].allocate_host(16 * block)], blocks=16, block_bytes=block),
            [3, 1, 15, 5],
            [0, 2, 4, 6],
        )
        source = plan.groups()[0][0][0, 1]
        outcome = memory.devices[0].copy(plan, soon())
        memory.devices[0].free_host(source)
        assert (outcome.state, outcome.cause) == (OutcomeState.FAILED, FailureCause.NATIVE)
        assert outcome.untouched == ((2, 3),)
        assert outcome.unknown == ((0, 2), (3, 4))
        assert "aclrtMemcpyBatchAsync failed with 107000" in outcome.message
    finally:
        memory.devices[0].free(base)


def test_bad_host_memory_within_a_copy_on_the_host_is_an_outcome(emulator, memory: Memory) -> None:
    """Between page-locked and ordinary memory, where a hole must not crash the process."""
    page = mmap.PAGESIZE
    mapping = mmap.mmap(-1, 8 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    libc = ctypes.CDLL(None)
    pinned = memory.places["pinned"]
    for target, source, cause in ((pinned, base, FailureCause.REMOTE_FAULT), (base, pinned, FailureCause.LOCAL_FAULT)):
        plan = plan_blocks(
            Geometry([target], blocks=8, block_bytes=page),
            Geometry([source], blocks=8, block_bytes=page),
            [7, 6, 5, 4, 3, 2, 1, 0],
            [7, 6, 5, 4, 3, 2, 1, 0],
        )
        assert libc.mprotect(ctypes.c_void_p(base + 5 * page), ctypes.c_size_t(page), 0) == 0
        outcome = memory.devices[0].copy(plan, soon())
        assert libc.mprotect(ctypes.c_void_p(base + 5 * page), ctypes.c_size_t(page), 3) == 0
        assert (outcome.state, outcome.cause) == (OutcomeState.FAILED, cause)
        check_coverage(outcome, plan.chunks)
        assert outcome.landed == ((0, 2),), "blocks 7 and 6 come before the hole"


# --- deadlines and events -------------------------------------------------------------------------------------------


def test_a_copy_past_its_deadline_is_aborted_and_known_to_have_ended(emulator, memory: Memory) -> None:
    rng = random.Random(4)
    old, new = rng.randbytes(SIZE), rng.randbytes(SIZE)
    memory.fill("device 0", new)
    memory.fill("device 1", old)
    plan = plan_pairs(memory.places["device 1"], memory.places["device 0"], 64, [(15 - i, i) for i in range(16)])
    emulator.faults("aclrtMemcpyAsync:9:delay=30")
    began = time.monotonic()
    report = _runtime.copy(memory.devices[0]._native, plan.groups(), began + 0.2, streams=1, window_items=4)
    outcome = outcome_of(report, plan)
    emulator.faults()
    assert time.monotonic() - began < 20
    assert (outcome.state, outcome.cause, outcome.ticket) == (OutcomeState.FAILED, FailureCause.DEADLINE, None)
    assert (outcome.landed, outcome.unknown, outcome.untouched) == (((0, 8),), ((8, 12),), ((12, 16),))
    check_honest(memory, "device 1", "device 0", outcome, plan, old, new)


def test_a_copy_that_cannot_be_stopped_is_unknown_until_it_has_ended(emulator, memory: Memory) -> None:
    plan = plan_pairs(memory.places["device 1"], memory.places["device 0"], 64, [(15 - i, i) for i in range(16)])
    memory.fill("device 0", b"n" * SIZE)
    memory.fill("device 1", b"o" * SIZE)
    # The abort does not do its work (the fault takes its place) until later.
    emulator.faults("aclrtMemcpyAsync:1:delay=1; aclrtStreamAbort:*:code=507000")
    device = memory.devices[0]
    outcome = device.copy(plan, time.monotonic() + 0.1)
    assert (outcome.state, outcome.cause) == (OutcomeState.UNKNOWN, FailureCause.DEADLINE)
    assert outcome.unknown == ((0, 16),)
    assert "could not be proven to have ended" in outcome.message
    assert isinstance(outcome.ticket, _runtime.Unsettled)
    assert (memory.places["device 1"], 1024) in outcome.ticket.extents
    assert (memory.places["device 0"], 1024) in outcome.ticket.extents
    assert device.quiescent(outcome.ticket) is False
    settled(device.quiescent, outcome)
    assert device.quiescent(outcome.ticket) is True
    final = memory.read("device 1", 1024)
    time.sleep(0.2)
    assert memory.read("device 1", 1024) == final, "something was written after quiescent said yes"


def test_without_a_wait_that_ends_the_copy_is_complete_all_the_same(in_process) -> None:
    code = """
import ctypes, time
from cachecore.testing.harness import plan_bytes
from cachecore_ascend_runtime import load
runtime = load()
device = runtime.device(0)
there, here = device.allocate(64), device.allocate_host(64)
try:
    ctypes.CDLL(runtime.library).aclrtStreamAbort
    hidden = False
except AttributeError:
    hidden = True
ctypes.CDLL(runtime.library).cachecore_emulator_set_faults(b"aclrtMemcpyBatchAsync:1:delay=0.5")
outcome = device.copy(plan_bytes(there, here, 64), time.monotonic() + 0.1)
end = time.monotonic() + 30
while not device.quiescent(outcome.ticket) and time.monotonic() < end:
    time.sleep(0.01)
answer([hidden, outcome.state.value, device.quiescent(outcome.ticket)])
"""
    result = in_process(code, CACHECORE_EMULATE="Ascend910B4", CACHECORE_EMULATE_HIDE="aclrtStreamAbort")
    assert result == [True, "unknown", True]


class Event:
    """As torch.npu.Event shows itself."""

    def __init__(self, emulator, device: Device) -> None:
        self.emulator, self.device = emulator, device
        self.npu_event = 0
        self.stream = ctypes.c_void_p()
        with device.bound():
            event = ctypes.c_void_p()
            emulator.call("aclrtCreateEvent", ctypes.byref(event))
            emulator.call("aclrtCreateStream", ctypes.byref(self.stream))
        self.event = event

    def record_behind(self, target: int, source: int, nbytes: int) -> None:
        """Queue a copy between device addresses on the stream of its own, and the event behind it."""
        size = ctypes.c_size_t(nbytes)
        with self.device.bound():
            self.emulator.call(
                "aclrtMemcpyAsync", ctypes.c_void_p(target), size, ctypes.c_void_p(source), size, 3, self.stream
            )
            self.emulator.call("aclrtRecordEvent", self.event, self.stream)
        self.npu_event = self.event.value or 0


@pytest.mark.parametrize("target", ["pinned", "device 1"])
@pytest.mark.parametrize("form", ["object", "handle", "list"])
def test_a_copy_comes_after_the_event_it_was_given(emulator, memory: Memory, target: str, form: str) -> None:
    device = memory.devices[0]
    late = device.allocate(SIZE)
    event = Event(emulator, device)
    try:
        memory.fill("device 0", b"n" * SIZE)
        memory.fill("device 1", b"o" * SIZE)
        memory.fill("pinned", b"o" * SIZE)
        # What the copy reads is written half a second from now.
        emulator.faults("aclrtMemcpyAsync:1:delay=0.5")
        event.record_behind(late, memory.places["device 0"], SIZE)
        after = {"object": event, "handle": event.npu_event, "list": [event]}[form]
        assert device.copy(plan_bytes(memory.places[target], late, SIZE), soon(), after) == Outcome.done(1)
        assert memory.read(target) == b"n" * SIZE
    finally:
        emulator.faults()
        device.free(late)


def test_a_copy_on_the_host_waits_for_the_event_too(emulator, memory: Memory) -> None:
    device = memory.devices[0]
    target = device.allocate_host(SIZE)
    late = memory.places["pinned"]
    event = Event(emulator, device)
    size = ctypes.c_size_t(SIZE)
    try:
        memory.fill("device 0", b"n" * SIZE)
        memory.fill("pinned", b"o" * SIZE)
        emulator.faults("aclrtMemcpyAsync:1:delay=0.5")
        with device.bound():
            source = ctypes.c_void_p(memory.places["device 0"])
            emulator.call("aclrtMemcpyAsync", ctypes.c_void_p(late), size, source, size, 2, event.stream)
            emulator.call("aclrtRecordEvent", event.event, event.stream)
        assert device.copy(plan_bytes(target, late, SIZE), soon(), event.event.value) == Outcome.done(1)
        assert ctypes.string_at(target, SIZE) == b"n" * SIZE
    finally:
        emulator.faults()
        device.free_host(target)


@pytest.mark.parametrize("target", ["pinned", "device 1"])
def test_an_event_that_does_not_happen_in_time_leaves_everything_untouched_or_unknown(
    emulator, memory: Memory, target: str
) -> None:
    device = memory.devices[0]
    late = device.allocate(SIZE)
    event = Event(emulator, device)
    memory.fill(target, b"o" * SIZE)
    emulator.faults("aclrtMemcpyAsync:1:delay=1")
    event.record_behind(late, memory.places["device 0"], SIZE)
    outcome = device.copy(plan_bytes(memory.places[target], late, SIZE), time.monotonic() + 0.1, event)
    emulator.faults()
    assert (outcome.state, outcome.cause) == (OutcomeState.FAILED, FailureCause.DEADLINE)
    assert memory.read(target) == b"o" * SIZE
    time.sleep(1.2)  # the event happens; nothing may come after it
    assert memory.read(target) == b"o" * SIZE
    device.free(late)


@pytest.mark.parametrize("after", ["event", 1.5, True, 0, -1, [None], Event.__new__(Event)])
def test_what_is_no_event_is_refused(memory: Memory, after: object) -> None:
    if isinstance(after, Event):
        after.npu_event = 0  # never recorded
    with pytest.raises(CacheTypeError, match="recorded torch"):
        memory.devices[0].copy(plan_bytes(memory.places["device 1"], memory.places["device 0"], 64), soon(), after)


def test_a_wait_for_ever_is_possible(memory: Memory) -> None:
    plan = plan_bytes(memory.places["device 1"], memory.places["device 0"], 64)
    assert memory.devices[0].copy(plan, math.inf).state is OutcomeState.DONE


# --- capture of graphs ------------------------------------------------------------------------------------------------


def test_copies_and_allocations_work_while_a_graph_is_captured(emulator, memory: Memory) -> None:
    """In mode GLOBAL (0), the strictest; the thread's own mode is the same afterwards."""
    device = memory.devices[0]
    emulator.call("cachecore_emulator_begin_capture", 0)
    try:
        assert move(memory, "device 0", "ordinary")().state is OutcomeState.DONE
        device.free(device.allocate(64))
        size = ctypes.c_size_t(64)
        source, target = ctypes.c_void_p(memory.places["pinned"]), ctypes.c_void_p(memory.places["device 0"])
        assert emulator.library.aclrtMemcpy(target, size, source, size, 1) != 0, (
            "the mode of the thread was not put back"
        )
    finally:
        emulator.call("cachecore_emulator_end_capture")


def test_without_the_exchange_of_modes_a_capture_is_a_failure_that_says_so(in_process) -> None:
    code = """
import ctypes, time
from cachecore.testing.harness import plan_bytes
from cachecore_ascend_runtime import load
runtime = load()
device = runtime.device(0)
there = device.allocate(64)
buffer = ctypes.create_string_buffer(64)
ctypes.CDLL(runtime.library).cachecore_emulator_begin_capture(0)
outcome = device.copy(plan_bytes(there, ctypes.addressof(buffer), 64), time.monotonic() + 60)
answer([outcome.state.value, outcome.message, "captured in mode GLOBAL" in runtime.missing_symbols["aclmdlRICaptureThreadExchangeMode"]])
"""
    state, message, listed = in_process(
        code, CACHECORE_EMULATE="Ascend910B4", CACHECORE_EMULATE_HIDE="aclmdlRICaptureThreadExchangeMode"
    )
    assert (state, listed) == ("failed", True)
    assert "capture" in message


# --- tables that no plan has --------------------------------------------------------------------------------------------


def test_malformed_tables_are_refused(memory: Memory) -> None:
    good = memoryview(bytes(16)).cast("Q")
    for groups in ([(good,)], [(good, bytes(24))], [(memoryview(bytes(8)).cast("Q"), memoryview(bytes(24)).cast("Q"))],
                   [(good, memoryview(bytes(24)).cast("Q"))]):  # fmt: skip
        with pytest.raises(ValueError, match="plan"):
            _runtime.copy(memory.devices[0]._native, groups, soon())
    with pytest.raises(ValueError, match="deadline"):
        _runtime.copy(memory.devices[0]._native, [], math.nan)
    for name in ("streams", "window_items", "window_bytes", "plain_window_bytes"):
        with pytest.raises(ValueError, match=name):
            _runtime.copy(memory.devices[0]._native, [], soon(), **{name: 0})
