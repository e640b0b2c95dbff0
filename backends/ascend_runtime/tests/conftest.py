"""The emulated runtime of this test process: two devices of an A2. Other SoCs and settings run in fresh processes."""

from __future__ import annotations

import json
import os
import shutil
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
