"""Rules that move caches of named layers, whose tensors differ."""

from __future__ import annotations

from modelsuite.base import chance, fault, real_key
from modelsuite.choosing import FAULTS, Choosing
from modelsuite.oracle import INCOMPATIBLE, NOT_FOUND, VALUE, Cache, Node

LAYER_FAULTS = [*FAULTS, "fit", "fit", "overlap", "overlap", "ids", "names", "ranges", "slices", "slices"]


class LayerRules(Choosing):
    """`pull_blocks` and `push_blocks` of layers by name, of caches that may hold different layers."""

    def pull_layers(self, rnd: object) -> None:
        self.move_layers(rnd, pull=True)

    def push_layers(self, rnd: object) -> None:
        self.move_layers(rnd, pull=False)

    def draw_layers(self, rnd: object, wrong: str) -> tuple[Node, Cache, Node, Cache] | None:
        if self.towards is not None:
            return self.towards_the_lost(rnd, "layers", "layers")
        pairs = [
            (me, own, node, other)
            for me in self.nodes
            for own in me.of_kind("layers")
            for node in self.reachable(me)
            for other in node.of_kind("layers")
            if own.group == other.group or wrong == "fit"
        ]
        fitting = [pair for pair in pairs if pair[1] is not pair[3] and alike(pair[1], pair[3])]
        same = [pair for pair in pairs if pair[1] is pair[3]]
        unlike = [pair for pair in pairs if pair[1] is not pair[3] and not alike(pair[1], pair[3])]
        found = {"overlap": same, "fit": unlike}.get(wrong) or fitting or same
        return rnd.choice(found) if found else None

    def move_layers(self, rnd: object, pull: bool) -> None:
        wrong = fault(rnd, LAYER_FAULTS)
        bridged = not wrong and chance(rnd, 0.25)  # slices fit what is unlike
        chosen = self.draw_layers(rnd, "fit" if bridged else wrong)
        if chosen is None:
            return
        me, own, node, other = chosen
        src, dst = (other, own) if pull else (own, other)
        source, target = self.draw_blocks(rnd, src.blocks, dst.blocks, wrong)
        if own is other and wrong != "overlap":  # such that no block is read and written
            ids = rnd.sample(range(own.blocks), own.blocks)
            half = rnd.randint(1, own.blocks // 2)
            source, target = (source, target) if wrong == "ids" else (ids[:half], ids[half : 2 * half])
        elif wrong == "overlap":
            source = target[:]
        key = self.draw_key(rnd, me, node, other, wrong)
        if key[0] != "blocks":
            key = ("blocks", key[1], other.model)
        errors, named = self.find_layers(me, own, key)
        if named is not None and named is not other:
            other = named
            src, dst = (other, own) if pull else (own, other)
        common = [name for name in own.layers if name in other.layers]
        names = None
        if common and (bridged or chance(rnd, 0.5)):
            names = rnd.sample(common, rnd.randint(1, len(common)))
        own_reference, stale = self.draw_own(rnd, me, own, wrong)
        errors |= stale
        if wrong == "names":
            names = [*(names or common), "layer.9"]
            errors |= {INCOMPATIBLE, VALUE, NOT_FOUND}
        found = not errors
        more: dict[str, object] = {"layers": names}
        if wrong == "ranges":
            more["src_layer_range"] = range(1)
            errors.add(VALUE)
        if names is None:
            fewer = min((own, other), key=lambda cache: len(cache.layers))
            if len(own.layers) == len(other.layers) and set(own.layers) != set(other.layers):
                errors.add(INCOMPATIBLE)
            names = list(fewer.layers)
            if found and any(name not in own.layers or name not in other.layers for name in names):
                errors.add(INCOMPATIBLE)
        errors |= self.oracle.block_lists(source, target, src.blocks, dst.blocks)
        slices = self.draw_slices(rnd, src.tensors[:2], dst.tensors[:2], 2, bridged or wrong == "slices", wrong)
        errors |= self.give_slices(rnd, more, slices, wrong)
        bad, parts = self.oracle.part_of_each(slices, 2)
        errors |= bad
        moves: list[tuple] = []
        for name in names:
            if name not in src.layers or name not in dst.layers:
                continue
            for a, b, part in zip(src.layers[name], dst.layers[name], parts, strict=not bad):
                left, right = src.tensors[a], dst.tensors[b]
                bad, given, taken = self.oracle.streams(left, right, part)
                errors |= bad
                for x, y in zip(source, target, strict=True) if not errors else ():
                    moves += self.oracle.pair(
                        [left.piece(x, *piece) for piece in given], [right.piece(y, *piece) for piece in taken]
                    )
        src_node, dst_node = (node, me) if pull else (me, node)
        if not errors:
            errors |= self.oracle.shared(src_node, dst_node, moves)
        self.moves = src_node, dst_node, moves
        arguments = [real_key(key), own_reference, source, target]
        self.go(rnd, me, "pull_blocks" if pull else "push_blocks", arguments, errors, more, " of layers", wrong=wrong)

    def find_layers(self, me: Node, own: Cache, key: tuple) -> tuple[set[str], Cache | None]:
        """Layers are found by model and group."""
        _, cluster, model = key
        if cluster != me.cluster:
            if cluster not in me.links:
                return {"NotLinkedError"}, None
            if self.oracle.nodes[cluster].life != me.links[cluster]:
                return {"LinkLostError"}, None
        for cache in self.oracle.nodes[cluster].of_kind("layers"):
            if (cache.model, cache.group) == (model, own.group):
                return set(), cache
        return {NOT_FOUND}, None


def alike(one: Cache, other: Cache) -> bool:
    """Whether the layers that both have look alike, and one of the caches has all of the other's."""
    fewer, more = sorted((one, other), key=lambda cache: len(cache.layers))
    return one.group == other.group and all(
        name in more.layers
        and [fewer.tensors[i].block_bytes for i in fewer.layers[name]]
        == [more.tensors[i].block_bytes for i in more.layers[name]]
        for name in fewer.layers
    )
