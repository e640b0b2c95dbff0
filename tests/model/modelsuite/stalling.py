"""Rules for peers whose process is there and does not answer, and for links that are made or lost at a bad moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from modelsuite import wire
from modelsuite.base import COUNTS, chance, real_key
from modelsuite.blocks import BlockRules
from modelsuite.oracle import Node
from modelsuite.peers import PeerRules
from modelsuite.returning import ReturnRules

#: Seconds that a call may take whose peer does not answer.
SHORT = 0.1


class StallRules(ReturnRules, BlockRules, PeerRules):
    """Every wait for a peer has an end, and what the peer can do when it goes on is known."""

    def a_stalled_peer(self, rnd: object) -> None:
        """What needs no answer succeeds; all else says that none came, and can be repeated."""
        me = self.any_node(rnd)
        others = [n for n in self.nodes if n.process != me.process and me.links.get(n.cluster) == n.life]
        others = [n for n in others if n.links.get(me.cluster) == me.life]
        if not others:
            return
        node = rnd.choice(others)
        what = rnd.choice(["pull", "push", "push", "notify", "lose", "unregister", "link"])
        if what == "push" and chance(rnd, 0.7):  # over a new link, of which the owner was not asked yet
            self.drop(me, node.cluster)
            link = [node.cluster, self.addresses[node.cluster]]
            self.perform(
                me, "link", link, set(), lambda value: me.links.update({node.cluster: node.life}), timeout=60.0
            )
        with self.stopped(node):
            self.until(
                lambda: self.ask(me.cluster, "link_state", node.cluster) == "STALLED",
                f"cluster {me.cluster} notices that cluster {node.cluster} does not answer",
            )
            COUNTS["a stalled peer", "ok"] += 1
            again = getattr(self, f"{what}_while_stalled")(rnd, me, node)
        if what != "lose":
            self.until(
                lambda: self.ask(me.cluster, "link_state", node.cluster) == "LINKED",
                f"cluster {me.cluster} notices that cluster {node.cluster} answers again",
            )
        if again is not None:
            again()

    @contextmanager
    def stopped(self, node: Node) -> Iterator[None]:
        """The node's process does not run inside."""
        process = self.workers[node.cluster].process.pid
        os.kill(process, signal.SIGSTOP)
        self.absent = node.process
        try:
            yield
        finally:
            self.absent = None
            os.kill(process, signal.SIGCONT)

    def paged_pair(self, rnd: object, me: Node, node: Node) -> tuple | None:
        """Caches of both that fit."""
        pairs = [
            (own, other)
            for own in me.of_kind("blocks")
            for other in node.of_kind("blocks")
            if own.remote and other.remote and other.model is not None and own.data_type == other.data_type
            if own.block_bytes == other.block_bytes and len(own.tensors) == len(other.tensors)
        ]
        return rnd.choice(pairs) if pairs else None

    def pull_while_stalled(self, rnd: object, me: Node, node: Node) -> None:
        """A pull asks nobody. Over HIXL the emulated peer has to run."""
        pair = self.paged_pair(rnd, me, node)
        if pair is None or me.facts["backend"] != "host":
            return
        own, other = pair
        source, target = self.draw_blocks(rnd, other.blocks, own.blocks)
        self.planned(node, other, me, own, source, target, (None, None, 1), (None, None))
        moves = self.moves
        arguments = [real_key(("blocks", node.cluster, other.model)), wire.CacheRef(own.cache_id), source, target]
        effect = lambda value: self.oracle.move(*moves)
        self.perform(me, "pull_blocks", arguments, set(), effect, tensor_num_per_layer=1, timeout=30.0)

    def push_while_stalled(self, rnd: object, me: Node, node: Node) -> object:
        """The owner is asked before the first push over a link; later ones ask nobody, and an engine may give up."""
        pair = self.paged_pair(rnd, me, node)
        if pair is None:
            return None
        own, other = pair
        source, target = self.draw_blocks(rnd, own.blocks, other.blocks)
        self.planned(me, own, node, other, source, target, (None, None, 1), (None, None))
        moves = self.moves
        arguments = [real_key(("blocks", node.cluster, other.model)), wire.CacheRef(own.cache_id), source, target]
        value = self.call(me, "push_blocks", *arguments, timeout=SHORT, tensor_num_per_layer=1)
        outcome = "ok"
        if isinstance(value, wire.Failure):
            outcome = value.name
            self.expect(
                outcome in ("CacheTimeoutError", "TransferTimeoutError"), f"a push to a stalled peer gave {value}"
            )
            self.expect(not value.landed, f"a push to a stalled peer told of {value.landed}")

        def again() -> None:
            """What was unknown is the same bytes, whether they landed or not."""
            self.ask(me.cluster, "settle")
            if outcome == "ok":
                self.oracle.move(*moves)
            else:
                effect = lambda value: self.oracle.move(*moves)
                self.perform(me, "push_blocks", arguments, set(), effect, timeout=60.0, tensor_num_per_layer=1)
            self.count("push_blocks", outcome)

        return again

    def notify_while_stalled(self, rnd: object, me: Node, node: Node) -> object:
        """Whether it arrives is not known until the peer goes on: it is sent, and arrives."""
        self.perform(me, "notify", [node.cluster, "late", b"?"], {"CacheTimeoutError"}, timeout=SHORT)

        def drain() -> None:
            self.perform(me, "notify", [node.cluster, "last", b""], set(), timeout=60.0)
            got = self.ask(node.cluster, "notifications", "poll", 0)
            late, last = (me.cluster, "late", b"?"), (me.cluster, "last", b"")
            self.expect(got in ([late, last], [last]), f"cluster {node.cluster} was told {got}")

        return drain

    def lose_while_stalled(self, rnd: object, me: Node, node: Node) -> object:
        """The connection ends before the peer has confirmed a notification: it may arrive."""
        told = self.ask(me.cluster, "notify_and_lose", node.cluster)
        self.expect(told == "LinkLostError", f"cluster {me.cluster} notified over a link that was lost: {told}")

        def relink() -> None:
            self.perform(me, "link", [node.cluster, self.addresses[node.cluster]], set(), timeout=60.0)
            got = self.ask(node.cluster, "notifications", "poll", 0)
            self.expect(got in ([], [(me.cluster, "late", b"")]), f"cluster {node.cluster} was told {got}")
            self.count("notify", "LinkLostError")

        return relink

    def unregister_while_stalled(self, rnd: object, me: Node, node: Node) -> object:
        """A peer that may be reading has to say that it does not."""
        offered = [cache for cache in me.caches.values() if cache.remote and not cache.allocated]
        if not offered:
            return None
        cache = rnd.choice(offered)
        self.perform(me, "unregister_cache", [cache.cache_id], {"CacheBusyError"}, timeout=SHORT)
        return lambda: self.take_back(me, cache)

    def link_while_stalled(self, rnd: object, me: Node, node: Node) -> None:
        """A stalled link is there."""
        arguments = [node.cluster, self.addresses[node.cluster]]
        self.perform(me, "link", arguments, {"AlreadyLinkedError"}, timeout=SHORT)

    # --- links at a bad moment ----------------------------------------------------------------------------------------

    def link_to_the_deaf(self, rnd: object) -> None:
        """Somebody takes the connection and says nothing."""
        me = self.any_node(rnd)
        arguments = [me.cluster + 70, "a deaf address"]
        self.perform(me, "link", arguments, {"CacheTimeoutError", "LinkFailedError"}, timeout=SHORT)

    def relink_under_a_transfer(self, rnd: object) -> None:
        """A transfer of a lost link still waits: a new link to that peer has to wait for it."""
        call = self.sound_call(rnd, pull=True, few=True)
        if call is None or call.me is call.node:
            return
        me, node, arguments = call.me, call.node, call.arguments
        more = {"tensor_num_per_layer": 1, "timeout": 60.0}
        self.call(me, "pull_blocks_async", *arguments, never=True, then="leave", **more)
        self.until(lambda: self.ask(me.cluster, "begun"), f"pull_blocks_async of cluster {me.cluster} begins")
        self.ask(me.cluster, "lose_link", node.cluster)
        self.perform(me, "pull_blocks", arguments, {"LinkLostError"}, **more)
        link = [node.cluster, self.addresses[node.cluster]]
        self.perform(me, "link", link, {"CacheBusyError"}, timeout=SHORT)
        self.ask(me.cluster, "end_waiting")
        self.perform(me, "link", link, set(), timeout=60.0)
