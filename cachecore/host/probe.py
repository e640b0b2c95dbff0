"""What the local engine needs of the kernel, tried and not guessed where it can be tried."""

from __future__ import annotations

import mmap
import os
import resource
from collections.abc import Iterator

from cachecore import _core
from cachecore.errors import CacheError
from cachecore.host.memory_limit import available_bytes
from cachecore.host.permissions import setting_of_seccomp, setting_of_yama
from cachecore.planning import Geometry, plan_blocks
from cachecore.probes import Finding, Probe

__all__ = ["PROBE"]


def _look() -> Iterator[Finding]:
    yield Finding("page size", f"{mmap.PAGESIZE} bytes")
    scope, meaning = setting_of_yama()
    yield Finding(
        "Yama ptrace_scope",
        f"{scope or 'not present'}{': ' + meaning if meaning else ''}",
        ""
        if scope in ("", "0")
        else "peers can read memory you allocated yourself only with the option "
        "local.allow_reader; memory that cachecore allocated needs nothing",
    )
    yield Finding("seccomp filter", "active" if setting_of_seccomp() == "2" else "none")
    yield _copy_by_kernel()
    yield _shared_memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield Finding(
        "open files",
        f"{soft} (hard limit {hard})",
        "" if soft >= 1024 else "a full cache of 240 tensors and its links need about 500: raise it with ulimit -n",
    )
    left = available_bytes()
    yield Finding("memory left", "the system does not say" if left is None else f"{left} bytes")
    yield Finding("user", f"{os.getuid()} (effective {os.geteuid()})")


def _copy_by_kernel() -> Finding:
    pair = bytearray(b"x" * 8 + bytes(8))
    address = _core.buffer_address(pair)
    one = {"blocks": 1, "block_bytes": 8}
    report = _core.vm_copy(
        plan_blocks(Geometry([address + 8], **one), Geometry([address], **one), [0], [0]), float("inf")
    )
    if report.done and pair[8:] == b"x" * 8:
        return Finding("process_vm_readv", "works on this process")
    return Finding(
        "process_vm_readv",
        f"refused: {report.cause}",
        "a container's seccomp profile may forbid it; only memory that cachecore allocated can be moved until it allows it",
    )


def _shared_memory() -> Finding:
    try:
        block = _core.SharedBlock(mmap.PAGESIZE)
    except CacheError as error:
        return Finding("sealed shared memory", "refused", str(error))
    block.close()
    return Finding("sealed shared memory", "works")


PROBE = Probe("local engine", _look)
