"""Rules for errors that random arguments never meet: refusals from outside, memory that moved or is not there."""

from __future__ import annotations

import cachecore as cc
from modelsuite import wire
from modelsuite.base import chance, real_key
from modelsuite.blocks import BlockRules
from modelsuite.oracle import VALUE, Cache, Tensor
from modelsuite.peers import PeerRules
from modelsuite.registering import BUDGET, RegisterRules, descriptor
from modelsuite.sizes import DEVICE, LAYERED, NOWHERE

#: More than any machine has.
TOO_MUCH = 1 << 46


def layer(buffer: str, offset: int = 0) -> wire.TensorRef:
    """A small tensor of a layer."""
    return wire.TensorRef(wire.Place(buffer, offset), (2, 32), (32, 1), 4)


class RareRules(RegisterRules, BlockRules, PeerRules):
    """What comes from the machine, from plugins, or from a caller who did something else meanwhile."""

    def out_of_memory(self, rnd: object) -> None:
        me = self.any_node(rnd)
        errors = {"CacheOutOfMemoryError"} if me.facts["allocate"] else {"NotSupportedError"}
        desc = cc.CacheDesc(2, [2, TOO_MUCH], cc.DataType.DT_UINT8)
        self.perform(me, rnd.choice(["allocate_cache", "allocate_blocks_cache"]), [desc], errors)

    def refused_from_outside(self, rnd: object) -> None:
        """By a policy, or by the engine's native call; nothing stays behind, so that the same call succeeds."""
        me = self.node_with_room(rnd)
        used = {} if me is None else {t.buffer for cache in me.caches.values() for t in cache.tensors}
        free = [name for name in DEVICE if name not in used]
        if me is None or len(free) < 2:
            return
        names = rnd.sample(free, 2)
        cache = Cache(0, "blocks", 4, [Tensor(name, 0, 4, 64, 64) for name in names], True)
        arguments = [descriptor(2, 4, 64, 4), [wire.Place(name) for name in names], None, True]
        by, error = rnd.choice([("policy", "RegistrationRefusedError"), ("engine", "EngineError")])
        method = rnd.choice(["register_blocks_cache", "register_cache"])
        arguments[2] = None if method == "register_blocks_cache" else ()
        cache.kind = "blocks" if method == "register_blocks_cache" else "entries"
        self.perform(me, method, arguments, {error}, refuse=by)

        def effect(value: object) -> None:
            cache.cache_id = value
            me.add(cache)

        self.perform(me, method, arguments, set(), effect)

    def refused_elsewhere(self, rnd: object) -> None:
        """The same for the other functions that register; nothing is left of the attempt."""
        me = self.node_with_room(rnd)
        used = {} if me is None else {t.buffer for cache in me.caches.values() for t in cache.tensors}
        free = [name for name in DEVICE if name not in used]
        layered = [name for name in LAYERED if name not in used]
        if me is None or not free or not layered:
            return
        by, error = rnd.choice([("policy", "RegistrationRefusedError"), ("engine", "EngineError")])
        method = rnd.choice(["allocate_cache", "allocate_blocks_cache", "register_layers", "tensors"])
        more: dict[str, object] = {"remote_accessible": True, "refuse": by}
        if method == "tensors":
            method = rnd.choice(["register_blocks_tensors", "register_cache_tensors"])
            given: object = [wire.ArrayRef(wire.Place(rnd.choice(free)), (4, 64), "uint8")]
        elif method == "register_layers":
            given = {"layer.0": [layer(rnd.choice(layered))]}
        else:
            given = descriptor(2, 4, 64, 4)
            error = error if me.facts["allocate"] else "NotSupportedError"
        self.perform(me, method, [given], {error}, **more)

    def layers_that_cannot_be(self, rnd: object) -> None:
        """`register_layers` over memory that is another's, off its page, or nobody's."""
        me = self.any_node(rnd)
        raw = [cache for cache in me.caches.values() if cache.kind != "layers" and not cache.allocated]
        used = {t.buffer for cache in me.caches.values() for t in cache.tensors}
        free = [name for name in LAYERED if name not in used]
        what = rnd.choice(["overlap", "page", "unmapped", "budget", "strided", "host"])
        if what == "overlap" and raw:
            tensor = rnd.choice(rnd.choice(raw).tensors)
            tensors, errors = [layer(tensor.buffer, tensor.offset)], {"OverlapError"}
        elif what == "page" and free and me.facts["backend"] == "ascend_a2a3":
            tensors, errors = [layer(rnd.choice(free), 64)], {"AlignmentError"}
        elif what == "unmapped":
            tensors, errors = [layer("", NOWHERE)], {"MemoryAccessError", "PlacementError", "AlignmentError"}
        elif what == "budget" and me.facts["backend"] == "host":
            # Neither adjacent nor, as far as the driver knows, of one allocation.
            first = me.facts["unknown_memory"]
            places = [wire.Place("", first + 4 * i) for i in range(BUDGET + 1)]
            tensors = [wire.TensorRef(place, (2, 1), (1, 1), 4) for place in places]
            errors = {"AddressBudgetError"}
        elif what == "host" and me.facts["backend"] != "host":  # called the device's
            tensors, errors = [layer("h0")], {"PlacementError"}
        elif what == "strided":
            tensors = [wire.TensorRef(wire.Place(rnd.choice(LAYERED)), (2, 32), (128, 2), 4)]
            errors = {VALUE}
        else:
            return
        self.perform(me, "register_layers", [{"layer.0": tensors}], errors)

    def the_wrong_placement(self, rnd: object) -> None:
        """Device memory called the host's; on a plain host both names are right."""
        me = self.any_node(rnd)
        if me.facts["backend"] == "host":
            return
        desc = cc.CacheDesc(1, [2, 64], cc.DataType.DT_UINT8, cc.Placement.HOST)
        method = rnd.choice(["register_blocks_cache", "register_cache"])
        self.perform(me, method, [desc, [wire.Place(rnd.choice(DEVICE))]], {"PlacementError", "OverlapError"})

    def off_its_page(self, rnd: object) -> None:
        """Memory that HCCS could not share: a slice of an allocation, off its page. Only A2 and A3 ask."""
        me = self.any_node(rnd)
        used = {t.buffer for cache in me.caches.values() for t in cache.tensors}
        free = [name for name in DEVICE if name not in used]
        if me.facts["backend"] != "ascend_a2a3" or not free:
            return
        method = rnd.choice(["register_blocks_cache", "register_cache"])
        place = wire.Place(rnd.choice(free), rnd.choice([64, 128, 512]))
        self.perform(me, method, [descriptor(1, 2, 64, 4), [place]], {"AlignmentError"})

    def a_moved_tensor(self, rnd: object) -> None:
        """An array that was resized is not used any more, and can be unregistered."""
        me = self.node_with_room(rnd)
        used = {} if me is None else {t.buffer for cache in me.caches.values() for t in cache.tensors}
        free = [name for name in DEVICE if name not in used]
        if me is None or not free:
            return
        name = rnd.choice(free)
        cache = Cache(0, "blocks", 4, [Tensor(name, 0, 4, 64, 64)], True)

        def effect(value: object) -> None:
            cache.cache_id = value
            me.add(cache)

        array = wire.MovingRef(wire.Place(name), (4, 64))
        self.perform(me, "register_blocks_tensors", [[array]], set(), effect, remote_accessible=True)
        self.ask(me.cluster, "moved", True)
        own, key = wire.CacheRef(cache.cache_id), real_key(("blocks", self.any_node(rnd).cluster, 1))
        host = wire.HostCacheRef((4, 64), (wire.Place("h0"),))
        destination = cc.TransferWithCacheKeyConfig(key)
        calls = [(method, [key, own, [0], [0]]) for method in ("pull_blocks", "push_blocks")]
        calls += [(f"{method}_async", arguments) for method, arguments in calls]
        calls += [("copy_blocks", [own, {0: [1]}]), ("swap_blocks", [own, host, {0: 1}])]
        calls.append(("transfer_cache_async", [own, "synchronizer: ready", [destination], [0], [0]]))
        for _ in range(3):
            method, arguments = rnd.choice(calls)
            self.perform(me, method, arguments, {"AddressMovedError"})
        self.ask(me.cluster, "moved", False)
        if chance(rnd, 0.5):
            self.take_back(me, cache)

    def foreign_keys(self, rnd: object) -> None:
        """A link with keys that the other side does not admit."""
        me = self.any_node(rnd)
        other = rnd.choice([node for node in self.nodes if node is not me])
        if other.cluster in me.links:
            self.drop(me, other.cluster)
        where = self.addresses[other.cluster]
        self.perform(me, "link", [other.cluster, where], {"AuthenticationError"}, security="foreign keys", timeout=60.0)

    def a_full_inbox(self, rnd: object) -> None:
        """Who sends is told; afterwards there is room again."""
        me = self.any_node(rnd)
        others = [n for n in self.nodes if n is not me and me.links.get(n.cluster) == n.life]
        if not others:
            return
        other = rnd.choice(others)
        self.ask(other.cluster, "inbox_takes", 0)
        self.perform(me, "notify", [other.cluster, "late", b""], {"LinkBusyError"}, timeout=60.0)
        self.ask(other.cluster, "inbox_takes", None)

    def anything(self, rnd: object) -> tuple[str, list[object]]:
        """A call of some method with arguments that are right."""
        own, blocks, entry = None, real_key(("blocks", 1, 1)), real_key(("index", 1, 1, 0))
        lately = descriptor(1, 2, 64, 4)
        return rnd.choice(
            [
                ("allocate_blocks_cache", [lately]),
                ("allocate_cache", [lately]),
                ("copy_blocks", [own, {0: [1]}]),
                ("copy_cache", [own, own]),
                ("deallocate_blocks_cache", [own]),
                ("deallocate_cache", [own]),
                ("expired_leases", []),
                ("lease", [own, [0], 1.0]),
                ("link", [1, "127.0.0.1:1"]),
                ("notifications", []),
                ("notify", [1, "late"]),
                ("on_notification", [None]),
                ("pull_blocks", [blocks, own, [0], [0]]),
                ("pull_blocks_async", [blocks, own, [0], [0]]),
                ("pull_cache", [entry, own]),
                ("pull_cache_async", [entry, own]),
                ("push_blocks", [blocks, own, [0], [0]]),
                ("push_blocks_async", [blocks, own, [0], [0]]),
                ("push_cache", [entry, own]),
                ("push_cache_async", [entry, own]),
                ("query_register_mem_status", [1]),
                ("register_blocks_cache", [lately, [4096]]),
                ("register_blocks_tensors", [[]]),
                ("register_cache", [lately, [4096]]),
                ("register_cache_tensors", [[]]),
                ("register_layers", [{}]),
                ("release_lease", [None]),
                ("remap_registered_memory", [[]]),
                ("remove_cache_key", [real_key(("req", 1, 1, 1))]),
                ("renew_lease", [None, 1.0]),
                ("swap_blocks", [own, own, {0: 1}]),
                ("transfer_cache_async", [own, "synchronizer: ready", []]),
                ("unlink", [1]),
                ("unregister_cache", [1]),
                ("wait_notification", [0.0]),
            ]
        )

    def a_closed_manager(self, rnd: object) -> None:
        me = self.any_node(rnd)
        method, arguments = self.anything(rnd)
        self.perform(me, method, arguments, {"ManagerClosedError"}, closed=True)

    def a_forked_child(self, rnd: object) -> None:
        """It has the memory of its parent, and none of its threads."""
        me = self.any_node(rnd)
        method, arguments = self.anything(rnd)
        self.perform(me, method, arguments, {"ForkedProcessError"}, forked=True)

    def an_impatient_wait(self, rnd: object) -> None:
        """Waiting for a transfer ends without ending it."""
        call = self.sound_call(rnd, pull=True, few=True)
        if call is None:
            return
        more = {"tensor_num_per_layer": 1, "timeout": 60.0, "never": True}
        told = self.call(call.me, "pull_blocks_async", *call.arguments, then="impatient", **more)
        expected = ["CacheTimeoutError"] * 3 + ["TransferCancelledError"]
        self.expect(told == expected, f"waiting in vain for a transfer of cluster {call.me.cluster} gave {told}")
        for name in ("Transfer.wait", "Transfer.wait_layer", "Transfer.exception"):
            self.count(name, "CacheTimeoutError")
