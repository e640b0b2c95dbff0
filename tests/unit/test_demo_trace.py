"""Request traces: what a line means, and that a bad one is named by file, line and rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachecore.cli.demo.trace import TraceError, read_trace
from cachecore.cli.demo.workload import Request

GOOD = b'{"timestamp": 1500, "input_length": 1025, "output_length": 5, "hash_ids": [0, 7, 18446744073709551615]}\n'


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(content)
    return path


def test_lines_become_requests_in_seconds(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + b"\n" + b'{"timestamp":2e3,"input_length":3,"output_length":0,"hash_ids":[],"x":1}')
    assert read_trace(path) == [Request(1.5, (0, 7, 2**64 - 1)), Request(2.0, ())]


def test_no_more_lines_are_read_than_asked_for(tmp_path: Path) -> None:
    assert len(read_trace(write(tmp_path, GOOD * 3 + b"not json"), limit=2)) == 2


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (b"[1, 2]", "object"),
        (b"{", "truncated"),
        (b'{"timestamp": 0, "input_length": 512, "output_length": 1}', "hash_ids"),
        (GOOD.replace(b"[0,", b"[true,"), r"hash_ids\[0\]"),
        (GOOD.replace(b"[0,", b"[-1,"), r"hash_ids\[0\]"),
        (GOOD.replace(b"[0,", b"[0.5,"), r"hash_ids\[0\]"),
        (GOOD.replace(b"615]", b"616]"), "hash id 18446744073709551616"),
        (GOOD.replace(b"1500", b"-1"), "timestamp"),
        (GOOD.replace(b"1500", b"NaN"), "JSON is malformed"),
        (GOOD.replace(b"1025", b"512"), "3 hash_ids for input_length 512"),
        (GOOD.replace(b'"output_length": 5', b'"output_length": "5"'), "output_length"),
        (b'{"timestamp": "\xff", "input_length": 1}', "."),
        (b"[" * 100_000, "."),
    ],
)
def test_a_malformed_line_is_named_with_file_line_and_rule(tmp_path: Path, line: bytes, rule: str) -> None:
    path = write(tmp_path, GOOD + line)
    with pytest.raises(TraceError, match=rule) as caught:
        read_trace(path)
    assert f"{path}, line 2: " in str(caught.value)


def test_an_endless_line_is_refused_before_it_is_in_memory() -> None:
    with pytest.raises(TraceError, match="line 1: longer than"):
        read_trace(Path("/dev/zero"))


@pytest.mark.parametrize("content", [None, b"", b"\n \n"])
def test_a_trace_without_requests_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "absent.jsonl" if content is None else write(tmp_path, content)
    with pytest.raises(TraceError, match=path.name):
        read_trace(path)
