"""The demo's child processes: whatever happens to one, the parent learns it in bounded time and none is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachecore.cli.demo import processes
from cachecore.cli.demo.messages import Settings, Setup
from cachecore.cli.demo.processes import ChildFailedError, ChildProcess
from cachecore.errors import StatusCode

SETTINGS = Settings(layers=1, blocks=1, block_bytes=8, backend="nowhere", engine="auto", timeout=0.5)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChildProcess]:
    monkeypatch.setattr(processes, "MARGIN_SECONDS", 0.5)
    made = ChildProcess("prefill", timeout=0.5)
    yield made
    made.end()
    assert not Path(f"/proc/{made.pid}").exists()


def test_a_killed_child_is_named_with_its_signal(child: ChildProcess) -> None:
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(ChildFailedError, match=rf"prefill process \(pid {child.pid}\) .* signal 9 \(SIGKILL\)"):
        child.ask(Setup("prefill", SETTINGS))
        child.receive()


def test_a_stopped_child_is_late_and_can_be_ended(child: ChildProcess) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    child.ask(Setup("prefill", SETTINGS))
    with pytest.raises(ChildFailedError, match=r"did not answer for 1 s \(it is stopped\)") as caught:
        child.receive()
    assert caught.value.status_code is StatusCode.TIMEOUT


def test_a_stopped_child_does_not_block_the_sender_of_a_large_message(child: ChildProcess) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    with pytest.raises(ChildFailedError, match="takes no messages"):
        child.post(Setup("prefill", SETTINGS, peer_address="x" * 10_000_000))


def test_what_fails_in_a_child_is_told(child: ChildProcess) -> None:
    child.ask(Setup("prefill", SETTINGS), extra=60.0)
    with pytest.raises(ChildFailedError, match="failed: BackendError: backend 'nowhere' is not installed"):
        child.receive()


def test_a_child_ends_when_its_parent_is_gone(child: ChildProcess) -> None:
    child._channel.close()
    assert child._process.wait(30) == 1
