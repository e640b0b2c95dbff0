"""Run a Python module with the runtime of a sanitizer: preload.py address|thread MODULE [ARGUMENT...].

The interpreter is not built with the sanitizer, so its runtime must be loaded before everything else, or the
extension module refuses to load.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# libstdc++ goes first in line too: the runtime looks for the function that throws C++ exceptions when it starts.
RUNTIMES = {"address": ("libasan.so", "libubsan.so", "libstdc++.so"), "thread": ("libtsan.so",)}
# The interpreter leaks by design at exit, and tests provoke and expect faults of their own.
DEFAULTS = {
    "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:handle_segv=0:suppressions="
    + str(Path(__file__).resolve().with_name("tsan_suppressions.txt")),
}


def library(name: str) -> str:
    """Path of a runtime as the compiler knows it.

    Raises:
        SystemExit: The compiler has none.
    """
    compiler = os.environ.get("CXX", "g++")
    path = subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip()
    if not Path(path).is_absolute():
        sys.exit(f"{compiler} has no {name}; install the sanitizer runtimes of the compiler")
    return str(Path(path).resolve())


def main() -> None:
    """Replace this process by the module's."""
    if len(sys.argv) < 3 or sys.argv[1] not in RUNTIMES:
        sys.exit(__doc__)
    kind, *module = sys.argv[1:]
    env = {**DEFAULTS, **os.environ, "LD_PRELOAD": " ".join(library(name) for name in RUNTIMES[kind])}
    env["CACHECORE_SANITIZER"] = kind
    env.setdefault("PYTHONSAFEPATH", "1")
    if kind == "address":
        env["PYTHONMALLOC"] = "malloc"  # so that the sanitizer sees every allocation
    command = [sys.executable, "-m", *module]
    if kind == "thread":
        # The runtime cannot place its tables where a kernel with much address randomisation leaves room.
        command = ["setarch", "-R", *command]
    os.execvpe(command[0], command, env)


if __name__ == "__main__":
    main()
