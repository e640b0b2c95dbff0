"""Rules for copies within one manager, and for what no product offers."""

from __future__ import annotations

import cachecore as cc
from modelsuite import wire
from modelsuite.base import Frame, chance
from modelsuite.oracle import INCOMPATIBLE, NOT_FOUND, VALUE, Tensor
from modelsuite.sizes import HOST


class LocalRules(Frame):
    """`copy_cache`, `copy_blocks`, `swap_blocks`, and queries."""

    def copy_cache(self, rnd: object) -> None:
        owners = [node for node in self.nodes if node.of_kind("entries")]
        if not owners:
            return
        me = rnd.choice(owners)
        caches = me.of_kind("entries")
        src = rnd.choice(caches)
        like = [c for c in caches if c.data_type == src.data_type and len(c.tensors) == len(src.tensors)]
        dst = rnd.choice(like if chance(rnd, 0.9) else caches)
        entries = [rnd.randrange(src.blocks), rnd.randrange(dst.blocks)]
        errors: set[str] = set()
        if chance(rnd, 0.08):
            entries[rnd.randrange(2)] += 8
            errors.add(VALUE)
        offset = 0 if chance(rnd, 0.6) else rnd.randrange(src.block_bytes)
        size = -1 if chance(rnd, 0.5) else rnd.randint(1, src.block_bytes)
        if not me.facts["copies"]:
            errors = {"NotSupportedError"}
        else:
            errors |= self.planned_entry(me, src, entries[0], me, dst, entries[1], size, (None, None, 1), offset)
        moves = self.moves if not errors else None
        references = [wire.CacheRef(dst.cache_id), wire.CacheRef(src.cache_id)]
        if chance(rnd, 0.04):
            references[rnd.randrange(2)] = None
            errors.add("MissingArgumentError")
        self.perform(
            me,
            "copy_cache",
            [*references, entries[1], entries[0], offset, size],
            errors,
            lambda value: self.oracle.move(*moves),
        )

    def copy_blocks(self, rnd: object) -> None:
        owners = [node for node in self.nodes if node.of_kind("blocks")]
        if not owners:
            return
        me = rnd.choice(owners)
        cache = rnd.choice(me.of_kind("blocks"))
        ids = rnd.sample(range(cache.blocks), cache.blocks)
        sources = [ids.pop() for _ in range(rnd.randint(1, max(1, cache.blocks // 2)))]
        mapping: dict[int, list[int]] = {source: [] for source in sources}
        for source in sources:
            mapping[source] = [ids.pop()] if ids else []
            if ids and chance(rnd, 0.3):
                mapping[source].append(ids.pop())
        mapping = {source: targets for source, targets in mapping.items() if targets}
        errors: set[str] = set() if mapping else {VALUE}
        if mapping and chance(rnd, 0.2):
            first = next(iter(mapping))
            what = rnd.randrange(4)
            if what == 0:
                mapping[first] = [first]
                errors.add("OverlapError")
            elif what == 1:
                mapping[first] = [cache.blocks]
                errors.add(VALUE)
            elif what == 2:
                mapping[first] = mapping[first] * 2
                errors.add(VALUE)
            else:
                mapping = {}
                errors.add(VALUE)
        if not me.facts["copies"]:
            errors = {"NotSupportedError"}
        moves = [
            (*tensor.piece(source, 0, cache.block_bytes)[:2], *tensor.piece(target, 0, cache.block_bytes))
            for tensor in cache.tensors
            for source, targets in mapping.items()
            for target in targets
            if source < cache.blocks and target < cache.blocks
        ]
        self.perform(
            me,
            "copy_blocks",
            [wire.CacheRef(cache.cache_id), mapping],
            errors,
            lambda value: self.oracle.move(me, me, moves),
        )

    def swap_blocks(self, rnd: object) -> None:
        """Between device memory and an unregistered cache in host memory."""
        owners = [node for node in self.nodes if any(len(c.tensors) <= len(HOST) for c in node.of_kind("blocks"))]
        if not owners:
            return
        me = rnd.choice(owners)
        cache = rnd.choice([c for c in me.of_kind("blocks") if len(c.tensors) <= len(HOST)])
        block_bytes = cache.block_bytes if not chance(rnd, 0.06) else cache.block_bytes // 2
        host = [Tensor(name, 0, 4, block_bytes, block_bytes) for name in HOST[: len(cache.tensors)]]
        errors: set[str] = set()
        if block_bytes != cache.block_bytes or cache.data_type != 4:
            errors.add(INCOMPATIBLE)
        out = chance(rnd, 0.5)
        sizes = (cache.blocks, 4) if out else (4, cache.blocks)
        source, target = self.draw_blocks(rnd, *sizes)
        mapping = dict(zip(source, target, strict=False))
        errors |= self.oracle.block_lists(list(mapping), list(mapping.values()), *sizes)
        if not me.facts["copies"]:
            errors = {"NotSupportedError"}
        reference = wire.HostCacheRef((4, block_bytes), tuple(wire.Place(t.buffer, 0) for t in host))
        ends = [wire.CacheRef(cache.cache_id), reference]
        left, right = (cache.tensors, host) if out else (host, cache.tensors)
        if chance(rnd, 0.05):
            ends = [ends[0], ends[0]]  # both on the device
            errors.add(INCOMPATIBLE)
        elif not out:
            ends.reverse()
        moves = []
        if not errors:
            moves = [
                (*a.piece(x, 0, block_bytes)[:2], *b.piece(y, 0, block_bytes))
                for a, b in zip(left, right, strict=True)
                for x, y in mapping.items()
            ]
        self.perform(me, "swap_blocks", [*ends, mapping], errors, lambda value: self.oracle.move(me, me, moves))

    def a_cache_that_is_not_registered(self, rnd: object) -> None:
        """Ids of caches are looked at by every function."""
        me = self.any_node(rnd)
        ghost = wire.HostCacheRef((4, 32), (wire.Place("h0"),))
        method = rnd.choice(["copy_blocks", "deallocate_blocks_cache"])
        if method == "copy_blocks":
            errors = {NOT_FOUND, VALUE} if me.facts["copies"] else {"NotSupportedError"}
            self.perform(me, method, [ghost, {0: [1]}], errors, label="copy_blocks of a CPU cache")
        else:
            self.perform(me, method, [ghost], {NOT_FOUND, VALUE}, label="deallocate of a CPU cache")

    def remap_registered_memory(self, rnd: object) -> None:
        """No product offers it."""
        me = self.any_node(rnd)
        given, errors = rnd.choice(
            [
                ([cc.MemInfo(cc.Memtype.MEM_TYPE_DEVICE, 4096, 64)], {"NotSupportedError"}),
                ([cc.MemInfo(cc.Memtype.MEM_TYPE_HOST, 4096, 64)], {VALUE}),
                ([], {VALUE}),
                (None, {"MissingArgumentError"}),
                ([7], {"CacheTypeError"}),
            ]
        )
        self.perform(me, "remap_registered_memory", [given], errors)

    def query_register_mem_status(self, rnd: object) -> None:
        me = self.any_node(rnd)
        cluster = rnd.choice([node.cluster for node in self.nodes if node is not me])
        errors = set() if cluster in me.links else {"NotLinkedError"}
        if me.facts["backend"] == "ascend_950":
            errors = {"NotSupportedError"}

        def effect(value: object) -> None:
            living = me.links[cluster] == self.oracle.nodes[cluster].life
            assert not living or int(value) == 0, value

        self.perform(me, "query_register_mem_status", [cluster], errors, effect)
