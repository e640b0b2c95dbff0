"""Rules that allocate caches, and that take caches and keys back."""

from __future__ import annotations

import cachecore as cc
from modelsuite import wire
from modelsuite.base import fault, real_key, unused_id
from modelsuite.entries import EntryRules
from modelsuite.oracle import NOT_FOUND, VALUE, Cache, Node
from modelsuite.registering import RegisterRules, descriptor
from modelsuite.sizes import DEVICE, content

#: Most allocated caches of a manager.
ALLOCATED = 4


class ReturnRules(RegisterRules, EntryRules):
    """`allocate_*`, `deallocate_*`, `unregister_cache` and `remove_cache_key`."""

    def unregister_cache(self, rnd: object) -> None:
        me = self.any_node(rnd)
        wrong = fault(rnd, ["unknown", "allocated", "missing", "type"], 0.4)
        allocated = [cache for cache in me.caches.values() if cache.allocated]
        own = [cache for cache in me.caches.values() if not cache.allocated]
        if wrong == "allocated" and allocated:
            cache_id: object = rnd.choice(allocated).cache_id
            self.perform(me, "unregister_cache", [cache_id], {VALUE}, timeout=60.0)
        elif wrong in ("missing", "type"):
            cache_id, error = (None, "MissingArgumentError") if wrong == "missing" else ("1", "CacheTypeError")
            self.perform(me, "unregister_cache", [cache_id], {error})
        elif wrong == "unknown" or not own:
            gone = [cache.cache_id for cache in me.gone]
            self.perform(me, "unregister_cache", [rnd.choice([*gone, unused_id(me)])], {NOT_FOUND})
        else:
            self.take_back(me, rnd.choice(own))

    def take_back(self, me: Node, cache: Cache) -> None:
        """By the function that is for it."""
        method, given = "unregister_cache", cache.cache_id
        if cache.allocated:
            method = "deallocate_blocks_cache" if cache.kind == "blocks" else "deallocate_cache"
            given = wire.CacheRef(cache.cache_id)
            self.ask(me.cluster, "forget", cache.cache_id)
        self.perform(me, method, [given], set(), lambda value: self.gone(me, cache), timeout=60.0)

    def gone(self, me: Node, cache: Cache) -> None:
        """A cache is not there any more, but where its keys keep it."""
        del me.caches[cache.cache_id]
        for lease in me.leases:
            if lease.cache_id == cache.cache_id:
                lease.live = False
        names = [name for name in me.buffers if name.startswith(f"cache {cache.cache_id} ")]
        if cache.allocated and cache.kind == "entries" and me.facts["two_sided"] and any(cache.keys):
            me.released[cache.cache_id] = cache
            me.hidden |= {name: me.buffers[name] for name in names}
        for name in names:
            del me.buffers[name]
        if not cache.allocated and all(t.buffer in DEVICE for t in cache.tensors):
            me.gone = [*me.gone, cache][-8:]

    # --- allocating -------------------------------------------------------------------------------------------------

    def allocate_cache(self, rnd: object) -> None:
        self.allocate(rnd, "entries")

    def allocate_blocks_cache(self, rnd: object) -> None:
        self.allocate(rnd, "blocks")

    def allocate(self, rnd: object, kind: str) -> None:
        me = self.node_with_room(rnd)
        if me is None:
            return
        allocated = [cache for cache in me.caches.values() if cache.allocated]
        if len(allocated) >= ALLOCATED:
            self.take_back(me, rnd.choice(allocated))
            return
        wrong = fault(rnd, ["key", "count", "missing", "type", "memory"], 0.4)
        cache = self.draw_cache(rnd, me, kind, "" if wrong == "memory" else wrong)
        cache.allocated = True
        keys = self.draw_keys(rnd, me, cache, wrong)
        arguments = [descriptor(len(cache.tensors), cache.blocks, cache.block_bytes, cache.data_type), keys]
        errors = self.key_errors(me, cache)
        if wrong == "missing":
            arguments[0] = None
            errors |= {"MissingArgumentError"}
        elif wrong == "type":
            arguments[rnd.randrange(2)] = 7
            errors |= {"CacheTypeError"}
        elif wrong == "count" and kind == "blocks":
            arguments[1] = cc.BlocksCacheKey(me.cluster + 50, 1)
            errors |= {VALUE}
        elif wrong == "memory":
            arguments[0] = cc.CacheDesc(1, [cache.blocks, 2**54], cc.DataType.DT_UINT8, cc.Placement.DEVICE)
            errors |= {"CacheOutOfMemoryError"}
        if not me.facts["allocate"]:
            errors = {"NotSupportedError", "MissingArgumentError", "CacheTypeError"}
        fill = rnd.randrange(2**32)

        def effect(value: object) -> None:
            cache.cache_id = value
            for index, tensor in enumerate(cache.tensors):
                tensor.buffer, tensor.offset = f"cache {value} tensor {index}", 0
                me.buffers[tensor.buffer] = bytearray(content(fill, tensor.buffer, tensor.blocks * tensor.block_bytes))
            me.add(cache)

        self.perform(
            me, "allocate_blocks_cache" if kind == "blocks" else "allocate_cache", arguments, errors, effect, fill=fill
        )

    def deallocate_cache(self, rnd: object) -> None:
        self.deallocate(rnd, "deallocate_cache", "entries")

    def deallocate_blocks_cache(self, rnd: object) -> None:
        self.deallocate(rnd, "deallocate_blocks_cache", "blocks")

    def deallocate(self, rnd: object, method: str, kind: str) -> None:
        wrong = fault(rnd, ["other", "twice", "twice", "layers", "missing"], 0.6)
        if wrong == "missing":
            self.perform(self.any_node(rnd), method, [None], {"MissingArgumentError"})
            return
        if wrong == "layers":
            owners = [node for node in self.nodes if node.of_kind("layers")]
            if owners:
                me = rnd.choice(owners)
                self.perform(me, method, [wire.CacheRef(rnd.choice(me.of_kind("layers")).cache_id)], {"CacheTypeError"})
            return
        if wrong == "other":
            owners = [node for node in self.nodes if any(c.kind != "layers" for c in node.caches.values())]
            if not owners:
                return
            me = rnd.choice(owners)
            cache = rnd.choice([c for c in me.caches.values() if c.kind != "layers"])
            if not (cache.allocated and cache.kind == kind):
                self.perform(me, method, [wire.CacheRef(cache.cache_id)], {VALUE})
            return
        owners = [node for node in self.nodes if any(c.allocated and c.kind == kind for c in node.caches.values())]
        if not owners:
            return
        me = rnd.choice(owners)
        cache = rnd.choice([c for c in me.caches.values() if c.allocated and c.kind == kind])
        self.take_back(me, cache)
        if wrong == "twice":
            self.perform(me, method, [wire.CacheRef(cache.cache_id)], {NOT_FOUND})

    # --- keys -------------------------------------------------------------------------------------------------------

    def remove_cache_key(self, rnd: object) -> None:
        me = self.any_node(rnd)
        wrong = fault(rnd, ["unknown", "foreign", "missing", "type"], 0.5)
        live = [(cache, i) for cache in me.named() for i, key in enumerate(cache.keys) if key]
        if wrong in ("missing", "type"):
            given, error = (None, "MissingArgumentError") if wrong == "missing" else (7, "CacheTypeError")
            self.perform(me, "remove_cache_key", [given], {error})
        elif wrong == "foreign":
            self.perform(me, "remove_cache_key", [real_key(("req", me.cluster + 50, 1, 1))], {VALUE})
        elif wrong == "unknown":
            self.perform(me, "remove_cache_key", [real_key(("req", me.cluster, 98, 1))], {NOT_FOUND})
        elif live:
            cache, index = rnd.choice(live)
            key = cache.keys[index]

            def effect(value: object) -> None:
                cache.keys[index] = None
                me.used_up(cache)

            self.perform(me, "remove_cache_key", [real_key(key)], set(), effect, timeout=60.0)
            if cache.remote:
                self.catch_up(me)
