"""Raw bytes of the documented structures, as a library that knows nothing of the binding writes and reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

ASK = """
import ctypes, struct
from cachecore_ascend_runtime import load
runtime = load()
device = runtime.device(5)
native = device._native
stub = ctypes.CDLL(runtime.library)
"""


@pytest.mark.parametrize("location", range(5))
def test_attributes_of_a_pointer_are_read_at_their_offsets(in_process, stub, tmp_path: Path, location: int) -> None:
    """aclrtPtrAttributes: 28 bytes; device number at 0, kind of location at 4, page size at 8."""
    stub(tmp_path / "lib64", "STUB_NEWER")
    code = f"""{ASK}
raw = (ctypes.c_ubyte * 28).in_dll(stub, "stub_answer")
raw[:] = struct.pack("<III16s", 0xA1B2C3D4, {location}, 0x40000000, b"\\xff" * 16)
facts = native.query(struct.pack("QQ", 4096, 64))[0]
answer([facts.device, facts.location, facts.page_bytes])
"""
    # What the runtime does not know has no pages that it could speak of.
    expected = [0xA1B2C3D4, location, 0 if location == 2 else 0x40000000]
    assert in_process(code, ASCEND_HOME_PATH=str(tmp_path)) == expected


@pytest.mark.parametrize("to_device", [True, False])
def test_attributes_of_a_batch_are_written_at_their_offsets(in_process, stub, tmp_path: Path, to_device: bool) -> None:
    """aclrtMemcpyBatchAttr: 32 bytes; destination's number and kind at 0 and 4, source's at 8 and 12, zeros behind."""
    stub(tmp_path / "lib64", "STUB_NEWER")
    code = f"""{ASK}
import time
from cachecore.testing.harness import plan_bytes
on_device, pinned = device.allocate(64), device.allocate_host(64)
ctypes.memset(on_device, 1, 64)
ctypes.memset(pinned, 2, 64)
pair = (on_device, pinned) if {to_device} else (pinned, on_device)
outcome = device.copy(plan_bytes(*pair, 64), time.monotonic() + 60)
raw = bytes((ctypes.c_ubyte * 32).in_dll(stub, "stub_attributes"))
items = ctypes.c_size_t.in_dll(stub, "stub_batch_items").value
answer([outcome.state.value, list(struct.unpack("<IiIi", raw[:16])), list(raw[16:]), items,
        ctypes.string_at(pair[0], 64) == ctypes.string_at(pair[1], 64)])
"""
    host, device = (0, 0), (5, 1)
    places = [*device, *host] if to_device else [*host, *device]
    assert in_process(code, ASCEND_HOME_PATH=str(tmp_path)) == ["done", places, [0] * 16, 1, True]
