"""The core's engine suite on the HIXL engine. Run by `test_hixl_emulated.py`, once for each emulated product."""

import os
import time
from dataclasses import replace
from typing import ClassVar

import pytest

from cachecore.driver import Capability
from cachecore.engine import Operation
from cachecore.errors import LinkFailedError, StillReachableError
from cachecore.outcome import OutcomeState
from cachecore.planning import Geometry, plan_blocks
from cachecore.testing.engine_conformance import EngineConformance
from cachecore.testing.side import pattern

TRANSPORT = os.environ["TRANSPORT"]
READ, WRITE = Operation.READ, Operation.WRITE


def soon():
    return time.monotonic() + 60.0


class TestHixlEngine(EngineConformance):
    driver = "emulated:DRIVER"
    engine = "cachecore_ascend_runtime.hixl_engine:ENGINE"
    device = 0
    peer_device = 1
    driver_options: ClassVar = {"transport": TRANSPORT}

    def live_regions(self, engine):
        return engine.live_regions

    def test_memory_registered_after_the_link_is_reached(self):
        """A native link does not see it, so the capability says no; the engine makes another link."""
        assert self.facts.register_while_linked.value is False
        self.facts = replace(self.facts, register_while_linked=Capability(True, "by another link"))
        super().test_memory_registered_after_the_link_is_reached()

    def test_offsets_beyond_32_bits(self):
        """As the suite's, in memory of the device: the emulator's is sparse."""
        nbytes, block = 9 << 30, 4096
        low, far = (4 << 30) // block + 5, (8 << 30) // block + 5
        remote, local = self.peer.allocate(nbytes, self.there), self.side.allocate(nbytes, self.here)
        regions = self.peer.register([(remote, nbytes)], self.there)
        self.register_local(local, nbytes)
        self.connect(self.peer, *regions)
        self.peer.call("fill", remote + far * block, block, 5)
        here, there = (Geometry([base], blocks=nbytes // block, block_bytes=block) for base in (local, remote))
        outcome = self.subject.transfer(self.peer.identity, plan_blocks(here, there, [low], [far]), READ, soon())
        assert outcome.state is OutcomeState.DONE, outcome
        assert self.side.memory.read(local + low * block, block) == pattern(5, block)
        plan = plan_blocks(here, there, [low], [low], destination="remote")
        outcome = self.subject.transfer(self.peer.identity, plan, WRITE, soon())
        assert outcome.state is OutcomeState.DONE, outcome
        assert self.peer.read(remote + low * block, block) == pattern(5, block)

    def test_memory_taken_back_can_be_deregistered_by_its_owner(self):
        """`update` cuts the link; the peer deregisters; what is left is reached again."""
        exchange, kept = self.exchange(8192), self.peer.allocate(8192, self.there)
        self.peer.write(kept, exchange.theirs)
        self.subject.update(self.peer.identity, self.peer.register([(kept, 8192)], self.there), [])
        other = replace(exchange, remote=kept)
        self.verify_done(other, other.plan(READ, 2), READ)
        self.subject.update(self.peer.identity, [], [exchange.region])
        self.peer.call("deregister", exchange.remote)
        outcome = self.move(exchange, exchange.plan(READ, 2), READ)
        assert outcome.state is OutcomeState.FAILED and not outcome.landed and not outcome.unknown
        self.side.fill(exchange.local, 8192, 2)
        self.verify_done(other, other.plan(READ, 2), READ)

    def test_an_owner_that_peers_read_from_cannot_deregister_and_says_so(self):
        """Nothing is lost by the attempt."""
        exchange = self.exchange(4096, self.own_peer())
        with pytest.raises(StillReachableError, match="must not be freed"):
            exchange.peer.call("deregister", exchange.remote)
        self.verify_done(exchange, exchange.plan(READ, 1), READ)

    def test_misaligned_memory_fails_the_link_over_hccs_and_the_error_says_where_to_look(self):
        """The rule that the products' drivers enforce when memory is registered."""
        address = self.side.allocate(4 << 20, self.here) + 4096
        self.side.register([(address, 1 << 20)], self.here)
        if TRANSPORT != "hccs":
            self.connect(self.peer)
            return
        with pytest.raises(
            LinkFailedError, match=r"503900.*look first at the memory registered on both sides: alignment"
        ):
            self.connect(self.peer)
