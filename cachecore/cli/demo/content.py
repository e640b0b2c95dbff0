"""What a block must hold: words that follow from layer, K or V, content id and position, and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["block_seeds"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio


def block_seeds(layers: int, content_ids: Sequence[int]) -> NDArray[np.uint64]:
    """Seed of each block, from which `_core.fill_blocks` makes its words.

    Args:
        layers: Number of layers.
        content_ids: Ids from 0 to 2**64-1.

    Returns:
        Shape (2 * layers, number of ids): row 2 * layer is K, row 2 * layer + 1 is V.
    """
    contents = np.array(content_ids, np.uint64)
    tensors = np.arange(1, 2 * layers + 1, dtype=np.uint64)
    # Mixed twice: neither a neighbouring id nor a neighbouring tensor may have a related seed.
    return _mix(_mix(contents + _GOLDEN)[None, :] + tensors[:, None] * _GOLDEN)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Finaliser of SplitMix64: one to one, and every input bit changes half of the output bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
