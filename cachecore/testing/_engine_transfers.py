"""The part of the engine suite about transfers that succeed: every byte, in every shape."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cachecore.engine import Operation
from cachecore.outcome import OutcomeState
from cachecore.planning import Geometry, plan_blocks
from cachecore.testing._engine_case import EngineCase, Exchange, soon
from cachecore.testing.side import pattern


class EngineTransfers(EngineCase):
    """`TransferEngine.transfer` when all is well."""

    def _both_ways(self, nbytes: int, blocks: int, order: list[int] | None = None) -> None:
        for op in Operation:
            exchange = self.exchange(nbytes)
            self.verify_done(exchange, exchange.plan(op, blocks, order), op)
            self.subject.disconnect(self.peer.identity, soon())

    def test_one_byte(self) -> None:
        """The smallest transfer there is."""
        self._both_ways(1, 1)

    def test_scattered_blocks(self) -> None:
        """More chunks than a system call takes at once, none next to another, in any order."""
        order = list(range(0, 3000, 2))
        self.random.shuffle(order)
        self._both_ways(3000 * 512, 3000, order)

    def test_merged_blocks(self) -> None:
        """Neighbours that became runs of unequal length."""
        order = [*range(10, 200), 3, 4, 5, 250, *range(201, 209)]
        self._both_ways(256 * 1024, 256, order)

    def test_two_hundred_thousand_chunks(self) -> None:
        """A very long prompt in small blocks; backwards, so that nothing merges."""
        self._both_ways(200_000 * 16, 200_000, list(range(199_999, -1, -1)))

    def test_a_large_contiguous_range(self) -> None:
        """Above the size from which work is split over threads, and no multiple of anything."""
        self._both_ways((40 << 20) + 12_345, 1)

    def test_strided_unaligned_tensors(self) -> None:
        """Several tensors at odd addresses, blocks apart from each other by different strides on both sides."""
        exchange = self.exchange(1 << 20)
        block, blocks, tensors = 777, 50, 5
        local, remote = (
            Geometry(
                [start + 3 + t * blocks * stride + t for t in range(tensors)],
                blocks=blocks,
                block_bytes=block,
                block_stride=stride,
            )
            for start, stride in ((exchange.local, 1003), (exchange.remote, 2111))
        )
        here, there = self.random.sample(range(blocks), 30), self.random.sample(range(blocks), 30)
        self.verify_done(exchange, plan_blocks(local, remote, here, there), Operation.READ)
        self.side.fill(exchange.local, exchange.nbytes, 2)
        self.verify_done(exchange, plan_blocks(local, remote, here, there, destination="remote"), Operation.WRITE)

    def test_every_placement_pair(self) -> None:
        """Each pair that the engine says it can move between."""
        pairs = self.facts.placement_pairs.value_or(frozenset())
        if not pairs:
            pytest.skip("the engine does not know its placement pairs")
        for self.here, self.there in sorted(pairs):
            self._both_ways(30_000, 3, [2, 0])

    def test_offsets_beyond_32_bits(self) -> None:
        """Blocks more than 4 GiB from the start of sparse memory, on both sides."""
        if not self.accepts_foreign():
            pytest.skip("the driver accepts no ordinary memory, and its own is not sparse")
        nbytes, block = 9 << 30, 4096
        far = (8 << 30) + 5 * block
        remote = self.peer.call("memory.map", nbytes)
        local = self.side.memory.map(nbytes)
        regions = self.peer.register([(remote, nbytes)], self.there)
        self.register_local(local, nbytes)
        self.connect(self.peer, *regions)
        low = far - (4 << 30)
        for seed, op in enumerate(Operation, 10):
            reading = op is Operation.READ
            if reading:
                self.peer.call("fill", remote + far, block, seed)
            else:
                self.side.fill(local + far, block, seed)
            plan = plan_blocks(
                Geometry([local], blocks=nbytes // block, block_bytes=block),
                Geometry([remote], blocks=nbytes // block, block_bytes=block),
                [(low if reading else far) // block],
                [(far if reading else low) // block],
                destination="local" if reading else "remote",
            )
            outcome = self.subject.transfer(self.peer.identity, plan, op, soon())
            assert outcome.state is OutcomeState.DONE, outcome
            found = self.side.memory.read(local + low, block) if reading else self.peer.read(remote + low, block)
            assert found == pattern(seed, block)

    def test_transfers_run_side_by_side(self) -> None:
        """Eight threads over one link, reads and writes, each with its own part of the memory."""
        part, threads, rounds = 64 * 1024, 8, 6
        exchange = self.exchange(part * threads)
        start = threading.Barrier(threads)
        order = list(range(0, 64, 2))

        def run(number: int) -> set[OutcomeState]:
            self.side.driver.bind_thread()
            op = Operation.READ if number % 2 else Operation.WRITE
            at = number * part
            mine = dataclasses.replace(exchange, local=exchange.local + at, remote=exchange.remote + at, nbytes=part)
            start.wait(30.0)
            plan = mine.plan(op, 64, order)
            return {self.subject.transfer(self.peer.identity, plan, op, soon()).state for _ in range(rounds)}

        with ThreadPoolExecutor(threads) as pool:
            assert set().union(*pool.map(run, range(threads))) == {OutcomeState.DONE}
        here, there = bytearray(exchange.ours), bytearray(exchange.theirs)
        for number in range(threads):
            for block in order:
                at = number * part + block * 1024
                piece = slice(at, at + 1024)
                if number % 2:
                    here[piece] = exchange.theirs[piece]
                else:
                    there[piece] = exchange.ours[piece]
        assert self.side.memory.read(exchange.local, exchange.nbytes) == here
        assert self.peer.read(exchange.remote, exchange.nbytes) == there

    def test_nothing_is_written_after_done(self) -> None:
        """From DONE on the destination belongs to its owner."""
        for op in Operation:
            exchange = self.exchange(200_000)
            self.verify_done(exchange, exchange.plan(op, 100, list(range(99, -1, -1))), op)
            self.verify_quiet(exchange, op)
            self._drop(exchange)

    def _drop(self, exchange: Exchange) -> None:
        assert self.subject.disconnect(exchange.peer.identity, soon())
