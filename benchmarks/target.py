"""The process that is read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, final

from side import Memory, Side
from workloads import Workload

__all__ = ["Target", "serve"]


@final
class Target:
    """Starts the process that is read and ends it.

    Attributes:
        pid: Its process id.
        address: Where its manager listens.
        bases: Address of each of its tensors.
    """

    def __init__(self, workload: Workload, memory: Memory) -> None:
        # As a folder, like this process: with `-m` a checkout would shadow the installed package.
        command = [sys.executable, str(Path(__file__).parent), "--serve", workload.name, "--memory", memory]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the target process ended with exit code {self._process.wait()}; its error is above")
        told: dict[str, Any] = json.loads(line)
        self.address: str = told["address"]
        self.bases: list[int] = told["bases"]

    def __enter__(self) -> Target:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()  # tells it to end
        try:
            self._process.wait(30.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._process.stdout.close()


def serve(workload: Workload, memory: Memory) -> None:
    """Be the target until standard input ends, which it also does when the other process dies."""
    with Side(1, workload, memory, listen="127.0.0.1:0") as side:
        print(json.dumps({"address": side.manager.address, "bases": side.cache.tensor_addrs}), flush=True)
        sys.stdin.read()
