"""What is read: tensors of blocks, and which of them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WORKLOADS", "Workload"]

_KIB = 1024
_MIB = 1024 * _KIB


@dataclass(frozen=True)
class Workload:
    """`taken` scattered blocks of each of `tensors` tensors.

    Attributes:
        name: For the table.
        tensors: Number of tensors.
        blocks: Blocks of each tensor.
        block_bytes: Bytes of one block.
        taken: Blocks read of each tensor, other ones at each repetition.
        share: Factor on the number of repetitions.
    """

    name: str
    tensors: int
    blocks: int
    block_bytes: int
    taken: int
    share: int = 1

    @property
    def tensor_bytes(self) -> int:
        """Bytes of one tensor."""
        return self.blocks * self.block_bytes

    @property
    def nbytes(self) -> int:
        """Bytes read at each repetition."""
        return self.tensors * self.taken * self.block_bytes


WORKLOADS = {
    one.name: one
    for one in (
        Workload("W1", 64, 512, 64 * _KIB, 64),  # a paged KV cache
        Workload("W2", 1, 1, 256 * _MIB, 1),  # one large piece
        Workload("W3", 64, 512, 4 * _KIB, 64),  # small blocks
        Workload("W4", 1, 512, 4 * _KIB, 1, share=50),  # latency of one small block
    )
}
