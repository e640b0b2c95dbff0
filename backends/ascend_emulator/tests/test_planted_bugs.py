"""A sanitizer run that would not notice a fault proves nothing: each sanitizer must stop the fault planted for it."""

import os
import subprocess
import sys
from pathlib import Path

import cachecore_ascend_emulator
import pytest

SANITIZER = os.environ.get("CACHECORE_SANITIZER", "")

REPORTS = {
    "address": ("address", "ERROR: AddressSanitizer: heap-buffer-overflow"),
    "undefined": ("address", "runtime error: signed integer overflow"),
    "thread": ("thread", "WARNING: ThreadSanitizer: data race"),
}


@pytest.mark.parametrize("bug", REPORTS)
def test_the_sanitizer_stops_the_planted_bug(bug):
    path = cachecore_ascend_emulator.library_path()
    planted = b"cachecore_emulator_planted_bug\0" in Path(path).read_bytes()
    if not SANITIZER and not planted:
        pytest.skip("an ordinary build, without sanitizer and planted bugs")
    assert planted, "built without CACHECORE_PLANTED_BUG: nothing shows that the sanitizer watches"
    runtime, report = REPORTS[bug]
    if runtime != SANITIZER:
        pytest.skip(f"needs the {runtime} sanitizer")
    code = f"import ctypes; ctypes.CDLL({path!r}).cachecore_emulator_planted_bug({bug.encode()!r}); print('survived')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert report in result.stderr
    assert "survived" not in result.stdout
    assert result.returncode != 0
