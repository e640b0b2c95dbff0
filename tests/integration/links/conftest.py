import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).with_name("peer_process.py")


class PeerError(Exception):
    """What a command raised over there; the message starts with the name of its class."""


class PeerProcess:
    """The other end of peer_process.py. Every answer is waited for with a limit."""

    def __init__(self, environment, warnings):
        self.process = subprocess.Popen(
            [sys.executable, "-W", warnings, str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.pid = self.process.pid
        self.address = None
        self.errors = ""
        self._ids = itertools.count()
        self._answers = {}
        self._lock = threading.Lock()
        self._readers = [threading.Thread(target=one, daemon=True) for one in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _box(self, number):
        with self._lock:
            return self._answers.setdefault(number, queue.Queue())

    def _read(self):
        for line in self.process.stdout:
            answer = json.loads(line)
            self._box(answer.pop("id")).put(answer)

    def _read_errors(self):
        for line in self.process.stderr:
            self.errors += line

    def post(self, do, *args, **arguments):
        """Start a command; call the result to wait for its answer."""
        number = next(self._ids)
        self.process.stdin.write(json.dumps({"id": number, "do": do, "args": args, **arguments}) + "\n")
        self.process.stdin.flush()

        def wait(limit=60.0):
            try:
                answer = self._box(number).get(timeout=limit)
            except queue.Empty:
                raise AssertionError(f"{do} has no answer after {limit} s; {self.errors}") from None
            if "error" in answer:
                raise PeerError(f"{answer['error']}: {answer['message']}")
            return answer["result"]

        return wait

    def ask(self, do, *args, limit=60.0, **arguments):
        return self.post(do, *args, **arguments)(limit)

    def until_seen(self, enough, limit=30.0):
        """The events seen once they satisfy `enough`; listeners are told by a thread of their own, after the fact."""
        end = time.monotonic() + limit
        while not enough(seen := self.ask("seen")):
            assert time.monotonic() < end, seen
            time.sleep(0.02)
        return seen

    def signal(self, number):
        os.kill(self.pid, number)
        if number == signal.SIGSTOP:  # the signal only asks for it
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def exit(self, code=0, limit=30.0):
        """End without closing anything. Returns the exit status."""
        self.process.stdin.write(json.dumps({"do": "exit", "code": code}) + "\n")
        self.process.stdin.flush()
        return self.process.wait(limit)

    def end(self):
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(30)
        for reader in self._readers:
            reader.join(30)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                stream.close()


#: Intervals for tests about what happens, not about how long it takes.
FAST = {
    "ping_interval": 0.1,
    "stall_after": 0.5,
    "lease": 1.5,
    "owner_silence": 2.0,
    "handshake": 2.0,
    "heartbeat_interval": 0.2,
    "heartbeat_timeout": 0.8,
    "farewell": 0.5,
}


@pytest.fixture
def key_dir(tmp_path):
    return tmp_path / "keys"


@pytest.fixture
def spawn(key_dir):
    """Starts processes and ends them, whatever happens."""
    started = []

    def start(cluster_id=None, *, environment=(), timing=FAST, warnings="error", **arguments):
        process = PeerProcess({**os.environ, "CACHECORE_KEY_DIR": str(key_dir), **dict(environment)}, warnings)
        started.append(process)
        if cluster_id is not None:
            process.address = process.ask("start", cluster_id, timing=timing, **arguments)
        return process

    yield start
    for process in started:
        process.end()


@pytest.fixture
def linked(spawn):
    """An owner with caches 1 and 2, and a reader linked to it."""

    def make(**arguments):
        owner = spawn(1, listen="127.0.0.1:0", **arguments)
        owner.ask("publish", 1, 2)
        reader = spawn(2, **arguments)
        reader.ask("link", 1, owner.address)
        return SimpleNamespace(owner=owner, reader=reader)

    return make
