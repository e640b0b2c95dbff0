"""The part of the driver suite about copies within the process."""

from __future__ import annotations

import itertools
import mmap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cachecore.outcome import FailureCause, Outcome, OutcomeState
from cachecore.planning import Geometry, plan_blocks
from cachecore.testing._driver_case import DriverCase, soon
from cachecore.testing.harness import MemoryHarness, plan_bytes
from cachecore.testing.outcomes import check_coverage, chunk_list, settled
from cachecore.types import Placement

_BOUNDED = settings(
    max_examples=25,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)


class DriverCopies(DriverCase):
    """`BackendDriver.copy`."""

    def test_copy_moves_the_plan_and_nothing_else(self) -> None:
        """Scattered, merged, strided, unaligned: the whole destination equals an oracle's, the source is unchanged."""
        buffers = {kind: (self.memory.allocate(8192, kind), self.memory.allocate(8192, kind)) for kind in Placement}

        @_BOUNDED
        @given(data=st.data())
        def check(data: st.DataObject) -> None:
            source = buffers[data.draw(st.sampled_from(Placement))][0] + data.draw(st.integers(0, 9))
            target = buffers[data.draw(st.sampled_from(Placement))][1] + data.draw(st.integers(0, 9))
            block = data.draw(st.integers(1, 300))
            here, there = (block + data.draw(st.integers(0, 20)) for _ in range(2))
            numbers = st.integers(0, 11)
            pairs = data.draw(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12, unique_by=lambda p: p[0]))
            tensors = 2
            plan = plan_blocks(
                Geometry([target + t * 12 * here for t in range(tensors)], blocks=12, block_bytes=block, block_stride=here),
                Geometry([source + t * 12 * there for t in range(tensors)], blocks=12, block_bytes=block, block_stride=there),
                [to for to, _ in pairs],
                [origin for _, origin in pairs],
            )  # fmt: skip
            old, new = self.random.randbytes(8000), self.random.randbytes(8000)
            self.memory.write(target, old)
            self.memory.write(source, new)
            assert self.subject.copy(plan, soon()) == Outcome.done(plan.chunks)
            expected = bytearray(old)
            for t in range(tensors):
                for to, origin in pairs:
                    at, origin_at = (t * 12 + to) * here, (t * 12 + origin) * there
                    expected[at : at + block] = new[origin_at : origin_at + block]
            assert self.memory.read(target, 8000) == expected
            assert self.memory.read(source, 8000) == new

        check()

    def test_copy_of_a_large_range_is_complete(self) -> None:
        """Above the size from which work is split over threads, and no multiple of anything."""
        nbytes = (48 << 20) + 12_345
        source, target = self.memory.allocate(nbytes), self.memory.allocate(nbytes + 1)
        content = self.random.randbytes(nbytes)
        self.memory.write(source, content)
        self.memory.write(target + nbytes, b"\x5a")
        assert self.subject.copy(plan_bytes(target, source, nbytes), soon()).state is OutcomeState.DONE
        assert self.memory.read(target, nbytes) == content
        assert self.memory.read(target + nbytes, 1) == b"\x5a"

    def test_copy_past_its_deadline_touches_nothing(self) -> None:
        """A deadline in the past is an Outcome and leaves the destination alone."""
        source, target = self.memory.allocate(4096), self.memory.allocate(4096)
        self.memory.write(source, b"n" * 4096)
        self.memory.write(target, b"o" * 4096)
        outcome = self.subject.copy(plan_bytes(target, source, 4096), time.monotonic() - 1.0)
        assert outcome.state is OutcomeState.FAILED
        assert outcome.cause is FailureCause.DEADLINE
        assert outcome.untouched == ((0, 1),)
        assert self.memory.read(target, 4096) == b"o" * 4096

    def test_copy_over_a_missing_page_is_an_outcome(self) -> None:
        """No crash, no DONE; what is reported as landed landed and what is reported as untouched was not touched."""
        if not MemoryHarness.accepts_foreign(self.subject, Placement.HOST):
            pytest.skip("the driver accepts no ordinary memory, and its own has no holes")
        self._copy_with_hole("source", FailureCause.REMOTE_FAULT)
        self._copy_with_hole("destination", FailureCause.LOCAL_FAULT)

    def _copy_with_hole(self, bad: str, cause: FailureCause) -> None:
        page, pages, hole = mmap.PAGESIZE, 8, 5
        order = [0, 2, 4, 6, 5, 7, 1, 3]
        with MemoryHarness(self.subject, foreign=True) as memory:
            sides = {side: memory.allocate(pages * page) for side in ("source", "destination")}
            memory.write(sides["source"], b"n" * pages * page)
            memory.write(sides["destination"], b"o" * pages * page)
            plan = plan_blocks(
                Geometry([sides["destination"]], blocks=pages, block_bytes=page),
                Geometry([sides["source"]], blocks=pages, block_bytes=page),
                order,
                order,
            )
            memory.hide(sides[bad] + hole * page, page)
            outcome = settled(self.subject.quiescent, self.subject.copy(plan, soon()))
            memory.show(sides[bad] + hole * page, page)
            assert (outcome.state, outcome.cause) == (OutcomeState.FAILED, cause)
            check_coverage(outcome, plan.chunks)
            for state, index, (local, _, nbytes) in chunk_list(plan, outcome):
                if order[index] == hole:
                    assert state != "landed", "a chunk that cannot land is reported as landed"
                if state != "unknown":
                    assert memory.read(local, nbytes) == (b"n" if state == "landed" else b"o") * nbytes

    def test_copies_run_side_by_side(self) -> None:
        """Eight threads, each bound to the device, each with memory of its own."""
        work = [(self.memory.allocate(200_000), self.memory.allocate(200_000)) for _ in range(8)]
        contents = [self.random.randbytes(200_000) for _ in work]
        for (source, _), content in zip(work, contents, strict=True):
            self.memory.write(source, content)
        start = threading.Barrier(len(work))

        def run(pair: tuple[int, int]) -> list[OutcomeState]:
            self.subject.bind_thread()
            start.wait(30.0)
            return [self.subject.copy(plan_bytes(pair[1], pair[0], 200_000), soon()).state for _ in range(5)]

        with ThreadPoolExecutor(len(work)) as pool:
            assert set(itertools.chain(*pool.map(run, work))) == {OutcomeState.DONE}
        for (_, target), content in zip(work, contents, strict=True):
            assert self.memory.read(target, 200_000) == content
