"""The demo's block pool against a simple model: what is in use is never given away, the oldest goes first."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from cachecore.cli.demo.pool import BlockPool, NoFreeBlockError
from cachecore.errors import CacheNotFoundError

SIZE = 5
ids = st.lists(st.integers(0, 9), unique=True, max_size=SIZE)


class Model:
    """The rules, written down plainly: a list of contents from oldest to newest and a list of acquisitions."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.in_use: list[list[int]] = []

    def acquire(self, wanted: list[int]) -> tuple[set[int], int] | None:
        used = {content for acquisition in self.in_use for content in acquisition}
        absent = [content for content in wanted if content not in self.order]
        removable = [content for content in self.order if content not in used and content not in wanted]
        surplus = max(0, len(self.order) + len(absent) - SIZE)
        if surplus > len(removable):
            return None
        keep = [content for content in self.order if content not in removable[:surplus]]
        self.order = [content for content in keep if content not in wanted] + wanted
        self.in_use.append(wanted)
        return set(absent), surplus


@given(st.lists(st.one_of(ids, st.just("release"))))
def test_pool_follows_the_model(steps: list[list[int] | str]) -> None:
    pool, model = BlockPool(SIZE), Model()
    holds: dict[int, int] = {}  # block -> content last written there
    for step in steps:
        if isinstance(step, str):
            if model.in_use:
                pool.release(model.in_use.pop(0))
            continue
        expected = model.acquire(step)
        before = pool.resident
        if expected is None:
            with pytest.raises(NoFreeBlockError):
                pool.acquire(step)
            assert pool.resident == before
            continue
        got = pool.acquire(step)
        assert ({step[i] for i in got.missing}, got.evicted) == expected
        assert list(pool.resident) == model.order
        assert len(set(pool.resident.values())) == len(pool.resident)
        assert [pool.resident[content] for content in step] == list(got.blocks)
        for position in got.missing:
            block = got.blocks[position]
            assert holds.get(block) != step[position], "a block got back the content it held last"
            holds[block] = step[position]
        assert all(holds[block] == content for content, block in pool.resident.items())


def test_release_without_acquire_is_refused() -> None:
    pool = BlockPool(2)
    pool.acquire([1])
    pool.release([1])
    with pytest.raises(CacheNotFoundError, match="content id 1"):
        pool.release([1])
