"""What plans must come to, byte by byte in plain Python, and random transfers to try them on."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from hypothesis import strategies as st

from cachecore.planning import CopyPlan, Geometry, Part, plan_parts
from cachecore.slices import BlockSlice

Moves = list[tuple[int, int]]


def block_start(side: Geometry, tensor: int, block: int) -> int:
    return side.bases[tensor] + side.offset + block * side.block_stride


def offsets(cut: BlockSlice | None, block_bytes: int) -> list[int]:
    """The bytes of a block that a slice names, in order."""
    if cut is None:
        return list(range(block_bytes))
    return [cut.offset + piece * cut.stride + i for piece in range(cut.count) for i in range(cut.nbytes)]


@st.composite
def slices(draw: st.DrawFn, total: int) -> tuple[BlockSlice | None, int]:
    """A slice of `total` bytes and how many bytes a block must have for it."""
    if draw(st.booleans()):
        return None, total
    count = draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
    nbytes = total // count
    cut = BlockSlice(draw(st.integers(0, 3)), nbytes, count, nbytes + draw(st.integers(0, 2)))
    return cut, cut.end + draw(st.integers(0, 2))


@st.composite
def geometries(draw: st.DrawFn, tensors: int, block_bytes: int, lowest: int = 1) -> Geometry:
    bases = draw(st.lists(st.integers(lowest, lowest + 300), min_size=tensors, max_size=tensors))
    return Geometry(
        bases,
        blocks=draw(st.integers(1, 10)),
        block_bytes=block_bytes,
        block_stride=block_bytes + draw(st.integers(0, 2)),
        offset=draw(st.integers(0, 4)),
    )


@st.composite
def parts(draw: st.DrawFn, lowest: int) -> Part:
    tensors, total = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    (local_cut, local_bytes), (remote_cut, remote_bytes) = draw(slices(total)), draw(slices(total))
    local, remote = draw(geometries(tensors, local_bytes, lowest)), draw(geometries(tensors, remote_bytes, lowest))
    return Part(local, remote, local_cut, remote_cut)


class Transfer(NamedTuple):
    parts: list[Part]
    local: list[int]
    remote: list[int]
    destination: Any

    def plan(self, **options: Any) -> CopyPlan:
        return plan_parts(self.parts, self.local, self.remote, destination=self.destination, **options)

    def written(self, part: Part) -> Geometry:
        return part.local if self.destination == "local" else part.remote

    def moves(self) -> list[Moves]:
        """The (local, remote) addresses of every byte, for each tensor pair: what the plan must come to."""
        return [
            sorted(
                (block_start(local, tensor, a) + i, block_start(remote, tensor, b) + j)
                for a, b in zip(self.local, self.remote, strict=True)
                for i, j in zip(offsets(cut, local.block_bytes), offsets(other, remote.block_bytes), strict=True)
            )
            for local, remote, cut, other in self.parts
            for tensor in range(local.tensors)
        ]


@st.composite
def transfers(draw: st.DrawFn, lowest: int = 1) -> Transfer:
    chosen = draw(st.lists(parts(lowest), min_size=1, max_size=3))
    destination = draw(st.sampled_from(["local", "remote"]))
    blocks = [min(side.blocks for side in sides) for sides in zip(*((p.local, p.remote) for p in chosen), strict=True)]
    written, read = blocks if destination == "local" else blocks[::-1]
    # Ascending stretches are common in block tables and are what merging is about.
    order = draw(st.one_of(st.permutations(range(written)), st.just(range(written))))
    written_ids = list(order)[: draw(st.integers(1, written))]
    first = draw(st.integers(0, read - 1))
    ascending = [min(first + i, read - 1) for i in range(len(written_ids))]
    any_ids = st.lists(st.integers(0, read - 1), min_size=len(written_ids), max_size=len(written_ids))
    read_ids = draw(st.one_of(st.just(ascending), any_ids))
    local, remote = (written_ids, read_ids) if destination == "local" else (read_ids, written_ids)
    return Transfer(chosen, local, remote, destination)


class Chunk(NamedTuple):
    tensor: int  # position of the pair in the plan
    local: int
    remote: int
    nbytes: int


def chunks_of(plan: CopyPlan) -> list[Chunk]:
    flat = struct.iter_unpack("=QQQ", plan.flat(0, plan.chunks))
    chunks, first = [], 0
    for bases, runs in plan.groups():
        chunks += [Chunk(first + pair, *next(flat)) for pair in range(len(bases)) for _ in range(len(runs))]
        first += len(bases)
    assert next(flat, None) is None
    return chunks


def moves_of(plan: CopyPlan) -> list[Moves]:
    moves: list[Moves] = [[] for _ in range(plan.pairs)]
    for tensor, local, remote, nbytes in chunks_of(plan):
        moves[tensor] += [(local + i, remote + i) for i in range(nbytes)]
    return [sorted(tensor) for tensor in moves]


def addresses(plan: CopyPlan, local: bool, ranges: list[tuple[int, int]] | None = None) -> set[int]:
    chunks = chunks_of(plan)
    return {
        (chunk.local if local else chunk.remote) + i
        for start, stop in (ranges or [(0, plan.chunks)])
        for chunk in chunks[start:stop]
        for i in range(chunk.nbytes)
    }
