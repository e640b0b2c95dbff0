"""The built-in workload and how requests are cut to fit a pool."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from cachecore.cli.demo.workload import Request, conversations, split


@given(st.lists(st.lists(st.integers(0, 20), max_size=12), max_size=6), st.integers(1, 8))
def test_parts_fit_the_pool_and_lose_nothing(prompts: list[list[int]], pool_blocks: int) -> None:
    requests = [Request(float(i), tuple(prompt)) for i, prompt in enumerate(prompts)]
    parts = list(split(requests, pool_blocks))
    assert [part.number for part in parts] == list(range(len(parts)))
    whole: list[list[int]] = [[]]
    for part in parts:
        assert len(part.content_ids) <= pool_blocks
        assert part.timestamp == len(whole) - 1
        whole[-1] += part.content_ids
        if part.last:
            whole.append([])
    assert whole == [list(dict.fromkeys(prompt)) for prompt in prompts] + [[]]


@given(st.integers(1, 60), st.integers(1, 600), st.integers(0, 2**32))
def test_the_workload_repeats_and_fits_its_pool(count: int, pool_blocks: int, seed: int) -> None:
    requests = conversations(count, pool_blocks, seed)
    assert requests == conversations(count, pool_blocks, seed)
    assert len(requests) == count
    for request in requests:
        assert 1 <= len(set(request.content_ids)) == len(request.content_ids) <= pool_blocks


def test_conversations_share_content_and_need_more_than_a_pool() -> None:
    requests = conversations(200, 256, seed=0)
    distinct = {content for request in requests for content in request.content_ids}
    assert 256 < len(distinct) < sum(len(request.content_ids) for request in requests) / 2
