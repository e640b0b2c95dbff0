"""The memory that the host driver has handed out, and which ranges lie in it."""

from __future__ import annotations

import os
import struct
import threading
from dataclasses import dataclass

from cachecore._core import SharedBlock
from cachecore.errors import CacheValueError

__all__ = ["BlockTable", "OwnedBlock"]


@dataclass(frozen=True)
class OwnedBlock:
    """One allocation.

    Attributes:
        number: Counts from 1 and is never used twice in a table.
        address: Start.
        nbytes: Bytes.
    """

    number: int
    address: int
    nbytes: int


class BlockTable:
    """Live allocations, each a sealed memory file that peers can map. For many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[int, tuple[OwnedBlock, SharedBlock]] = {}
        self._count = 0
        self._table: bytes | None = b""

    def __len__(self) -> int:
        return len(self._live)

    def add(self, block: SharedBlock) -> OwnedBlock:
        """Take a new block into the table."""
        with self._lock:
            self._count += 1
            owned = OwnedBlock(self._count, block.address, block.nbytes)
            self._live[owned.number] = owned, block
            self._table = None
        return owned

    def remove(self, owned: object) -> None:
        """Unmap a block.

        Raises:
            CacheValueError: It is not in the table, or not any more.
        """
        with self._lock:
            live = self._live.get(owned.number) if isinstance(owned, OwnedBlock) else None
            if live is None or live[0] is not owned:
                raise CacheValueError(
                    f"allocation is {owned!r}, which is not live in this driver; free each allocation once, with the "
                    "driver that made it, before that is closed: close frees what is left"
                )
            del self._live[live[0].number]
            self._table = None
            # Under the lock, so that `duplicate` never sees a number that the system gave to another file.
            live[1].close()

    def find(self, base: int, nbytes: int) -> OwnedBlock | None:
        """The block that holds a range as a whole, None when there is none."""
        with self._lock:
            for owned, _ in self._live.values():
                if owned.address <= base and base + nbytes <= owned.address + owned.nbytes:
                    return owned
        return None

    def table(self) -> bytes:
        """(address, bytes) of all blocks as packed uint64, for `_core.plan_within`."""
        table = self._table
        if table is None:
            with self._lock:
                blocks = [owned for owned, _ in self._live.values()]
                table = b"".join(struct.pack("QQ", owned.address, owned.nbytes) for owned in blocks)
                self._table = table
        return table

    def duplicate(self, number: int) -> int | None:
        """A new descriptor of the block's memory file, which the caller closes; None when the block is gone."""
        with self._lock:
            live = self._live.get(number)
            return None if live is None else os.dup(live[1].fd)

    def clear(self) -> None:
        """Unmap everything."""
        with self._lock:
            live, self._live, self._table = self._live, {}, b""
            for _, block in live.values():
                block.close()
