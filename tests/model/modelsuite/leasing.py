"""Rules for block leases."""

from __future__ import annotations

from modelsuite import wire
from modelsuite.base import Frame, chance, fault
from modelsuite.oracle import INCOMPATIBLE, NOT_FOUND, VALUE, Cache, Lease, Node

LONG = 3600.0


class LeaseRules(Frame):
    """`lease`, `renew_lease`, `release_lease` and `expired_leases`."""

    def lease(self, rnd: object) -> None:
        wrong = fault(rnd, ["block", "twice", "none", "ttl", "kind", "missing", "type", "stale", "stale"], 0.5)
        kind = "entries" if wrong == "kind" else rnd.choice(["blocks", "blocks", "layers"])
        owners = [node for node in self.nodes if node.of_kind(kind)]
        if not owners:
            return
        me = rnd.choice(owners)
        cache = rnd.choice(me.of_kind(kind))
        blocks = rnd.sample(range(cache.blocks), rnd.randint(1, cache.blocks))
        ttl: object = LONG
        errors = {INCOMPATIBLE} if cache.kind == "entries" else set()
        reference: object = wire.CacheRef(cache.cache_id)
        if wrong == "block":
            blocks[-1] = cache.blocks
            errors |= {VALUE}
        elif wrong == "twice":
            blocks.append(blocks[0])
            errors |= {VALUE}
        elif wrong == "none":
            blocks = []
            errors |= {VALUE}
        elif wrong == "ttl":
            ttl = rnd.choice([0.0, -1.0])
            errors |= {VALUE}
        elif wrong == "missing":
            reference = None
            errors |= {"MissingArgumentError"}
        elif wrong == "type":
            ttl = "long"
            errors |= {"CacheTypeError"}
        elif wrong == "stale" and me.gone:
            reference = wire.CacheRef(rnd.choice(me.gone).cache_id)
            errors |= {NOT_FOUND}

        def effect(value: object) -> None:
            me.leases.append(Lease(value, me.cluster, cache.cache_id, frozenset(blocks)))

        self.perform(me, "lease", [reference, blocks, ttl], errors, effect)

    def grant(self, me: Node, cache: Cache, blocks: list[int]) -> Lease:
        """A lease for a pull."""
        made: list[Lease] = []

        def effect(value: object) -> None:
            made.append(Lease(value, me.cluster, cache.cache_id, frozenset(blocks)))

        self.perform(me, "lease", [wire.CacheRef(cache.cache_id), blocks, LONG], set(), effect)
        me.leases += made
        return made[0]

    def renew_or_release(self, rnd: object) -> None:
        owners = [node for node in self.nodes if node.leases]
        if not owners:
            return
        owner = rnd.choice(owners)
        wrong = fault(rnd, ["foreign", "missing", "type", "ttl", "over"], 0.6)
        leases = [one for one in owner.leases if one.live is (wrong != "over")] or owner.leases
        lease = rnd.choice(leases)
        me = rnd.choice([node for node in self.nodes if node is not owner]) if wrong == "foreign" else owner
        errors = {VALUE} if me is not owner else set()
        value: object = lease.value
        if wrong in ("missing", "type"):
            value = None if wrong == "missing" else 7
            errors = {"MissingArgumentError" if wrong == "missing" else "CacheTypeError"}
        if chance(rnd, 0.5):
            if not lease.live and not errors:
                errors = {"LeaseExpiredError"}
            if wrong == "ttl":
                errors = errors | {VALUE}
            self.perform(me, "renew_lease", [value, 0.0 if wrong == "ttl" else LONG], errors)
            return

        def effect(_: object) -> None:
            lease.live = False

        self.perform(me, "release_lease", [value], errors, effect, timeout=60.0)
        if len(owner.leases) > 6:
            owner.leases = [one for one in owner.leases if one.live][-5:]

    def expire(self, rnd: object) -> None:
        """Time runs out under a lease that nobody uses: it is reported once, and takes no pull any more."""
        owners = [node for node in self.nodes if any(lease.live for lease in node.leases)]
        if owners:
            me = rnd.choice(owners)
            self.run_out(me, rnd.choice([one for one in me.leases if one.live]))

    def run_out(self, me: Node, lease: Lease) -> None:
        """End a lease by time."""
        self.perform(me, "renew_lease", [lease.value, 1e-6], set())
        lease.live = False

        def effect(value: object) -> None:
            told = [one.lease_id for one in value]
            self.expect(told == [lease.value.lease_id], f"expired_leases told of {told}, not of {lease.value}")

        self.perform(me, "expired_leases", [], set(), effect)
