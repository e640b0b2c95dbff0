"""Rules that move entries of contiguous caches: to entries of others, and to blocks."""

from __future__ import annotations

from modelsuite.base import chance, fault, real_key
from modelsuite.choosing import FAULTS, Choosing
from modelsuite.oracle import INCOMPATIBLE, VALUE, Cache, Key, Node

ENTRY_FAULTS = [
    *FAULTS,
    "key",
    "stale",
    "fit",
    "fit",
    "fit",
    "overlap",
    "overlap",
    "ids",
    "layers",
    "size",
    "hidden",
    "kind",
]


class EntryRules(Choosing):
    """`pull_cache`, `push_cache`, and `pull_blocks` of an entry."""

    # --- to blocks ----------------------------------------------------------------------------------------------------

    def pull_entry_to_blocks(self, rnd: object) -> None:
        wrong = fault(rnd, [*FAULTS, "fit", "fit", "ids", "layers", "overlap", "overlap", "hidden"])
        pair = self.draw_pair(rnd, "blocks", "entries", wrong)
        if pair is None:
            return
        me, own, node, other = pair
        key = self.draw_key(rnd, me, node, other, wrong)
        errors, _, found, entry = self.oracle.find(me, key)
        own_reference, stale = self.draw_own(rnd, me, own, wrong)
        errors = errors | self.oracle.crossing(me, node, own) | stale
        other = found or other
        fits = max(1, -(-other.block_bytes // own.block_bytes))
        count = min(rnd.randint(1, fits), own.blocks)
        target = rnd.sample(range(own.blocks), count)
        if wrong == "overlap" and entry is not None and entry < own.blocks:
            target = [entry]
        source: list[int] = []
        if wrong == "ids":
            what = rnd.randrange(4)
            if what == 0:
                source = [0]
                errors.add(VALUE)
            elif what == 1:
                target = []
            elif what == 2:
                target = [own.blocks]
            else:
                target = list(range(own.blocks))
        ranges = self.draw_ranges(rnd, other, own, wrong)
        if found is not None:
            errors |= self.planned_entry_to_blocks(node, found, entry, me, own, target, ranges)
        more = {"src_layer_range": ranges[0], "dst_layer_range": ranges[1], "tensor_num_per_layer": ranges[2]}
        arguments = [real_key(key), own_reference, source, target]
        self.go(rnd, me, "pull_blocks", arguments, errors, more, " of an entry", wrong=wrong)

    def planned_entry_to_blocks(
        self, src_node: Node, src: Cache, entry: int, me: Node, own: Cache, target: list[int], ranges: tuple
    ) -> set[str]:
        errors, left, right = self.oracle.tensor_ranges(src, own, *ranges)
        if src.data_type != own.data_type:
            errors.add(INCOMPATIBLE)
        if not target or len(set(target)) != len(target) or any(not 0 <= b < own.blocks for b in target):
            errors.add(VALUE)
        if (len(target) - 1) * own.block_bytes >= src.block_bytes:
            errors.add(VALUE)
        self.moves = None
        if not errors:
            moves = []
            for a, b in zip(left, right, strict=True):
                for i, y in enumerate(target):
                    nbytes = min(own.block_bytes, src.block_bytes - i * own.block_bytes)
                    moves += self.oracle.pair(
                        [src.tensors[a].piece(entry, i * own.block_bytes, nbytes)], [own.tensors[b].piece(y, 0, nbytes)]
                    )
            errors |= self.oracle.shared(src_node, me, moves)
            self.moves = src_node, me, moves
        return errors

    # --- to entries ---------------------------------------------------------------------------------------------------

    def pull_cache(self, rnd: object) -> None:
        self.move_entry(rnd, "pull", fault(rnd, ENTRY_FAULTS))

    def push_cache(self, rnd: object) -> None:
        self.move_entry(rnd, "push", fault(rnd, ENTRY_FAULTS))

    def move_entry(self, rnd: object, direction: str, wrong: str) -> None:
        pair = self.draw_pair(rnd, "entries", "entries", wrong)
        if pair is None:
            return
        me, own, node, other = pair
        pull = direction == "pull"
        key = self.draw_key(rnd, me, node, other, wrong)
        errors, found, entry = set(), None, None
        if wrong == "kind":
            key = ("blocks", node.cluster, 1)
            errors = {"CacheTypeError"}
        else:
            errors, _, found, entry = self.oracle.find(me, key)
        own_reference, stale = self.draw_own(rnd, me, own, wrong)
        errors = errors | self.oracle.crossing(me, node, own) | stale
        other = found or other
        index = rnd.randrange(own.blocks) if wrong != "ids" else own.blocks + 2
        if own is other and wrong == "overlap":
            index = entry if entry is not None else index
        src, dst = (other, own) if pull else (own, other)
        size = -1
        if (src.block_bytes > dst.block_bytes and wrong != "fit") or chance(rnd, 0.4):
            size = rnd.randint(1, min(src.block_bytes, dst.block_bytes))
        if wrong == "size":
            size = rnd.choice([0, src.block_bytes + 8])
        ranges = self.draw_ranges(rnd, src, dst, wrong)
        if index >= own.blocks:
            errors.add(VALUE)
        if found is not None:
            src_node, dst_node = (node, me) if pull else (me, node)
            entries = (entry, index) if pull else (index, entry)
            errors |= self.planned_entry(src_node, src, entries[0], dst_node, dst, entries[1], size, ranges)
        more = {"tensor_num_per_layer": ranges[2], "src_layer_range": ranges[0], "dst_layer_range": ranges[1]}
        arguments = [real_key(key), own_reference, index]
        every = ranges[0 if pull else 1] is None or len(ranges[0]) * ranges[2] == len(other.tensors)

        def then() -> None:
            if pull and every:
                self.consume(node, other, key)

        self.go(rnd, me, f"{direction}_cache", arguments, errors, more | {"size": size}, then=then, wrong=wrong)

    def consume(self, node: Node, cache: Cache, key: Key) -> None:
        """A pull of all of an entry by the key of a request uses the key up, where lifetimes are two-sided."""
        if key[0] == "req" and cache.allocated and node.facts["two_sided"]:
            cache.keys[cache.keys.index(key)] = None
            node.used_up(cache)
            self.catch_up(node)

    def catch_up(self, node: Node) -> None:
        """Peers hear of keys a moment later; wait for it."""
        number = self.ask(node.cluster, "numbers", None)
        for one in self.nodes:
            if one is not node and one.links.get(node.cluster) == node.life:
                self.until(
                    lambda reader=one: self.ask(reader.cluster, "numbers", node.cluster) >= number,
                    f"cluster {one.cluster} hears of keys of cluster {node.cluster}",
                )

    def planned_entry(
        self,
        src_node: Node,
        src: Cache,
        entry: int,
        dst_node: Node,
        dst: Cache,
        target: int,
        size: int,
        ranges: tuple,
        offset: int = 0,
    ) -> set[str]:
        errors, left, right = self.oracle.tensor_ranges(src, dst, *ranges)
        if src.data_type != dst.data_type:
            errors.add(INCOMPATIBLE)
        nbytes = src.block_bytes - offset if size == -1 else size
        if nbytes < 1 or offset + nbytes > src.block_bytes:
            errors.add(VALUE)
        if offset + nbytes > dst.block_bytes:
            errors.add(INCOMPATIBLE)
        if offset >= dst.block_bytes:
            errors.add(VALUE)
        self.moves = None
        if not errors:
            moves = [
                (*src.tensors[a].piece(entry, offset, nbytes)[:2], *dst.tensors[b].piece(target, offset, nbytes))
                for a, b in zip(left, right, strict=True)
            ]
            errors |= self.oracle.shared(src_node, dst_node, moves)
            self.moves = src_node, dst_node, moves
        return errors
