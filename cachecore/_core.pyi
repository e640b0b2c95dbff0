"""Native parts of cachecore: plans, copies between processes, shared memory."""

from collections.abc import Iterable, Sequence
from typing import Any, final

@final
class Geometry:
    """One side of a transfer: where the blocks of a cache's tensors are.

    Block b of tensor t is the `block_bytes` bytes from `bases[t] + offset + b * block_stride` on. Immutable.
    """

    def __init__(
        self,
        bases: Sequence[int] | bytes | Any,
        *,
        blocks: int,
        block_bytes: int,
        block_stride: int | None = None,
        offset: int = 0,
        tensor_bytes: int | None = None,
    ) -> None:
        """Check once what planning relies on.

        Args:
            bases: Start address of each tensor; bytes are taken as packed native uint64.
            blocks: Number of blocks (or batch entries) of each tensor.
            block_bytes: Bytes of one block.
            block_stride: Bytes from one block to the next, None = `block_bytes`.
            offset: Bytes from the base to block 0.
            tensor_bytes: Bytes of one tensor, None = up to the end of its last block.

        Raises:
            CacheTypeError, CacheValueError, MissingArgumentError: Naming the argument.
        """

    def part(self, start: int, stop: int) -> Geometry:
        """The same geometry of tensors `start` to `stop` (exclusive) only. Copies no addresses."""

    @property
    def tensors(self) -> int:
        """Number of tensors."""

    @property
    def bases(self) -> tuple[int, ...]:
        """Start address of each tensor."""

    @property
    def blocks(self) -> int:
        """Number of blocks of each tensor."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""

    @property
    def block_stride(self) -> int:
        """Bytes from one block to the next."""

    @property
    def offset(self) -> int:
        """Bytes from the base to block 0."""

    @property
    def tensor_bytes(self) -> int:
        """Bytes of one tensor."""

@final
class CopyPlan:
    """What to move: groups of tensor base pairs times shared runs. Immutable, made by `cachecore.planning`.

    Chunks are numbered group by group; within a group chunk = pair * runs + run.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Not for callers: raises TypeError."""

    @property
    def pairs(self) -> int:
        """Tensor pairs, over all groups."""

    @property
    def runs(self) -> int:
        """Runs, over all groups; each is moved for every pair of its group."""

    @property
    def chunks(self) -> int:
        """Flat pieces: pairs times runs, summed over the groups."""

    @property
    def blocks(self) -> int:
        """Blocks moved, over all tensors."""

    @property
    def nbytes(self) -> int:
        """Bytes moved, over all tensors."""

    def groups(self) -> list[tuple[memoryview, memoryview]]:
        """(bases, runs) of each group, not copied.

        Read-only native uint64: bases of shape (pairs, 2) hold local and remote address, runs of shape (runs, 3)
        hold local offset, remote offset and bytes. They keep the plan alive.
        """

    def flat(self, start: int, count: int) -> bytes:
        """Native uint64 triples (local address, remote address, bytes) of `count` chunks from `start` on.

        Raises:
            CacheValueError: The plan has no such chunks.
        """

    def block_ranges(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
        """Destination blocks of half-open chunk ranges: (position of the tensor in the plan, first block, count).

        Sorted, neighbours joined.

        Raises:
            CacheValueError: The plan has no such chunks.
        """

def plan_blocks(
    local: Geometry,
    remote: Geometry,
    local_blocks: Any,
    remote_blocks: Any,
    destination_is_local: bool,
    local_name: str,
    remote_name: str,
    local_slice: tuple[int, int] | None,
    remote_slice: tuple[int, int] | None,
    same_process: bool,
) -> CopyPlan:
    """See `cachecore.planning.plan_blocks`."""

def plan_entry(
    local: Geometry,
    remote: Geometry,
    local_entry: int,
    remote_entry: int,
    size: int | None,
    destination_is_local: bool,
    local_name: str,
    remote_name: str,
    size_name: str,
    same_process: bool,
) -> CopyPlan:
    """See `cachecore.planning.plan_entry`."""

def plan_entry_to_blocks(
    local: Geometry,
    remote: Geometry,
    local_blocks: Any,
    remote_entry: int,
    blocks_name: str,
    entry_name: str,
    same_process: bool,
) -> CopyPlan:
    """See `cachecore.planning.plan_entry_to_blocks`."""
