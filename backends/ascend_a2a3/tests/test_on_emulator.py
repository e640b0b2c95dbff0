"""The rule on memory that the (emulated) runtime really handed out, through a manager that chose its driver itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("origins.py")
# All of these lie on 2 MiB boundaries, which is what register_cache wants too. A small aclrtMalloc is cut out of a bigger
# block by the runtime: nobody can tell it from a slice that a framework cut, so that it must lie on its page.
ACCEPTED = {
    "aclrtMalloc",
    "slice, on its page",
    "mapping, on its page",
    "mapping, over two blocks",
    "allocate_aligned",
}


def registered(soc, options=None, **environment):
    env = {**os.environ, "CACHECORE_EMULATE": soc, **environment}
    run = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(options or {})],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("soc", ["Ascend910B4", "Ascend910_9392"])
def test_over_hccs_only_what_lies_on_its_page_or_came_from_aclrt_malloc_is_accepted(soc):
    answer = registered(soc)
    assert "A2A3Driver" in answer["backend"] and f"emulated {soc}" in answer["backend"]
    for cell, (outcome, text) in answer["results"].items():
        name, _ = cell.split(": ")
        if name in ACCEPTED:
            assert outcome == "accepted", (cell, text)
            continue
        assert outcome == "AlignmentError", (cell, outcome, text)
        for part in ("addrs[0] is 0x", "page size", "behind a boundary", "allocate_aligned"):
            assert part in text, (cell, text)
    _, text = answer["results"]["mapping, off its page: register_blocks_cache"]
    assert "virtual memory mapping" in text and "512 bytes behind" in text
    _, text = answer["results"]["slice, off its page: register_blocks_cache"]
    assert "slice of a larger allocation" in text


@pytest.mark.parametrize(
    ("options", "environment"),
    [({"ascend_a2a3.transport": "roce"}, {}), ({}, {"HCCL_INTRA_ROCE_ENABLE": "1"})],
    ids=["by option", "by the vendor's variable"],
)
def test_over_roce_everything_is_accepted(options, environment):
    answer = registered("Ascend910B4", options, **environment)
    assert {outcome for outcome, _ in answer["results"].values()} == {"accepted"}, answer["results"]


def test_an_old_runtime_knows_no_origin_and_the_driver_takes_that_for_not_aclrt_malloc():
    answer = registered("Ascend910B4", CACHECORE_EMULATE_HIDE="newer")
    results = answer["results"]
    outcome, text = results["mapping, off its page: register_blocks_cache"]
    assert outcome == "AlignmentError" and "not known, 2097152 assumed" in text
    # What the driver allocated itself it knows without asking.
    assert results["allocate_aligned: register_blocks_cache"][0] == "accepted"
    promised = registered("Ascend910B4", {"ascend_a2a3.assume_origin": "aclrtMalloc"}, CACHECORE_EMULATE_HIDE="newer")
    assert promised["results"]["small aclrtMalloc: register_blocks_cache"][0] == "accepted"
