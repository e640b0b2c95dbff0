"""Copies between two real processes are exact, end when told to, and know what landed when they fail."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cachecore import _core, errors
from cachecore.planning import CopyPlan, Geometry, plan_blocks

PAGE = mmap.PAGESIZE
MAP_FIXED, MAP_NORESERVE = 0x10, 0x4000  # not in the mmap module of every Python version
SOON = 60.0  # seconds; no test comes near it

# A process with memory that runs what it is told and ends when the test does. It knows nothing of cachecore.
PEER = """
import ctypes, mmap, os, sys
MAP_NORESERVE = 0x4000
memory = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
nonce = ctypes.create_string_buffer(os.urandom(16), 16)
libc = ctypes.CDLL(None, use_errno=True)
print(base, ctypes.addressof(nonce), nonce.raw.hex(), flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Peer:
    def __init__(self, nbytes: int) -> None:
        self._command = [sys.executable, "-I", "-c", PEER, str(nbytes)]
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        self._read_greeting()

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the peer ended"
        return line

    def _read_greeting(self) -> None:
        base, nonce_address, nonce = self._read_line().split()
        self.base, self.nonce_address, self.nonce = int(base), int(nonce_address), bytes.fromhex(nonce)

    def run(self, statement: str) -> None:
        assert self._process.stdin is not None
        print(statement, file=self._process.stdin, flush=True)
        assert self._read_line() == "done\n"

    def replace_by_exec(self) -> None:
        assert self._process.stdin is not None
        print(f"os.execv({self._command[0]!r}, {self._command!r})", file=self._process.stdin, flush=True)
        self._read_greeting()

    def kill(self) -> None:
        """Ends it without reaping it."""
        self._process.kill()
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def close(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()

    def read(self, plan: CopyPlan, **limits: Any) -> _core.TransferReport:
        limits.setdefault("deadline", time.monotonic() + SOON)
        return _core.vm_read(plan, self.pid, self.nonce_address, self.nonce, **limits)

    def write(self, plan: CopyPlan, **limits: Any) -> _core.TransferReport:
        limits.setdefault("deadline", time.monotonic() + SOON)
        return _core.vm_write(plan, self.pid, self.nonce_address, self.nonce, **limits)


@pytest.fixture
def start_peer() -> Iterator[Callable[[int], Peer]]:
    with contextlib.ExitStack() as stack:

        def start(nbytes: int) -> Peer:
            peer = Peer(nbytes)
            stack.callback(peer.close)
            return peer

        yield start


class Memory:
    """Anonymous memory of this process."""

    def __init__(self, nbytes: int) -> None:
        self.bytes = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))


def make_hole(address: int) -> None:
    """Makes a page of this process inaccessible; the mapping object can still be freed."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), 0) == 0


def one_tensor(base: int, blocks: int, block_bytes: int) -> Geometry:
    return Geometry([base], blocks=blocks, block_bytes=block_bytes)


class RepeatedMemory:
    """Gigabytes of addresses behind which the same few megabytes lie again and again: much work, little memory."""

    def __init__(self) -> None:
        self.piece_bytes, self.pieces = 16 << 20, 512
        piece = _core.SharedBlock(self.piece_bytes)
        # Reserved by an object that also unmaps what is put there.
        self._space = mmap.mmap(
            -1, self.piece_bytes * self.pieces, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        )
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._space))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        for i in range(self.pieces):
            start = self.base + i * self.piece_bytes
            size, rights = ctypes.c_size_t(self.piece_bytes), mmap.PROT_READ | mmap.PROT_WRITE
            mapped = libc.mmap(
                ctypes.c_void_p(start), size, rights, mmap.MAP_SHARED | MAP_FIXED, piece.fd, ctypes.c_long(0)
            )
            assert mapped == start
        piece.close()

    @property
    def first_piece(self) -> memoryview:
        return memoryview(self._space)[: self.piece_bytes]

    def plan_from(self, source: Memory) -> CopyPlan:
        """Takes longer than any test waits before it says stop."""
        size = len(source.bytes)
        blocks = self.piece_bytes * self.pieces // size
        written = one_tensor(self.base, blocks, size)
        return plan_blocks(written, one_tensor(source.base, 1, size), range(blocks), [0] * blocks)


def assert_every_chunk_is_told_about(plan: CopyPlan, report: _core.TransferReport) -> None:
    ranges = sorted(report.landed + report.untouched + report.unknown)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == plan.chunks
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))


SCATTERED = [random.Random(seed).sample(range(5000), 4000) for seed in (2, 3)]
IN_A_ROW, WITH_GAPS = list(range(2500)), list(range(0, 5000, 2))


# More pieces than one system call takes: on both sides, or on one side only.
@pytest.mark.parametrize(
    ("src", "dst"),
    [SCATTERED, (IN_A_ROW, WITH_GAPS), (WITH_GAPS, IN_A_ROW)],
    ids=["scattered", "in a row to gaps", "gaps to in a row"],
)
@pytest.mark.parametrize("limits", [{}, {"threads": 2, "threads_from": 1, "batch_bytes": 7 * PAGE + 5}])
def test_thousands_of_blocks_arrive_where_they_belong(
    start_peer: Callable[[int], Peer], limits: dict[str, int], src: list[int], dst: list[int]
) -> None:
    blocks, size = 5000, 1000
    peer = start_peer(blocks * size)
    peer.run("import random; memory[:] = random.Random(1).randbytes(len(memory))")
    content = random.Random(1).randbytes(blocks * size)
    memory = Memory(blocks * size)
    plan = plan_blocks(one_tensor(memory.base, blocks, size), one_tensor(peer.base, blocks, size), dst, src)

    report = peer.read(plan, **limits)
    assert report.done
    assert (report.landed, report.untouched, report.unknown) == (((0, plan.chunks),), (), ())
    assert report.nbytes == len(dst) * size
    expected = bytearray(blocks * size)
    for a, b in zip(dst, src, strict=True):
        expected[a * size : (a + 1) * size] = content[b * size : (b + 1) * size]
    assert memory.bytes[:] == expected

    # And back, to other blocks of the peer; a third reading shows what it has then.
    back = plan_blocks(
        one_tensor(memory.base, blocks, size), one_tensor(peer.base, blocks, size), dst, dst, destination="remote"
    )
    assert peer.write(back, **limits).done
    seen = Memory(blocks * size)
    whole = plan_blocks(one_tensor(seen.base, 1, blocks * size), one_tensor(peer.base, 1, blocks * size), [0], [0])
    assert peer.read(whole, **limits).done
    written = set(dst)
    for block in range(blocks):
        span = slice(block * size, (block + 1) * size)
        assert seen.bytes[span] == (expected if block in written else content)[span]


def test_offsets_above_four_gibibytes_reach_the_right_bytes(start_peer: Callable[[int], Peer]) -> None:
    blocks = 6 * 1024
    peer = start_peer(blocks << 20)
    peer.run("memory[5 * 2**30 + 2**20 : 5 * 2**30 + 2**20 + 5] = b'right'; memory[2**30 : 2**30 + 5] = b'wrong'")
    memory = Memory(1 << 20)
    plan = plan_blocks(one_tensor(memory.base, 1, 1 << 20), one_tensor(peer.base, blocks, 1 << 20), [0], [5 * 1024 + 1])
    assert peer.read(plan).done
    assert memory.bytes[:5] == b"right"


def test_a_stopped_peer_can_still_be_read(start_peer: Callable[[int], Peer]) -> None:
    peer = start_peer(PAGE)
    peer.run("memory[:3] = b'abc'")
    os.kill(peer.pid, signal.SIGSTOP)
    memory = Memory(PAGE)
    assert peer.read(plan_blocks(one_tensor(memory.base, 1, PAGE), one_tensor(peer.base, 1, PAGE), [0], [0])).done
    assert memory.bytes[:3] == b"abc"


@pytest.mark.parametrize("direction", ["read", "write"])
def test_a_dead_peer_is_gone_whether_it_was_reaped_or_not(start_peer: Callable[[int], Peer], direction: str) -> None:
    peer = start_peer(PAGE)
    memory = Memory(PAGE)
    plan = plan_blocks(one_tensor(memory.base, 1, PAGE), one_tensor(peer.base, 1, PAGE), [0], [0])
    move = getattr(peer, direction)
    for end in (peer.kill, peer.close):
        end()
        report = move(plan)
        assert (report.done, report.cause, report.untouched) == (False, "peer gone", ((0, 1),))


@pytest.mark.parametrize("direction", ["read", "write"])
def test_a_process_that_took_over_the_pid_is_not_the_peer(start_peer: Callable[[int], Peer], direction: str) -> None:
    peer = start_peer(16 * PAGE)
    old = peer.pid, peer.nonce_address, peer.nonce
    peer.replace_by_exec()
    memory = Memory(16 * PAGE)
    plan = plan_blocks(one_tensor(memory.base, 16, PAGE), one_tensor(peer.base, 16, PAGE), [3, 1], [0, 2])
    move = _core.vm_read if direction == "read" else _core.vm_write
    report = move(plan, *old, time.monotonic() + SOON)
    assert (report.cause, report.landed, report.nbytes) == ("wrong peer", (), 0)
    if direction == "write":
        assert report.untouched == ((0, 2),)


def test_a_nonce_that_changes_during_a_transfer_is_noticed() -> None:
    nonce = _core.Nonce()
    memory = Memory(PAGE)
    # The destination is the nonce itself: it reads back before the data and no longer behind it.
    plan = plan_blocks(one_tensor(nonce.address, 1, 16), one_tensor(memory.base, 1, 16), [0], [0])
    report = _core.vm_read(plan, os.getpid(), nonce.address, nonce.value, time.monotonic() + SOON)
    assert (report.cause, report.landed, report.unknown) == ("wrong peer", (), ((0, 1),))


def test_nothing_has_landed_from_a_wrong_process_whose_memory_ends_early() -> None:
    source, target = Memory(4 * PAGE), Memory(4 * PAGE)
    make_hole(source.base + 2 * PAGE)
    plan = plan_blocks(one_tensor(target.base, 4, PAGE), one_tensor(source.base, 4, PAGE), [0, 2, 1], [0, 1, 2])
    nonce = _core.Nonce()
    report = _core.vm_read(plan, os.getpid(), nonce.address, bytes(16), time.monotonic() + SOON)
    assert (report.cause, report.landed) == ("wrong peer", ())


def test_a_closed_nonce_proves_nothing() -> None:
    nonce = _core.Nonce()
    memory = Memory(2 * PAGE)
    plan = plan_blocks(one_tensor(memory.base, 2, PAGE), one_tensor(memory.base, 2, PAGE), [0], [1])
    identity = nonce.address, nonce.value
    assert _core.vm_read(plan, os.getpid(), *identity, time.monotonic() + SOON).done
    nonce.close()
    nonce.close()
    assert _core.vm_read(plan, os.getpid(), *identity, time.monotonic() + SOON).cause == "wrong peer"
    with pytest.raises(errors.CacheValueError, match="closed"):
        _ = nonce.address


def test_a_forked_child_has_not_the_nonce_of_its_parent() -> None:
    code = """
import ctypes, os
from cachecore._core import Nonce
nonce = Nonce()
address, value = nonce.address, nonce.value
pid = os.fork()
if pid == 0:
    os._exit(0 if ctypes.string_at(address, 16) == bytes(16) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert nonce.value == value != bytes(16) != Nonce().value != value
"""
    subprocess.run([sys.executable, "-I", "-c", code], check=True, timeout=SOON)


# Blocks of four pages, the second of three broken in its third page, or at its start.
@pytest.mark.parametrize(("page", "unknown", "untouched"), [(6, ((1, 2),), ((2, 3),)), (4, (), ((1, 3),))])
@pytest.mark.parametrize("side", ["local", "remote"])
@pytest.mark.parametrize("direction", ["read", "write", "copy"])
def test_a_bad_address_is_a_result_that_names_what_landed(
    start_peer: Callable[[int], Peer], direction: str, side: str, page: int, unknown: Any, untouched: Any
) -> None:
    size = 4 * PAGE
    local, here = Memory(3 * size), Memory(3 * size)
    peer = start_peer(3 * size)
    remote = here.base if direction == "copy" else peer.base
    bad = (local.base if side == "local" else remote) + page * PAGE
    if side == "remote" and direction != "copy":
        peer.run(f"assert libc.mprotect(ctypes.c_void_p({bad}), ctypes.c_size_t({PAGE}), 0) == 0")
    else:
        make_hole(bad)
    plan = plan_blocks(
        # Three tensors side by side: three chunks whose bytes are contiguous.
        Geometry([local.base + i * size for i in range(3)], blocks=1, block_bytes=size),
        Geometry([remote + i * size for i in range(3)], blocks=1, block_bytes=size),
        [0],
        [0],
    )
    deadline = time.monotonic() + SOON
    report = _core.vm_copy(plan, deadline) if direction == "copy" else getattr(peer, direction)(plan)
    assert (report.cause, report.fault_address) == (f"{side} fault", bad)
    assert (report.landed, report.unknown, report.untouched) == (((0, 1),), unknown, untouched)
    assert report.nbytes == page * PAGE


def test_two_threads_tell_exactly_what_landed(start_peer: Callable[[int], Peer]) -> None:
    blocks = 64
    peer = start_peer(blocks * PAGE)
    peer.run("memory[:] = b'x' * len(memory)")
    bad = peer.base + 40 * PAGE
    peer.run(f"assert libc.mprotect(ctypes.c_void_p({bad}), ctypes.c_size_t({PAGE}), 0) == 0")
    memory = Memory(blocks * PAGE)
    order = list(range(blocks))[::-1]
    plan = plan_blocks(one_tensor(memory.base, blocks, PAGE), one_tensor(peer.base, blocks, PAGE), order, range(blocks))
    report = peer.read(plan, threads=2, threads_from=1, batch_bytes=3 * PAGE)
    assert (report.cause, report.fault_address) == ("remote fault", bad)
    assert_every_chunk_is_told_about(plan, report)
    landed = {chunk for start, stop in report.landed for chunk in range(start, stop)}
    for chunk in range(blocks):
        content = memory.bytes[order[chunk] * PAGE : (order[chunk] + 1) * PAGE]
        assert content == (b"x" if chunk in landed else b"\0") * PAGE
    assert report.nbytes == len(landed) * PAGE


Stop = Callable[[CopyPlan, float, bytearray, int], _core.TransferReport]
MOVES: list[Stop] = [
    lambda plan, deadline, cancel, threads: _core.vm_copy(plan, deadline, cancel, threads),
    lambda plan, deadline, cancel, threads: _core.memcpy_plan(plan, deadline, cancel, threads),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("move", MOVES, ids=["vm_copy", "memcpy_plan"])
@pytest.mark.parametrize("cause", ["deadline", "cancelled"])
def test_a_transfer_stops_when_told_to_and_writes_no_more(move: Stop, threads: int, cause: str) -> None:
    source, target = Memory(1 << 20), RepeatedMemory()
    plan = target.plan_from(source)
    cancel = bytearray(1)
    deadline = time.monotonic() + (0.05 if cause == "deadline" else SOON)
    timer = threading.Timer(0.05, cancel.__setitem__, (0, 1))
    if cause == "cancelled":
        timer.start()
    report = move(plan, deadline, cancel, threads)
    assert report.cause == cause
    assert_every_chunk_is_told_about(plan, report)
    if cause == "cancelled":
        timer.join()
    mark = b"\1" * target.piece_bytes
    target.first_piece[:] = mark
    time.sleep(0.02)
    assert target.first_piece == mark


def test_a_failure_in_one_thread_stops_the_others() -> None:
    source, target = Memory(1 << 20), RepeatedMemory()
    make_hole(target.base)
    plan = target.plan_from(source)
    report = _core.vm_copy(plan, time.monotonic() + SOON, threads=2)
    assert (report.cause, report.fault_address) == ("local fault", target.base)
    assert report.untouched[-1][1] == plan.chunks


def test_a_deadline_that_has_passed_moves_nothing(start_peer: Callable[[int], Peer]) -> None:
    peer = start_peer(PAGE)
    memory = Memory(PAGE)
    plan = plan_blocks(one_tensor(memory.base, 1, PAGE), one_tensor(peer.base, 1, PAGE), [0], [0])
    for report in (peer.read(plan, deadline=time.monotonic()), peer.write(plan, deadline=0.0)):
        assert (report.cause, report.untouched, report.system_calls) == ("deadline", ((0, 1),), 0)


def test_memcpy_moves_what_the_plan_says() -> None:
    source, target = Memory(8 * PAGE), Memory(8 * PAGE)
    source.bytes[:] = random.Random(3).randbytes(8 * PAGE)
    plan = plan_blocks(one_tensor(target.base, 8, PAGE), one_tensor(source.base, 8, PAGE), [7, 2, 3], [1, 4, 5])
    assert _core.memcpy_plan(plan, time.monotonic() + SOON, threads=2, threads_from=1, batch_bytes=1000).done
    expected = bytearray(8 * PAGE)
    for a, b in ((7, 1), (2, 4), (3, 5)):
        expected[a * PAGE : (a + 1) * PAGE] = source.bytes[b * PAGE : (b + 1) * PAGE]
    assert target.bytes[:] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nonce": bytes(15)}, "nonce has 15 bytes"),
        ({"deadline": float("nan")}, "deadline is not a number"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": 10**9}, "threads is 1000000000"),
        ({"batch_bytes": 0}, "batch_bytes is 0"),
        ({"cancel": bytearray()}, "cancel is empty"),
    ],
)
def test_limits_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    memory = Memory(PAGE)
    plan = plan_blocks(one_tensor(memory.base, 2, 8), one_tensor(memory.base, 2, 8), [0], [1])
    given = {"nonce": bytes(16), "deadline": 0.0, **arguments}
    with pytest.raises(errors.CacheValueError, match=message):
        _core.vm_read(plan, os.getpid(), memory.base, **given)


def test_a_reader_can_be_named_where_ptrace_is_restricted() -> None:
    restricted = os.path.exists("/proc/sys/kernel/yama/ptrace_scope")
    for reader in (None, os.getpid(), 0):
        assert _core.allow_reader(reader) is restricted
    with pytest.raises(errors.EngineError, match="PR_SET_PTRACER") as caught:
        _core.allow_reader(2**31 - 1)
    assert caught.value.code == errno.EINVAL
