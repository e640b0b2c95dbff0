"""Rules for copies within one manager, and for what no product offers."""

from __future__ import annotations

import cachecore as cc
from modelsuite import wire
from modelsuite.base import chance, fault, hinder
from modelsuite.entries import EntryRules
from modelsuite.oracle import INCOMPATIBLE, NOT_FOUND, VALUE, Tensor
from modelsuite.sizes import DEVICE, HOST, NOWHERE

COPY_FAULTS = ["missing", "type", "type", "stale", "stale", "stale", "late", "late", "kind", "kind"]
COPY_FAULTS += ["engine", "engine", "event"]


class LocalRules(EntryRules):
    """`copy_cache`, `copy_blocks`, `swap_blocks`, and queries."""

    def copy(
        self, rnd: object, me: object, method: str, arguments: list[object], caches: int, errors: set[str], wrong: str
    ) -> None:
        """Perform a copy, with what can be wrong with each of them; `arguments` begins with its caches."""
        moves = self.moves if not errors else None
        more: dict[str, object] = {"timeout": 60.0}
        which = rnd.randrange(caches)
        if wrong == "missing":
            arguments[which] = None
            errors = errors | {"MissingArgumentError"}
        elif wrong == "type":
            arguments[rnd.choice([which, caches])] = "1"
            errors = errors | {"CacheTypeError"}
        elif wrong == "stale":
            kind = "entries" if method == "copy_cache" else "blocks"
            named = [i for i in range(caches) if isinstance(arguments[i], wire.CacheRef)]
            if not any(cache.kind == kind for cache in me.gone):
                used = [arguments[i].cache_id for i in named]
                spare = [c for c in me.of_kind(kind) if not c.allocated and c.cache_id not in used]
                if spare:
                    self.take_back(me, rnd.choice(spare))
            stale = [cache for cache in me.gone if cache.kind == kind]
            if stale:
                arguments[rnd.choice(named)] = wire.CacheRef(rnd.choice(stale).cache_id)
                errors = errors | {NOT_FOUND}
        elif wrong == "kind":
            kind = "blocks" if method == "copy_cache" else "entries"
            others = [cache for cache in me.of_kind(kind)]
            if others:
                arguments[which] = wire.CacheRef(rnd.choice(others).cache_id)
                errors = errors | {INCOMPATIBLE}
        elif wrong == "late":
            more = {"timeout": 0.02, "never": True}
            errors = errors or {"TransferTimeoutError"}
        else:
            errors = hinder(wrong, more, errors)
        self.perform(me, method, arguments, errors, lambda value: self.oracle.move(*moves), **more)

    def copy_cache(self, rnd: object) -> None:
        owners = [node for node in self.nodes if node.of_kind("entries")]
        if not owners:
            return
        wrong = fault(rnd, [*COPY_FAULTS, "entry", "unlike", "overlap", "size"], 0.55)
        me = rnd.choice(owners)
        caches = me.of_kind("entries")
        src = rnd.choice(caches)
        like = [c for c in caches if (c.data_type == src.data_type) and len(c.tensors) == len(src.tensors)]
        unlike = [c for c in caches if c not in like or c.block_bytes < src.block_bytes]
        dst = rnd.choice(unlike if wrong == "unlike" and unlike else like)
        entries = [rnd.randrange(src.blocks), rnd.randrange(dst.blocks)]
        offset = 0 if chance(rnd, 0.6) else rnd.randrange(min(src.block_bytes, dst.block_bytes))
        fits = min(src.block_bytes, dst.block_bytes) - offset
        size = -1 if (chance(rnd, 0.5) and src.block_bytes <= dst.block_bytes) else rnd.randint(1, fits)
        if wrong == "unlike":
            size = -1
        elif wrong == "overlap":
            dst = src
            entries[1] = entries[0]
        elif src is dst and entries[0] == entries[1]:
            entries[1] = (entries[1] + 1) % dst.blocks
        if wrong == "size":
            size = rnd.choice([0, src.block_bytes + 1])
        errors: set[str] = set()
        if wrong == "entry":
            entries[rnd.randrange(2)] += 8
            errors.add(VALUE)
        errors |= self.planned_entry(me, src, entries[0], me, dst, entries[1], size, (None, None, 1), offset)
        arguments = [wire.CacheRef(dst.cache_id), wire.CacheRef(src.cache_id), entries[1], entries[0], offset, size]
        self.copy(rnd, me, "copy_cache", arguments, 2, errors, wrong)

    def copy_blocks(self, rnd: object) -> None:
        owners = [node for node in self.nodes if node.of_kind("blocks")]
        if not owners:
            return
        wrong = fault(rnd, [*COPY_FAULTS, "empty", "itself", "itself", "block", "twice"], 0.55)
        me = rnd.choice(owners)
        cache = rnd.choice(me.of_kind("blocks"))
        ids = rnd.sample(range(cache.blocks), cache.blocks)
        sources = [ids.pop() for _ in range(rnd.randint(1, max(1, cache.blocks // 2)))]
        mapping: dict[int, list[int]] = {}
        for source in sources:
            if ids:
                mapping[source] = [ids.pop()]
                if ids and chance(rnd, 0.3):
                    mapping[source].append(ids.pop())
        errors: set[str] = set()
        first = next(iter(mapping))
        if wrong == "itself":
            mapping[first] = [first]
            errors.add("OverlapError")
        elif wrong == "block":
            mapping[first] = [cache.blocks]
            errors.add(VALUE)
        elif wrong == "twice":
            mapping[first] = mapping[first] * 2
            errors.add(VALUE)
        elif wrong == "empty":
            mapping = {}
            errors.add(VALUE)
        moves = [
            (*tensor.piece(source, 0, cache.block_bytes)[:2], *tensor.piece(target, 0, cache.block_bytes))
            for tensor in cache.tensors
            for source, targets in mapping.items()
            for target in targets
            if source < cache.blocks and target < cache.blocks
        ]
        self.moves = me, me, moves
        self.copy(rnd, me, "copy_blocks", [wire.CacheRef(cache.cache_id), mapping], 1, errors, wrong)

    def swap_blocks(self, rnd: object) -> None:
        """Between device memory and an unregistered cache in host memory."""
        owners = [node for node in self.nodes if any(len(c.tensors) <= len(HOST) for c in node.of_kind("blocks"))]
        if not owners:
            return
        wrong = fault(rnd, [*COPY_FAULTS, "unlike", "unlike", "ids", "ids", "both", "memory", "memory", "overlap"], 0.6)
        me = rnd.choice(owners)
        small = [c for c in me.of_kind("blocks") if len(c.tensors) <= len(HOST)]
        cache = rnd.choice([c for c in small if c.data_type == 4] or small)
        block_bytes = cache.block_bytes // 2 if wrong == "unlike" else cache.block_bytes
        host = [Tensor(name, 0, 4, block_bytes, block_bytes) for name in HOST[: len(cache.tensors)]]
        errors: set[str] = set()
        if block_bytes != cache.block_bytes or cache.data_type != 4:
            errors.add(INCOMPATIBLE)
        out = chance(rnd, 0.5)
        sizes = (cache.blocks, 4) if out else (4, cache.blocks)
        source, target = self.draw_blocks(rnd, *sizes, "")
        mapping = dict(zip(source, target, strict=True))
        if wrong == "ids":
            bad = [{}, {sizes[0]: 0}, {0: sizes[1]}, {0: 1, 1: 1}]
            mapping = rnd.choice(bad)
            errors.add(VALUE)
        reference = wire.HostCacheRef((4, block_bytes), tuple(wire.Place(t.buffer, 0) for t in host))
        ends = [wire.CacheRef(cache.cache_id), reference]
        left, right = (cache.tensors, host) if out else (host, cache.tensors)
        if wrong == "both":
            ends = [ends[0], ends[0]]  # both on the device
            errors.add(INCOMPATIBLE)
        elif wrong == "overlap" and me.facts["backend"] == "host":  # host memory that is a cache of its own
            ends[1] = wire.HostCacheRef(
                (cache.blocks, block_bytes), tuple(wire.Place(t.buffer, t.offset) for t in cache.tensors)
            )
            mapping = {0: 0}
            errors.add("OverlapError")
        elif wrong == "memory":  # that is not mapped, or the device's
            nowhere = [wire.Place("", NOWHERE + 0x10000 * i) for i in range(len(host))]
            device = [wire.Place(name) for name in DEVICE[: len(host)]]
            places = nowhere if me.facts["backend"] == "host" else rnd.choice([nowhere, device])
            ends[1] = wire.HostCacheRef((4, block_bytes), tuple(places))
            errors.update(("MemoryAccessError", "PlacementError"))
        if not out and wrong != "both":
            ends.reverse()
        moves = []
        if not errors:
            moves = [
                (*a.piece(x, 0, block_bytes)[:2], *b.piece(y, 0, block_bytes))
                for a, b in zip(left, right, strict=True)
                for x, y in mapping.items()
            ]
        self.moves = me, me, moves
        self.copy(rnd, me, "swap_blocks", [*ends, mapping], 2, errors, wrong)

    def a_cpu_cache(self, rnd: object) -> None:
        """Ids of caches are looked at by every function."""
        me = self.any_node(rnd)
        ghost = wire.HostCacheRef((4, 32), (wire.Place("h0"),))
        if chance(rnd, 0.5):
            self.perform(me, "copy_blocks", [ghost, {0: [1]}], {NOT_FOUND, VALUE}, label="copy_blocks of a CPU cache")
        else:
            self.perform(me, "deallocate_blocks_cache", [ghost], {NOT_FOUND, VALUE}, label="deallocate of a CPU cache")

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
        others = [node.cluster for node in self.nodes if node is not me]
        if chance(rnd, 0.3):
            cluster, error = rnd.choice([(me.cluster + 60, "NotLinkedError"), (None, "MissingArgumentError")])
            errors = {error} if me.facts["backend"] != "ascend_950" else {error, "NotSupportedError"}
            self.perform(me, "query_register_mem_status", [cluster], errors)
        else:
            self.query(me, rnd.choice(others))
