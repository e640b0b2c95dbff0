"""Rules for engines that fail half way, cannot say what they did, or cannot make memory unreachable."""

from __future__ import annotations

from collections.abc import Callable

from modelsuite import wire
from modelsuite.base import chance
from modelsuite.blocks import BlockRules
from modelsuite.choosing import sharing
from modelsuite.oracle import Cache, Node
from modelsuite.peers import PeerRules
from modelsuite.returning import ReturnRules
from modelsuite.sizes import HOST


class FailureRules(ReturnRules, BlockRules, PeerRules):
    """What has landed, and what must be held until an engine has stopped."""

    def fail_midway(self, rnd: object) -> None:
        """The engine fails at a layer: the error says that the layers before have landed, and nothing else has."""
        call = self.sound_call(rnd)
        if call is None:
            return
        me, layers = call.me, len(call.own.tensors)
        fail_at = rnd.randint(1, layers)
        src_node, dst_node, moves = call.moves
        landed = {(tensor, block) for tensor in range(fail_at - 1) for block in call.target}
        method = "pull_blocks_async" if call.pull else "push_blocks_async"
        then = rnd.choice(["wait", "await_", "layers"])
        more = {"tensor_num_per_layer": 1, "layerwise": True, "fail_at": fail_at, "timeout": 60.0}
        value = self.call(me, method, *call.arguments, then=then, **more)
        shown = f"{method} of cluster {me.cluster}"
        if not isinstance(value, wire.Failure) or value.name != "TransferError":
            self.fail(f"{shown} gave {value} although the engine failed at layer {fail_at - 1}")
        if call.told(value.landed) != landed or value.unknown:
            self.fail(f"{shown} failed at layer {fail_at - 1} and told of {value.landed} and {value.unknown}")
        self.oracle.move(src_node, dst_node, moves[: (fail_at - 1) * (len(moves) // layers)])
        self.count(method + " midway", value.name)

    def an_unknown_end(self, rnd: object) -> None:
        """An engine gives up and may still write: its destinations are quarantined until it says that it has stopped."""
        call = self.sound_call(rnd)
        if call is None:
            return
        me, own, node, other, moves = call.me, call.own, call.node, call.other, call.moves
        form = rnd.choice(["", "_async"])
        method, arguments = f"{'pull' if call.pull else 'push'}_blocks{form}", call.arguments
        more = {"tensor_num_per_layer": 1, "timeout": 60.0}
        if form:
            more["then"] = rnd.choice(["wait", "await_"])
        value = self.call(me, method, *arguments, fail_at=1, gives_up=True, **more)
        shown = f"{method} of cluster {me.cluster} that the engine gave up"
        if not isinstance(value, wire.Failure) or value.name != "TransferTimeoutError":
            self.fail(f"{shown} gave {value}")
        every = {(tensor, block) for tensor in range(len(own.tensors)) for block in call.target}
        self.expect(
            call.told(value.unknown) == every and not value.landed,
            f"{shown} told of {value.landed} and {value.unknown}",
        )
        self.count(method, "TransferTimeoutError: unknown")
        self.perform(me, method, arguments, {"CacheBusyError"}, gives_up=True, **more)
        alone = own.data_type == 4 and len(own.tensors) <= len(HOST)
        if call.pull and alone:  # nor does anything else write there
            host = wire.HostCacheRef((4, own.block_bytes), tuple(wire.Place(name) for name in HOST[: len(own.tensors)]))
            swap = [host, wire.CacheRef(own.cache_id), {0: call.target[0]}]
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
