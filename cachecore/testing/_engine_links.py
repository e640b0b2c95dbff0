"""The part of the engine suite about registrations and links."""

from __future__ import annotations

import dataclasses
import mmap
import time
from typing import Any

import pytest

from cachecore.driver import Capability
from cachecore.engine import EngineCapabilities, Operation, Region
from cachecore.errors import CacheError, LinkFailedError
from cachecore.outcome import OutcomeState
from cachecore.testing._engine_case import GRACE, EngineCase, soon
from cachecore.testing.side import PeerProcess


class EngineLinks(EngineCase):
    """Everything of an engine but `transfer`."""

    def test_capabilities_are_complete_and_sourced(self) -> None:
        """Each fact is there, constant, and says where it comes from."""
        for entry in dataclasses.fields(EngineCapabilities):
            capability: Capability[Any] = getattr(self.facts, entry.name)
            assert isinstance(capability, Capability), f"{entry.name} is {capability!r}"
            assert capability.source.strip(), f"{entry.name} does not say where it comes from"
        assert self.facts.max_chunks_per_call.value_or(None) != 0
        assert self.subject.capabilities() == self.facts
        name, _, version = self.subject.wire_id.rpartition("/")
        assert name and version, f"wire_id {self.subject.wire_id!r} is not name/version"

    # --- registration -----------------------------------------------------------------------------------------------

    def test_registrations_come_in_order(self) -> None:
        """Registration i is region i and carries what can travel."""
        addresses = sorted((self.side.allocate(8192, self.here) for _ in range(3)), reverse=True)
        regions = [Region(address, 8192, self.here) for address in addresses]
        made = self.subject.register(regions)
        assert [one.region for one in made] == regions
        assert all(type(one.descriptor) is bytes for one in made)
        for one in made:
            self.subject.deregister(one)
        assert self.live_regions(self.subject) in (0, None)

    def test_registration_is_all_or_nothing(self) -> None:
        """One region that is not there fails the call, leaves none of the others behind and spoils no retry."""
        good = [Region(self.side.allocate(8192, self.here), 8192, self.here) for _ in range(3)]
        for bad in (Region(1 << 46, 8192, self.here), Region(2**64 - 4096, 8192, self.here)):
            with pytest.raises(CacheError):
                self.subject.register([*good, bad])
            assert self.live_regions(self.subject) in (0, None)
        for one in self.subject.register(good):
            self.subject.deregister(one)

    def test_a_second_deregistration_is_refused(self) -> None:
        """And does not touch another registration of the same memory."""
        region = Region(self.side.allocate(8192, self.here), 8192, self.here)
        (first,) = self.subject.register([region])
        self.subject.deregister(first)
        (second,) = self.subject.register([region])
        with pytest.raises(CacheError):
            self.subject.deregister(first)
        assert self.live_regions(self.subject) in (1, None)
        self.subject.deregister(second)

    # --- connect ----------------------------------------------------------------------------------------------------

    def _fails_to_connect(self, peer: PeerProcess, endpoint: bytes, seconds: float) -> None:
        start = time.monotonic()
        with pytest.raises(LinkFailedError):
            self.subject.connect(peer.identity, endpoint, [], start + seconds)
        assert time.monotonic() - start < max(seconds, 0.0) + GRACE, "connect() did not keep its deadline"

    def test_a_dead_peer_fails_within_the_deadline(self) -> None:
        """Both while it is a zombie and when nothing is left of it."""
        peer = self.own_peer()
        peer.kill(reap=False)
        self._fails_to_connect(peer, peer.endpoint, 1.0)
        peer.kill()
        self._fails_to_connect(peer, peer.endpoint, 1.0)

    def test_an_endpoint_of_somebody_else_fails(self) -> None:
        """Empty, cut, garbage, bits changed: never a crash, never a link."""
        endpoint = self.peer.endpoint
        changed = bytearray(endpoint)
        changed[-1] ^= 1
        for wrong in (b"", endpoint[:-1], b"\xff" * len(endpoint), bytes(changed), self.random.randbytes(64)):
            self._fails_to_connect(self.peer, wrong, 1.0)

    def test_a_deadline_that_has_passed_fails_at_once(self) -> None:
        """And leaves nothing in the way of a later link."""
        self._fails_to_connect(self.peer, self.peer.endpoint, -1.0)
        exchange = self.exchange(4096)
        self.verify_done(exchange, exchange.plan(Operation.READ, 1), Operation.READ)

    def test_a_stopped_peer_does_not_hold_up_a_link(self) -> None:
        """Connecting works or fails, within the deadline."""
        peer = self.own_peer()
        peer.stop()
        start = time.monotonic()
        try:
            self.subject.connect(peer.identity, peer.endpoint, [], start + 1.0)
        except LinkFailedError:
            connected = False
        else:
            connected = True
        assert time.monotonic() - start < 1.0 + GRACE, "connect() did not keep its deadline"
        peer.resume()
        if connected:
            assert self.subject.disconnect(peer.identity, soon())

    # --- changes of a link ------------------------------------------------------------------------------------------

    def test_memory_registered_after_the_link_is_reached(self) -> None:
        """`update` adds it; what was there before still works."""
        if not self.facts.register_while_linked.value_or(False):
            pytest.skip("the engine does not register while linked")
        first = self.exchange(8192)
        second = self.peer.allocate(8192, self.there)
        self.peer.write(second, b"s" * 8192)
        added = self.peer.register([(second, 8192)], self.there)
        self.subject.update(self.peer.identity, added, [])
        late = dataclasses.replace(first, remote=second, theirs=b"s" * 8192)
        self.verify_done(late, late.plan(Operation.READ, 2), Operation.READ)
        again = dataclasses.replace(first, ours=b"s" * 8192)
        self.verify_done(again, again.plan(Operation.READ, 2), Operation.READ)

    def test_removed_memory_is_not_reached(self) -> None:
        """After `update` said so, a transfer of it moves nothing; its neighbour still works."""
        if not self.facts.deregister_while_linked.value_or(False):
            pytest.skip("the engine does not deregister while linked")
        exchange, other = self.exchange(8192), self.peer.allocate(8192, self.there)
        self.peer.write(other, exchange.theirs)
        added = self.peer.register([(other, 8192)], self.there)
        self.subject.update(self.peer.identity, added, [exchange.region])
        for op in Operation:
            plan = exchange.plan(op, 2)
            outcome = self.move(exchange, plan, op)
            assert outcome.state is OutcomeState.FAILED
            assert outcome.untouched == ((0, plan.chunks),)
            self.verify(exchange, plan, op, outcome)
        kept = dataclasses.replace(exchange, remote=other)
        self.verify_done(kept, kept.plan(Operation.READ, 2), Operation.READ)
        self.peer.call("deregister", exchange.remote)

    def test_no_transfer_after_disconnect(self) -> None:
        """It is an Outcome that touches nothing, and a new link works again."""
        exchange = self.exchange(8192)
        assert self.subject.disconnect(self.peer.identity, soon())
        for op in Operation:
            plan = exchange.plan(op, 2)
            outcome = self.move(exchange, plan, op)
            assert outcome.state is OutcomeState.FAILED
            self.verify(exchange, plan, op, outcome)
            assert outcome.untouched == ((0, plan.chunks),)
        self.connect(self.peer, exchange.region)
        self.verify_done(exchange, exchange.plan(Operation.READ, 2), Operation.READ)

    def test_two_lives_of_a_peer_are_two_peers(self) -> None:
        """Links to two processes with one cluster id reach each its own memory, also when one has gone."""
        old, new = self.exchange(mmap.PAGESIZE), self.exchange(mmap.PAGESIZE, self.own_peer())
        new.peer.write(new.remote, b"2" * mmap.PAGESIZE)
        for exchange, content in ((old, old.theirs), (new, b"2" * mmap.PAGESIZE)):
            this = dataclasses.replace(exchange, theirs=content)
            self.verify_done(this, this.plan(Operation.READ, 1), Operation.READ)
        assert self.subject.disconnect(new.peer.identity, soon())
        again = dataclasses.replace(old, ours=old.theirs)
        self.verify_done(again, again.plan(Operation.READ, 1), Operation.READ)

    def test_close_lets_go_of_everything(self) -> None:
        """Registered and linked at the time; nothing is left that must not be freed."""
        exchange = self.exchange(8192)
        self.side.register([(exchange.local, 8192)], self.here)
        assert self.subject.close(soon()) == []
        assert self.live_regions(self.subject) in (0, None)
        self.side.registrations.clear()
        plan = exchange.plan(Operation.READ, 2)
        assert self.move(exchange, plan, Operation.READ).state is OutcomeState.FAILED
