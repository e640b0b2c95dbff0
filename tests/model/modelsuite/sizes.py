"""How large everything is: small enough that every byte can be compared after every step."""

from __future__ import annotations

import random

#: Device memory for caches whose tensors are all alike: each tensor starts at the start of one buffer.
DEVICE = [f"d{i}" for i in range(8)]
#: Device memory for layers of different shapes.
LAYERED = [f"l{i}" for i in range(4)]
#: Host memory, for swaps.
HOST = ["h0", "h1"]
#: Where nothing was ever mapped.
NOWHERE = 0x10000 * 65536 * 4096
BUFFERS = {name: 2048 for name in (*DEVICE, *HOST)} | {name: 4096 for name in LAYERED}

#: Blocks (or batch entries) of a tensor, and bytes of one; each product fits a buffer.
#: Some more often than others, so that caches fit each other.
BLOCKS = (2, 3, 4, 8)
BLOCK_BYTES = (32, 64, 64, 64, 96)
TENSORS = (1, 2, 2, 2, 4)
MODELS = (1, 2, 3, 4)
#: Model ids of the caches of `register_layers`.
LAYER_MODELS = (11, 12)
IDS = (0, 1, 2, 3, 4, 5)
#: (data type number, bytes of an element)
TYPES = ((4, 1), (4, 1), (4, 1), (4, 1), (4, 1), (1, 2))
#: Most caches of a manager.
CACHES = 9


def content(seed: int, name: str, nbytes: int) -> bytes:
    """What a buffer holds at first."""
    return random.Random(f"{seed} {name}").randbytes(nbytes)
