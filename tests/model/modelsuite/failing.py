"""Rules for engines that fail: one that cannot say what it did, and memory that it cannot make unreachable."""

from __future__ import annotations

from collections.abc import Callable

from modelsuite import wire
from modelsuite.base import chance, real_key
from modelsuite.blocks import BlockRules
from modelsuite.choosing import sharing
from modelsuite.oracle import Cache, Node
from modelsuite.peers import PeerRules
from modelsuite.returning import ReturnRules
from modelsuite.sizes import HOST


class FailureRules(ReturnRules, BlockRules, PeerRules):
    """What must be held until an engine has stopped."""

    def an_unknown_end(self, rnd: object) -> None:
        """An engine gives up and may still write: its destinations are quarantined until it says that it has stopped."""
        pair = self.draw_pair(rnd, "blocks", "blocks")
        if pair is None or pair[3].model is None:
            return
        me, own, node, other = pair
        pull = chance(rnd, 0.5)
        src_node, src, dst_node, dst = (node, other, me, own) if pull else (me, own, node, other)
        source, target = self.draw_blocks(rnd, src.blocks, dst.blocks)
        key = ("blocks", node.cluster, other.model)
        bad = self.oracle.find(me, key)[0] | self.oracle.crossing(me, node, own)
        bad = bad | self.planned(src_node, src, dst_node, dst, source, target, (None, None, 1), (None, None))
        if bad:
            return
        moves = self.moves
        form = rnd.choice(["", "_async"])
        method = f"{'pull' if pull else 'push'}_blocks{form}"
        arguments = [real_key(key), wire.CacheRef(own.cache_id), source, target]
        more = {"tensor_num_per_layer": 1, "timeout": 60.0}
        if form:
            more["then"] = rnd.choice(["wait", "await_"])
        value = self.call(me, method, *arguments, fail_at=1, gives_up=True, **more)
        shown = f"{method} of cluster {me.cluster} that the engine gave up"
        if not isinstance(value, wire.Failure) or value.name != "TransferTimeoutError":
            self.fail(f"{shown} gave {value}")
        told = {(tensor, start + i) for tensor, start, blocks in value.unknown for i in range(blocks)}
        every = {(tensor, block) for tensor in range(len(dst.tensors)) for block in target}
        self.expect(told == every and not value.landed, f"{shown} told of {value.landed} and {value.unknown}")
        self.count(method, "TransferTimeoutError: unknown")
        self.perform(me, method, arguments, {"CacheBusyError"}, gives_up=True, **more)
        alone = own.data_type == 4 and len(own.tensors) <= len(HOST)
        if pull and alone:  # nor does anything else write there
            host = wire.HostCacheRef((4, own.block_bytes), tuple(wire.Place(name) for name in HOST[: len(own.tensors)]))
            swap = [host, wire.CacheRef(own.cache_id), {0: target[0]}]
            self.perform(me, "swap_blocks", swap, {"CacheBusyError"}, gives_up=True)
        give_back = self.give_back_in_vain(rnd, me, own, node, other) if chance(rnd, 0.6) else None
        left = self.ask(me.cluster, "settle")
        self.expect(left == [], f"{left} stay quarantined after the engine has stopped")
        if give_back is not None:
            give_back()
        else:
            self.perform(me, method, arguments, set(), lambda value: self.oracle.move(*moves), **more)

    def give_back_in_vain(
        self, rnd: object, me: Node, own: Cache, node: Node, other: Cache
    ) -> Callable[[], object] | None:
        """Neither cache, nor the link, can be given back yet; returns how to do it later."""
        busy = {"CacheBusyError"}
        what = rnd.choice(["own", "other", "unlink"])
        if what == "unlink":
            if node is me:
                return None
            self.perform(me, "unlink", [node.cluster], busy, timeout=0.05, gives_up=True)
            return lambda: self.drop(me, node.cluster)
        owner, cache = (me, own) if what == "own" else (node, other)
        more = {"gives_up": True} if owner is me else {}
        if cache.allocated:
            self.perform(owner, "deallocate_blocks_cache", [wire.CacheRef(cache.cache_id)], busy, timeout=0.05, **more)
        else:
            self.perform(owner, "unregister_cache", [cache.cache_id], busy, timeout=0.05, **more)
        return lambda: self.take_back(owner, cache)

    def still_reachable(self, rnd: object) -> None:
        """An engine cannot promise that nobody reaches the memory: the cache stays, the call is repeated."""
        me = self.any_node(rnd)
        alone = [cache for cache in me.caches.values() if cache.remote and not shared(me, cache)]
        if me.facts["two_sided"]:  # allocated memory that keys name is only released
            alone = [cache for cache in alone if not any(cache.keys)]
        if not alone:
            return
        cache = rnd.choice(alone)
        method, given = "unregister_cache", cache.cache_id
        if cache.allocated:
            method = "deallocate_blocks_cache" if cache.kind == "blocks" else "deallocate_cache"
            given = wire.CacheRef(cache.cache_id)
        self.perform(me, method, [given], {"StillReachableError"}, timeout=60.0, refuse="deregister")
        self.take_back(me, cache)


def shared(me: Node, cache: Cache) -> bool:
    """Whether another cache lies in the same memory."""
    return any(other is not cache and sharing(cache, other) for other in me.caches.values())
