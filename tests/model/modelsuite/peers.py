"""Rules for links, leases, notifications, and managers that end."""

from __future__ import annotations

from modelsuite import wire
from modelsuite.base import COUNTS, Frame, chance
from modelsuite.oracle import INCOMPATIBLE, VALUE, Lease

LONG = 3600.0


class PeerRules(Frame):
    """`link`, `unlink`, `lease` and its family, `notify`, and restarts."""

    # --- links ------------------------------------------------------------------------------------------------------

    def link(self, rnd: object) -> None:
        me = self.any_node(rnd)
        other = rnd.choice([node for node in self.nodes if node is not me])
        errors = set()
        if me.links.get(other.cluster) == other.life:
            if chance(rnd, 0.6):
                return
            errors = {"AlreadyLinkedError"}
        address = self.addresses[other.cluster]
        named = other.cluster
        if not errors and chance(rnd, 0.1):
            named, errors = other.cluster + 40, {"LinkFailedError"}

        def effect(value: object) -> None:
            assert value == other.cluster
            me.links[other.cluster] = other.life

        self.perform(me, "link", [named, address], errors, effect, timeout=60.0)

    def unlink(self, rnd: object) -> None:
        me = self.any_node(rnd)
        linked = list(me.links)
        if not linked or chance(rnd, 0.7):
            self.perform(me, "unlink", [me.cluster + 60], {"NotLinkedError"}, timeout=60.0)
            return
        cluster = rnd.choice(linked)

        def effect(value: object) -> None:
            del me.links[cluster]

        self.perform(me, "unlink", [cluster], set(), effect, timeout=60.0)

    def relink(self, rnd: object) -> None:
        """What was unlinked or lost comes back soon, so that most transfers have a link."""
        for me in self.nodes:
            for other in self.nodes:
                if other is not me and me.links.get(other.cluster) != other.life:

                    def effect(value: object, me: object = me, other: object = other) -> None:
                        me.links[other.cluster] = other.life

                    self.perform(
                        me, "link", [other.cluster, self.addresses[other.cluster]], set(), effect, timeout=60.0
                    )

    def restart(self, rnd: object) -> None:
        """A manager is closed, or its process killed, and another takes its place."""
        me = self.any_node(rnd)
        killed = chance(rnd, 0.1)
        ended = [me.cluster]
        if killed:
            worker = self.workers[me.cluster]
            worker.kill()
            worker.start()
            ended = [cluster for cluster, other in self.workers.items() if other is worker]
        for cluster in ended:
            self.make(cluster, rnd.randrange(2**32))
        COUNTS["restart after a kill" if killed else "restart", "ok"] += 1

    # --- leases -----------------------------------------------------------------------------------------------------

    def lease(self, rnd: object) -> None:
        owners = [node for node in self.nodes if node.caches]
        if not owners:
            return
        me = rnd.choice(owners)
        cache = rnd.choice(me.of_kind("blocks") or list(me.caches.values()))
        blocks = rnd.sample(range(cache.blocks), rnd.randint(1, cache.blocks))
        ttl = LONG
        errors = {INCOMPATIBLE} if cache.kind == "entries" else set()
        if chance(rnd, 0.15):
            what = rnd.randrange(4)
            if what == 0:
                blocks[-1] = cache.blocks
            elif what == 1:
                blocks.append(blocks[0])
            elif what == 2:
                blocks = []
            else:
                ttl = 0.0
            errors |= {VALUE}

        def effect(value: object) -> None:
            me.leases.append(Lease(value, me.cluster, cache.cache_id, frozenset(blocks)))

        self.perform(me, "lease", [wire.CacheRef(cache.cache_id), blocks, ttl], errors, effect)

    def renew_or_release(self, rnd: object) -> None:
        owners = [node for node in self.nodes if node.leases]
        if not owners:
            return
        owner = rnd.choice(owners)
        lease = rnd.choice(owner.leases)
        me = owner if not chance(rnd, 0.1) else self.any_node(rnd)
        foreign = {VALUE} if me is not owner else set()
        if chance(rnd, 0.5):
            errors = foreign or (set() if lease.live else {"LeaseExpiredError"})
            self.perform(me, "renew_lease", [lease.value, LONG], errors)
            return

        def effect(value: object) -> None:
            lease.live = False

        self.perform(me, "release_lease", [lease.value], foreign, effect, timeout=60.0)
        if len(owner.leases) > 6:
            owner.leases = [one for one in owner.leases if one.live][-6:]

    def expire(self, rnd: object) -> None:
        """Time runs out under a lease that nobody uses: it is reported once, and takes no pull any more."""
        owners = [node for node in self.nodes if any(lease.live for lease in node.leases)]
        if not owners:
            return
        me = rnd.choice(owners)
        lease = rnd.choice([one for one in me.leases if one.live])
        self.perform(me, "renew_lease", [lease.value, 1e-6], set())
        lease.live = False

        def effect(value: object) -> None:
            assert [one.lease_id for one in value] == [lease.value.lease_id], value

        self.perform(me, "expired_leases", [], set(), effect)

    # --- notifications ----------------------------------------------------------------------------------------------

    def notify(self, rnd: object) -> None:
        me = self.any_node(rnd)
        others = [node for node in self.nodes if node is not me]
        other = rnd.choice(others)
        here, there = me.links.get(other.cluster) == other.life, other.links.get(me.cluster) == me.life
        name, payload = rnd.choice(["done", "x" * 200]), bytes(rnd.randrange(256) for _ in range(rnd.randrange(4)))
        errors: set[str] = set()
        if not here and not there:
            errors = {"NotLinkedError", "LinkLostError"}
        if chance(rnd, 0.1):
            name, payload, wrong = rnd.choice(
                [
                    ("", b"", VALUE),
                    ("x" * 201, b"", VALUE),
                    ("big", bytes(256 * 1024 + 1), VALUE),
                    (7, b"", "CacheTypeError"),
                ]
            )
            errors = errors | {wrong}

        def effect(value: object) -> None:
            other.inbox.append((me.cluster, name, payload))

        self.perform(me, "notify", [other.cluster, name, payload], errors, effect, timeout=60.0)
        got = self.ask(other.cluster, "notifications")
        assert got == other.inbox, f"cluster {other.cluster} was told {got}, not {other.inbox}"
        other.inbox = []
