"""What `transfer_cache_async` sends to: by keys and by addresses, and what would arrive at each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cachecore as cc
from modelsuite import wire
from modelsuite.base import chance, real_key, unused_id
from modelsuite.blocks import BlockRules
from modelsuite.choosing import sharing
from modelsuite.entries import EntryRules
from modelsuite.oracle import NOT_FOUND, VALUE, Cache, Key, Node
from modelsuite.registering import descriptor
from modelsuite.sizes import BUFFERS, CACHES, DEVICE

#: What a destination tells for itself, while the others go on.
ITS_OWN = {"NotLinkedError", "LinkLostError", NOT_FOUND}
Spot = tuple[str, int]


@dataclass
class Sending:
    """What one call sends to all its destinations."""

    me: Node
    own: Cache
    src_range: range | None
    dst_range: range | None
    per_layer: int
    source: list[int] | None
    target: list[int] | None
    wrong: str


@dataclass
class Destination:
    """One configuration: what is raised for it, or why it fails for itself, or what arrives."""

    config: object
    errors: set[str]
    its_own: set[str]
    moves: tuple | None


class DestinationRules(EntryRules, BlockRules):
    """Choosing destinations, and the model of each."""

    def draw_destinations(
        self, rnd: object, own_kind: str, other_kind: str, wrong: str
    ) -> tuple[Node, Cache, list[tuple[Node, Cache]]] | None:
        """A source, and caches of one or two managers that fit it; two do not share memory."""

        def fits(own: Cache, cache: Cache) -> bool:
            if cache.data_type != own.data_type or len(cache.tensors) != len(own.tensors):
                return False
            if other_kind == "entries":
                return cache.block_bytes >= own.block_bytes
            return own_kind == "entries" or cache.block_bytes == own.block_bytes

        for _ in range(4):
            pair = self.draw_pair(rnd, own_kind, other_kind, wrong)
            if pair is not None and (wrong in ("fit", "hidden", "overlap") or fits(pair[1], pair[3])):
                break
        else:
            return None
        me, own, node, other = pair
        chosen = [(node, other)]
        others = [
            (one, cache)
            for one in self.reachable(me)
            for cache in one.of_kind(other_kind)
            if one is not me and cache.remote and cache is not other and fits(own, cache)
            if cache.block_bytes == other.block_bytes and not (one is node and sharing(cache, other))
        ]
        if others and node is not me and chance(rnd, 0.6):
            chosen.append(rnd.choice(others))
        return me, own, chosen

    def registered_lately(self, rnd: object, node: Node, cache: Cache) -> Cache:
        """A new cache of which a tensor is one of another cache too, which peers know already, as they do not this one."""
        used = {t.buffer for one in node.caches.values() for t in one.tensors}
        free = [name for name in DEVICE if name not in used]
        more = len(cache.tensors) - 1
        if cache.allocated or not 0 < more <= len(free) or len(node.caches) >= CACHES:
            return cache
        first, *others = cache.tensors
        others = [replace(t, buffer=name) for t, name in zip(others, rnd.sample(free, more), strict=True)]
        lately = Cache(0, cache.kind, cache.data_type, [first, *others], True)

        def effect(value: object) -> None:
            lately.cache_id = value
            node.add(lately)

        method, keys = ("register_blocks_cache", None) if cache.kind == "blocks" else ("register_cache", ())
        desc = descriptor(len(lately.tensors), cache.blocks, cache.block_bytes, cache.data_type)
        places = [wire.Place(t.buffer, t.offset) for t in lately.tensors]
        self.perform(node, method, [desc, places, keys, True], set(), effect)
        return lately

    # --- by key -------------------------------------------------------------------------------------------------------

    def by_key(self, rnd: object, sending: Sending, node: Node, cache: Cache) -> Destination:
        wrong, cluster = sending.wrong, node.cluster
        if wrong == "unlinked":
            cluster = sending.me.cluster + 40
        entry = None
        if cache.kind == "entries":
            entry = rnd.randrange(cache.blocks) if wrong != "entry" else cache.blocks + 1
            key: Key = ("index", cluster, cache.cache_id, entry)
        elif cache.model is None or chance(rnd, 0.2):
            key = ("index", cluster, cache.cache_id, 0)
        else:
            key = ("blocks", cluster, cache.model)
        index = self.draw_index(rnd, sending)
        config = cc.TransferWithCacheKeyConfig(real_key(key), sending.src_range, sending.dst_range, index)
        errors = self.oracle.find(sending.me, key)[0]
        if errors:
            return Destination(config, errors - ITS_OWN, errors & ITS_OWN, None)
        ranges = sending.src_range, sending.dst_range, sending.per_layer
        errors = self.arriving(sending, sending.own, index, node, cache, entry, ranges)
        return Destination(config, errors, set(), self.moves)

    def not_there(self, rnd: object, sending: Sending, node: Node) -> Destination:
        """A key of nothing."""
        key: Key = ("blocks", node.cluster, 77)
        if sending.own.kind == "entries" or chance(rnd, 0.5):
            key = ("index", node.cluster, unused_id(node), 0)
        config = cc.TransferWithCacheKeyConfig(real_key(key), sending.src_range, sending.dst_range)
        return Destination(config, set(), {NOT_FOUND}, None)

    @staticmethod
    def draw_index(rnd: object, sending: Sending) -> int:
        """An entry of a contiguous source."""
        first = 1 if sending.own.kind == "blocks" else sending.own.blocks
        if sending.wrong == "index":
            return first + rnd.randrange(2)
        return rnd.randrange(first)

    def arriving(
        self, sending: Sending, own: Cache, index: int, node: Node, cache: Cache, entry: int | None, ranges: tuple
    ) -> set[str]:
        """What is wrong with one destination that was found; remembers what it would move."""
        me, target = sending.me, sending.target
        errors = self.oracle.crossing(me, node, own)
        self.moves = None
        if index >= (own.blocks if own.kind == "entries" else 1):
            errors.add(VALUE)
        elif own.kind == "blocks":
            errors |= self.planned(me, own, node, cache, sending.source, target, ranges, (None, None))
        elif entry is None:
            errors |= self.planned_entry_to_blocks(me, own, index, node, cache, target, ranges)
        else:
            errors |= self.planned_entry(me, own, index, node, cache, entry, -1, ranges)
        return errors

    # --- by address ---------------------------------------------------------------------------------------------------

    def by_address(self, rnd: object, sending: Sending, node: Node, cache: Cache) -> Destination | None:
        """Where tensors, or an entry of them, start; in any order. None where several different caches start there."""
        me, own, wrong, cluster = sending.me, sending.own, sending.wrong, node.cluster
        own_range = sending.src_range, sending.src_range, sending.per_layer
        errors, left, _ = self.oracle.tensor_ranges(own, own, *own_range)
        count = min(len(left), len(cache.tensors)) or 1
        tensors = rnd.sample(range(len(cache.tensors)), count)
        if chance(rnd, 0.6):
            tensors.sort()
        entry = rnd.randrange(cache.blocks) if cache.kind == "entries" else 0
        spots = [cache.tensors[i].piece(entry, 0, 0)[:2] for i in tensors]
        self.spoil_spots(rnd, node, cache, entry, spots, wrong)
        if wrong == "unlinked":
            cluster = me.cluster + 40
        index = self.draw_index(rnd, sending)
        where = self.ask(node.cluster, "where")
        addrs = [where.get(buffer, 1 << 40) + offset for buffer, offset in spots]
        config = cc.TransferConfig(cluster, addrs, sending.src_range, index)
        if len(spots) != len(left):
            errors.add(VALUE)
        its_own, _ = self.oracle.reached(me, cluster)
        if its_own or errors:
            return Destination(config, errors, its_own, None)
        named = self.oracle.at(me, node, spots, cache.kind)
        if len({(one.blocks, one.block_bytes, one.data_type, at) for one, at, _ in named}) > 1:
            return None
        if not named:
            return Destination(config, {VALUE}, set(), None)
        found, entry, positions = named[0]
        src = replace(own, tensors=[own.tensors[i] for i in left])
        dst = replace(found, tensors=[found.tensors[i] for i in positions])
        at = entry if found.kind == "entries" else None
        errors = self.arriving(sending, src, index, node, dst, at, (None, None, 1))
        return Destination(config, errors, set(), self.moves)

    @staticmethod
    def spoil_spots(rnd: object, node: Node, cache: Cache, entry: int, spots: list[Spot], wrong: str) -> None:
        """Let them name something else; what follows from it is looked up like all others."""
        at = rnd.randrange(len(spots))
        if wrong == "astray":
            spots[at] = spots[at][0], spots[at][1] + rnd.choice([8, -8, cache.block_bytes])
        elif wrong == "twice":
            spots[at - 1] = spots[at]
        elif wrong == "count":
            spots[1:] = [] if len(spots) > 1 else spots[:1]
        elif wrong == "mixed":
            spots[at] = spots[at][0], cache.tensors[0].piece((entry + 1) % cache.blocks, 0, 0)[1]
        elif wrong == "nowhere":
            used = {t.buffer for one in node.caches.values() if one.kind != "layers" for t in one.tensors}
            spots[at] = rnd.choice([name for name in BUFFERS if name not in used]), 0
