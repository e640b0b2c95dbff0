"""A decode process: links to the process of prefill.py, pulls three blocks and looks at them.

Start it as `python examples/decode.py ADDRESS`, with the address that prefill.py printed.
"""

import argparse

import numpy as np

import cachecore as cc

# The same as in prefill.py: a pull refuses what does not fit.
LAYERS, BLOCKS, TOKENS, HEADS, HEAD_SIZE = 4, 64, 16, 4, 64


def main() -> None:
    """Pull blocks 7, 8 and 9 of the prefill process into blocks 0, 1 and 2 here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="what prefill.py printed")
    address = parser.parse_args().address

    tensors = [np.full((BLOCKS, TOKENS, HEADS, HEAD_SIZE), -1, np.float16) for _ in range(2 * LAYERS)]
    with cc.CacheManager(cluster_id=2) as manager:
        cache = manager.register_blocks_tensors(tensors)  # keeps them alive and finds shape and addresses
        manager.link(1, address, timeout=3.0)
        manager.pull_blocks(cc.BlocksCacheKey(1), cache, src_blocks=[7, 8, 9], dst_blocks=[0, 1, 2])

    for tensor in tensors:
        assert [set(block.ravel().tolist()) for block in tensor[:4]] == [{7.0}, {8.0}, {9.0}, {-1.0}]
    print(f"pulled 3 blocks of {len(tensors)} tensors")


if __name__ == "__main__":
    main()
