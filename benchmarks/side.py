"""One side of the benchmark: a manager with a registered cache whose every block starts with a word of its own."""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray
from workloads import Workload

import cachecore as cc
from cachecore.testing import MemoryHarness

__all__ = ["Memory", "Side"]

#: "shared": allocated by cachecore. "foreign": the process's own, as a framework would bring it.
Memory = Literal["shared", "foreign"]


@final
class Side:
    """A manager and one cache.

    Args:
        cluster_id: Of the manager.
        workload: Shape of the cache.
        memory: Where it lies.
        listen: As in `CacheManager`.
    """

    def __init__(self, cluster_id: int, workload: Workload, memory: Memory, listen: str | None = None) -> None:
        self.manager = cc.CacheManager(cluster_id=cluster_id, listen=listen)
        self._memory = MemoryHarness(self.manager.backend, foreign=memory == "foreign")
        addresses = [self._memory.allocate(workload.tensor_bytes) for _ in range(workload.tensors)]
        self.tensors = [_view(address, workload) for address in addresses]
        for number, tensor in enumerate(self.tensors):
            tensor[:] = 1  # every page is there before the clock starts
            tensor[:, 0] = first_words(workload, number)
        desc = cc.CacheDesc(workload.tensors, [workload.blocks, workload.block_bytes], cc.DataType.DT_UINT8)
        self.cache = self.manager.register_blocks_cache(
            desc, addresses, cc.BlocksCacheKey(cluster_id), remote_accessible=True
        )

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.manager.unregister_cache(self.cache.cache_id)
            self.tensors.clear()
            self._memory.close()
        finally:
            self.manager.close()


def first_words(workload: Workload, tensor: int) -> NDArray[np.uint64]:
    """What the blocks of a tensor start with."""
    return np.arange(workload.blocks, dtype=np.uint64) + np.uint64(tensor * workload.blocks + 1)


def _view(address: int, workload: Workload) -> NDArray[np.uint64]:
    words = workload.tensor_bytes // 8
    flat: NDArray[np.uint64] = np.ctypeslib.as_array((ctypes.c_uint64 * words).from_address(address))
    return flat.reshape(workload.blocks, workload.block_bytes // 8)
