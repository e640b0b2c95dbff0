"""Verification of the demo: a block that is misplaced, shifted, torn, stale or another's cannot pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from cachecore.cli.demo.cache_memory import CacheMemory
from cachecore.cli.demo.content import block_seeds
from cachecore.cli.demo.messages import Settings
from cachecore.driver import Allocation, MemoryInfo
from cachecore.testing import MemoryHarness
from cachecore.testing.reference import ReferenceDriver
from cachecore.types import Placement

BYTES = 4096
SETTINGS = Settings(layers=2, blocks=4, block_bytes=BYTES, backend="", engine="", timeout=1.0)
CONTENTS = [5, 6, 2**64 - 1]
BLOCKS = [2, 0, 3]


class Device(ReferenceDriver):
    """Says that memory allocated as DEVICE is out of the host's reach."""

    def __init__(self) -> None:
        super().__init__()
        self.on_device: list[range] = []

    def allocate(self, nbytes: int, placement: Placement, alignment: int = 0) -> Allocation:
        made = super().allocate(nbytes, placement, alignment)
        if placement is Placement.DEVICE:
            self.on_device.append(range(made.address, made.address + nbytes))
        return made

    def describe(self, ranges: Sequence[tuple[int, int]]) -> list[MemoryInfo]:
        inside = [any(base in known for known in self.on_device) for base, _ in ranges]
        host = super().describe(ranges)
        return [
            MemoryInfo(frozenset({Placement.DEVICE})) if one else info for one, info in zip(inside, host, strict=True)
        ]


@pytest.fixture(params=[ReferenceDriver, Device])
def driver(request: pytest.FixtureRequest) -> Iterator[ReferenceDriver]:
    made: ReferenceDriver = request.param()
    yield made
    assert made.live_allocations == 0
    made.close()


@pytest.fixture
def memory(driver: ReferenceDriver) -> Iterator[CacheMemory]:
    made = CacheMemory(driver, SETTINGS)
    made.fill(CONTENTS, BLOCKS)
    yield made
    made.close()


def at(memory: CacheMemory, tensor: int, block: int) -> int:
    return memory.addresses[tensor] + block * BYTES


Damage = Callable[[CacheMemory, MemoryHarness], None]


def k_in_the_place_of_v(memory: CacheMemory, harness: MemoryHarness) -> None:
    harness.write(at(memory, 3, 0), harness.read(at(memory, 2, 0), BYTES))


def another_layer(memory: CacheMemory, harness: MemoryHarness) -> None:
    harness.write(at(memory, 3, 0), harness.read(at(memory, 1, 0), BYTES))


def another_block(memory: CacheMemory, harness: MemoryHarness) -> None:
    harness.write(at(memory, 3, 0), harness.read(at(memory, 3, 2), BYTES))


def shifted_by_a_word(memory: CacheMemory, harness: MemoryHarness) -> None:
    harness.write(at(memory, 3, 0), harness.read(at(memory, 3, 0) + 8, BYTES - 8))


def never_arrived(memory: CacheMemory, harness: MemoryHarness) -> None:
    harness.write(at(memory, 3, 0), bytes(BYTES))


@pytest.mark.parametrize(
    "damage", [k_in_the_place_of_v, another_layer, another_block, shifted_by_a_word, never_arrived]
)
def test_damage_to_a_block_is_found(memory: CacheMemory, driver: ReferenceDriver, damage: Damage) -> None:
    assert memory.check(CONTENTS, BLOCKS) == (0, None)
    with MemoryHarness(driver) as harness:
        damage(memory, harness)
    wrong, first = memory.check(CONTENTS, BLOCKS)
    assert (wrong, first is not None) == (1, True)
    assert first is not None
    assert (first.layer, first.tensor, first.content_id, first.block, first.word) == (1, "V", 6, 0, 0)


def test_one_wrong_bit_in_the_last_word_is_found(memory: CacheMemory, driver: ReferenceDriver) -> None:
    with MemoryHarness(driver) as harness:
        last = at(memory, 0, 3) + BYTES - 8
        right = int(np.frombuffer(harness.read(last, 8), np.uint64)[0])
        harness.write(last, np.array([right ^ 1], np.uint64).tobytes())
    wrong, first = memory.check(CONTENTS, BLOCKS)
    assert wrong == 1 and first is not None
    assert (first.layer, first.tensor, first.content_id, first.block) == (0, "K", 2**64 - 1, 3)
    assert (first.word, first.expected, first.found) == (BYTES // 8 - 1, right, right ^ 1)


def test_writing_a_block_leaves_its_neighbours_alone(memory: CacheMemory) -> None:
    memory.fill([7], [1])
    assert memory.check([*CONTENTS, 7], [*BLOCKS, 1]) == (0, None)
    assert memory.check([8], [1])[0] == SETTINGS.tensors


def test_seeds_of_neighbours_are_all_different() -> None:
    seeds = block_seeds(16, range(1000))
    assert seeds.shape == (32, 1000)
    assert len(np.unique(seeds)) == seeds.size
