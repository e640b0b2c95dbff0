# ruff: noqa: PYI021  # the place where native functions are documented
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

    def part(self, start: int, stop: int, step: int = 1) -> Geometry:
        """The same geometry of every `step`-th of the tensors `start` to `stop` (exclusive). Copies no addresses."""

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

        A block counts when a chunk writes at least one byte of it. Sorted, neighbours joined.

        Raises:
            CacheValueError: The plan has no such chunks.
        """

    def intervals(self, ranges: Iterable[tuple[int, int]], *, local: bool) -> bytes:
        """Addresses that half-open chunk ranges touch on one side: packed native uint64 (start, end) of each interval.

        Sorted and disjoint; those that touch or share bytes are joined.

        Raises:
            CacheValueError: The plan has no such chunks.
        """

    def overlaps(self, intervals: Sequence[int] | bytes | Any, *, local: bool) -> tuple[int, int] | None:
        """The (start, end) of an interval of addresses that the plan shares a byte with, None when there is none.

        Of several, the lowest one that the first such chunk touches.

        Args:
            intervals: Start and end (exclusive) of each in turn, as packed native uint64; sorted and disjoint.
            local: Look at the local side, else at the remote one.

        Raises:
            CacheValueError: An interval is empty or out of order.
        """

def plan_blocks(
    local: Geometry,
    remote: Geometry,
    local_blocks: Any,
    remote_blocks: Any,
    destination_is_local: bool,
    local_name: str,
    remote_name: str,
    local_slice: tuple[int, ...] | None,
    remote_slice: tuple[int, ...] | None,
    same_process: bool,
) -> CopyPlan:
    """See `cachecore.planning.plan_blocks`."""

def plan_parts(
    parts: tuple[tuple[Geometry, Geometry, tuple[int, ...] | None, tuple[int, ...] | None], ...],
    local_blocks: Any,
    remote_blocks: Any,
    destination_is_local: bool,
    local_name: str,
    remote_name: str,
    same_process: bool,
) -> CopyPlan:
    """See `cachecore.planning.plan_parts`."""

def plan_block_map(destination: Geometry, source: Geometry, mapping: Any, name: str, same_process: bool) -> CopyPlan:
    """See `cachecore.planning.plan_block_map`."""

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
    local_offset: int = 0,
    remote_offset: int = 0,
    local_offset_name: str = "local_offset",
    remote_offset_name: str = "remote_offset",
) -> CopyPlan:
    """See `cachecore.planning.plan_entry` and `plan_copy`."""

def plan_entry_to_blocks(
    local: Geometry,
    remote: Geometry,
    blocks: Any,
    entry: int,
    blocks_name: str,
    entry_name: str,
    same_process: bool,
    destination_is_local: bool = True,
) -> CopyPlan:
    """See `cachecore.planning.plan_entry_to_blocks`."""

def pack_blocks(blocks: Any, name: str) -> bytes:
    """Native uint64 ids of a block list: a copy that nobody else can change.

    Args:
        blocks: As in `cachecore.planning.plan_blocks`.
        name: What the caller's user calls it; for messages.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: It is no list, or not made of integers.
    """

def first_missing(allowed: Sequence[int] | bytes | Any, blocks: Any) -> int:
    """Position of the first of `blocks` that is not in `allowed`, -1 when all are.

    Args:
        allowed: In any order; bytes are taken as packed native uint64.
        blocks: As in `cachecore.planning.plan_blocks`.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: A list is not made of integers.
    """

def buffer_address(exporter: object) -> int:
    """Address of the first element of an object with a buffer.

    Raises:
        BufferError, TypeError: It has none.
    """

def buffer_extent(exporter: object) -> tuple[int, int]:
    """Address of the first element of an object with a buffer, and the bytes of all its elements, gaps not counted.

    Raises:
        BufferError, TypeError: It has none.
    """

def plan_within(plan: CopyPlan, regions: Sequence[int] | bytes | Any, local: bool) -> bool:
    """Whether every tensor's part of a plan, from its first to its last byte, lies in one of the regions.

    Args:
        plan: The plan.
        regions: (base, bytes) of each, as packed native uint64.
        local: Look at the local side, else at the remote one.
    """

def map_plan(plan: CopyPlan, regions: Sequence[int] | bytes | Any, swap: bool = False) -> CopyPlan | None:
    """The plan with remote addresses replaced by those where this process has mapped their regions.

    Chunks keep their numbers. None when a tensor's part of the plan is not in one region as a whole.

    Args:
        plan: The plan.
        regions: (base, bytes, mapped address) of each, as packed native uint64.
        swap: Exchange the two sides of the result, for functions that move remote -> local only.
    """

@final
class TransferReport:
    """What is known after moving a plan.

    The three lists of half-open chunk ranges are ascending, disjoint, and together cover every chunk of the plan. When
    a function has returned one, nothing of the call runs any more.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Not for callers: raises TypeError."""

    @property
    def done(self) -> bool:
        """Whether every byte landed."""

    @property
    def cause(self) -> str:
        """Why not everything landed.

        "none", "deadline", "cancelled", "wrong peer" (the nonce does not read back: another process has the pid now,
        or the peer closed its nonce), "peer gone" (no such process, or a zombie), "local fault", "remote fault" (memory
        of this process, of the peer, is not there or not accessible), "not permitted", "native" (see `code`).
        """

    @property
    def code(self) -> int:
        """The errno of the system call that failed, 0 when none did."""

    @property
    def fault_address(self) -> int:
        """First address that could not be moved, on the side that `cause` names; 0 for other causes."""

    @property
    def nbytes(self) -> int:
        """Bytes that landed."""

    @property
    def system_calls(self) -> int:
        """System calls made."""

    @property
    def landed(self) -> tuple[tuple[int, int], ...]:
        """Chunks whose every byte was written."""

    @property
    def untouched(self) -> tuple[tuple[int, int], ...]:
        """Chunks of which no byte was written."""

    @property
    def unknown(self) -> tuple[tuple[int, int], ...]:
        """Chunks written in part, or by a process that did not prove to be the right one."""

def vm_read(
    plan: CopyPlan,
    pid: int,
    nonce_address: int,
    nonce: bytes,
    deadline: float,
    cancel: bytearray | None = None,
    threads: int = 2,
    threads_from: int = 4194304,
    batch_bytes: int = 2097152,
) -> TransferReport:
    """Move remote -> local addresses of a plan out of another process. Blocking, without the GIL.

    Deadline and cancel flag are looked at between batches, which take about a millisecond each; a page that the
    kernel has to fetch from a slow place can hold a batch longer.

    Args:
        plan: What to move.
        pid: The process, in this process's pid namespace.
        nonce_address: Where it has its `Nonce`; read together with every batch, before and behind the data.
        nonce: The 16 bytes that must be there.
        deadline: On `time.monotonic()`; may be infinite.
        cancel: A byte that is not 0 asks to stop. Held during the call.
        threads: Most threads to use, the caller's included.
        threads_from: Bytes of the plan from which more than the caller's thread is used.
        batch_bytes: Largest batch.

    Raises:
        CacheValueError: An argument other than the plan is out of range.
    """

def vm_write(
    plan: CopyPlan,
    pid: int,
    nonce_address: int,
    nonce: bytes,
    deadline: float,
    cancel: bytearray | None = None,
    threads: int = 2,
    threads_from: int = 4194304,
    batch_bytes: int = 2097152,
) -> TransferReport:
    """Move local -> remote addresses of a plan into another process; arguments as in `vm_read`.

    The nonce is read before and after each batch. A process that replaces the peer between that and the write can
    only be one that took over the pid within microseconds.
    """

def vm_copy(
    plan: CopyPlan,
    deadline: float,
    cancel: bytearray | None = None,
    threads: int = 2,
    threads_from: int = 4194304,
    batch_bytes: int = 2097152,
) -> TransferReport:
    """Move remote -> local addresses of a plan within this process; arguments as in `vm_read`.

    For addresses that somebody gave: a bad one is a "local fault" (destination) or "remote fault" (source), no crash.
    """

def memcpy_plan(
    plan: CopyPlan,
    deadline: float,
    cancel: bytearray | None = None,
    threads: int = 2,
    threads_from: int = 4194304,
    batch_bytes: int = 2097152,
) -> TransferReport:
    """As `vm_copy`, faster, only for memory that cachecore itself has mapped: a bad address crashes."""

@final
class RangeMapping:
    """What is mapped at one asked range."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Not for callers: raises TypeError."""

    @property
    def accessible(self) -> bool:
        """Whether every byte is mapped readable and writable; neighbouring mappings count together."""

    @property
    def fault_address(self) -> int:
        """First byte that is not, 0 when all are."""

    @property
    def permissions(self) -> str:
        """As in /proc/self/maps, for example "rw-p": at `fault_address` or of the first mapping; or "unmapped"."""

    @property
    def special(self) -> bool:
        """Whether some of it is a device's or the kernel's and no ordinary memory."""

    @property
    def path(self) -> str:
        """File or name of the special mapping, else of the first one; empty for anonymous memory."""

def describe_mappings(ranges: Iterable[tuple[int, int]]) -> list[RangeMapping]:
    """Look (address, bytes) ranges up in one reading of /proc/self/maps.

    Raises:
        EngineError: /proc cannot be read.
    """

@final
class Nonce:
    """16 random bytes in a page of their own, by which a peer proves that it reads the right process.

    A forked child sees zeros there.
    """

    def __init__(self) -> None:
        """Make one.

        Raises:
            EngineError: The system gives no page or no random bytes.
        """

    @property
    def address(self) -> int:
        """Where it is in this process. CacheValueError once closed."""

    @property
    def value(self) -> bytes:
        """The 16 bytes. CacheValueError once closed."""

    def close(self) -> None:
        """Unmap it: transfers of peers that are running now end with "wrong peer". May be repeated."""

def allow_reader(pid: int | None) -> bool:
    """Let a process read this one where the Yama module restricts ptrace.

    Args:
        pid: The reader; None = every process of this user, 0 = nobody any more.

    Returns:
        False when the kernel has no Yama, so that nothing was restricted by it.

    Raises:
        EngineError: The kernel refused.
    """

@final
class SharedBlock:
    """Memory that other processes can map: a memfd of fixed size, sealed against shrinking and growing."""

    def __init__(self, nbytes: int, alignment: int = 0, prefault: bool = False) -> None:
        """Make new memory, zeros.

        Args:
            nbytes: Size in bytes.
            alignment: Of the address in bytes, a power of two; 0 = a page.
            prefault: Make all pages present now.

        Raises:
            CacheValueError: An argument is out of range.
            CacheOutOfMemoryError: There is not enough memory or address space.
            EngineError: Another system call failed.
        """

    @property
    def address(self) -> int:
        """Start. CacheValueError once closed."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    @property
    def fd(self) -> int:
        """The descriptor to send to others; it stays the block's. -1 for mapped and for closed blocks."""

    def close(self) -> None:
        """Unmap the memory and close the descriptor. May be repeated."""

def map_shared(fd: int, nbytes: int, writable: bool = False, prefault: bool = True) -> SharedBlock:
    """Map memory of another process's `SharedBlock`; the descriptor stays the caller's and can be closed.

    Args:
        fd: Descriptor of the memory.
        nbytes: Bytes to map, from the start.
        writable: Map it for writing too.
        prefault: Make all pages present now.

    Raises:
        CacheValueError: It is no sealed memory, or shorter than `nbytes`.
        CacheOutOfMemoryError: There is not enough address space.
        EngineError: Another system call failed.
    """

def fill_words(address: int, nbytes: int, seed: int) -> None:
    """Write 64-bit words into memory of this process, each a hash of `seed` and its index.

    Without the GIL. The address is not checked.
    """

def find_mismatch(address: int, nbytes: int, seed: int) -> int:
    """Index of the first word that is not as `fill_words` wrote it, -1 when all are. The address is not checked."""

def fill_blocks(addresses: Sequence[int] | bytes | Any, seeds: Sequence[int] | bytes | Any, nbytes: int) -> None:
    """`fill_words` for many blocks of `nbytes` bytes; bytes are taken as packed native uint64."""

def find_mismatches(
    addresses: Sequence[int] | bytes | Any, seeds: Sequence[int] | bytes | Any, nbytes: int
) -> list[tuple[int, int]]:
    """`find_mismatch` for many blocks: (position in the lists, word index) of each that is wrong."""
