import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("owner.py")


class OwnerProcess:
    """The other end of tests/integration/owner.py, or of another script like it. Every answer is waited for with a limit."""

    def __init__(self, cluster_id=1, listen="127.0.0.1:0", script=SCRIPT):
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(cluster_id), listen],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.address = self._answer(60)["address"]

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def _answer(self, seconds):
        answer = self._lines.get(timeout=seconds)
        assert answer is not None, f"the owner ended with {self.process.wait(10)}"
        return answer

    def post(self, do, **arguments):
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

    def answer(self, seconds=60):
        answer = self._answer(seconds)
        assert "error" not in answer, answer
        return answer["result"]

    def ask(self, do, **arguments):
        self.post(do, **arguments)
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
def owners():
    """Starts owner processes and ends them, whatever happens."""
    started = []

    def start(*arguments, **more):
        started.append(OwnerProcess(*arguments, **more))
        return started[-1]

    yield start
    for owner in started:
        owner.end()
