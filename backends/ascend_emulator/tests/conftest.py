"""The emulator reads its environment once per process, so every test runs it in processes of its own."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))  # for emulated_acl.py and linked_peers.py, which the children import too


def environment(soc, variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CACHECORE_EMULATE")}
    for name in ("ASCEND_RT_VISIBLE_DEVICES", "HCCL_INTRA_ROCE_ENABLE"):
        kept.pop(name, None)
    if soc is not None:
        kept["CACHECORE_EMULATE"] = soc
    return {**kept, **variables}


@pytest.fixture
def child():
    """Calls a function of the test's file in a new process; gives what it returns."""

    def call(function, *arguments, soc="Ascend910B4", code=0, **variables):
        command = [sys.executable, str(FOLDER / "child.py"), function.__code__.co_filename, function.__name__]
        result = subprocess.run(
            [*command, json.dumps(arguments)],
            env=environment(soc, variables),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == code, result.stderr
        return json.loads(result.stdout.splitlines()[-1]) if code == 0 else None

    return call


class Peer:
    """The other end of tests/peer.py. Every answer is waited for with a limit."""

    def __init__(self, soc="Ascend910B4", **variables):
        self.process = subprocess.Popen(
            [sys.executable, str(FOLDER / "peer.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(soc, variables),
        )
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def post(self, do, *arguments):
        self.process.stdin.write(json.dumps([do, *arguments]) + "\n")
        self.process.stdin.flush()

    def answer(self, seconds=60):
        answer = self._lines.get(timeout=seconds)
        assert answer is not None, f"the peer ended with {self.process.wait(10)}"
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def ask(self, do, *arguments):
        self.post(do, *arguments)
        return self.answer()

    def signal(self, number):
        os.kill(self.process.pid, number)
        if number == signal.SIGSTOP:  # the signal only asks for it
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def end(self):
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(30)
        self._reader.join(30)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def peers():
    """Starts processes that obey, and ends them, whatever happens."""
    started = []

    def start(soc="Ascend910B4", **variables):
        started.append(Peer(soc, **variables))
        return started[-1]

    yield start
    for peer in started:
        peer.end()


@pytest.fixture
def endpoint():
    """An address of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
