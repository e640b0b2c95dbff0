"""Requests to replay: the type, the built-in conversation workload, and how a long request is cut to fit a pool."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cachecore import _arguments as arguments

__all__ = ["BLOCK_TOKENS", "Part", "Request", "conversations", "split"]

#: Tokens whose keys and values one block holds.
BLOCK_TOKENS = 512
_ACTIVE_CONVERSATIONS = 6
_SYSTEM_PROMPTS = 3


@dataclass(frozen=True)
class Request:
    """One request: the content it needs, block by block.

    Attributes:
        timestamp: When it arrived, in seconds since the start of the workload.
        content_ids: One id per block, in the order of the prompt. Equal ids are equal content.
    """

    timestamp: float
    content_ids: tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """As much of a request as fits a pool.

    Attributes:
        number: Counts the parts of a replay from 0.
        timestamp: When its request arrived, in seconds since the start of the workload.
        content_ids: Distinct ids, in the order of the prompt.
        last: Whether the request is complete after it.
    """

    number: int
    timestamp: float
    content_ids: tuple[int, ...]
    last: bool


def split(requests: Sequence[Request], pool_blocks: int) -> Iterator[Part]:
    """Cut requests into parts of at most `pool_blocks` distinct blocks.

    An id that a request names twice needs one block only. A request of no blocks is one empty part.
    """
    number = 0
    for request in requests:
        distinct = tuple(dict.fromkeys(request.content_ids))
        for start in range(0, max(len(distinct), 1), pool_blocks):
            chosen = distinct[start : start + pool_blocks]
            yield Part(number, request.timestamp, chosen, start + pool_blocks >= len(distinct))
            number += 1


def conversations(count: int, pool_blocks: int, seed: int) -> list[Request]:
    """Requests of several users who take turns: each turn repeats its conversation so far and adds to it.

    Conversations start with one of a few system prompts, grow, and are replaced by a new one when they fill three
    eighths of a pool. Equal arguments give equal requests, on every machine.

    Args:
        count: Number of requests, above 0.
        pool_blocks: Blocks of one pool, above 0; lengths follow it.
        seed: Any integer from 0.

    Raises:
        CacheTypeError, CacheValueError: An argument is not an integer or is out of range.
    """
    arguments.integer("count", count, 1, 2**31)
    arguments.integer("pool_blocks", pool_blocks, 1, 2**31)
    source = random.Random(arguments.integer("seed", seed, 0, 2**64 - 1))
    longest = max(1, pool_blocks * 3 // 8)
    most_new = max(1, pool_blocks // 24)
    next_id = 0

    def fresh(blocks: int) -> list[int]:
        nonlocal next_id
        next_id += blocks
        return list(range(next_id - blocks, next_id))

    prompts = [fresh(source.randint(1, most_new)) for _ in range(_SYSTEM_PROMPTS)]
    active = [list(source.choice(prompts)) for _ in range(_ACTIVE_CONVERSATIONS)]
    requests = []
    arrival = 0.0
    for _ in range(count):
        which = source.randrange(_ACTIVE_CONVERSATIONS)
        turn = fresh(source.randint(1, most_new))
        if len(active[which]) + len(turn) > longest:
            active[which] = list(source.choice(prompts))
        active[which] = (active[which] + turn)[-longest:]
        requests.append(Request(arrival, tuple(active[which])))
        arrival += source.expovariate(4.0)
    return requests
