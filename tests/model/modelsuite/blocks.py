"""Rules that move blocks between two paged caches, under leases too."""

from __future__ import annotations

from dataclasses import dataclass

from modelsuite import wire
from modelsuite.base import chance, fault, real_key
from modelsuite.choosing import FAULTS, Choosing
from modelsuite.oracle import INCOMPATIBLE, VALUE, Cache, Lease, Node

BLOCK_FAULTS = [*FAULTS, "fit", "fit", "fit", "overlap", "overlap", "ids", "ids", "layers", "slices", "hidden"]


@dataclass
class SoundCall:
    """A transfer with `tensor_num_per_layer=1`, and what it moves. `own` is the caller's cache, `target` its destinations."""

    me: Node
    own: Cache
    node: Node
    other: Cache
    pull: bool
    target: list[int]
    arguments: list[object]
    moves: tuple[Node, Node, list[tuple]]

    def told(self, ranges: object) -> set[tuple[int, int]]:
        """Ranges that an error tells of, as (tensor, block)."""
        return {(tensor, start + i) for tensor, start, blocks in ranges for i in range(blocks)}


class BlockRules(Choosing):
    """`pull_blocks` and `push_blocks` between paged caches."""

    def pull_blocks(self, rnd: object) -> None:
        self.move_blocks(rnd, "pull", fault(rnd, BLOCK_FAULTS))

    def push_blocks(self, rnd: object) -> None:
        self.move_blocks(rnd, "push", fault(rnd, BLOCK_FAULTS))

    def pull_leased(self, rnd: object) -> None:
        """A pull that presents a lease; with a new one where none fits."""
        self.move_blocks(rnd, "pull", fault(rnd, [*BLOCK_FAULTS, *["expired"] * 4, "lease", "lease"], 0.55), True)

    def move_blocks(self, rnd: object, direction: str, wrong: str, leased: bool = False) -> None:
        pair = self.draw_pair(rnd, "blocks", "blocks", wrong)
        if pair is None:
            return
        me, own, node, other = pair
        pull = direction == "pull"
        key = self.draw_key(rnd, me, node, other, wrong)
        errors, _, found, _ = self.oracle.find(me, key)
        if found is not None and (found.kind != "blocks" or own.kind != "blocks"):
            return
        own_reference, stale = self.draw_own(rnd, me, own, wrong)
        errors = errors | self.oracle.crossing(me, node, own) | stale
        other = found or other
        src, dst = (other, own) if pull else (own, other)
        source, target = self.draw_blocks(rnd, src.blocks, dst.blocks, wrong)
        ranges = self.draw_ranges(rnd, src, dst, wrong)
        unlike = src.block_bytes != dst.block_bytes
        must = (unlike and wrong != "fit") or wrong == "slices"
        slices = self.draw_slices(rnd, src.tensors[:1], dst.tensors[:1], ranges[2], must, wrong)
        more: dict[str, object] = {
            "src_layer_range": ranges[0],
            "dst_layer_range": ranges[1],
            "tensor_num_per_layer": ranges[2],
        }
        errors |= self.give_slices(rnd, more, slices, wrong)
        if leased:
            lease = self.draw_lease(rnd, node, other, source, wrong) if self.towards is None else None
            if lease is None:
                return
            more["lease"] = lease.value
            named = lease.node == node.cluster and lease.cache_id == other.cache_id
            if not named or not set(source) <= lease.blocks:
                errors.add(VALUE)
            if not lease.live:
                errors.add("LeaseExpiredError")
        if found is not None:
            errors |= self.planned(node if pull else me, src, me if pull else node, dst, source, target, ranges, slices)
        arguments = [real_key(key), own_reference, source, target]
        self.go(rnd, me, f"{direction}_blocks", arguments, errors, more, " leased" if leased else "", wrong=wrong)

    def planned(
        self,
        src_node: Node,
        src: Cache,
        dst_node: Node,
        dst: Cache,
        source: list[int],
        target: list[int],
        ranges: tuple,
        slices: tuple,
    ) -> set[str]:
        """What is wrong with a transfer of blocks; remembers what it would move."""
        oracle = self.oracle
        errors, left, right = oracle.tensor_ranges(src, dst, *ranges)
        if src.data_type != dst.data_type:
            errors.add(INCOMPATIBLE)
        bad, parts = oracle.part_of_each(slices, ranges[2])
        errors |= bad
        pieces = []
        for part in parts:
            bad, *both = oracle.streams(src.tensors[0], dst.tensors[0], part)
            errors |= bad
            pieces.append(both)
        errors |= oracle.block_lists(source, target, src.blocks, dst.blocks)
        self.moves = None
        if not errors:
            moves = []
            for index, (a, b) in enumerate(zip(left, right, strict=True)):
                given, taken = pieces[index % ranges[2]]
                for x, y in zip(source, target, strict=True):
                    moves += oracle.pair(
                        [src.tensors[a].piece(x, *piece) for piece in given],
                        [dst.tensors[b].piece(y, *piece) for piece in taken],
                    )
            errors |= oracle.shared(src_node, dst_node, moves)
            self.moves = src_node, dst_node, moves
        return errors

    def draw_lease(self, rnd: object, node: Node, cache: Cache, blocks: list[int], wrong: str) -> Lease | None:
        """A lease to present, one that fits unless it is what is wrong."""
        if wrong == "lease":
            every = [lease for one in self.nodes for lease in one.leases if lease.live]
            return rnd.choice(every) if every else None
        fitting = [one for one in node.leases if one.cache_id == cache.cache_id and set(blocks) <= one.blocks]
        fitting = [one for one in fitting if one.live is (wrong != "expired")]
        if fitting:
            return rnd.choice(fitting)
        if not blocks or any(not 0 <= block < cache.blocks for block in blocks):
            return None
        lease = self.grant(node, cache, sorted(set(blocks)))
        if wrong == "expired":
            self.run_out(node, lease)
        return lease

    # --- calls that succeed unless something is done to them ------------------------------------------------------------

    def sound_call(self, rnd: object, *, pull: bool | None = None, few: bool = False) -> SoundCall | None:
        """A transfer of whole blocks between two caches that fit; None where none was found.

        Args:
            rnd: Source of the draws.
            pull: Whether it is a pull; None: either.
            few: Whether it moves block 0 to block 1 only.
        """
        pair = self.draw_pair(rnd, "blocks", "blocks")
        if pair is None or pair[3].model is None:
            return None
        me, own, node, other = pair
        pull = chance(rnd, 0.5) if pull is None else pull
        src_node, src, dst_node, dst = (node, other, me, own) if pull else (me, own, node, other)
        source, target = ([0], [1]) if few else self.draw_blocks(rnd, src.blocks, dst.blocks)
        key = ("blocks", node.cluster, other.model)
        bad = self.oracle.find(me, key)[0] | self.oracle.crossing(me, node, own)
        if bad | self.planned(src_node, src, dst_node, dst, source, target, (None, None, 1), (None, None)):
            return None
        arguments = [real_key(key), wire.CacheRef(own.cache_id), source, target]
        return SoundCall(me, own, node, other, pull, target, arguments, self.moves)
