"""A sanitizer run that would not notice a fault proves nothing: each sanitizer must stop the fault planted for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from cachecore_ascend_runtime import _runtime

SANITIZER = os.environ.get("CACHECORE_SANITIZER", "")
PLANTED = hasattr(_runtime, "planted_bug")

REPORTS = {
    "address": ("address", "ERROR: AddressSanitizer: heap-buffer-overflow"),
    "undefined": ("address", "runtime error: signed integer overflow"),
    "thread": ("thread", "WARNING: ThreadSanitizer: data race"),
}


@pytest.mark.skipif(not SANITIZER and not PLANTED, reason="an ordinary build, without sanitizer and planted bugs")
@pytest.mark.parametrize("bug", REPORTS)
def test_the_sanitizer_stops_the_planted_bug(bug: str) -> None:
    assert PLANTED, "built without CACHECORE_PLANTED_BUG: nothing shows that the sanitizer watches"
    runtime, report = REPORTS[bug]
    if runtime != SANITIZER:
        pytest.skip(f"needs the {runtime} sanitizer")
    code = f"from cachecore_ascend_runtime import _runtime; _runtime.planted_bug({bug!r}); print('survived')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert report in result.stderr
    assert "survived" not in result.stdout
    assert result.returncode != 0
