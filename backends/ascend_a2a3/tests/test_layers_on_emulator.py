"""The alignment rule is about the regions that tensors are merged into, and names the tensor that starts one."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json
import cachecore as cc

HUGE, U8 = 2 << 20, cc.DataType.DT_UINT8
with cc.CacheManager(1) as manager:
    base = manager.backend.allocate_aligned(4 * HUGE).address

    def tensor(offset, blocks=4, stride=65536, nbytes=1000):
        return cc.TensorSpec(base + offset, (blocks, nbytes), (stride, 1), U8)

    def outcome(*layers):
        try:
            cache = manager.register_layers({f"l{i}": tensors for i, tensors in enumerate(layers)})
        except cc.AlignmentError as error:
            return ["AlignmentError", error.tensor_index, error.alignment, str(error)]
        regions = manager.stats().registered_addresses
        manager.unregister_cache(cache.cache_id)
        return ["accepted", regions]

    print(json.dumps({
        # Nothing but the first tensor starts on a page, and it is all that must.
        "interleaved": outcome([tensor(0), tensor(1000)], [tensor(2000), tensor(3000)]),
        "far apart": outcome([tensor(0), tensor(3 * HUGE + 512)]),
        "off its page": outcome([tensor(512)], [tensor(HUGE + 4096)]),
        "in the middle, on its page": outcome([tensor(HUGE)], [tensor(HUGE + 1000)]),
    }))
"""


@pytest.mark.parametrize("soc", ["Ascend910B4", "Ascend910_9392"])
def test_the_start_of_a_merged_region_is_what_must_be_aligned(soc):
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "CACHECORE_EMULATE": soc},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    refused = found.pop("off its page")
    assert found == {
        "interleaved": ["accepted", 1],
        "far apart": ["accepted", 1],
        "in the middle, on its page": ["accepted", 1],
    }
    kind, index, alignment, text = refused
    assert (kind, index, alignment) == ("AlignmentError", 0, 2 << 20)
    assert "the region of layers['l0'][0] and 1 more tensors is 0x" in text and "512 bytes behind a boundary" in text
