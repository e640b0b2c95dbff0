"""A rule for `transfer_cache_async` into memory of the host that a peer offers."""

from __future__ import annotations

import cachecore as cc
from modelsuite import wire
from modelsuite.base import chance, real_key
from modelsuite.blocks import BlockRules
from modelsuite.oracle import VALUE, Cache, Tensor
from modelsuite.sizes import HOST


class HostedRules(BlockRules):
    """Destinations in memory of the host."""

    def send_to_host_memory(self, rnd: object) -> None:
        """Of a peer in another process; where it cannot be the remote side, it cannot be offered either."""
        pairs = [
            (me, own, node)
            for me in self.nodes
            for node in self.reachable(me)
            for own in me.of_kind("blocks")
            if node.process != me.process and own.remote and own.data_type == 4 and len(own.tensors) <= len(HOST)
        ]
        if not pairs:
            return
        me, own, node = rnd.choice(pairs)
        count, block_bytes = len(own.tensors), own.block_bytes
        tensors = [Tensor(name, 0, 4, block_bytes, block_bytes) for name in HOST[:count]]
        cache = Cache(0, "blocks", 4, tensors, True)

        def effect(value: object) -> None:
            cache.cache_id = value
            node.add(cache)

        desc = cc.CacheDesc(count, [4, block_bytes], cc.DataType.DT_UINT8, cc.Placement.HOST)
        places = [wire.Place(tensor.buffer) for tensor in tensors]
        refused = {VALUE} if me.facts["backend"] == "ascend_a2a3" else set()
        self.perform(node, "register_blocks_cache", [desc, places, None, True], refused, effect)
        if refused:
            return
        source, target = self.draw_blocks(rnd, own.blocks, 4)
        self.planned(me, own, node, cache, source, target, (None, None, 1), (None, None))
        moves = self.moves
        config = cc.TransferWithCacheKeyConfig(real_key(("index", node.cluster, cache.cache_id, 0)))
        if chance(rnd, 0.5):
            where = self.ask(node.cluster, "where")
            config = cc.TransferConfig(node.cluster, [where[tensor.buffer] for tensor in tensors])
        arguments = [wire.CacheRef(own.cache_id), "synchronizer: ready", [config], source, target]

        def arrived(told: list[tuple[int, str | None, int]]) -> None:
            self.expect(told == [(0, None, 0)], f"transfer_cache_async to host memory told {told}")
            self.oracle.move(*moves)

        label = "transfer_cache_async to host memory"
        more = {"then": "results", "tensor_num_per_layer": 1}
        self.perform(me, "transfer_cache_async", arguments, set(), arrived, label=label, **more)
        self.take_back(node, cache)
