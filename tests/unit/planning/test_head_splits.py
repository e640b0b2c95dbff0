"""Blocks between tensor-parallel groups of unequal size: the heads of each rank land where numpy puts them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cachecore import _core
from cachecore.planning import Geometry, Part, plan_parts
from cachecore.slices import BlockSlice

ITEMSIZE = 2
Array = NDArray[np.uint16]


class Layout(NamedTuple):
    """Where tokens and heads are in a block, and which of its bytes are heads [first, first + count) of `heads`."""

    name: str
    head_axis: int

    def shape(self, blocks: int, tokens: int, heads: int, dim: int) -> tuple[int, ...]:
        return (blocks, heads, tokens, dim) if self.head_axis == 1 else (blocks, tokens, heads, dim)

    def slice(self, first: int, count: int, tokens: int, heads: int, dim: int) -> BlockSlice:
        if self.head_axis == 1:
            head = tokens * dim * ITEMSIZE
            return BlockSlice(first * head, count * head)
        head = dim * ITEMSIZE
        return BlockSlice(first * head, count * head, tokens, heads * head)

    def heads(self, cache: Array, first: int, count: int) -> Array:
        return cache.take(range(first, first + count), self.head_axis)


LAYOUTS = [Layout("tokens_heads", 2), Layout("heads_tokens", 1)]


def geometry(caches: list[Array]) -> Geometry:
    return Geometry([cache.ctypes.data for cache in caches], blocks=len(caches[0]), block_bytes=caches[0][0].nbytes)


def move(part: Part, local_blocks: list[int], remote_blocks: list[int]) -> None:
    plan = plan_parts([part], local_blocks, remote_blocks, same_process=True)
    assert _core.memcpy_plan(plan, float("inf")).done


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, Any]:
    blocks = draw(st.integers(1, 4))
    return {
        "blocks": blocks,
        "tokens": draw(st.integers(1, 5)),
        "rank_heads": draw(st.integers(1, 3)),
        "dim": draw(st.integers(1, 4)),
        "src": draw(st.lists(st.integers(0, 5), min_size=blocks, max_size=blocks)),
        "dst": draw(st.permutations(range(6)))[:blocks],
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@given(given_sizes=sizes())
def test_two_ranks_to_one(layout: Layout, given_sizes: dict[str, Any]) -> None:
    tokens, half, dim, src, dst = (given_sizes[name] for name in ("tokens", "rank_heads", "dim", "src", "dst"))
    random = np.random.default_rng(given_sizes["seed"])
    ranks = [[filled(random, layout.shape(6, tokens, half, dim)) for _ in "kv"] for _ in range(2)]
    whole = [filled(random, layout.shape(6, tokens, 2 * half, dim)) for _ in "kv"]
    expected = [tensor.copy() for tensor in whole]
    for rank, tensors in enumerate(ranks):
        cut = layout.slice(rank * half, half, tokens, 2 * half, dim)
        move(Part(geometry(whole), geometry(tensors), local_slice=cut), dst, src)
    for tensor, first, second in zip(expected, *ranks, strict=True):
        tensor[dst] = np.concatenate([first[src], second[src]], axis=layout.head_axis)
    for tensor, wanted in zip(whole, expected, strict=True):
        np.testing.assert_array_equal(tensor, wanted)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@given(given_sizes=sizes())
def test_one_rank_to_two(layout: Layout, given_sizes: dict[str, Any]) -> None:
    tokens, half, dim, src, dst = (given_sizes[name] for name in ("tokens", "rank_heads", "dim", "src", "dst"))
    random = np.random.default_rng(given_sizes["seed"])
    whole = [filled(random, layout.shape(6, tokens, 2 * half, dim)) for _ in "kv"]
    for rank in range(2):
        tensors = [filled(random, layout.shape(6, tokens, half, dim)) for _ in "kv"]
        expected = [tensor.copy() for tensor in tensors]
        cut = layout.slice(rank * half, half, tokens, 2 * half, dim)
        move(Part(geometry(tensors), geometry(whole), remote_slice=cut), dst, src)
        for tensor, wanted, source in zip(tensors, expected, whole, strict=True):
            wanted[dst] = layout.heads(source, rank * half, half)[src]
            np.testing.assert_array_equal(tensor, wanted)


@given(given_sizes=sizes())
def test_a_split_between_both_layouts_of_one_head_a_rank_needs_no_third(given_sizes: dict[str, Any]) -> None:
    """One head of a block is [tokens, dim] in either layout, so a rank with one head serves both."""
    tokens, dim, src, dst = (given_sizes[name] for name in ("tokens", "dim", "src", "dst"))
    random = np.random.default_rng(given_sizes["seed"])
    strided, contiguous = LAYOUTS
    source = [filled(random, contiguous.shape(6, tokens, 3, dim))]
    target = [filled(random, strided.shape(6, tokens, 2, dim))]
    expected = target[0].copy()
    expected[dst, :, 1] = source[0][src, 2]
    cuts = strided.slice(1, 1, tokens, 2, dim), contiguous.slice(2, 1, tokens, 3, dim)
    move(Part(geometry(target), geometry(source), *cuts), dst, src)
    np.testing.assert_array_equal(target[0], expected)


def filled(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.integers(0, 2**16, shape, np.uint16)
