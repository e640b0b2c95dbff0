"""Allocated caches, copies and swaps on every product line: what works, and what is refused with which words."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("local_caches.py")
A2, A3, A950 = "Ascend910B4", "Ascend910_9392", "Ascend950PR_9599"
TWO_SIDED = {"manager.remote_cache_accessible": False}
ROCE = {"ascend_a2a3.transport": "roce"}


def run(soc, options):
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "reader", json.dumps(options)],
        env={**os.environ, "CACHECORE_EMULATE": f"{soc}:2"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def refused(answer, error, *words):
    assert answer[0] == error and all(word in answer[1] for word in words), answer


@pytest.mark.parametrize("soc", [A2, A3, A950])
def test_copies_and_swaps_work_on_every_product(soc):
    answer = run(soc, {})
    assert "(emulated)" in answer["manager"]
    copies = answer["copies"]
    assert [copies[name] for name in ("copy_blocks", "copy_cache", "swap out", "swap in")] == ["ok"] * 4, copies
    assert copies["bytes are right"]
    refused(copies["device memory as a CPU cache"], "PlacementError", "dst_cache.tensor_addrs[0]", "HOST memory")
    refused(copies["past its deadline"], "TransferTimeoutError", "3 are untouched")
    line = {A2: "Atlas A2", A3: "Atlas A3", A950: "Ascend 950PR/950DT"}[soc]
    refused(answer["remap"], "NotSupportedError", line, "remap_registered_memory")
    assert answer["left"] == 0  # no memory of the driver
    if soc == A950:
        for name in ("allocate", "allocate_cache", "allocate host", "too much"):
            refused(answer[name], "NotSupportedError", "ascend_950 does not offer", "CANN 9.1.0 manual", "register_")
        assert answer["made"] == 0
        refused(answer["status"], "NotSupportedError", "query_register_mem_status", "bilateral", "Peer.state")
        return
    refused(answer["status"], "NotLinkedError")
    assert [answer[name] for name in ("allocate", "allocate_cache", "allocate host")] == ["ok"] * 3, answer
    assert answer["made"] == 3  # one allocation each, also for 300 tensors
    refused(answer["too much"], "CacheOutOfMemoryError", "asks for 140737488355328 bytes of DEVICE memory")
    check_pulls(answer["pulls"], consumed=False)


def check_pulls(pulls, *, consumed):
    for name in ("blocks", "request", "prefix", "prefix again", "status", "owner deallocates"):
        assert pulls[name] == "ok", (name, pulls)
    assert pulls["blocks are right"] and pulls["entries are right"]
    refused(pulls["blocks again"], "CacheNotFoundError")
    if consumed:
        refused(pulls["request again"], "CacheNotFoundError")
    else:
        assert pulls["request again"] == "ok"


@pytest.mark.parametrize(
    ("soc", "options"), [(A2, TWO_SIDED), (A3, TWO_SIDED | ROCE)], ids=["A2 over HCCS", "A3 over RoCE"]
)
def test_keys_are_consumed_where_the_product_allows_it(soc, options):
    check_pulls(run(soc, options)["pulls"], consumed=True)


@pytest.mark.parametrize(
    ("soc", "words"), [(A3, "over RoCE only"), (A950, "cannot be switched off")], ids=["A3", "950"]
)
def test_keys_are_not_consumed_where_the_product_does_not_allow_it(soc, words):
    refused(run(soc, TWO_SIDED)["manager"], "NotSupportedError", "remote_cache_accessible", words)
