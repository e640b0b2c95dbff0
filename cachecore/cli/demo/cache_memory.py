"""The memory of one paged cache: its tensors, writing content into blocks and checking it there."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cachecore import _core
from cachecore.cli.demo.content import block_seeds
from cachecore.cli.demo.messages import Mismatch, Settings
from cachecore.driver import BackendDriver
from cachecore.testing import MemoryHarness
from cachecore.types import Placement

__all__ = ["CacheMemory"]


class CacheMemory:
    """K and V tensors of all layers, allocated by the driver.

    Where the host can reach the memory, content is written and checked in place; on a device it goes through a
    buffer of one block.

    Args:
        driver: Whose memory.
        settings: Shape of the cache.
    """

    def __init__(self, driver: BackendDriver, settings: Settings) -> None:
        self._settings = settings
        self._harness = MemoryHarness(driver)
        self.addresses = [self._harness.allocate(settings.tensor_bytes) for _ in range(settings.tensors)]
        self._bases = np.array(self.addresses, np.uint64)
        infos = driver.describe([(address, settings.tensor_bytes) for address in self.addresses])
        self._in_place = all(info.placements is None or Placement.HOST in info.placements for info in infos)

    def fill(self, content_ids: Sequence[int], blocks: Sequence[int]) -> None:
        """Write each content into its block, in every tensor."""
        if not content_ids:
            return
        addresses, seeds = self._addresses(blocks), block_seeds(self._settings.layers, content_ids).ravel()
        if self._in_place:
            _core.fill_blocks(addresses, seeds, self._settings.block_bytes)
            return
        for address, seed in zip(addresses.tolist(), seeds.tolist(), strict=True):
            self._harness.write(address, _words(self._settings.block_bytes, seed).tobytes())

    def check(self, content_ids: Sequence[int], blocks: Sequence[int]) -> tuple[int, Mismatch | None]:
        """Compare every word of every block with the content that belongs there.

        Returns:
            How many blocks of single tensors are wrong, and the first of them.
        """
        if not content_ids:
            return 0, None
        addresses, seeds = self._addresses(blocks), block_seeds(self._settings.layers, content_ids).ravel()
        if self._in_place:
            wrong = _core.find_mismatches(addresses, seeds, self._settings.block_bytes)
        else:
            wrong = self._check_copies(addresses, seeds)
        if not wrong:
            return 0, None
        position, word = wrong[0]
        tensor, block = divmod(position, len(blocks))
        found = self._harness.read(int(addresses[position]) + 8 * word, 8)
        return len(wrong), Mismatch(
            layer=tensor // 2,
            tensor="KV"[tensor % 2],
            content_id=content_ids[block],
            block=blocks[block],
            word=word,
            expected=int(_words(8 * (word + 1), int(seeds[position]))[-1]),
            found=int.from_bytes(found, sys.byteorder),
        )

    def close(self) -> None:
        """Give the memory back."""
        self._harness.close()

    def _addresses(self, blocks: Sequence[int]) -> NDArray[np.uint64]:
        offsets = np.array(blocks, np.uint64) * np.uint64(self._settings.block_bytes)
        return (self._bases[:, None] + offsets[None, :]).ravel()

    def _check_copies(self, addresses: NDArray[np.uint64], seeds: NDArray[np.uint64]) -> list[tuple[int, int]]:
        nbytes = self._settings.block_bytes
        wrong = []
        for position, (address, seed) in enumerate(zip(addresses.tolist(), seeds.tolist(), strict=True)):
            copy = np.frombuffer(self._harness.read(address, nbytes), np.uint64)
            word = _core.find_mismatch(copy.ctypes.data, nbytes, seed)
            if word >= 0:
                wrong.append((position, word))
        return wrong


def _words(nbytes: int, seed: int) -> NDArray[np.uint64]:
    words = np.empty(nbytes // 8, np.uint64)
    _core.fill_words(words.ctypes.data, nbytes, seed)
    return words
