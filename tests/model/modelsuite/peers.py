"""Rules for links, notifications, managers that end, and calls that must wait for a transfer."""

from __future__ import annotations

from modelsuite import wire
from modelsuite.base import COUNTS, chance, fault, real_key
from modelsuite.choosing import Choosing
from modelsuite.oracle import VALUE, Node

#: What is tried while a transfer waits: giving back its caches, paged or contiguous, and the rest.
WAITING = ["own cache", "own cache", "other cache", "other cache", "entries", "entries", "entries", "entries"]
WAITING += ["unlink", "unlink", "notify", "notify", "notify", "release_lease", "release_lease"]


class PeerRules(Choosing):
    """`link`, `unlink`, `notify` and its family, and restarts."""

    # --- links ------------------------------------------------------------------------------------------------------

    def link(self, rnd: object) -> None:
        me = self.any_node(rnd)
        other = rnd.choice([node for node in self.nodes if node is not me])
        wrong = fault(rnd, ["again", "another", "missing", "type", "id"], 0.7)
        arguments: list[object] = [other.cluster, self.addresses[other.cluster]]
        errors: set[str] = set()
        if me.links.get(other.cluster) == other.life:
            errors = {"AlreadyLinkedError"}
            if wrong in ("", "another"):  # give it something to do
                self.drop(me, other.cluster)
                errors = set()
        if wrong == "another":
            arguments[0], errors = other.cluster + 40, {"LinkFailedError"}
        elif wrong == "missing":
            arguments[1] = None
            errors = errors | {"MissingArgumentError"}
        elif wrong == "type":
            arguments[1] = 7
            errors = errors | {"CacheTypeError"}
        elif wrong == "id":
            arguments[0] = -1
            errors = errors | {VALUE}

        def effect(value: object) -> None:
            self.expect(value == other.cluster, f"link to cluster {other.cluster} found {value}")
            me.links[other.cluster] = other.life

        self.perform(me, "link", arguments, errors, effect, timeout=60.0)

    def drop(self, me: Node, cluster: int) -> None:
        """End a link."""

        def effect(value: object) -> None:
            del me.links[cluster]

        self.perform(me, "unlink", [cluster], set(), effect, timeout=60.0)

    def unlink(self, rnd: object) -> None:
        me = self.any_node(rnd)
        linked = list(me.links)
        wrong = fault(rnd, ["stranger", "missing", "id", "id"], 0.33)
        if linked and not wrong:
            self.drop(me, rnd.choice(linked))
        elif wrong == "missing":
            self.perform(me, "unlink", [None], {"MissingArgumentError"}, timeout=60.0)
        elif wrong == "id":
            cluster, error = rnd.choice([("1", "CacheTypeError"), (-1, VALUE)])
            self.perform(me, "unlink", [cluster], {error}, timeout=60.0)
        else:
            strangers = [node.cluster for node in self.nodes if node is not me and node.cluster not in me.links]
            self.perform(me, "unlink", [rnd.choice([*strangers, me.cluster + 60])], {"NotLinkedError"}, timeout=60.0)

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
        """A manager is closed, or its process killed, and another takes its place. Transfers towards it fail at once."""
        me = self.any_node(rnd)
        # Where no engine can prove that a process has ended, peers keep their memory for a killed writer, see docs.
        killed = chance(rnd, 0.6) and me.facts["backend"] == "host"
        ended = [me.cluster]
        if killed:
            worker = self.workers[me.cluster]
            worker.kill()
            worker.start()
            ended = [cluster for cluster, other in self.workers.items() if other is worker]
        for cluster in ended:
            self.make(cluster, rnd.randrange(2**32))
        COUNTS["restart after a kill" if killed else "restart", "ok"] += 1
        for other in self.nodes:
            for cluster in self.lost(other):
                self.until(
                    lambda other=other, cluster=cluster: self.ask(other.cluster, "link_is_lost", cluster),
                    f"cluster {other.cluster} notices the end of cluster {cluster}",
                )
        self.towards = self.oracle.nodes[me.cluster]
        try:
            for _ in range(14):
                self.one_towards_the_lost(rnd)
        finally:
            self.towards = None
        for other in self.nodes:
            for cluster in self.lost(other):
                self.query(other, cluster)
        if chance(rnd, 0.9):
            self.relink(rnd)

    def one_towards_the_lost(self, rnd: object) -> None:
        """One transfer; the machine knows which there are."""
        raise NotImplementedError

    # --- notifications ----------------------------------------------------------------------------------------------

    def notify(self, rnd: object) -> None:
        me = self.any_node(rnd)
        others = [node for node in self.nodes if node is not me]
        other = rnd.choice(others)
        wrong = fault(rnd, ["name", "name", "missing", "type", "alone"], 0.4)
        if wrong == "alone":
            for one, two in ((me, other), (other, me)):
                if one.links.get(two.cluster) == two.life:
                    self.drop(one, two.cluster)
        here, there = me.links.get(other.cluster) == other.life, other.links.get(me.cluster) == me.life
        name, payload = rnd.choice(["done", "x" * 200]), bytes(rnd.randrange(256) for _ in range(rnd.randrange(4)))
        errors: set[str] = set()
        if not here and not there:
            errors = {"NotLinkedError", "LinkLostError"}
        if wrong == "name":
            name, payload = rnd.choice([("", b""), ("x" * 201, b""), ("big", bytes(256 * 1024 + 1))])
            errors = errors | {VALUE}
        elif wrong == "missing":
            payload = None
            errors = errors | {"MissingArgumentError"}
        elif wrong == "type":
            name = 7
            errors = errors | {"CacheTypeError"}

        def effect(value: object) -> None:
            other.inbox.append((me.cluster, name, payload))

        self.perform(me, "notify", [other.cluster, name, payload], errors, effect, timeout=60.0)
        how = rnd.choice(["poll", "wait", "callback"])
        got = self.ask(other.cluster, "notifications", how, len(other.inbox))
        self.expect(got == other.inbox, f"cluster {other.cluster} was told {got} by {how}, not {other.inbox}")
        if how == "callback":  # which was seen to refuse to be asked
            COUNTS["on_notification", "CacheValueError"] += 1
        if got:
            COUNTS[
                {"poll": "notifications", "wait": "wait_notification", "callback": "on_notification"}[how], "ok"
            ] += 1
        other.inbox = []

    def notify_the_lost(self, rnd: object) -> None:
        """Who has ended is told nothing."""
        owners = [me for me in self.nodes if self.towards.cluster in self.lost(me)]
        if owners:
            me = rnd.choice(owners)
            self.perform(me, "notify", [self.towards.cluster, "late", b""], {"NotLinkedError"}, timeout=60.0)

    def query(self, me: Node, cluster: int) -> None:
        """The state of what a peer registered."""
        errors = set() if cluster in me.links else {"NotLinkedError"}
        if me.facts["backend"] == "ascend_950":
            errors = {"NotSupportedError"}

        def effect(value: object) -> str | None:
            failed = me.links[cluster] != self.oracle.nodes[cluster].life
            self.expect(int(value) == (2 if failed else 0), f"the status of cluster {cluster} is {value}")
            return "FAILED" if failed else None

        self.perform(me, "query_register_mem_status", [cluster], errors, effect)

    # --- calls that wait for transfers ------------------------------------------------------------------------------

    def while_one_waits(self, rnd: object) -> None:
        """A transfer waits for an event that never comes: what must not go on under it says so and can be repeated."""
        under = rnd.choice(WAITING)
        kind = "entries" if under == "entries" else "blocks"
        for _ in range(12):
            pair = self.draw_pair(rnd, kind, kind)
            if pair is None:
                return
            me, own, node, other = pair
            fits = node is not me and own.remote and len(own.tensors) == len(other.tensors)
            fits = fits and own.data_type == other.data_type and own.block_bytes == other.block_bytes
            if "cache" in under or kind == "entries":
                fits = fits and (own if under == "own cache" else other).allocated is chance(rnd, 0.7)
            if kind == "entries" and node.facts["two_sided"]:  # a cache that has keys is only released, at once
                fits = fits and not any(other.keys)
            if fits and (kind == "entries" or other.model is not None):
                break
        else:
            return
        pull = under == "release_lease" or chance(rnd, 0.5)
        more: dict[str, object] = {}
        lease = None
        if under == "release_lease":
            lease = self.grant(node, other, [0])
            more["lease"] = lease.value
        if kind == "blocks":
            key, rest = ("blocks", node.cluster, other.model), [[0], [0]]
        else:
            key, rest = ("index", node.cluster, other.cache_id, 0), [0]
        arguments = [real_key(key), wire.CacheRef(own.cache_id), *rest]
        method = f"{'pull' if pull else 'push'}_{'blocks' if kind == 'blocks' else 'cache'}_async"
        self.call(me, method, *arguments, tensor_num_per_layer=1, timeout=60.0, never=True, then="leave", **more)
        self.until(lambda: self.ask(me.cluster, "begun"), f"{method} of cluster {me.cluster} begins")
        if lease is not None:
            self.until(lambda: self.ask(node.cluster, "claimed"), f"{method} of cluster {me.cluster} claims its lease")
        owner, cache = (me, own) if under == "own cache" else (node, other)
        busy = {"CacheBusyError"}
        give_back = "unregister_cache"
        reference: object = cache.cache_id
        if cache.allocated:
            give_back = "deallocate_blocks_cache" if kind == "blocks" else "deallocate_cache"
            reference = wire.CacheRef(cache.cache_id)

        def again(timeout: float, errors: set[str]) -> None:
            if under == "unlink":
                self.perform(
                    me, "unlink", [node.cluster], errors, lambda value: me.links.pop(node.cluster), timeout=timeout
                )
            elif under == "release_lease":
                self.perform(
                    node, under, [lease.value], errors, lambda value: setattr(lease, "live", False), timeout=timeout
                )
            elif under == "notify":
                self.perform(
                    me,
                    under,
                    [node.cluster, "done", b""],
                    {"CacheTimeoutError"} if errors else errors,
                    lambda value: node.inbox.append((me.cluster, "done", b"")),
                    timeout=timeout,
                )
            else:
                if not errors and cache.allocated:
                    self.ask(owner.cluster, "forget", cache.cache_id)
                gone = lambda value: self.gone(owner, cache)
                self.perform(owner, give_back, [reference], errors, gone, timeout=timeout)

        again(0.05, busy)
        ended = self.ask(me.cluster, "end_waiting")
        self.expect(ended == "TransferCancelledError", f"{method} was cancelled and ended with {ended}")
        again(60.0, set())
        if under == "notify":
            got = self.ask(node.cluster, "notifications", "poll", 0)
            self.expect(got == node.inbox, f"cluster {node.cluster} was told {got}, not {node.inbox}")
            node.inbox = []
