"""Memory that is registered with the vendor's engine, counted: several managers of a process share the engine."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cachecore.engine import Region
from cachecore.errors import EngineError, PlacementError, StillReachableError
from cachecore_ascend_runtime.hixl_links import Links
from cachecore_ascend_runtime.hixl_native import FAILED, Answer, NativeEngine

__all__ = ["RegisteredMemory"]

#: Seconds that peers, who were told, get to end their links before memory counts as still reachable.
_PATIENCE: Final = 1.0
_POLL_INTERVAL: Final = 0.01


@dataclass
class _Entry:
    """One native registration.

    Attributes:
        region: The memory.
        handle: The vendor's.
        users: How many registrations of engines it stands for; 0 for one that could not be deregistered yet.
    """

    region: Region
    handle: int
    users: int


class RegisteredMemory:
    """What one native engine has registered. Thread-safe.

    Args:
        native: The engine.
        links: Its own links; they are cut before memory is deregistered, and made again when they are next used.
    """

    def __init__(self, native: NativeEngine, links: Links) -> None:
        self._native = native
        self._links = links
        self._lock = threading.Lock()
        self._entries: dict[tuple[int, int], _Entry] = {}
        self._packed: bytes | None = b""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def regions(self) -> list[Region]:
        """Every registered range, once."""
        with self._lock:
            return [entry.region for entry in self._entries.values()]

    @property
    def packed(self) -> bytes:
        """(base, bytes) of every registered range, packed for `_core.plan_within`."""
        packed = self._packed
        if packed is None:
            with self._lock:
                packed = self._packed = b"".join(struct.pack("QQ", *key) for key in self._entries)
        return packed

    def add(self, regions: Sequence[Region]) -> None:
        """Register all of them or none. A range that is registered already is counted.

        Raises:
            EngineError: The native engine refused one.
            PlacementError: A range is registered with the other placement.
            StillReachableError: One was refused, and what was registered before it cannot be deregistered.
        """
        added: list[Region] = []
        with self._lock:
            try:
                for index, region in enumerate(regions):
                    self._add(index, region)
                    added.append(region)
            except BaseException as error:
                self._roll_back(added, error)
                raise

    def _add(self, index: int, region: Region) -> None:
        where = f"regions[{index}] ({region.nbytes} bytes at {region.base:#x}, {region.placement.name})"
        key = region.base, region.nbytes
        entry = self._entries.get(key)
        if entry is not None:
            if entry.region.placement is not region.placement:
                raise PlacementError(
                    f"{where} is registered with HIXL as {entry.region.placement.name} in this process; register the same "
                    "memory with one placement"
                )
            entry.users += 1
            return
        if region.base <= 0 or region.nbytes <= 0 or region.base + region.nbytes > 2**64:
            raise EngineError(f"{where} is no range of memory", operation="hixl.register_mem")
        overlapped = [
            other.region
            for other in self._entries.values()
            if other.region.base < region.base + region.nbytes and region.base < other.region.base + other.region.nbytes
        ]
        if overlapped:
            raise EngineError(
                f"{where} overlaps {overlapped[0].nbytes} bytes at {overlapped[0].base:#x}, which are registered with HIXL in "
                "this process; register one range for both",
                operation="hixl.register_mem",
            )
        answer = self._native.register(*key, region.placement)
        if not answer.ok:
            raise EngineError(
                f"{where} could not be registered with HIXL: {answer}",
                operation="hixl.register_mem",
                code=answer.status,
            )
        self._entries[key] = _Entry(region, int(answer.value), 1)
        self._packed = None
        self._links.registered()

    def _roll_back(self, added: Sequence[Region], cause: BaseException) -> None:
        last = []
        for region in reversed(added):
            entry = self._entries[region.base, region.nbytes]
            entry.users -= 1
            if not entry.users:
                last.append(entry)
        stuck = self._deregister_all(last)
        if stuck:
            listed = ", ".join(f"{entry.region.base:#x} ({entry.region.nbytes} bytes)" for entry, _ in stuck)
            raise StillReachableError(
                f"registration failed ({cause}) and could not be undone for {listed}: {stuck[0][1].short}. Do not free this "
                "memory before the manager is closed",
                operation="hixl.deregister_mem",
                code=stuck[0][1].status,
            ) from cause

    def _deregister_all(self, entries: Sequence[_Entry]) -> list[tuple[_Entry, Answer]]:
        """Deregister entries that nobody uses; returns those that stay, and why. A later call tries them again."""
        if not entries:
            return []
        with self._links.cut(time.monotonic() + _PATIENCE) as busy:
            answers = [(entry, self._deregister(entry, busy)) for entry in entries]
        return [(entry, answer) for entry, answer in answers if not answer.ok]

    def remove(self, region: Region, readers: Callable[[], str]) -> None:
        """Undo one registration; the last one of a range deregisters it.

        The links of this process are cut for it. Those of peers to this process must be cut by them.

        Args:
            region: As it was added.
            readers: Names the peers that may be connected, for the message.

        Raises:
            StillReachableError: A peer is still connected; nothing has changed and the call can be repeated.
        """
        with self._lock:
            entry = self._entries[region.base, region.nbytes]
            if entry.users > 1:
                entry.users -= 1
                return
            end = time.monotonic() + _PATIENCE
            with self._links.cut(end) as busy:
                answer = self._deregister(entry, busy)
                while not answer.ok and time.monotonic() < end:
                    time.sleep(_POLL_INTERVAL)
                    answer = self._deregister(entry, busy)
        if not answer.ok:
            raise StillReachableError(
                f"{region.nbytes} bytes at {region.base:#x} could not be deregistered from HIXL: {answer.short}. It deregisters "
                f"memory only while no peer is connected; those that may be: {readers()}. The memory stays registered and "
                "must not be freed; repeat the call when their links have ended",
                operation="hixl.deregister_mem",
                code=answer.status,
            )

    def abandon(self, region: Region) -> None:
        """Undo one registration that could not be removed: the last one of a range is tried again later."""
        with self._lock:
            self._entries[region.base, region.nbytes].users -= 1

    def _deregister(self, entry: _Entry, busy: Sequence[str]) -> Answer:
        if busy:  # nothing may be taken away under a transfer, whatever the native engine would say
            return Answer(FAILED, detail=f"transfers of this process still run to {', '.join(busy)}")
        answer = self._native.deregister(entry.handle)
        if answer.ok:
            del self._entries[entry.region.base, entry.region.nbytes]
            self._packed = None
        return answer

    def retry(self) -> list[Region]:
        """Deregister what nobody uses and could not be deregistered before; returns what still cannot be."""
        with self._lock:
            stuck = self._deregister_all([entry for entry in self._entries.values() if not entry.users])
        return [entry.region for entry, _ in stuck]
