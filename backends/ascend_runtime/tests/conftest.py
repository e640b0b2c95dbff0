"""The emulated runtime of this test process: two devices of an A2. Other SoCs and settings run in fresh processes."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cachecore_ascend_runtime import Device, Runtime, load

EMULATE = "CACHECORE_EMULATE"


@pytest.fixture(scope="session")
def runtime() -> Iterator[Runtime]:
    before = os.environ.get(EMULATE)
    os.environ[EMULATE] = "Ascend910B4:2"
    try:
        yield load()
    finally:
        if before is None:
            del os.environ[EMULATE]
        else:
            os.environ[EMULATE] = before


@pytest.fixture
def device(runtime: Runtime) -> Device:
    found = runtime.device(0)
    found.bind_thread()
    return found


@pytest.fixture
def in_process() -> Callable[..., Any]:
    """Run Python code in a fresh process; it calls `answer(value)` with something JSON can hold."""

    def run(code: str, **environment: str | None) -> Any:
        env = {name: value for name, value in os.environ.items() if name != EMULATE}
        for name, value in environment.items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        prelude = "import json\ndef answer(value): print('ANSWER', json.dumps(value))\n"
        result = subprocess.run(
            [sys.executable, "-c", prelude + code],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            cwd="/",
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.split("ANSWER ", 1)[1])

    return run


@pytest.fixture
def compile_c() -> Callable[..., Path]:
    """Build a shared library: path, source, flags of the compiler."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the tests need a C compiler, as the build does"

    def run(path: Path, source: Path, *flags: str) -> Path:
        subprocess.run([compiler, "-shared", "-fPIC", "-fvisibility=hidden", "-o", path, source, *flags], check=True)
        return path

    return run


@pytest.fixture
def stub(compile_c: Callable[..., Path]) -> Callable[..., Path]:
    """Build a libascendcl.so of few functions from `stub.c`, in a folder that is made: folder, macros."""

    def build(folder: Path, *macros: str) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        source = Path(__file__).with_name("stub.c")
        return compile_c(folder / "libascendcl.so", source, *(f"-D{macro}" for macro in macros))

    return build


class Emulator:
    """The emulated library past the binding: faults on demand, call counts, graph capture, and mapped memory."""

    def __init__(self, library: str) -> None:
        self.library = ctypes.CDLL(library)
        self.library.cachecore_emulator_calls.restype = ctypes.c_uint64

    def faults(self, plan: str = "") -> None:
        """Replace the plan, see the emulator's description of CACHECORE_EMULATE_FAULTS; counting starts anew."""
        assert self.library.cachecore_emulator_set_faults(plan.encode()) == 0, plan

    def calls(self, function: str) -> int:
        """How often it was called since the plan was replaced."""
        return int(self.library.cachecore_emulator_calls(function.encode()))

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function and demand success."""
        code = getattr(self.library, function)(*arguments)
        assert code == 0, f"{function} answered {code}"

    def mapped(
        self, blocks: int, nbytes: int = 2 << 20, huge: bool = True, spare: int = 0
    ) -> tuple[int, Callable[[], None]]:
        """Reserve addresses and map `blocks` blocks side by side; returns the start and what gives everything back."""
        start = ctypes.c_void_p()
        self.call(
            "aclrtReserveMemAddress",
            ctypes.byref(start),
            ctypes.c_size_t((blocks + spare) * nbytes),
            ctypes.c_size_t(0),
            None,
            ctypes.c_uint64(0),
        )
        assert start.value is not None
        # handleType 0, allocationType 0, memAttr HBM_HUGE 4 or P2P_NORMAL 15, location {device 0, DEVICE}, reserve 0
        properties = struct.pack("<iiiIiiQ", 0, 0, 4 if huge else 15, 0, 1, 0, 0)
        handles = []
        for index in range(blocks):
            handle = ctypes.c_void_p()
            self.call(
                "aclrtMallocPhysical", ctypes.byref(handle), ctypes.c_size_t(nbytes), properties, ctypes.c_uint64(0)
            )
            at = ctypes.c_void_p(start.value + index * nbytes)
            self.call("aclrtMapMem", at, ctypes.c_size_t(nbytes), ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
            handles.append((at, handle))

        def give_back() -> None:
            for at, handle in handles:
                self.call("aclrtUnmapMem", at)
                self.call("aclrtFreePhysical", handle)
                # A second one must fail: a handle that `describe` kept would let it pass.
                assert self.library.aclrtFreePhysical(handle) != 0, "somebody still holds the physical memory"
            self.call("aclrtReleaseMemAddress", start)

        return start.value, give_back


@pytest.fixture
def emulator(runtime: Runtime, device: Device) -> Iterator[Emulator]:
    found = Emulator(runtime.library)
    found.faults()
    try:
        yield found
    finally:
        found.faults()
