"""The memory that a driver has handed out: which ranges lie in it, and that each is given back once."""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass, field

from cachecore import _core
from cachecore.driver import MemoryOrigin
from cachecore.errors import CacheValueError

__all__ = ["AllocationTable", "Kind", "OwnedMemory"]


class Kind(enum.Enum):
    """How memory was allocated, which is how it must be freed."""

    DEVICE = "aclrtMalloc"
    PINNED_HOST = "aclrtMallocHost"
    ORDINARY_HOST = "memory file"


@dataclass(frozen=True)
class OwnedMemory:
    """One allocation.

    Attributes:
        number: Counts from 1 and is never used twice in a table.
        kind: How it was allocated.
        address: Start of the usable bytes.
        nbytes: Usable bytes.
        origin: What the runtime gave, which is what it must get back. Below `address` where more was allocated than
            asked for, to have an aligned address.
        origin_bytes: Bytes from `origin` on.
        block: Ordinary memory itself.
    """

    number: int
    kind: Kind
    address: int
    nbytes: int
    origin: int
    origin_bytes: int
    block: _core.SharedBlock | None = field(default=None, repr=False, compare=False)

    @property
    def memory_origin(self) -> MemoryOrigin:
        """How `describe` calls it, for an address at its start."""
        if self.kind is Kind.PINNED_HOST:
            return MemoryOrigin.HOST_PINNED
        if self.kind is Kind.ORDINARY_HOST:
            return MemoryOrigin.HOST_SHARED
        return MemoryOrigin.ACLRT_MALLOC if self.address == self.origin else MemoryOrigin.SUB_ALLOCATION


class AllocationTable:
    """Live allocations. For many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[int, OwnedMemory] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._live)

    def add(
        self,
        kind: Kind,
        address: int,
        nbytes: int,
        origin: int,
        origin_bytes: int,
        block: _core.SharedBlock | None = None,
    ) -> OwnedMemory:
        """Take a new allocation into the table."""
        with self._lock:
            self._count += 1
            owned = OwnedMemory(self._count, kind, address, nbytes, origin, origin_bytes, block)
            self._live[owned.number] = owned
        return owned

    def take(self, token: object) -> OwnedMemory:
        """Take an allocation out of the table; only one caller gets it.

        Raises:
            CacheValueError: It is not in the table, or not any more.
        """
        with self._lock:
            live = self._live.get(token.number) if isinstance(token, OwnedMemory) else None
            if live is None or live is not token:
                raise CacheValueError(
                    f"allocation is {token!r}, which is not live in this driver; free each allocation once, with the "
                    "driver that made it, before that is closed: close frees what is left"
                )
            return self._live.pop(live.number)

    def put_back(self, owned: OwnedMemory) -> None:
        """Undo `take`: the runtime did not free it."""
        with self._lock:
            self._live[owned.number] = owned

    def find(self, base: int, nbytes: int) -> OwnedMemory | None:
        """The allocation that holds a range as a whole, None when there is none."""
        with self._lock:
            for owned in self._live.values():
                if owned.address <= base and base + nbytes <= owned.address + owned.nbytes:
                    return owned
        return None

    def all(self) -> list[OwnedMemory]:
        """Everything that is live."""
        with self._lock:
            return list(self._live.values())
