"""`cachecore explain CODE`: a status or error code in words."""

from __future__ import annotations

import argparse
import errno
import os
from collections.abc import Iterator

__all__ = ["HELP", "NAME", "add_arguments", "explanations", "run"]

NAME = "explain"
HELP = "Say what a code of cachecore, the Ascend runtime, HIXL or the system means."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("code", metavar="CODE", help="a number, decimal or 0x..., or the name of a status code")


def run(arguments: argparse.Namespace) -> int:
    """Print every meaning; 1 when the code is known to nobody."""
    found = list(explanations(arguments.code))
    print("\n".join(found) or f"{arguments.code}: no such code is known (is the driver of that product installed?)")
    return 0 if found else 1


def explanations(text: str) -> Iterator[str]:
    """What a code means to each of those who could have said it.

    Args:
        text: A number, decimal or hexadecimal with 0x, or the name of a `StatusCode` or errno.
    """
    from cachecore.errors import StatusCode
    from cachecore.plugins import discover

    name = text.strip().upper().removeprefix("LLM_")
    try:
        number: int | None = int(text, 0)
    except ValueError:
        number = None
    for status in StatusCode:
        # The vendor prints the status both as it is and as a signed 32-bit number.
        if status.name == name or (number is not None and number & 0xFFFFFFFF == status.value):
            yield f"{status.value} ({status.value:#x}), status code of cachecore and LLM-DataDist: {_WORDS[status.name]}"
    if number is not None:
        for plugin in discover().loaded:
            for sentences in plugin.hooks.hook.cachecore_explain_code(code=number):
                yield from sentences
    known = number if number in errno.errorcode else getattr(errno, name, None)
    if isinstance(known, int):
        yield f"{known}, errno {errno.errorcode[known]} of the system: {os.strerror(known)}"


_WORDS = {
    "SUCCESS": "the call did what it was asked",
    "FAILED": "a failure without a code of its own; the message says which",
    "WAIT_PROC_TIMEOUT": "the other side did not take part in time",
    "KV_CACHE_NOT_EXIST": "no such cache or key: never registered, unregistered since, or not remotely accessible",
    "REPEAT_REQUEST": "the request is being handled already",
    "REQUEST_ALREADY_COMPLETED": "the request has ended already",
    "PARAM_INVALID": "an argument breaks a rule; the message names argument, value, rule and remedy",
    "ENGINE_FINALIZED": "the manager is closed, or was made before a fork",
    "NOT_YET_LINK": "there is no link to this cluster id: call link() first",
    "ALREADY_LINK": "there is a live link to this cluster id already",
    "LINK_FAILED": "a link could not be made, or was lost: see docs/peers.md for states and times",
    "UNLINK_FAILED": "a link could not be ended cleanly",
    "NOTIFY_PROMPT_UNLINK_FAILED": "the other side could not be told that the link ends",
    "CLUSTER_NUM_EXCEED_LIMIT": "more links than the product allows",
    "PROCESSING_LINK": "the link is being made or ended by another call",
    "DEVICE_OUT_OF_MEMORY": "the device has not enough memory",
    "PREFIX_ALREADY_EXIST": "the prefix id names an entry already",
    "PREFIX_NOT_EXIST": "the prefix id names nothing",
    "SEQ_LEN_OVER_LIMIT": "the sequence is longer than the cache",
    "NO_FREE_BLOCK": "no block is free",
    "BLOCKS_OUT_OF_MEMORY": "the blocks do not fit the memory",
    "CACHE_INCOMPATIBLE": "the two caches of a transfer do not fit: block bytes, tensor count, data type or kind",
    "CACHE_KEY_ALREADY_EXIST": "the key names another live cache",
    "COPY_CACHE_FAILED": "a copy between caches failed",
    "CACHE_ID_ALREADY_EXIST": "the cache id is in use",
    "EXIST_LINK": "the operation is refused while links exist",
    "FEATURE_NOT_ENABLED": "the product or engine does not have this feature, or it was not switched on",
    "TIMEOUT": "the deadline passed; the error says what landed",
    "LINK_BUSY": "memory or a link is still in use by a transfer; repeat the call",
    "OUT_OF_MEMORY": "the host has not enough memory",
}
