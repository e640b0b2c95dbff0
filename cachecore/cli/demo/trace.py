"""Request traces in JSON lines: {"timestamp", "input_length", "output_length", "hash_ids"}, one request a line.

Timestamps are milliseconds, lengths are tokens, and one hash id stands for one block of 512 tokens: equal ids are
equal content.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from cachecore import _arguments as arguments
from cachecore.cli.demo.workload import BLOCK_TOKENS, Request
from cachecore.errors import CacheValueError

__all__ = ["TraceError", "read_trace"]

# A line of a million blocks has about 8 MB; without a limit one endless line would be read into memory.
_MAX_LINE_BYTES = 16 * 2**20

_MAX_ID = 2**64 - 1

_ContentId = Annotated[int, msgspec.Meta(ge=0)]  # an upper bound above 2**63-1 has to be checked by hand
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class TraceError(CacheValueError):
    """A trace cannot be read; the message names file, line and the rule that the line breaks."""


class _Line(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: list[_ContentId]


def read_trace(path: Path, limit: int | None = None) -> list[Request]:
    """Read requests from a trace.

    Args:
        path: The file.
        limit: Read no more than this many requests, above 0; None = all.

    Raises:
        TraceError: The file cannot be read, a line is malformed, or there is no request in it.
    """
    if limit is not None:
        arguments.integer("limit", limit, 1, 2**63 - 1)
    try:
        with path.open("rb") as file:
            requests = list(islice(_requests(path, file), limit))
    except OSError as error:
        raise TraceError(f"trace {path} cannot be read: {error.strerror or error}") from error
    if not requests:
        raise TraceError(f"trace {path} has no requests; it must have at least one line")
    return requests


def _requests(path: Path, file: BinaryIO) -> Iterator[Request]:
    number = 0
    while line := file.readline(_MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > _MAX_LINE_BYTES:
            raise TraceError(f"trace {path}, line {number}: longer than {_MAX_LINE_BYTES} bytes")
        if line.strip():
            yield _request(f"trace {path}, line {number}", line)


def _request(where: str, line: bytes) -> Request:
    try:
        parsed = msgspec.json.decode(line, type=_Line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceError(
            f"{where}: {error}; a line is a JSON object with timestamp (ms), input_length and output_length "
            f"(tokens) and hash_ids (integers from 0)"
        ) from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{where}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    largest = max(parsed.hash_ids, default=0)
    if largest > _MAX_ID:
        raise TraceError(f"{where}: hash id {largest} is more than {_MAX_ID}; ids are unsigned 64-bit integers")
    blocks, tokens = len(parsed.hash_ids), parsed.input_length
    if not tokens // BLOCK_TOKENS <= blocks <= -(-tokens // BLOCK_TOKENS):
        raise TraceError(
            f"{where}: {blocks} hash_ids for input_length {tokens}; one hash id is one block of {BLOCK_TOKENS} "
            f"tokens, so there must be {tokens // BLOCK_TOKENS} or {-(-tokens // BLOCK_TOKENS)}"
        )
    return Request(parsed.timestamp / 1000.0, tuple(parsed.hash_ids))
