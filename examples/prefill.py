"""A prefill process: owns a paged KV cache and lets decode processes pull blocks from it.

Start it as `python examples/prefill.py`; it prints the address it listens on, which decode.py takes. It ends when its
standard input does: press Ctrl-D.
"""

import argparse
import sys

import numpy as np

import cachecore as cc

LAYERS, BLOCKS, TOKENS, HEADS, HEAD_SIZE = 4, 64, 16, 4, 64


def main() -> None:
    """Register the cache, say where, and serve until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listen", default="127.0.0.1:0", help="host:port; port 0 is any free one")
    listen = parser.parse_args().listen

    # K and V of each layer. Every block holds its own number, so that decode.py can tell whether it got the right one.
    content = np.arange(BLOCKS, dtype=np.float16).reshape(BLOCKS, 1, 1, 1)
    tensors = [np.tile(content, (1, TOKENS, HEADS, HEAD_SIZE)) for _ in range(2 * LAYERS)]

    with cc.CacheManager(cluster_id=1, listen=listen) as manager:
        desc = cc.CacheDesc(num_tensors=len(tensors), shape=list(tensors[0].shape), data_type=cc.DataType.DT_FLOAT16)
        # By address, as a connector does with `tensor.data_ptr()`; `tensors` must live until the manager is closed.
        manager.register_blocks_cache(desc, [t.ctypes.data for t in tensors], cc.BlocksCacheKey(1))
        print(manager.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
