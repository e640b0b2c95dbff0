"""The raw process_vm_readv loop in C, compiled once for each run."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["RawRead"]


class RawRead:
    """Reads flat chunks of another process with the bare system call.

    Args:
        pid: The process that is read.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._function = _compiled()

    def seconds(self, chunks: NDArray[np.uint64], threads: int) -> float:
        """Read all chunks and return the time it took, measured in C around the calls.

        Args:
            chunks: (n, 3) of local address, remote address, bytes.
            threads: 1 or 2; 2 halve the bytes. A single chunk is cut in two for that.

        Raises:
            OSError: A call failed or moved less than asked for.
        """
        if threads == 2 and len(chunks) == 1:
            chunks = _halved(chunks)
        chunks = np.ascontiguousarray(chunks)
        count = len(chunks)
        split = count // 2 if threads == 2 else count
        result: int = self._function(self._pid, chunks.ctypes.data, count, split)
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        return result / 1e9


def _halved(chunks: NDArray[np.uint64]) -> NDArray[np.uint64]:
    local, remote, nbytes = (int(value) for value in chunks[0])
    half = nbytes // 2
    return np.array([[local, remote, half], [local + half, remote + half, nbytes - half]], np.uint64)


def _compiled() -> ctypes._NamedFuncPointer:
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None:
        raise SystemExit("the raw loop needs a C compiler: install gcc or clang, or set CC")
    source = Path(__file__).with_name("raw_read.c")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "raw_read.so")
        command = [*compiler.split(), "-O2", "-Wall", "-shared", "-fPIC", "-pthread", "-o", str(library), str(source)]
        subprocess.run(command, check=True)
        function = ctypes.CDLL(str(library)).raw_read
    function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64]
    function.restype = ctypes.c_int64
    return function
