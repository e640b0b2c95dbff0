"""Rules for `transfer_cache_async`: layer by layer, to several destinations, each with its own result."""

from __future__ import annotations

import cachecore as cc
from modelsuite.base import chance, fault
from modelsuite.blocks import BlockRules
from modelsuite.choosing import sharing
from modelsuite.oracle import VALUE, Cache, Node

#: What is refused, and what the destinations tell each for itself.
FANOUT_FAULTS = [
    "none",
    "type",
    "empty",
    "fit",
    "ids",
    "layers",
    "stale",
    "stale",
    "beside",
    "beside",
    "broken",
    "broken",
]
FANOUT_FAULTS += ["raises", "raises", "never", "never"]


class FanoutRules(BlockRules):
    """`transfer_cache_async`."""

    def transfer_cache_async(self, rnd: object) -> None:
        wrong = "lost" if self.towards is not None else fault(rnd, FANOUT_FAULTS, 0.6)
        chosen = self.draw_destinations(rnd, wrong)
        if chosen is None:
            return
        me, own, destinations = chosen
        smallest = min(cache.blocks for _, cache in destinations)
        source, target = self.draw_blocks(rnd, own.blocks, smallest, wrong)
        per_layer = 1 if len(own.tensors) % 2 else rnd.choice([1, 2])
        if wrong == "layers":
            per_layer = 3
        layers = len(own.tensors) // per_layer
        first = rnd.randrange(layers) if layers > 1 and chance(rnd, 0.6) else None
        own_range = None if first is None else range(first, layers)
        theirs = None if first is None else range(layers - first)
        configs, errors, all_moves = [], set(), []
        for node, cache in destinations:
            key = cc.BlocksCacheKey(node.cluster, cache.model)
            configs.append(cc.TransferWithCacheKeyConfig(key, src_layer_range=own_range, dst_layer_range=theirs))
            away = self.oracle.find(me, ("blocks", node.cluster, cache.model))[0]
            if away:  # this destination fails for itself
                all_moves.append(None)
                continue
            errors |= self.oracle.crossing(me, node, own)
            ranges = (own_range, theirs, per_layer)
            errors |= self.planned(me, own, node, cache, source, target, ranges, (None, None))
            all_moves.append(self.moves)
        if wrong == "beside":
            missing = cc.BlocksCacheKey(destinations[0][0].cluster, 77)
            configs.insert(0, cc.TransferWithCacheKeyConfig(missing, own_range, theirs))
            all_moves.insert(0, None)
        does = {"raises": "raises", "never": "not ready"}.get(wrong, "ready")
        reference, stale = self.draw_own(rnd, me, own, wrong)
        errors |= stale
        arguments: list[object] = [reference, f"synchronizer: {does}", configs, source, target]
        errors |= self.spoil_fanout(rnd, arguments, wrong)
        reached = [moves is not None for moves in all_moves]

        def effect(codes: list[int | None]) -> str | None:
            told = [code == 0 for code in codes]
            self.expect(None not in codes, f"transfer_cache_async left a result None: {codes}")
            if does != "ready":
                self.expect(not any(told), f"transfer_cache_async told of {codes} and the synchronizer {does}")
                return f"synchronizer {does}"
            if wrong == "broken":  # whichever came first
                self.expect(
                    sum(reached) - sum(told) == 1, f"one of {reached} failed; transfer_cache_async told {codes}"
                )
            else:
                self.expect(told == reached, f"transfer_cache_async told of {codes}; to be reached were {reached}")
            for moves, there in zip(all_moves, told, strict=True):
                if moves is not None and there:
                    self.oracle.move(*moves)
            if wrong == "broken":
                return "one failed"
            return None if all(reached) else "one was lost" if wrong == "lost" else "one was not there"

        self.perform(
            me,
            "transfer_cache_async",
            arguments,
            errors,
            effect,
            then="results",
            fail_at=1 if wrong == "broken" and not errors else 0,
            tensor_num_per_layer=per_layer,
        )

    def draw_destinations(self, rnd: object, wrong: str) -> tuple[Node, Cache, list[tuple[Node, Cache]]] | None:
        """A source, and caches of one or two peers that fit it."""
        pair = self.draw_pair(rnd, "blocks", "blocks", wrong)
        if pair is None:
            return None
        me, own, node, other = pair
        if other.model is None or (node is me and wrong != "fit"):
            return None
        chosen = [(node, other)]
        others = [
            (node, cache)
            for node in self.reachable(me)
            for cache in node.of_kind("blocks")
            if node is not me and cache.model is not None and cache is not other and cache.remote
            if cache.block_bytes == own.block_bytes and cache.data_type == own.data_type
            if len(cache.tensors) == len(own.tensors) and not (node is chosen[0][0] and sharing(cache, other))
        ]
        if others and chance(rnd, 0.6):
            chosen.append(rnd.choice(others))
        return me, own, chosen

    @staticmethod
    def spoil_fanout(rnd: object, arguments: list[object], wrong: str) -> set[str]:
        """Make one argument wrong; returns the error."""
        if wrong == "none":
            arguments[rnd.choice([0, 1, 2])] = None
            return {"MissingArgumentError"}
        if wrong == "type":
            arguments[rnd.choice([0, 1, 2])] = 7
            return {"CacheTypeError"}
        if wrong == "empty":
            arguments[2] = []
            return {VALUE}
        return set()
