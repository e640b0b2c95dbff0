"""Rules that move bytes between two caches, of one manager or of two."""

from __future__ import annotations

import cachecore as cc
from modelsuite import wire
from modelsuite.base import COUNTS, Frame, chance, real_key
from modelsuite.oracle import INCOMPATIBLE, NOT_FOUND, VALUE, Cache, Key, Node

ASYNC = ["", "", "wait", "await", "layerwise"]


class MovingRules(Frame):
    """Pulls and pushes of blocks, entries and layers."""

    # --- choosing ---------------------------------------------------------------------------------------------------

    def draw_pair(self, rnd: object, own_kind: str, other_kind: str) -> tuple[Node, Cache, Node, Cache] | None:
        """Two caches that fit each other, most of the time."""
        fitting, others = [], []
        for me in self.nodes:
            for own in me.of_kind(own_kind):
                for node in self.reachable(me):
                    for other in node.of_kind(other_kind):
                        if own is other and own_kind != "blocks":
                            continue
                        crossing = node.process != me.process
                        named = other.model is not None or other.kind == "entries"
                        fits = named and other.data_type == own.data_type and len(other.tensors) == len(own.tensors)
                        fits = fits and (not crossing or (own.remote and other.remote))
                        fits = fits and (own_kind != other_kind or own.block_bytes == other.block_bytes)
                        (fitting if fits else others).append((me, own, node, other))
        if fitting and (chance(rnd, 0.95) or not others):
            apart = [pair for pair in fitting if pair[0] is not pair[2]]
            return rnd.choice(apart if apart and chance(rnd, 0.85) else fitting)
        return rnd.choice(others) if others and chance(rnd, 0.25) else None

    def draw_key(self, rnd: object, me: Node, node: Node, cache: Cache) -> Key:
        """A key that names the cache, or nearly."""
        if cache.kind == "blocks" or cache.kind == "layers":
            model = cache.model if cache.model is not None and not chance(rnd, 0.04) else 77
            return ("blocks", node.cluster, model)
        names = [key for key in cache.keys if key]
        if names and chance(rnd, 0.5):
            return rnd.choice(names)
        entry = rnd.randrange(cache.blocks) if not chance(rnd, 0.04) else cache.blocks + 1
        return ("index", node.cluster, cache.cache_id if not chance(rnd, 0.04) else node.last_id + 9, entry)

    def draw_blocks(self, rnd: object, src: int, dst: int) -> tuple[list[int], list[int]]:
        """Ids that exist, most of the time."""
        count = rnd.randint(1, min(src, dst))
        source, target = rnd.sample(range(src), count), rnd.sample(range(dst), count)
        if chance(rnd, 0.5):
            source.sort()
            target.sort()
        if chance(rnd, 0.08):
            what = rnd.randrange(5)
            if what == 0:
                source[-1] = src
            elif what == 1:
                target[-1] = dst + 3
            elif what == 2:
                target.append(target[0])
                source.append(source[0])
            elif what == 3:
                source = source[:-1]
            else:
                source, target = [], []
        return source, target

    def draw_ranges(self, rnd: object, src: Cache, dst: Cache) -> tuple[range | None, range | None, int]:
        """Layers of both sides and tensors of a layer."""
        per_layer = rnd.choice([1, 2, 2])
        if len(src.tensors) == 1 and chance(rnd, 0.9):
            per_layer = 1
        if chance(rnd, 0.6):
            return None, None, per_layer
        left, right = len(src.tensors) // per_layer, len(dst.tensors) // per_layer
        count = rnd.randint(1, max(1, min(left, right)))
        first, other = rnd.randint(0, max(0, left - count)), rnd.randint(0, max(0, right - count))
        if chance(rnd, 0.1):
            other += 2
        return range(first, first + count), range(other, other + count), per_layer

    def draw_slices(self, rnd: object, src_bytes: int, dst_bytes: int, must: bool) -> tuple:
        """Parts of blocks: as many bytes on both sides, most of the time."""
        if not must and chance(rnd, 0.6):
            return None, None
        total = rnd.choice([8, 16, 32])
        slices = []
        for size in (src_bytes, dst_bytes):
            count = rnd.choice([1, 2, 4])
            nbytes = total // count
            stride = rnd.choice([nbytes, nbytes, 2 * nbytes]) if count > 1 else 0
            reach = (count - 1) * stride + nbytes
            slices.append((rnd.randint(0, max(0, size - reach)), nbytes, count, stride))
        if chance(rnd, 0.08):
            _, nbytes, count, stride = slices[0]
            slices[0] = (src_bytes - 1, nbytes, count, stride) if nbytes > 1 else (src_bytes, nbytes, count, stride)
        elif chance(rnd, 0.05):
            slices[1] = (0, total - 1, 1, 0)
        return tuple(slices)

    # --- blocks to blocks -------------------------------------------------------------------------------------------

    def pull_blocks(self, rnd: object) -> None:
        self.move_blocks(rnd, "pull")

    def push_blocks(self, rnd: object) -> None:
        self.move_blocks(rnd, "push")

    def move_blocks(self, rnd: object, direction: str) -> None:
        pair = self.draw_pair(rnd, "blocks", "blocks")
        if pair is None:
            return
        me, own, node, other = pair
        pull = direction == "pull"
        key = self.draw_key(rnd, me, node, other)
        errors, _, found, _ = self.oracle.find(me, key)
        errors = errors | self.oracle.crossing(me, node, own)
        other = found or other
        src, dst = (other, own) if pull else (own, other)
        source, target = self.draw_blocks(rnd, src.blocks, dst.blocks)
        ranges = self.draw_ranges(rnd, src, dst)
        slices = self.draw_slices(
            rnd, src.block_bytes, dst.block_bytes, src.block_bytes != dst.block_bytes and chance(rnd, 0.8)
        )
        more: dict[str, object] = {
            "src_layer_range": ranges[0],
            "dst_layer_range": ranges[1],
            "tensor_num_per_layer": ranges[2],
        }
        if slices[0]:
            more |= {"src_slice": slices[0], "dst_slice": slices[1]}
        lease = self.draw_lease(rnd, node, other, source) if pull and other is found else None
        if lease is not None:
            more["lease"] = lease.value
            if lease.node != node.cluster or lease.cache_id != other.cache_id or not set(source) <= lease.blocks:
                errors.add(VALUE)
            if not lease.live:
                errors.add("LeaseExpiredError")
        if found is not None:
            errors |= self.planned(node if pull else me, src, me if pull else node, dst, source, target, ranges, slices)
        self.go(
            rnd,
            me,
            f"{direction}_blocks",
            [real_key(key), wire.CacheRef(own.cache_id), source, target],
            errors,
            more,
            " leased" if lease else "",
        )

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
        bad_left, pieces_left = oracle.stream(src.block_bytes, slices[0])
        bad_right, pieces_right = oracle.stream(dst.block_bytes, slices[1])
        errors |= bad_left | bad_right
        if sum(n for _, n in pieces_left) != sum(n for _, n in pieces_right):
            errors.add(INCOMPATIBLE if slices[0] is None else VALUE)
            errors.add(INCOMPATIBLE)
        errors |= oracle.block_lists(source, target, src.blocks, dst.blocks)
        self.moves = None
        if not errors:
            moves = []
            for a, b in zip(left, right, strict=True):
                for x, y in zip(source, target, strict=True):
                    moves += oracle.pair(
                        [src.tensors[a].piece(x, *piece) for piece in pieces_left],
                        [dst.tensors[b].piece(y, *piece) for piece in pieces_right],
                    )
            errors |= oracle.shared(src_node, dst_node, moves)
            self.moves = src_node, dst_node, moves
        return errors

    def go(
        self,
        rnd: object,
        me: Node,
        method: str,
        arguments: list[object],
        errors: set[str],
        more: dict[str, object],
        label: str = "",
        then: object = None,
    ) -> None:
        """Perform it, blocking or in one of the other forms."""
        moves = self.moves if not errors else None

        def effect(value: object) -> None:
            self.oracle.move(*moves)
            if then is not None:
                then()

        form = rnd.choice(ASYNC)
        name = method + label
        more = {name: value for name, value in more.items() if value is not None} | {"timeout": 60.0}
        if form:
            method += "_async"
            name = method + label
            more["then"] = "await" if form == "await" else "wait"
            if form == "layerwise":
                more["layerwise"] = True
        self.perform(me, method, arguments, errors, effect, label=name, **more)

    def fail_midway(self, rnd: object) -> None:
        """The engine fails at a layer: the error says that the layers before have landed, and nothing else has."""
        pair = self.draw_pair(rnd, "blocks", "blocks")
        if pair is None:
            return
        me, own, node, other = pair
        pull = chance(rnd, 0.5)
        src_node, src, dst_node, dst = (node, other, me, own) if pull else (me, own, node, other)
        count = rnd.randint(1, min(src.blocks, dst.blocks))
        source, target = rnd.sample(range(src.blocks), count), rnd.sample(range(dst.blocks), count)
        if other.model is None:
            return
        key = ("blocks", node.cluster, other.model)
        bad = self.oracle.find(me, key)[0] | self.oracle.crossing(me, node, own)
        bad = bad | self.planned(src_node, src, dst_node, dst, source, target, (None, None, 1), (None, None))
        if bad:
            return
        fail_at = rnd.randint(1, len(own.tensors))
        _, _, moves = self.moves
        per_layer = len(moves) // len(own.tensors)
        landed = {(tensor, block) for tensor in range(fail_at - 1) for block in target}
        method = "pull_blocks_async" if pull else "push_blocks_async"
        value = self.call(
            me,
            method,
            real_key(key),
            wire.CacheRef(own.cache_id),
            source,
            target,
            tensor_num_per_layer=1,
            layerwise=True,
            then="wait",
            fail_at=fail_at,
            timeout=60.0,
        )
        if not isinstance(value, wire.Failure) or value.name != "TransferError":
            self.fail(
                f"{method} of cluster {me.cluster} gave {value} although the engine failed at layer {fail_at - 1}"
            )
        told = {(tensor, start + i) for tensor, start, blocks in value.landed for i in range(blocks)}
        if told != landed or value.unknown:
            self.fail(f"{method} failed at layer {fail_at - 1} and told of {value.landed} and {value.unknown}")
        self.oracle.move(src_node, dst_node, moves[: (fail_at - 1) * per_layer])
        COUNTS[method + " midway", value.name] += 1
        self.compare()

    def draw_lease(self, rnd: object, node: Node, cache: Cache, blocks: list[int]) -> object:
        """A lease to present, mostly one that fits."""
        if not node.leases or chance(rnd, 0.3):
            return None
        fitting = [lease for lease in node.leases if lease.cache_id == cache.cache_id and set(blocks) <= lease.blocks]
        if fitting and chance(rnd, 0.7):
            return rnd.choice(fitting)
        return rnd.choice(node.leases) if chance(rnd, 0.2) else None

    # --- entries ----------------------------------------------------------------------------------------------------

    def pull_entry_to_blocks(self, rnd: object) -> None:
        pair = self.draw_pair(rnd, "blocks", "entries")
        if pair is None:
            return
        me, own, node, other = pair
        key = self.draw_key(rnd, me, node, other)
        errors, _, found, entry = self.oracle.find(me, key)
        errors = errors | self.oracle.crossing(me, node, own)
        other = found or other
        fits = max(1, -(-other.block_bytes // own.block_bytes))
        count = min(rnd.randint(1, fits), own.blocks)
        target = rnd.sample(range(own.blocks), count)
        source: list[int] = []
        if chance(rnd, 0.1):
            what = rnd.randrange(3)
            if what == 0:
                source = [0]
                errors.add(VALUE)
            elif what == 1:
                target = []
            else:
                target = [own.blocks]
        ranges = self.draw_ranges(rnd, other, own)
        if found is not None:
            errors |= self.planned_entry_to_blocks(node, found, entry, me, own, target, ranges)
        more = {"src_layer_range": ranges[0], "dst_layer_range": ranges[1], "tensor_num_per_layer": ranges[2]}
        self.go(
            rnd,
            me,
            "pull_blocks",
            [real_key(key), wire.CacheRef(own.cache_id), source, target],
            errors,
            more,
            " of an entry",
        )

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

    def pull_cache(self, rnd: object) -> None:
        self.move_entry(rnd, "pull")

    def push_cache(self, rnd: object) -> None:
        self.move_entry(rnd, "push")

    def move_entry(self, rnd: object, direction: str) -> None:
        pair = self.draw_pair(rnd, "entries", "entries")
        if pair is None:
            return
        me, own, node, other = pair
        pull = direction == "pull"
        key = self.draw_key(rnd, me, node, other)
        if chance(rnd, 0.02):
            key = ("blocks", node.cluster, 1)
        errors, _, found, entry = self.oracle.find(me, key)
        if key[0] == "blocks":
            errors = {"CacheTypeError"}
            found = None
        errors = errors | self.oracle.crossing(me, node, own)
        other = found or other
        index = rnd.randrange(own.blocks) if not chance(rnd, 0.05) else own.blocks + 2
        src, dst = (other, own) if pull else (own, other)
        size = -1 if chance(rnd, 0.4) else rnd.randint(1, min(src.block_bytes, dst.block_bytes))
        if chance(rnd, 0.05):
            size = src.block_bytes + 8
        ranges = self.draw_ranges(rnd, src, dst)
        if index >= own.blocks:
            errors.add(VALUE)
        if found is not None:
            src_node, dst_node = (node, me) if pull else (me, node)
            entries = (entry, index) if pull else (index, entry)
            errors |= self.planned_entry(src_node, src, entries[0], dst_node, dst, entries[1], size, ranges)
        more = {"tensor_num_per_layer": ranges[2], "src_layer_range": ranges[0], "dst_layer_range": ranges[1]}
        arguments = [real_key(key), wire.CacheRef(own.cache_id), index]
        self.go(rnd, me, f"{direction}_cache", arguments, errors, more | {"size": size})

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

    # --- layers -----------------------------------------------------------------------------------------------------

    def move_layers(self, rnd: object) -> None:
        """By name, of caches that may hold different layers."""
        pairs = [
            (me, own, node, other)
            for me in self.nodes
            for own in me.of_kind("layers")
            for node in self.reachable(me)
            for other in node.of_kind("layers")
            if own.group == other.group
        ]
        if not pairs:
            return
        apart = [pair for pair in pairs if pair[1] is not pair[3] and alike(pair[1], pair[3])]
        me, own, node, other = rnd.choice(apart if apart and chance(rnd, 0.85) else pairs)
        pull = chance(rnd, 0.5)
        src, dst = (other, own) if pull else (own, other)
        source, target = self.draw_blocks(rnd, src.blocks, dst.blocks)
        common = [name for name in own.layers if name in other.layers]
        named = None if chance(rnd, 0.5) or not common else rnd.sample(common, rnd.randint(1, len(common)))
        errors: set[str] = set()
        if named is not None and chance(rnd, 0.1):
            named = [*named, "layer.9"]
            errors |= {INCOMPATIBLE, VALUE, NOT_FOUND}
        if named is None:
            fewer = min((own, other), key=lambda cache: len(cache.layers))
            if len(own.layers) == len(other.layers) and set(own.layers) != set(other.layers):
                errors.add(INCOMPATIBLE)
            names = list(fewer.layers)
            if any(name not in own.layers or name not in other.layers for name in names):
                errors.add(INCOMPATIBLE)
        else:
            names = named
        errors |= self.oracle.block_lists(source, target, src.blocks, dst.blocks)
        moves: list[tuple] = []
        for name in names:
            if name not in src.layers or name not in dst.layers:
                continue
            for a, b in zip(src.layers[name], dst.layers[name], strict=True):
                left, right = src.tensors[a], dst.tensors[b]
                if left.block_bytes != right.block_bytes:
                    errors.add(INCOMPATIBLE)
                elif not errors:
                    for x, y in zip(source, target, strict=True):
                        n = left.block_bytes
                        moves.append((*left.piece(x, 0, n)[:2], *right.piece(y, 0, n)))
        src_node, dst_node = (node, me) if pull else (me, node)
        if not errors:
            errors |= self.oracle.shared(src_node, dst_node, moves)
        self.moves = src_node, dst_node, moves
        arguments = [real_key(("blocks", node.cluster, other.model)), wire.CacheRef(own.cache_id), source, target]
        self.go(rnd, me, "pull_blocks" if pull else "push_blocks", arguments, errors, {"layers": named}, " of layers")

    # --- layer by layer, to several ---------------------------------------------------------------------------------

    def transfer_cache_async(self, rnd: object) -> None:
        """One source, several destinations: each has its own result."""
        pair = self.draw_pair(rnd, "blocks", "blocks")
        if pair is None:
            return
        me, own, node, other = pair
        if node is me or other.model is None:
            return
        chosen = [(node, other)]
        others = [
            (node, cache)
            for node in self.reachable(me)
            if node is not me
            for cache in node.of_kind("blocks")
            if cache.model is not None and cache is not other
        ]
        if others and chance(rnd, 0.5):
            chosen.append(rnd.choice(others))
        smallest = min(cache.blocks for _, cache in chosen)
        source, target = self.draw_blocks(rnd, own.blocks, smallest)
        per_layer = rnd.choice([1, 2, 2]) if len(own.tensors) > 1 or chance(rnd, 0.2) else 1
        layers = len(own.tensors) // per_layer
        first = rnd.randrange(layers) if layers and chance(rnd, 0.4) else None
        own_range = None if first is None else range(first, layers)
        configs, errors, all_moves, reached = [], set(), [], []
        fail = chance(rnd, 0.15)
        for node, cache in chosen:
            theirs = None if first is None else range(layers - first)
            configs.append(
                cc.TransferWithCacheKeyConfig(
                    cc.BlocksCacheKey(node.cluster, cache.model), src_layer_range=own_range, dst_layer_range=theirs
                )
            )
            away = self.oracle.find(me, ("blocks", node.cluster, cache.model))[0]
            reached.append(not away)
            if away:  # this destination fails for itself
                all_moves.append(None)
                continue
            errors |= self.oracle.crossing(me, node, own)
            ranges = (own_range, theirs, per_layer)
            errors |= self.planned(me, own, node, cache, source, target, ranges, (None, None))
            all_moves.append(self.moves)
        if chance(rnd, 0.05):
            configs, errors = [], {VALUE}

        def effect(value: object) -> None:
            if fail:  # the synchronizer said no before the first layer
                assert len(value) == len(configs) and all(value), value
                return
            assert [code == 0 for code in value] == reached, (value, reached)
            for moves in all_moves:
                if moves is not None:
                    self.oracle.move(*moves)

        synchronizer = "a layer that is never ready" if fail else "layers that are ready"
        self.perform(
            me,
            "transfer_cache_async",
            [wire.CacheRef(own.cache_id), synchronizer, configs, source, target],
            errors,
            effect,
            label="transfer_cache_async" + (" refused" if fail else ""),
            then="results",
            tensor_num_per_layer=per_layer,
        )


def alike(one: Cache, other: Cache) -> bool:
    """Whether the layers that both have look alike, and one of the caches has all of the other's."""
    fewer, more = sorted((one, other), key=lambda cache: len(cache.layers))
    return all(
        name in more.layers
        and [fewer.tensors[i].block_bytes for i in fewer.layers[name]]
        == [more.tensors[i].block_bytes for i in more.layers[name]]
        for name in fewer.layers
    )
