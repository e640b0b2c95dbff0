"""The programs in examples/ do what they say: prefill.py and decode.py together, connector.py by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_decode_pulls_from_prefill() -> None:
    with subprocess.Popen(
        [sys.executable, EXAMPLES / "prefill.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as prefill:
        assert prefill.stdin is not None and prefill.stdout is not None
        try:
            address = prefill.stdout.readline().strip()
            assert address, f"prefill.py ended with status {prefill.wait(timeout=60)}"
            decode = subprocess.run(
                [sys.executable, EXAMPLES / "decode.py", address],
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert decode.returncode == 0, decode.stderr
            assert decode.stdout == "pulled 3 blocks of 8 tensors\n"
            prefill.stdin.close()
            assert prefill.wait(timeout=60) == 0
        finally:
            prefill.kill()


def test_the_connector_serves_requests_and_gets_its_blocks_back() -> None:
    connector = subprocess.run(
        [sys.executable, EXAMPLES / "connector.py"], capture_output=True, text=True, timeout=120, check=False
    )
    assert connector.returncode == 0, connector.stderr
    assert connector.stdout == "pulled 2 requests of 4 layers\nevery block is free again\n"
