"""Rules that register memory of the worker: addresses, arrays and named layers."""

from __future__ import annotations

import cachecore as cc
from cachecore.types import NO_ID
from modelsuite import wire
from modelsuite.base import Frame, chance, fault, real_key
from modelsuite.oracle import INCOMPATIBLE, VALUE, Cache, Key, Node, Tensor
from modelsuite.sizes import (
    BLOCK_BYTES,
    BLOCKS,
    CACHES,
    DEVICE,
    IDS,
    LAYER_MODELS,
    LAYERED,
    MODELS,
    NOWHERE,
    TENSORS,
    TYPES,
)

BUDGET = 240
REGISTER_FAULTS = ["overlap", "key", "count", "missing", "type", "unmapped", "budget", "remote", "offset"]


def descriptor(tensors: int, blocks: int, block_bytes: int, data_type: int) -> cc.CacheDesc:
    """Blocks (or entries) by elements."""
    kind = cc.DataType(data_type)
    return cc.CacheDesc(tensors, [blocks, block_bytes // kind.itemsize], kind, cc.Placement.DEVICE)


class RegisterRules(Frame):
    """`register_cache`, `register_blocks_cache`, the same for tensors, and `register_layers`."""

    # --- what is wrong ----------------------------------------------------------------------------------------------

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
            if any(touch(one, other) for other in new[:index]):
                return {"OverlapError"}
            if any(one != other and touch(one, other) for other in live):
                return {"OverlapError"}
        return set()

    def alignment_errors(self, me: Node, tensors: list[Tensor], remote: bool | None) -> set[str]:
        """Memory that the driver cut from its pages, off them."""
        off = any(t.offset for t in tensors)
        return {"AlignmentError"} if off and remote is not False and me.facts["backend"] == "ascend_a2a3" else set()

    def key_errors(self, me: Node, cache: Cache) -> set[str]:
        errors = set()
        live = [key for other in me.named() for key in other.keys if key]
        named = [key for key in cache.keys if key]
        if len(cache.keys) > cache.blocks:
            errors.add(VALUE)
        if len(set(named)) != len(named) or any(key in live for key in named):
            errors.add("CacheKeyExistsError")
        if cache.model is not None and any(c.model == cache.model for c in me.of_kind("blocks")):
            errors.add("CacheKeyExistsError")
        return errors

    # --- choosing ---------------------------------------------------------------------------------------------------

    def draw_cache(self, rnd: object, me: Node, kind: str, wrong: str) -> Cache:
        """A cache in buffers that nothing is in, or in exactly the memory of another."""
        data_type, _ = rnd.choice(TYPES)
        blocks, block_bytes, count = rnd.choice(BLOCKS), rnd.choice(BLOCK_BYTES), rnd.choice(TENSORS)
        used = {t.buffer for cache in me.caches.values() for t in cache.tensors}
        free = [name for name in DEVICE if name not in used]
        offset = 64 if wrong == "offset" else 0
        again = [cache for cache in me.caches.values() if cache.kind != "layers" and not cache.allocated]
        if again and not wrong and (chance(rnd, 0.3) or len(free) < count):
            old = rnd.choice(again).tensors
            data_type = old[0].data_type
            tensors = [Tensor(t.buffer, t.offset, t.blocks, t.block_bytes, t.block_bytes, data_type) for t in old]
            if chance(rnd, 0.3):
                rnd.shuffle(tensors)
            return Cache(0, kind, data_type, tensors, True)
        buffers = rnd.sample(free if len(free) >= count else DEVICE, count)
        if wrong == "overlap":
            buffers = rnd.sample(sorted(used & set(DEVICE)) or DEVICE, 1) * 2
        tensors = [Tensor(name, offset, blocks, block_bytes, block_bytes, data_type) for name in buffers]
        return Cache(0, kind, data_type, tensors, True)

    def draw_keys(self, rnd: object, me: Node, cache: Cache, wrong: str) -> object:
        """Keys for a cache; returns them as callers write them."""
        if cache.kind == "blocks":
            models = [one.model for one in me.of_kind("blocks")]
            free = [model for model in MODELS if model not in models]
            cache.model = rnd.choice(free) if free and chance(rnd, 0.9) else None
            if wrong == "key":
                taken = [model for model in models if model is not None]
                cache.model = rnd.choice(taken or MODELS)
            return real_key(("blocks", me.cluster, cache.model)) if cache.model else None
        live = [key for one in me.named() for key in one.keys if key]
        for _ in range(rnd.randint(0, cache.blocks)):
            kind = rnd.choice(["req", "req", "req", "prefix", None])
            key: Key | None = kind and (kind, me.cluster, rnd.choice(IDS), rnd.choice(MODELS))
            cache.keys.append(None if key in live or key in cache.keys else key)
        if wrong == "key" and chance(rnd, 0.6):
            key = rnd.choice(live) if live else ("req", me.cluster, 50, 1)
            cache.keys = [key] if live else [key, key]
        elif wrong in ("key", "count"):
            cache.keys = [("req", me.cluster, 90 + i, 1) for i in range(cache.blocks + 1)]
        return [real_key(key) if key else cc.CacheKey(me.cluster, NO_ID) for key in cache.keys]

    def spoil(self, rnd: object, me: Node, arguments: list[object], wrong: str, kind: str) -> set[str]:
        """Make one of (desc, addrs, keys, remote) wrong; returns the error."""
        if wrong == "count" and kind == "blocks":
            what = rnd.randrange(3)
            if what == 0:
                arguments[1] = arguments[1][:-1]
            elif what == 1:
                arguments[1] = [*arguments[1][:-1], 0]
            else:
                arguments[2] = cc.BlocksCacheKey(me.cluster + 50, 1)
            return {VALUE}
        if wrong == "missing":
            arguments[rnd.randrange(2)] = None
            return {"MissingArgumentError"}
        if wrong == "type":
            what = rnd.randrange(3)
            arguments[what] = ["addresses", "addresses", 7][what]
            return {"CacheTypeError"}
        if wrong == "unmapped":  # nothing was ever mapped there
            arguments[1] = [*arguments[1][:-1], wire.Place("", 0x10000 * 65536 * 4096)]
            return {"MemoryAccessError", "PlacementError", "AlignmentError"}
        if wrong == "budget":
            desc = arguments[0]
            arguments[0] = cc.CacheDesc(BUDGET + 1, desc.shape, desc.data_type)
            arguments[1] = [0x100000 * (i + 1) for i in range(BUDGET + 1)]
            return {"AddressBudgetError"}
        return set()

    # --- registering ------------------------------------------------------------------------------------------------

    def register_blocks_cache(self, rnd: object) -> None:
        self.register(rnd, "blocks")

    def register_cache(self, rnd: object) -> None:
        self.register(rnd, "entries")

    def node_with_room(self, rnd: object) -> Node | None:
        """A manager that may have one more cache."""
        me = self.any_node(rnd)
        if len(me.caches) < CACHES:
            return me
        self.take_back(me, rnd.choice(list(me.caches.values())))
        return None

    def register(self, rnd: object, kind: str) -> None:
        me = self.node_with_room(rnd)
        if me is None:
            return
        wrong = fault(rnd, REGISTER_FAULTS, 0.45)
        cache = self.draw_cache(rnd, me, kind, wrong)
        keys = self.draw_keys(rnd, me, cache, wrong)
        remote = False if wrong == "remote" else rnd.choice([None, None, None, True])
        if not wrong and me.facts["optional"] and chance(rnd, 0.08):
            remote = False
        cache.remote = remote is not False
        arguments = [
            descriptor(len(cache.tensors), cache.blocks, cache.block_bytes, cache.data_type),
            [wire.Place(t.buffer, t.offset) for t in cache.tensors],
            keys,
            remote,
        ]
        errors = self.remote_errors(me, remote) | self.overlap_errors(me, cache.tensors) | self.key_errors(me, cache)
        errors |= self.alignment_errors(me, cache.tensors, remote) | self.spoil(rnd, me, arguments, wrong, kind)

        def effect(value: object) -> None:
            cache.cache_id = value
            me.add(cache)

        self.perform(me, "register_blocks_cache" if kind == "blocks" else "register_cache", arguments, errors, effect)

    def register_blocks_tensors(self, rnd: object) -> None:
        self.register_tensors(rnd, "blocks")

    def register_cache_tensors(self, rnd: object) -> None:
        self.register_tensors(rnd, "entries")

    def register_tensors(self, rnd: object, kind: str) -> None:
        """Arrays over the same memory, or what looks like tensors of a device."""
        me = self.node_with_room(rnd)
        if me is None:
            return
        faults = ["overlap", "key", "missing", "type", "empty", "unlike", "unmapped", "budget", "offset", "remote"]
        wrong = fault(rnd, faults if me.facts["backend"] == "host" else [*faults, "mixed"], 0.4)
        cache = self.draw_cache(rnd, me, kind, wrong)
        keys = self.draw_keys(rnd, me, cache, wrong)
        kind_of_number = {4: "uint8", 1: "float16"}[cache.data_type]
        shape = (cache.blocks, cache.block_bytes // {4: 1, 1: 2}[cache.data_type])
        given: object = [wire.ArrayRef(wire.Place(t.buffer, t.offset), shape, kind_of_number) for t in cache.tensors]
        errors = self.overlap_errors(me, cache.tensors) | self.key_errors(me, cache)
        if wrong == "missing":
            given, errors = None, errors | {"MissingArgumentError"}
        elif wrong == "type":
            given, errors = rnd.choice([7, [7]]), errors | {"CacheTypeError"}
        elif wrong == "empty":
            given, errors = [], errors | {VALUE}
        elif wrong == "unlike":
            given = [*given, wire.ArrayRef(wire.Place("l0", 0), (shape[0], 8), "uint8")]
            errors = errors | {INCOMPATIBLE, VALUE}
        elif wrong == "unmapped":
            given = [*given[:-1], wire.ArrayRef(wire.Place("", NOWHERE), shape, kind_of_number)]
            errors = errors | {"MemoryAccessError", "PlacementError", "AlignmentError"}
        elif wrong == "mixed":  # memory of the host among the device's
            given = [*given, wire.ArrayRef(wire.Place("h0"), shape, kind_of_number)]
            errors = errors | {"PlacementError"}
        elif wrong == "budget":
            places = [wire.Place("", 0x100000 * (i + 1)) for i in range(BUDGET + 1)]
            given = [wire.ArrayRef(place, shape, kind_of_number) for place in places]
            errors = errors | {"AddressBudgetError"}
        cache.remote = remote = wrong != "remote"
        errors = errors | self.remote_errors(me, remote) | self.alignment_errors(me, cache.tensors, remote)

        def effect(value: object) -> None:
            cache.cache_id = value
            me.add(cache)

        named = {"blocks_cache_key": keys} if kind == "blocks" else {"cache_keys": keys}
        method = "register_blocks_tensors" if kind == "blocks" else "register_cache_tensors"
        self.perform(me, method, [given], errors, effect, remote_accessible=remote, **named)

    # --- layers -----------------------------------------------------------------------------------------------------

    def register_layers(self, rnd: object) -> None:
        """One buffer for each layer; in it two tensors of different blocks, side by side or behind each other."""
        me = self.any_node(rnd)
        wrong = fault(rnd, ["key", "empty", "missing", "type", "unlike", "remote"], 0.4)
        used = {t.buffer for cache in me.of_kind("layers") for t in cache.tensors}
        free = [name for name in LAYERED if name not in used]
        pairs = [(model, group) for model in LAYER_MODELS for group in ("", "", "state")]
        taken = [(cache.model, cache.group) for cache in me.of_kind("layers")]
        if not free or (wrong == "key" and not taken) or all(pair in taken for pair in pairs):
            if me.of_kind("layers"):
                self.take_back(me, rnd.choice(me.of_kind("layers")))
            return
        chosen = rnd.sample(free, rnd.randint(1, min(2, len(free))))
        blocks = rnd.choice(BLOCKS)
        wide, narrow = rnd.choice([(128, 64), (128, 64), (128, 64), (64, 32)])
        interleaved = chance(rnd, 0.5)
        cache = Cache(0, "layers", 4, [], True)
        cache.model, cache.group = rnd.choice(taken if wrong == "key" else [p for p in pairs if p not in taken])
        layers: dict[str, list[object]] = {}
        names = ["layer.0", "layer.1"][: len(chosen)] if chance(rnd, 0.85) else rnd.sample(LAYERED, len(chosen))
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
        errors = {"CacheKeyExistsError"} if (cache.model, cache.group) in taken else set()
        more: dict[str, object] = {"key": cc.BlocksCacheKey(me.cluster, cache.model), "group": cache.group}
        given: object = layers
        if wrong in ("empty", "missing", "type"):
            given, error = {"empty": ({}, VALUE), "missing": (None, "MissingArgumentError")}.get(
                wrong, ([1], "CacheTypeError")
            )
            errors.add(error)
        elif wrong == "unlike":
            first = next(iter(layers))
            layers[first] = [layers[first][0], wire.TensorRef(wire.Place(chosen[0], 0), (blocks + 1, 32), (32, 1), 4)]
            errors.add(INCOMPATIBLE)
        elif wrong == "remote" and not me.facts["optional"]:
            more["remote_accessible"] = False
            errors.add("NotSupportedError")

        def effect(value: object) -> None:
            cache.cache_id = value
            me.add(cache)

        self.perform(me, "register_layers", [given], errors, effect, **more)


def touch(one: tuple[str, int, int], other: tuple[str, int, int]) -> bool:
    """Whether two ranges share a byte."""
    return one[0] == other[0] and one[1] < other[1] + other[2] and other[1] < one[1] + one[2]
