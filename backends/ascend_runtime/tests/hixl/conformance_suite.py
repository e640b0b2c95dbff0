"""The core's engine suite on the HIXL engine. Run by `test_hixl_conformance.py`, once for each emulated product."""

import dataclasses
import os

from cachecore.driver import Capability
from cachecore.engine import Operation
from cachecore.outcome import OutcomeState
from cachecore.planning import Geometry, plan_blocks
from cachecore.testing.engine_conformance import EngineConformance
from cachecore.testing.side import pattern


class TestHixlEngine(EngineConformance):
    driver = "emulated:DRIVER"
    engine = "cachecore_ascend_runtime.hixl_engine:ENGINE"
    device = 0
    peer_device = 1
    driver_options = {"transport": os.environ.get("TRANSPORT", "hccs")}

    def live_regions(self, engine):
        return engine.live_regions

    def test_memory_registered_after_the_link_is_reached(self):
        """A native link does not see it, so the capability says no; the engine makes another link."""
        assert self.facts.register_while_linked.value is False
        self.facts = dataclasses.replace(self.facts, register_while_linked=Capability(True, "by another link"))
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
        plan = plan_blocks(here, there, [low], [far])
        outcome = self.subject.transfer(self.peer.identity, plan, Operation.READ, self.deadline())
        assert outcome.state is OutcomeState.DONE, outcome
        assert self.side.memory.read(local + low * block, block) == pattern(5, block)
        plan = plan_blocks(here, there, [low], [low], destination="remote")
        outcome = self.subject.transfer(self.peer.identity, plan, Operation.WRITE, self.deadline())
        assert outcome.state is OutcomeState.DONE, outcome
        assert self.peer.read(remote + low * block, block) == pattern(5, block)

    def test_memory_taken_back_can_be_deregistered_by_its_owner(self):
        """`update` cuts the link; the peer deregisters; what is left is reached again."""
        exchange, kept = self.exchange(8192), self.peer.allocate(8192, self.there)
        self.peer.write(kept, exchange.theirs)
        added = self.peer.register([(kept, 8192)], self.there)
        self.subject.update(self.peer.identity, added, [])
        other = dataclasses.replace(exchange, remote=kept)
        self.verify_done(other, other.plan(Operation.READ, 2), Operation.READ)
        self.subject.update(self.peer.identity, [], [exchange.region])
        self.peer.call("deregister", exchange.remote)
        outcome = self.move(exchange, exchange.plan(Operation.READ, 2), Operation.READ)
        assert outcome.untouched == ((0, 2),)
        self.side.fill(exchange.local, 8192, 2)
        self.verify_done(other, other.plan(Operation.READ, 2), Operation.READ)

    def test_an_owner_that_peers_read_from_cannot_deregister_and_says_so(self):
        """Nothing is lost: it works when they have gone."""
        exchange = self.exchange(4096)
        self.verify_done(exchange, exchange.plan(Operation.READ, 1), Operation.READ)
        try:
            self.peer.call("deregister", exchange.remote)
        except Exception as error:
            refusal = error
        assert type(refusal).__name__ == "StillReachableError" and "must not be freed" in str(refusal)
        assert self.peer.call("engine.live_regions.__index__") == 1
        assert self.subject.disconnect(self.peer.identity, self.deadline())

    @staticmethod
    def deadline():
        from cachecore.testing._engine_case import soon

        return soon()
