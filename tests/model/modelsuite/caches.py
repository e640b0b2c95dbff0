"""Rules that make caches and take them back."""

from __future__ import annotations

import cachecore as cc
from cachecore.types import NO_ID
from modelsuite import wire
from modelsuite.base import Frame, chance, real_key, unused_id
from modelsuite.oracle import INCOMPATIBLE, NOT_FOUND, VALUE, Cache, Key, Node, Tensor
from modelsuite.sizes import BLOCK_BYTES, BLOCKS, DEVICE, IDS, LAYER_MODELS, LAYERED, MODELS, TENSORS, TYPES, content

BUDGET = 240


def descriptor(
    tensors: int, blocks: int, block_bytes: int, data_type: int, placement: object = cc.Placement.DEVICE
) -> cc.CacheDesc:
    """Blocks (or entries) by elements."""
    kind = cc.DataType(data_type)
    return cc.CacheDesc(tensors, [blocks, block_bytes // kind.itemsize], kind, placement)


class CacheRules(Frame):
    """`register_*`, `allocate_*` and the ways back."""

    # --- registering ------------------------------------------------------------------------------------------------

    def remote_errors(self, me: Node, remote: bool | None) -> set[str]:
        return {"NotSupportedError"} if remote is False and not me.facts["optional"] else set()

    def overlap_errors(self, me: Node, tensors: list[Tensor]) -> set[str]:
        """Only the exact same range may be registered again, and not in one call."""
        new = [(t.buffer, t.offset, t.blocks * t.block_bytes) for t in tensors]
        live = [
            (t.buffer, t.offset, t.blocks * t.block_bytes)
            for cache in me.caches.values()
            if cache.kind != "layers"
            for t in cache.tensors
        ]
        for index, one in enumerate(new):
            for other in new[:index]:
                if touch(one, other):
                    return {"OverlapError"}
            if any(one != other and touch(one, other) for other in live):
                return {"OverlapError"}
        return set()

    def alignment_errors(self, me: Node, tensors: list[Tensor], remote: bool | None) -> set[str]:
        """Memory that the driver cut from its pages, off them."""
        off = any(t.offset for t in tensors)
        return {"AlignmentError"} if off and remote is not False and me.facts["backend"] == "ascend_a2a3" else set()

    def draw_cache(self, rnd: object, kind: str) -> Cache:
        data_type, _ = rnd.choice(TYPES)
        blocks, block_bytes = rnd.choice(BLOCKS), rnd.choice(BLOCK_BYTES)
        offset = 64 if chance(rnd, 0.05) else 0
        buffers = rnd.sample(DEVICE, rnd.choice(TENSORS))
        if len(buffers) > 1 and chance(rnd, 0.04):
            buffers[1] = buffers[0]
        tensors = [Tensor(b, offset, blocks, block_bytes, block_bytes, data_type) for b in buffers]
        remote = rnd.choice([None, None, None, None, True, False])
        return Cache(0, kind, data_type, tensors, remote is not False), remote

    def draw_entry_keys(self, rnd: object, me: Node, batch: int) -> list[Key | None]:
        keys: list[Key | None] = []
        for _ in range(rnd.randint(0, batch)):
            kind = rnd.choice(["req", "req", "prefix", None])
            keys.append(kind and (kind, me.cluster, rnd.choice(IDS), rnd.choice(MODELS)))
        if chance(rnd, 0.05):
            keys += [("req", me.cluster, 90 + i, 1) for i in range(batch)] + [("req", me.cluster, 99, 1)]
        return keys

    def key_errors(self, me: Node, cache: Cache) -> set[str]:
        errors = set()
        live = [key for other in me.caches.values() for key in other.keys if key]
        named = [key for key in cache.keys if key]
        if len(cache.keys) > cache.blocks:
            errors.add(VALUE)
        if len(set(named)) != len(named) or any(key in live for key in named):
            errors.add("CacheKeyExistsError")
        if cache.model is not None and any(c.model == cache.model for c in me.caches.values() if c.kind == "blocks"):
            errors.add("CacheKeyExistsError")
        return errors

    @staticmethod
    def real_keys(keys: list[Key | None], me: Node) -> list[object]:
        return [real_key(key) if key else cc.CacheKey(me.cluster, NO_ID) for key in keys]

    def spoil(self, rnd: object, arguments: list[object]) -> set[str]:
        """Make one thing wrong with (desc, addrs, ...); returns the error."""
        what = rnd.randrange(6)
        if what == 0:
            arguments[1] = arguments[1][:-1]
            return {VALUE}
        if what == 1:
            arguments[1] = [*arguments[1][:-1], 0]
            return {VALUE}
        if what == 2:
            arguments[0] = None
            return {"MissingArgumentError"}
        if what == 3:
            arguments[1] = "addresses"
            return {"CacheTypeError"}
        if what == 4:  # nothing was ever mapped there
            arguments[1] = [*arguments[1][:-1], wire.Place("", 0x10000 * 65536 * 4096)]
            return {"MemoryAccessError", "PlacementError", "AlignmentError"}
        desc = arguments[0]
        arguments[0] = cc.CacheDesc(BUDGET + 1, desc.shape, desc.data_type)
        arguments[1] = [0x100000 * (i + 1) for i in range(BUDGET + 1)]
        return {"AddressBudgetError"}

    def register_blocks_cache(self, rnd: object) -> None:
        self.register(rnd, "blocks")

    def register_cache(self, rnd: object) -> None:
        self.register(rnd, "entries")

    def register(self, rnd: object, kind: str) -> None:
        me = self.any_node(rnd)
        if len(me.caches) > 12:
            self.take_back(me, rnd.choice(list(me.caches.values())))
        cache, remote = self.draw_cache(rnd, kind)
        if kind == "blocks":
            cache.model = rnd.choice((*MODELS, None))
            keys = cc.BlocksCacheKey(me.cluster, cache.model) if cache.model else None
        else:
            cache.keys = self.draw_entry_keys(rnd, me, cache.blocks)
            keys = self.real_keys(cache.keys, me)
        places = [wire.Place(t.buffer, t.offset) for t in cache.tensors]
        arguments = [
            descriptor(len(cache.tensors), cache.blocks, cache.block_bytes, cache.data_type),
            places,
            keys,
            remote,
        ]
        errors = self.remote_errors(me, remote) | self.overlap_errors(me, cache.tensors) | self.key_errors(me, cache)
        errors |= self.alignment_errors(me, cache.tensors, remote)
        if chance(rnd, 0.15):
            errors |= self.spoil(rnd, arguments)
        elif kind == "blocks" and cache.model and chance(rnd, 0.03):
            arguments[2] = cc.BlocksCacheKey(me.cluster + 50, cache.model)
            errors.add(VALUE)

        def effect(value: object) -> None:
            cache.cache_id = value
            me.add(cache)

        self.perform(me, "register_blocks_cache" if kind == "blocks" else "register_cache", arguments, errors, effect)

    def unregister_cache(self, rnd: object) -> None:
        me = self.any_node(rnd)
        if not me.caches or chance(rnd, 0.1):
            self.perform(me, "unregister_cache", [unused_id(me)], {NOT_FOUND})
            return
        self.take_back(me, rnd.choice(list(me.caches.values())))

    def take_back(self, me: Node, cache: Cache) -> None:
        """By the function that is for it, and by the other one without success."""
        wrong = {VALUE} if cache.allocated else set()
        self.perform(me, "unregister_cache", [cache.cache_id], wrong, lambda value: self.gone(me, cache), timeout=60.0)
        if cache.allocated:
            method = "deallocate_blocks_cache" if cache.kind == "blocks" else "deallocate_cache"
            self.ask(me.cluster, "forget", cache.cache_id)
            self.perform(
                me, method, [wire.CacheRef(cache.cache_id)], set(), lambda value: self.gone(me, cache), timeout=60.0
            )

    def gone(self, me: Node, cache: Cache) -> None:
        del me.caches[cache.cache_id]
        for lease in me.leases:
            if lease.cache_id == cache.cache_id:
                lease.live = False
        for name in [name for name in me.buffers if name.startswith(f"cache {cache.cache_id} ")]:
            del me.buffers[name]

    # --- allocating -------------------------------------------------------------------------------------------------

    def allocate(self, rnd: object) -> None:
        me = self.any_node(rnd)
        if sum(c.allocated for c in me.caches.values()) > 3:
            self.deallocate(rnd)
            return
        kind = rnd.choice(["blocks", "entries"])
        cache, _ = self.draw_cache(rnd, kind)
        cache.allocated = True
        if kind == "blocks":
            cache.model = rnd.choice((*MODELS, None))
            keys = cc.BlocksCacheKey(me.cluster, cache.model) if cache.model else None
        else:
            cache.keys = self.draw_entry_keys(rnd, me, cache.blocks)
            keys = self.real_keys(cache.keys, me)
        cache.remote = True
        errors = self.key_errors(me, cache) if me.facts["allocate"] else {"NotSupportedError"}
        arguments = [descriptor(len(cache.tensors), cache.blocks, cache.block_bytes, cache.data_type), keys]
        if chance(rnd, 0.05):
            arguments[0] = None
            errors = {"MissingArgumentError"}
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

    def deallocate(self, rnd: object) -> None:
        me = self.any_node(rnd)
        if not me.caches:
            return
        cache = rnd.choice([c for c in me.caches.values() if c.allocated] or list(me.caches.values()))
        method = rnd.choice(["deallocate_blocks_cache", "deallocate_cache"])
        errors = set()
        if cache.kind == "layers":
            errors = {"CacheTypeError", VALUE}
        elif not cache.allocated or (cache.kind == "blocks") is not (method == "deallocate_blocks_cache"):
            errors = {VALUE}
        if not errors:
            self.ask(me.cluster, "forget", cache.cache_id)
        reference = wire.CacheRef(cache.cache_id)
        self.perform(me, method, [reference], errors, lambda value: self.gone(me, cache), timeout=60.0)
        if not errors and chance(rnd, 0.3):
            self.perform(me, method, [reference], {NOT_FOUND})

    def remove_cache_key(self, rnd: object) -> None:
        me = self.any_node(rnd)
        live = [(cache, i) for cache in me.caches.values() for i, key in enumerate(cache.keys) if key]
        if not live or chance(rnd, 0.3):
            known = {key for cache in me.caches.values() for key in cache.keys}
            key = ("req", me.cluster, rnd.choice(IDS), rnd.choice(MODELS))
            if key not in known:
                self.perform(me, "remove_cache_key", [real_key(key)], {NOT_FOUND})
            return
        cache, index = rnd.choice(live)

        def effect(value: object) -> None:
            cache.keys[index] = None

        self.perform(me, "remove_cache_key", [real_key(cache.keys[index])], set(), effect)

    # --- layers -----------------------------------------------------------------------------------------------------

    def register_layers(self, rnd: object) -> None:
        """One buffer for each layer; in it two tensors of different blocks, side by side or behind each other."""
        me = self.any_node(rnd)
        used = {t.buffer for cache in me.of_kind("layers") for t in cache.tensors}
        free = [name for name in LAYERED if name not in used]
        if not free:
            self.take_back(me, rnd.choice(me.of_kind("layers")))
            return
        chosen = rnd.sample(free, rnd.randint(1, len(free)))
        blocks = rnd.choice(BLOCKS)
        wide, narrow = rnd.choice([(128, 64), (128, 64), (128, 64), (64, 32)])
        interleaved = chance(rnd, 0.5)
        cache = Cache(0, "layers", 4, [], True, group=rnd.choice(["", "state"]))
        cache.model = rnd.choice(LAYER_MODELS)
        layers: dict[str, list[object]] = {}
        names = (
            ["layer.0", "layer.1", "layer.2", "layer.3"][: len(chosen)]
            if chance(rnd, 0.8)
            else rnd.sample(LAYERED, len(chosen))
        )
        for name, buffer in zip(names, chosen, strict=True):
            stride = wide + narrow if interleaved else wide
            second = wide if interleaved else blocks * wide
            tensors = [
                Tensor(buffer, 0, blocks, wide, stride),
                Tensor(buffer, second, blocks, narrow, stride if interleaved else narrow),
            ]
            cache.layers[name] = [len(cache.tensors), len(cache.tensors) + 1]
            cache.tensors += tensors
            layers[name] = [
                wire.TensorRef(wire.Place(t.buffer, t.offset), (blocks, t.block_bytes), (t.stride, 1), 4)
                for t in tensors
            ]
        errors = set()
        if any((c.model, c.group) == (cache.model, cache.group) for c in me.of_kind("layers")):
            errors.add("CacheKeyExistsError")
        if chance(rnd, 0.1):
            layers, wrong = rnd.choice([({}, {VALUE}), (None, {"MissingArgumentError"}), ([1], {"CacheTypeError"})])
            errors |= wrong
        elif chance(rnd, 0.05):
            first = next(iter(layers))
            layers[first] = [layers[first][0], wire.TensorRef(wire.Place(chosen[0], 0), (blocks + 1, 32), (32, 1), 4)]
            errors.add(INCOMPATIBLE)

        def effect(value: object) -> None:
            cache.cache_id = value
            me.add(cache)

        key = cc.BlocksCacheKey(me.cluster, cache.model)
        self.perform(me, "register_layers", [layers], errors, effect, key=key, group=cache.group)


def touch(one: tuple[str, int, int], other: tuple[str, int, int]) -> bool:
    """Whether two ranges share a byte."""
    return one[0] == other[0] and one[1] < other[1] + other[2] and other[1] < one[1] + one[2]
