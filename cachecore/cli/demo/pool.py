"""Blocks of one cache, handed out by content: the least recently used content makes room for the new."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cachecore.errors import CacheError, CacheNotFoundError, StatusCode

__all__ = ["Acquired", "BlockPool", "NoFreeBlockError"]


class NoFreeBlockError(CacheError):
    """Too many blocks are in use for a request; nothing was changed."""

    default_status = StatusCode.NO_FREE_BLOCK


@dataclass(frozen=True)
class Acquired:
    """What `BlockPool.acquire` did.

    Attributes:
        blocks: The block of each content id, in their order.
        missing: Positions whose content was not resident; their blocks hold something else until it is written.
        evicted: Number of contents that made room.
    """

    blocks: tuple[int, ...]
    missing: tuple[int, ...]
    evicted: int


class BlockPool:
    """`size` blocks and what each holds. Not for several threads.

    A block in use (acquired and not yet released) is never given to other content: a peer may be reading it.

    Args:
        size: Number of blocks, above 0.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._blocks: OrderedDict[int, int] = OrderedDict()  # content id -> block, least recently used first
        self._users: dict[int, int] = {}  # content id -> acquisitions not yet released
        self._free = list(range(size - 1, -1, -1))

    @property
    def resident(self) -> dict[int, int]:
        """Block of each content id that has one, least recently used first."""
        return dict(self._blocks)

    def acquire(self, content_ids: Sequence[int]) -> Acquired:
        """Give every content a block and mark it as used.

        An evicted content's block goes to other content in the same call, so that a block never gets back what it
        held last: a transfer that moves nothing cannot look right.

        Args:
            content_ids: Distinct ids.

        Raises:
            NoFreeBlockError: More blocks are needed than are free or unused; the pool is unchanged.
        """
        wanted = set(content_ids)
        absent = [content for content in content_ids if content not in self._blocks]
        evictions = max(0, len(absent) - len(self._free))
        victims = self._victims(evictions, wanted)
        if len(victims) < evictions:
            raise NoFreeBlockError(
                f"{len(wanted)} blocks are needed, {len(absent)} of them new, but of {self._size} blocks "
                f"{len(self._free)} are free and {len(victims)} can be evicted; release what is in use first, "
                f"or use a larger pool"
            )
        for content in victims:
            self._free.append(self._blocks.pop(content))
        self._free.sort(reverse=True)  # neighbours are given out together, and are moved as one run
        for content in absent:
            self._blocks[content] = self._free.pop()
        for content in content_ids:
            self._blocks.move_to_end(content)
            self._users[content] = self._users.get(content, 0) + 1
        new = set(absent)
        return Acquired(
            blocks=tuple(self._blocks[content] for content in content_ids),
            missing=tuple(i for i, content in enumerate(content_ids) if content in new),
            evicted=evictions,
        )

    def release(self, content_ids: Iterable[int]) -> None:
        """Undo one `acquire`: the contents stay resident and may be evicted from now on.

        Raises:
            CacheNotFoundError: A content is not in use.
        """
        for content in content_ids:
            users = self._users.get(content, 0)
            if not users:
                raise CacheNotFoundError(f"content id {content} is not in use; release follows acquire")
            if users == 1:
                del self._users[content]
            else:
                self._users[content] = users - 1

    def _victims(self, count: int, wanted: set[int]) -> list[int]:
        victims: list[int] = []
        for content in self._blocks:
            if len(victims) == count:
                break
            if content not in self._users and content not in wanted:
                victims.append(content)
        return victims
