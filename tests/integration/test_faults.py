"""With transfers running: what a reader sees, and how soon, when its peer dies, stops, hangs, restarts or unregisters.

The times are those of docs/peers.md, with room for a busy machine.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import cachecore as cc
from cachecore import _core

spec = importlib.util.spec_from_file_location("owner", Path(__file__).with_name("owner.py"))
owner_script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(owner_script)

TENSORS, BLOCKS, BLOCK_BYTES = 4, 64, 16384


def wrong_blocks(address, tensor, count, block_bytes, content):
    """The first wrong block of one tensor, None when each holds what `content` says."""
    addresses, seeds = owner_script.addresses_and_seeds(address, tensor, range(count), block_bytes, content)
    return _core.find_mismatches(addresses, seeds, block_bytes)


class Replay:
    """Pulls in a thread, checks every block, and stops at the first error."""

    def __init__(self, manager, cache, addresses, *, count=BLOCKS, block_bytes=BLOCK_BYTES, timeout=3.0, model_id=0):
        self.manager, self.cache, self.timeout = manager, cache, timeout
        self.addresses = addresses
        self.count, self.block_bytes = count, block_bytes
        self.key = cc.BlocksCacheKey(1, model_id)
        self.pulls, self.error, self.failed_at = 0, None, None
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        random = np.random.default_rng(1)
        while not self.stopped.is_set():
            src = random.permutation(self.count)
            try:
                self.manager.pull_blocks(self.key, self.cache, src, range(self.count), timeout=self.timeout)
            except BaseException as error:
                self.failed_at, self.error = time.monotonic(), error
                return
            for tensor, address in enumerate(self.addresses):
                assert not wrong_blocks(address, tensor, self.count, self.block_bytes, src)
            self.pulls += 1

    def wait_for_pulls(self, more, seconds=60):
        goal, end = self.pulls + more, time.monotonic() + seconds
        while self.pulls < goal and self.error is None and time.monotonic() < end:
            time.sleep(0.01)
        assert self.error is None and self.pulls >= goal, (self.error, self.pulls)

    def wait_for_error(self, seconds):
        self.thread.join(seconds)
        assert not self.thread.is_alive(), f"no error after {seconds} s and {self.pulls} pulls"
        assert isinstance(self.error, cc.CacheError), self.error
        return self.error

    def stop(self):
        self.stopped.set()
        self.thread.join(60)
        assert self.error is None, self.error


@pytest.fixture
def reader():
    with cc.CacheManager(2, backend="host") as manager:
        yield manager


def target(manager, tensors=TENSORS, blocks=BLOCKS, block_bytes=BLOCK_BYTES):
    addresses = [manager.backend.allocate(blocks * block_bytes, cc.Placement.DEVICE).address for _ in range(tensors)]
    desc = cc.CacheDesc(tensors, [blocks, block_bytes], cc.DataType.DT_UINT8)
    return manager.register_blocks_cache(desc, addresses), addresses


def start(owners, reader, **more):
    owner = owners()
    owner.ask("register", tensors=TENSORS, blocks=BLOCKS, block_bytes=BLOCK_BYTES)
    peer = reader.link(1, owner.address, timeout=10)
    cache, addresses = target(reader)
    replay = Replay(reader, cache, addresses, **more)
    replay.wait_for_pulls(3)
    return owner, peer, replay


def test_a_killed_peer_is_lost_at_once_and_its_successor_on_the_port_needs_a_new_link(owners, reader):
    owner, peer, replay = start(owners, reader)
    owner.signal(signal.SIGKILL)
    killed = time.monotonic()
    error = replay.wait_for_error(10)
    assert isinstance(error, cc.LinkLostError) and error.state == "LOST"
    assert replay.failed_at - killed < 3
    owner.process.wait(10)
    successor = owners(listen=owner.address)
    successor.ask("register", tensors=TENSORS, blocks=BLOCKS, block_bytes=BLOCK_BYTES)
    # The old link never reaches the new process by itself.
    with pytest.raises(cc.LinkLostError, match="link"):
        reader.pull_blocks(cc.BlocksCacheKey(1), replay.cache, [0], [0], timeout=3)
    assert peer.state == "LOST"
    again = reader.link(1, successor.address, timeout=10)
    assert again.incarnation != peer.incarnation and [p.pid for p in reader.links] == [successor.process.pid]
    second = Replay(reader, *target(reader))
    second.wait_for_pulls(3)
    second.stop()


def test_a_stopped_peer_is_lost_after_four_seconds_and_can_be_linked_again(owners, reader):
    owner, peer, replay = start(owners, reader)
    owner.signal(signal.SIGSTOP)
    stopped = time.monotonic()
    error = replay.wait_for_error(20)
    assert isinstance(error, cc.LinkLostError) and error.state == "LOST"
    assert replay.failed_at - stopped < 10
    owner.signal(signal.SIGCONT)
    again = reader.link(1, owner.address, timeout=10)
    assert again.incarnation == peer.incarnation
    second = Replay(reader, *target(reader))
    second.wait_for_pulls(3)
    second.stop()


def test_a_busy_interpreter_is_stalled_and_costs_no_transfer_while_the_lease_holds(owners, reader):
    owner, peer, replay = start(owners, reader)
    owner.ask("hold", seconds=8)
    end = time.monotonic() + 7
    while peer.state != "STALLED" and time.monotonic() < end:
        time.sleep(0.05)
    assert peer.state == "STALLED"
    replay.wait_for_pulls(3)
    end = time.monotonic() + 20
    while peer.state != "LINKED" and time.monotonic() < end:
        time.sleep(0.05)
    assert peer.state == "LINKED"
    replay.stop()


def test_a_peer_silent_beyond_its_lease_fails_transfers_as_stalled(owners, reader):
    owner, _, replay = start(owners, reader)
    owner.ask("hold", seconds=22)
    held = time.monotonic()
    error = replay.wait_for_error(25)
    assert isinstance(error, cc.LinkLostError) and error.state == "STALLED"
    # 15 s of lease, counted from the last answered ping, then the 3 s of the pull's own deadline.
    assert 10 < replay.failed_at - held < 22


def test_unregistering_waits_for_a_running_pull_and_ends_the_next_one(owners, reader):
    owner = owners()
    # 1 GiB: 16 tensors x 64 blocks x 1 MiB.
    cache_id = owner.ask("register", tensors=16, blocks=64, block_bytes=1 << 20)
    reader.link(1, owner.address, timeout=10)
    cache, addresses = target(reader, tensors=16, blocks=64, block_bytes=1 << 20)
    for _ in range(2):
        failures = []
        started = threading.Event()

        def pull(failures=failures, started=started):
            try:
                started.set()
                reader.pull_blocks(cc.BlocksCacheKey(1), cache, range(64), range(64), timeout=30)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=pull)
        thread.start()
        started.wait(10)
        time.sleep(0.02)  # into the pull
        owner.post("unregister", cache_id=cache_id, timeout=30)
        thread.join(60)
        assert owner.answer(60) < 20
        if failures:  # the unregistration was faster: nothing moved
            assert isinstance(failures[0], cc.CacheNotFoundError), failures
        else:
            for tensor, address in enumerate(addresses):
                assert not wrong_blocks(address, tensor, 64, 1 << 20, range(64))
        with pytest.raises(cc.CacheNotFoundError):
            reader.pull_blocks(cc.BlocksCacheKey(1), cache, [0], [0], timeout=5)
        cache_id = owner.ask("register", tensors=16, blocks=64, block_bytes=1 << 20)


def test_a_cache_registered_after_the_link_can_be_pulled(owners, reader):
    owner, _, replay = start(owners, reader)
    replay.stop()
    owner.ask("register", tensors=2, blocks=8, block_bytes=4096, model_id=5)
    late = Replay(reader, *target(reader, 2, 8, 4096), count=8, block_bytes=4096, model_id=5)
    late.wait_for_pulls(2)
    late.stop()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, to become somebody else")
def test_all_of_it_as_an_unprivileged_user(tmp_path):
    # Root may read any process. The one capability kept only reads files: the interpreter may be in root's home.
    os.chmod(tmp_path, 0o777)
    keep = "-all,+dac_read_search"
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", f"--inh-caps={keep}"]
    command += [
        f"--ambient-caps={keep}",
        "--no-new-privs",
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    command += ["-k", "not unprivileged", "--basetemp", str(tmp_path / "base"), __file__]
    environment = {**os.environ, "HOME": "/nonexistent", "XDG_RUNTIME_DIR": "", "CACHECORE_TEST_USER": "65534"}
    run = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert "6 passed" in run.stdout, run.stdout[-400:]
