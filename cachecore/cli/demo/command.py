"""Options of `cachecore demo`, and how it runs from the workload to the table."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cachecore.errors import CacheValueError

if TYPE_CHECKING:
    from cachecore.cli.demo.messages import Settings
    from cachecore.cli.demo.workload import Request

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "demo"
HELP = "Replay requests between a prefill and a decode process and verify every block that moves."
_DEFAULT_REQUESTS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--layers", type=_integer(1), default=32, metavar="N", help="layers, each with K and V (32)")
    # The built-in workload is lists in proportion to the pool: beyond this they take longer to make than to replay.
    parser.add_argument("--blocks", type=_integer(1, 2**20), default=256, metavar="N", help="blocks of each side (256)")
    parser.add_argument(
        "--block-bytes",
        type=_integer(8, 2**40),
        default=64 * 1024,
        metavar="BYTES",
        help="bytes of one block of one tensor, a multiple of 8 (65536)",
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="replay a JSON-lines request trace")
    parser.add_argument(
        "--requests",
        type=_integer(1),
        metavar="N",
        help=f"requests to replay ({_DEFAULT_REQUESTS}; all of a trace)",
    )
    parser.add_argument(
        "--seed", type=_integer(0, 2**64 - 1), default=0, metavar="N", help="of the built-in workload (0)"
    )
    parser.add_argument(
        "--speed",
        type=_number(0.0, 1e9),
        default=0.0,
        metavar="X",
        help="replay X times faster than the timestamps say; 0 = do not wait for them (0)",
    )
    parser.add_argument("--backend", default="auto", metavar="NAME", help="driver to use (auto)")
    parser.add_argument("--engine", default="auto", metavar="NAME", help="engine to use (auto)")
    parser.add_argument(
        "--timeout",
        type=_number(0.1, 86400.0),
        default=30.0,
        metavar="SECONDS",
        help="longest time for one pull or one answer of a process (30)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line, and no table")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; 0 when every block that moved was right.

    Raises:
        CacheError: The workload cannot be read, or one of the processes failed.
    """
    from cachecore.cli.demo.messages import Settings
    from cachecore.cli.demo.progress import Progress
    from cachecore.cli.demo.replay import Replay
    from cachecore.cli.demo.workload import split

    if arguments.block_bytes % 8:
        raise CacheValueError(
            f"--block-bytes is {arguments.block_bytes}; content is 64-bit words, so it must divide by 8"
        )
    settings = Settings(
        layers=arguments.layers,
        blocks=arguments.blocks,
        block_bytes=arguments.block_bytes,
        backend=arguments.backend,
        engine=arguments.engine,
        timeout=arguments.timeout,
    )
    requests = _workload(arguments)
    progress = Progress(sys.stderr, len(requests), quiet=arguments.quiet)
    say: Callable[[str], None] = (lambda text: None) if arguments.quiet else lambda text: print(text, file=sys.stderr)
    say(_introduction(settings, requests))
    with Replay(settings, speed=arguments.speed, report=progress.update) as replay:
        prefill, decode = replay.start()
        say(f"prefill process {prefill.pid} and decode process {decode.pid} are linked by {replay.totals.engine}")
        replay.totals.split_requests = sum(len(set(one.content_ids)) > settings.blocks for one in requests)
        try:
            replay.run(split(requests, settings.blocks))
        finally:
            progress.clear()
    for line in replay.totals.mismatch_lines():
        print(line, file=sys.stderr)
    print(json.dumps(replay.totals.as_json()) if arguments.json else replay.totals.table())
    return 1 if replay.totals.mismatches else 0


def _workload(arguments: argparse.Namespace) -> list[Request]:
    from cachecore.cli.demo.trace import read_trace
    from cachecore.cli.demo.workload import conversations

    if arguments.trace is not None:
        return read_trace(arguments.trace, arguments.requests)
    return conversations(arguments.requests or _DEFAULT_REQUESTS, arguments.blocks, arguments.seed)


def _introduction(settings: Settings, requests: list[Request]) -> str:
    return (
        f"{len(requests):,} requests; on each side {settings.tensors} tensors (K and V of {settings.layers} layers) "
        f"of {settings.blocks:,} blocks of {settings.block_bytes:,} bytes, {settings.cache_bytes / 2**30:.2f} GiB"
    )


def _integer(least: int, most: int = 2**31) -> Callable[[str], int]:
    def integer(text: str) -> int:  # argparse names the function in its error
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is out of range; it must be from {least} to {most}")
        return value

    return integer


def _number(least: float, most: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = float(text)
        if not least <= value <= most:  # also refuses what is not a number
            raise argparse.ArgumentTypeError(f"{text} is out of range; it must be from {least:g} to {most:g}")
        return value

    return number
