"""`pull_blocks` against the bare system call over the same chunks."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pairing import ForeignLoad, measure, ratio, summary
from raw_read import RawRead
from side import Memory, Side, first_words
from target import Target
from workloads import Workload

import cachecore as cc
from cachecore.planning import Geometry, plan_blocks

__all__ = ["run_pull"]

_TIMEOUT = 30.0
_POISON = 0


class _Repetition:
    """The blocks of one repetition, and the same as flat chunks."""

    def __init__(self, side: Side, target: Target, workload: Workload) -> None:
        self._random = np.random.default_rng(7)
        self._workload = workload
        self._side = side
        sizes: dict[str, Any] = {"blocks": workload.blocks, "block_bytes": workload.block_bytes}
        self._local = Geometry(side.cache.tensor_addrs, **sizes)
        self._remote = Geometry(target.bases, **sizes)
        self.number = 0
        self.draw()

    def draw(self) -> None:
        """Choose other blocks."""
        workload = self._workload
        self.src = self._random.permutation(workload.blocks)[: workload.taken]
        self.dst = self._random.permutation(workload.blocks)[: workload.taken]
        plan = plan_blocks(self._local, self._remote, self.dst, self.src)
        flat = plan.flat(0, plan.chunks)
        self.chunks: NDArray[np.uint64] = np.frombuffer(flat, np.uint64).reshape(-1, 3)

    def poison(self) -> None:
        """Make sure that only a transfer can make `verify` succeed."""
        for tensor in self._side.tensors:
            tensor[self.dst, 0] = _POISON

    def verify(self, who: str) -> None:
        """Check the first and the last word of each block."""
        for number, tensor in enumerate(self._side.tensors):
            expected = first_words(self._workload, number)[self.src]
            if not np.array_equal(tensor[self.dst, 0], expected) or not (tensor[self.dst, -1] == 1).all():
                raise SystemExit(f"{who} moved wrong bytes in tensor {number}")


def run_pull(workload: Workload, memory: Memory, repetitions: int) -> dict[str, Any]:
    """Compare a pull with one and two threads of the bare system call.

    Args:
        workload: What is read.
        memory: Where it lies, on both sides.
        repetitions: Before the workload's own factor.
    """
    with Target(workload, memory) as target, Side(2, workload, memory) as side:
        peer = side.manager.link(1, target.address, timeout=_TIMEOUT)
        raw = RawRead(target.pid)
        now = _Repetition(side, target, workload)
        key = cc.BlocksCacheKey(1)

        def pull() -> float:
            started = time.perf_counter()
            side.manager.pull_blocks(
                key, side.cache, src_blocks=now.src, dst_blocks=now.dst, tensor_num_per_layer=1, timeout=_TIMEOUT
            )
            return time.perf_counter() - started

        candidates = {"raw": lambda: raw.seconds(now.chunks, 1), "pull": pull}
        if workload.nbytes >= 2**20:
            candidates["raw_two_threads"] = lambda: raw.seconds(now.chunks, 2)
        for name, candidate in candidates.items():
            now.poison()
            candidate()
            now.verify(name)
        load = ForeignLoad([target.pid])
        times = measure(candidates, repetitions * workload.share, now.draw)
        foreign = load.cores()
        return {
            "workload": workload.name,
            "memory": memory,
            "bytes": workload.nbytes,
            "blocks": workload.tensors * workload.taken,
            "chunks_last_repetition": len(now.chunks),
            "repetitions": repetitions * workload.share,
            "engine": peer.engine,
            **{name: summary(seconds) for name, seconds in times.items()},
            "pull_over_raw": ratio(times["pull"], times["raw"]),
            "pull_over_raw_two_threads": ratio(times["pull"], times["raw_two_threads"])
            if "raw_two_threads" in times
            else None,
            "gb_per_s_pull": round(workload.nbytes / np.median(times["pull"]) / 1e9, 3),
            "foreign_cores": foreign,
        }
