"""Planning alone against building the same flat descriptors with numpy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pairing import measure, ratio, summary

from cachecore.planning import Geometry, plan_blocks

__all__ = ["run_planning"]

_BLOCK_BYTES = 64 * 1024
_BLOCKS = 8192
_BASE = 1 << 40  # nothing is read or written, so the addresses need not exist


def run_planning(tensors: int, count: int, repetitions: int) -> dict[str, Any]:
    """Time a plan of `count` scattered blocks, given as list and as array, paired with numpy descriptors.

    Args:
        tensors: Tensors of each side.
        count: Blocks of each tensor.
        repetitions: How many count.
    """
    size = _BLOCKS * _BLOCK_BYTES
    local_bases = np.uint64(_BASE) + np.arange(tensors, dtype=np.uint64) * np.uint64(size)
    remote_bases = local_bases + np.uint64(1 << 46)
    local = Geometry(local_bases.tolist(), blocks=_BLOCKS, block_bytes=_BLOCK_BYTES)
    remote = Geometry(remote_bases.tolist(), blocks=_BLOCKS, block_bytes=_BLOCK_BYTES)
    random = np.random.default_rng(7)
    arrays: list[NDArray[np.int64]] = []
    lists: list[list[int]] = []

    def draw() -> None:
        arrays[:] = [random.permutation(_BLOCKS)[:count] for _ in range(2)]
        lists[:] = [one.tolist() for one in arrays]

    times = measure(
        {
            "numpy": _timed(lambda: _descriptors(local_bases, remote_bases, arrays[0], arrays[1])),
            "array": _timed(lambda: plan_blocks(local, remote, arrays[0], arrays[1])),
            "list": _timed(lambda: plan_blocks(local, remote, lists[0], lists[1])),
        },
        repetitions,
        draw,
    )
    return {
        "tensors": tensors,
        "blocks": count,
        "repetitions": repetitions,
        **{name: summary(seconds) for name, seconds in times.items()},
        "array_over_numpy": ratio(times["array"], times["numpy"]),
        "list_over_numpy": ratio(times["list"], times["numpy"]),
    }


def _descriptors(
    local_bases: NDArray[np.uint64], remote_bases: NDArray[np.uint64], dst: NDArray[np.int64], src: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """(n, 3) of local address, remote address, bytes: what an engine without plans wants. Checks nothing."""
    out = np.empty((len(local_bases) * len(dst), 3), np.uint64)
    out[:, 0] = (local_bases[:, None] + dst.astype(np.uint64) * np.uint64(_BLOCK_BYTES)).ravel()
    out[:, 1] = (remote_bases[:, None] + src.astype(np.uint64) * np.uint64(_BLOCK_BYTES)).ravel()
    out[:, 2] = _BLOCK_BYTES
    return out


def _timed(work: Callable[[], object]) -> Callable[[], float]:
    def seconds() -> float:
        started = time.perf_counter()
        result = work()
        ended = time.perf_counter()
        del result
        return ended - started

    return seconds
