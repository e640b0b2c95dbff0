"""Progress on standard error: one line that is redrawn on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from typing import TextIO

from cachecore.cli.demo.report import Totals

__all__ = ["Progress"]

_TERMINAL_SECONDS = 0.1
_FILE_SECONDS = 5.0


class Progress:
    """Shows how far a replay is.

    Args:
        stream: Where to.
        requests: Requests in all.
        quiet: Show nothing.
    """

    def __init__(self, stream: TextIO, requests: int, *, quiet: bool = False) -> None:
        self._stream = stream
        self._requests = requests
        self._quiet = quiet
        self._terminal = stream.isatty()
        self._seconds = _TERMINAL_SECONDS if self._terminal else _FILE_SECONDS
        self._next: float | None = None
        self._drawn = False

    def update(self, totals: Totals) -> None:
        """Show the totals if it is time to."""
        now = time.monotonic()
        if self._next is None:  # the first one: the processes have started, which can take longer than a replay
            self._next = now if self._terminal else now + self._seconds
        if self._quiet or now < self._next:
            return
        self._next = now + self._seconds
        text = (
            f"{totals.requests:,}/{self._requests:,} requests, {totals.blocks:,} blocks, "
            f"{totals.nbytes / 2**30:.1f} GiB, {totals.gb_per_s:.1f} GB/s, {totals.mismatches:,} mismatches"
        )
        self._stream.write(f"\r\x1b[K{text}" if self._terminal else f"{text}\n")
        self._stream.flush()
        self._drawn = self._terminal

    def clear(self) -> None:
        """Leave a clean line for what comes next."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False
