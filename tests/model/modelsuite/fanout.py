"""Rules for `transfer_cache_async`: layer by layer, to several destinations, each with its own result."""

from __future__ import annotations

import cachecore as cc
from modelsuite import wire
from modelsuite.base import chance, fault, real_key
from modelsuite.destinations import Destination, DestinationRules, Sending
from modelsuite.hosted import HostedRules
from modelsuite.oracle import INCOMPATIBLE, VALUE, Cache, Node

#: What is refused, and what the destinations tell each for itself.
FANOUT_FAULTS = ["none", "type", "empty", "fit", "fit", "overlap", "ids", "layers", "hidden", "kind", "index"]
FANOUT_FAULTS += ["size", "size", "unlinked", "unlinked", "stale", "stale", "beside", "beside", "broken", "broken"]
FANOUT_FAULTS += ["raises", "raises", "never", "never"]
#: What more can be wrong with keys of a kind, and with addresses.
KEY_FAULTS = {"blocks": [*FANOUT_FAULTS, "lists"], "entries": [*FANOUT_FAULTS, "lists", "entry", "entry"]}
ADDRESS_FAULTS = [*FANOUT_FAULTS, *["astray", "twice", "count", "nowhere", "mixed"] * 2]
#: What the synchronizer does, and the error of every destination that was under way.
NOT_READY = {"raises": ("raises", "TransferError"), "never": ("not ready", "TransferTimeoutError")}
#: Kinds of source and destinations, and how each is counted.
LABELS = {
    ("blocks", "blocks"): "",
    ("entries", "entries"): " of an entry",
    ("entries", "blocks"): " of an entry to blocks",
}
KINDS = [("blocks", "blocks"), *LABELS]


class FanoutRules(HostedRules, DestinationRules):
    """`transfer_cache_async`."""

    def transfer_cache_async(self, rnd: object) -> None:
        if self.towards is None and chance(rnd, 0.06):
            self.send_to_host_memory(rnd)
            return
        kinds = rnd.choice(KINDS)
        by_address = chance(rnd, 0.45)
        faults = ADDRESS_FAULTS if by_address else KEY_FAULTS[kinds[1]]
        wrong = "lost" if self.towards is not None else fault(rnd, faults, 0.47)
        chosen = self.draw_destinations(rnd, *kinds, wrong)
        if chosen is None:
            return
        me, own, found = chosen
        if by_address and not wrong and chance(rnd, 0.3):
            found[0] = found[0][0], self.registered_lately(rnd, *found[0])
        sending = self.draw_sending(rnd, me, own, found, wrong)
        destinations = []
        for node, cache in found:
            address = by_address and (node is found[0][0] or chance(rnd, 0.5))
            one = self.by_address(rnd, sending, node, cache) if address else self.by_key(rnd, sending, node, cache)
            if one is None:
                return
            destinations.append(one)
        if wrong == "beside":
            destinations.insert(rnd.randrange(2), self.not_there(rnd, sending, found[0][0]))
        reference, errors = self.draw_own(rnd, me, own, wrong)
        arguments: list[object] = [reference, "synchronizer: ready", [], sending.source, sending.target]
        errors |= self.spoil_kinds(rnd, sending, arguments, destinations)
        errors |= self.draw_size(rnd, arguments, found[0][1], wrong)
        if wrong in NOT_READY:
            arguments[1] = f"synchronizer: {NOT_READY[wrong][0]}"
        arguments[2] = [one.config for one in destinations]
        errors = errors.union(*(one.errors for one in destinations)) | self.spoil_fanout(rnd, arguments, wrong)
        self.perform(
            me,
            "transfer_cache_async",
            arguments,
            errors,
            lambda told: self.arrived(destinations, told, wrong),
            label="transfer_cache_async" + LABELS[kinds] + " by address" * by_address,
            then="results",
            fail_at=1 if wrong == "broken" and not errors else 0,
            tensor_num_per_layer=sending.per_layer,
        )

    def draw_sending(self, rnd: object, me: Node, own: Cache, found: list[tuple[Node, Cache]], wrong: str) -> Sending:
        """Layers and blocks that every destination has, unless they are what is wrong."""
        per_layer = 1 if len(own.tensors) % 2 else rnd.choice([1, 2])
        if wrong == "layers":
            per_layer = 3
        layers = len(own.tensors) // per_layer
        first = rnd.randrange(layers) if layers > 1 and chance(rnd, 0.6) else None
        ranges = (None, None) if first is None else (range(first, layers), range(layers - first))
        smallest = min(cache.blocks for _, cache in found)
        source, target = None, None
        if own.kind == "blocks":
            source, target = self.draw_blocks(rnd, own.blocks, smallest, wrong)
            node, cache = found[0]
            if node is me and cache is own and wrong != "overlap":
                half = rnd.sample(range(own.blocks), own.blocks)
                source, target = half[: own.blocks // 2], half[-(own.blocks // 2) :]
        elif found[0][1].kind == "blocks":
            fits = max(1, -(-own.block_bytes // found[0][1].block_bytes))
            target = rnd.sample(range(smallest), min(rnd.randint(1, fits), smallest))
            if wrong == "ids":
                target = rnd.choice([[], [smallest + 8], list(range(fits + 1)), [*target, target[0]]])
        return Sending(me, own, *ranges, per_layer, source, target, wrong)

    def arrived(self, destinations: list[Destination], told: list[tuple[int, str | None, int]], wrong: str) -> str:
        """Each destination has told for itself; moves what arrived."""
        right = all(code == own for code, _, own in told)
        self.expect(right, f"transfer_cache_async gave results that are not those of the errors: {told}")
        names = [name for _, name, _ in told]
        does, late = NOT_READY.get(wrong, ("", ""))
        expected = [one.its_own or ({late} if late else set()) for one in destinations]
        if wrong == "broken":  # whichever came first
            failed = [i for i, name in enumerate(names) if name == "TransferError"]
            self.expect(len(failed) == 1, f"one of {len(names)} transfers failed; transfer_cache_async told {told}")
            expected[failed[0]] = {"TransferError"}
        for one, name, allowed in zip(destinations, names, expected, strict=True):
            right = name in allowed if allowed else name is None
            self.expect(right, f"transfer_cache_async told {name} of {one.config}, expected was {allowed or 'none'}")
            if name is None:
                self.oracle.move(*one.moves)
        if late:
            return f"{late}: synchronizer {does}"
        return next((f"{name}: one destination" for name in names if name is not None), "ok")

    # --- what is refused ----------------------------------------------------------------------------------------------

    def spoil_kinds(
        self, rnd: object, sending: Sending, arguments: list[object], destinations: list[Destination]
    ) -> set[str]:
        """Blocks where there are none, or none where there are some; or a cache that cannot be meant."""
        me, own = sending.me, sending.own
        if sending.wrong == "lists":
            at = rnd.choice([3, 4])
            arguments[at] = None if arguments[at] is not None else [0]
            return {VALUE}
        if sending.wrong != "kind":
            return set()
        layers = me.of_kind("layers")
        if layers and chance(rnd, 0.4):
            arguments[0] = wire.CacheRef(rnd.choice(layers).cache_id)
            return {INCOMPATIBLE}
        other = ("layers", "entries") if own.kind == "blocks" else ("layers",)
        unfit = [(n, c) for n in self.reachable(me) for kind in other for c in n.of_kind(kind) if c.remote]
        if not unfit:
            return set()
        node, cache = rnd.choice(unfit)
        key = real_key(("index", node.cluster, cache.cache_id, 0))
        config = cc.TransferWithCacheKeyConfig(key, sending.src_range, sending.dst_range)
        destinations.append(Destination(config, {INCOMPATIBLE, VALUE}, set(), None))
        return set()

    @staticmethod
    def draw_size(rnd: object, arguments: list[object], cache: Cache, wrong: str) -> set[str]:
        """Bytes of a block of the destinations, or none; entries have no blocks."""
        if wrong == "size":
            arguments.append(cache.block_bytes + (8 if cache.kind == "blocks" else 0))
            return {INCOMPATIBLE if cache.kind == "blocks" else VALUE}
        if chance(rnd, 0.4):
            arguments.append(rnd.choice([0, None]) if cache.kind == "entries" else rnd.choice([0, cache.block_bytes]))
        return set()

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
