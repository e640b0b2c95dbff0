"""Pushes, pulls that are waited for later, and layers that are sent one by one, between processes, while things fail."""

import asyncio
import importlib.util
import signal
import threading
from pathlib import Path

import pytest

import cachecore as cc
from cachecore import _core

spec = importlib.util.spec_from_file_location("owner", Path(__file__).with_name("owner.py"))
owner_script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(owner_script)

LAYERS, BLOCKS, BLOCK = 6, 16, 16384
SIZES = {"tensors": LAYERS, "blocks": BLOCKS, "block_bytes": BLOCK}
#: What this side's blocks hold: seeds that no block of an owner has.
MARK = 1000
BLOCK_RANGE = range(BLOCKS)


@pytest.fixture
def near():
    with Near() as made:
        yield made


class Near:
    """The manager of this process with one cache."""

    def __init__(self):
        self.manager = cc.CacheManager(9, backend="host")
        self.addresses = [
            self.manager.backend.allocate(BLOCKS * BLOCK, cc.Placement.DEVICE).address for _ in range(LAYERS)
        ]
        self.cache = self.manager.register_blocks_cache(
            cc.CacheDesc(LAYERS, [BLOCKS, BLOCK], cc.DataType.DT_UINT8), self.addresses
        )
        self.fill()
        #: Called in the thread that moves, before the engine moves the plan with this number.
        self.before = {}
        engine = self.manager._engines[0].engine
        transfer, numbers = engine.transfer, iter(range(10**6))

        def watched(*arguments):
            self.before.get(next(numbers), lambda: None)()
            return transfer(*arguments)

        engine.transfer = watched

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.manager.close(timeout=20)

    def fill(self):
        for tensor, address in enumerate(self.addresses):
            seeds = owner_script.addresses_and_seeds(
                address, tensor, BLOCK_RANGE, BLOCK, [MARK + b for b in BLOCK_RANGE]
            )
            _core.fill_blocks(*seeds, BLOCK)

    def link(self, owner, cluster_id=1, foreign=False):
        """Link to an owner; returns the id of its new cache."""
        cache_id = owner.ask("register", **SIZES, foreign=foreign)
        self.manager.link(cluster_id, owner.address, timeout=20)
        return cache_id

    def wrong(self, content, tensors=range(LAYERS)):
        """(tensor, position) of the blocks that do not hold what `content` says."""
        return [
            (tensor, position)
            for tensor in tensors
            for position, _ in _core.find_mismatches(
                *owner_script.addresses_and_seeds(self.addresses[tensor], tensor, BLOCK_RANGE, BLOCK, content), BLOCK
            )
        ]

    def pull(self, **more):
        return self._start(self.manager.pull_blocks_async, **more)

    def push(self, **more):
        return self._start(self.manager.push_blocks_async, **more)

    def _start(self, method, cluster_id=1, **more):
        more = {"tensor_num_per_layer": 1, "layerwise": True, "timeout": 30, **more}
        return method(cc.BlocksCacheKey(cluster_id), self.cache, BLOCK_RANGE, BLOCK_RANGE[::-1], **more)


#: Block i is moved to block -i-1: what the destination then holds.
PULLED = list(BLOCK_RANGE[::-1])
PUSHED = [MARK + block for block in PULLED]
WHOLE = {"blocks": list(BLOCK_RANGE), "block_bytes": BLOCK}


@pytest.mark.parametrize("foreign", [False, True])
def test_pushes_and_pulls_arrive(owners, near, foreign):
    owner = owners()
    cache_id = near.link(owner, foreign=foreign)
    pulled = near.pull()
    pulled.wait(20)
    assert not near.wrong(PULLED) and not owner.ask("wrong", cache_id=cache_id, **WHOLE)
    near.fill()

    async def both_ways():
        await near.push(layerwise=False)

    asyncio.run(both_ways())
    assert not owner.ask("wrong", cache_id=cache_id, content=PUSHED, **WHOLE)
    near.manager.push_blocks(
        cc.CacheKeyByIdAndIndex(1, cache_id), near.cache, [3], [0], range(2), range(4, 6), 1, timeout=20
    )
    content = [MARK + 3, *PUSHED[1:]]
    # The content of a block is that of the tensor it came from, so only its first word says where it went.
    assert owner.ask("wrong", cache_id=cache_id, content=content, tensors=[0, 1, 2, 3], **WHOLE) == [
        [tensor, 0] for tensor in range(4)
    ]
    stats = near.manager.stats()
    assert (stats.pulls, stats.pushes, stats.pushes_failed) == (1, 2, 0)


@pytest.mark.parametrize("push", [False, True])
def test_cancelling_in_the_middle(owners, near, push):
    owner = owners()
    cache_id = near.link(owner)
    near.before[2] = lambda: transfer.cancel()
    gate = threading.Event()
    transfer = (near.push if push else near.pull)(after=gate)
    gate.set()
    with pytest.raises(cc.TransferCancelledError) as caught:
        transfer.wait(20)
    whole = [cc.BlockRange(tensor, 0, BLOCKS) for tensor in range(2)]
    assert list(caught.value.landed) == whole and caught.value.unknown == ()
    assert transfer.progress.layers_done == 2
    moved, rest = [0, 1], list(range(2, LAYERS))
    if push:
        assert not owner.ask("wrong", cache_id=cache_id, content=PUSHED, tensors=moved, **WHOLE)
        assert not owner.ask("wrong", cache_id=cache_id, tensors=rest, **WHOLE)
    else:
        assert not near.wrong(PULLED, moved) and not near.wrong([MARK + b for b in BLOCK_RANGE], rest)
    near.pull().wait(20)  # the link is as good as before


@pytest.mark.parametrize("push", [False, True])
def test_a_deadline_in_the_middle(owners, near, push):
    near.link(owners())
    near.before[3] = lambda: threading.Event().wait(1.5)
    transfer = (near.push if push else near.pull)(timeout=1.0)
    with pytest.raises(cc.TransferTimeoutError) as caught:
        transfer.wait(20)
    assert len(caught.value.landed) == 3 and caught.value.unknown == ()
    near.pull().wait(20)


@pytest.mark.parametrize("push", [False, True])
def test_a_peer_that_is_killed_in_the_middle(owners, near, push):
    """Hole 13: a dead peer was noticed only by a timeout."""
    owner = owners()
    near.link(owner)

    def kill():
        owner.signal(signal.SIGKILL)
        owner.process.wait(20)

    near.before[2] = kill
    transfer = (near.push if push else near.pull)()
    with pytest.raises(cc.LinkLostError) as caught:
        transfer.wait(15)
    assert caught.value.state == "LOST"
    assert list(caught.value.landed) == [cc.BlockRange(tensor, 0, BLOCKS) for tensor in range(2)]
    assert near.manager.stats().quarantined == 0
    near.manager.unregister_cache(near.cache.cache_id, timeout=10)  # nothing of it is in use any more


@pytest.mark.parametrize("push", [False, True])
def test_a_peer_that_is_killed_whenever(owners, near, push):
    owner = owners()
    near.link(owner, foreign=push)
    start = near.push if push else near.pull
    transfers = [start(layerwise=False) for _ in range(20)]
    transfers[0].wait(20)
    owner.signal(signal.SIGKILL)
    ended = [transfer.exception(20) for transfer in transfers]
    owner.process.wait(20)
    with pytest.raises(cc.LinkLostError):
        for _ in range(1000):
            start(timeout=5).wait(20)
    assert all(error is None or isinstance(error, cc.LinkLostError) for error in ended), ended


class AllReady(cc.LayerSynchronizer):
    def synchronize_layer(self, layer_index, timeout_in_millis):
        return True


def test_a_destination_that_dies_leaves_the_other_alone(owners, near):
    """Hole 9: one status for each destination."""
    first, second = owners(1), owners(2)
    near.link(first, 1)
    cache_id = near.link(second, 2)

    class Killing(cc.LayerSynchronizer):
        def synchronize_layer(self, layer_index, timeout_in_millis):
            if layer_index == 3:
                first.signal(signal.SIGKILL)
                first.process.wait(20)
            return True

    configs = [cc.TransferWithCacheKeyConfig(cc.BlocksCacheKey(number)) for number in (1, 2)]
    task = near.manager.transfer_cache_async(
        near.cache, Killing(), configs, list(BLOCK_RANGE), PULLED, tensor_num_per_layer=1
    )
    assert task.get_results(30000) == [cc.StatusCode.LINK_FAILED, cc.StatusCode.SUCCESS]
    assert not second.ask("wrong", cache_id=cache_id, content=PUSHED, **WHOLE)


def test_addresses_of_another_process_are_looked_up(owners, near):
    owner = owners()
    cache_id = near.link(owner, foreign=True)
    addrs = owner.ask("addresses_of", cache_id=cache_id)
    send = near.manager.transfer_cache_async
    blocks = (list(BLOCK_RANGE), PULLED)
    with pytest.raises(cc.CacheValueError, match="in no paged cache"):
        bad = cc.TransferConfig(1, [addrs[0] + (1 << 40), *addrs[1:]])
        send(near.cache, AllReady(), [bad], *blocks, tensor_num_per_layer=1)
    assert not owner.ask("wrong", cache_id=cache_id, **WHOLE)
    task = send(near.cache, AllReady(), [cc.TransferConfig(1, addrs)], *blocks, tensor_num_per_layer=1)
    assert task.synchronize(30000) is cc.StatusCode.SUCCESS
    assert not owner.ask("wrong", cache_id=cache_id, content=PUSHED, **WHOLE)


def test_an_owner_keeps_what_is_being_written_and_gives_it_back_afterwards(owners, near):
    owner = owners()
    cache_id = near.link(owner)
    hold, reached = threading.Event(), threading.Event()
    near.before[2] = lambda: (reached.set(), hold.wait(20))
    transfer = near.push()
    assert reached.wait(20)
    owner.post("unregister", cache_id=cache_id, timeout=0.3)
    with pytest.raises(AssertionError, match="CacheBusyError"):
        owner.answer()
    hold.set()
    transfer.wait(20)
    owner.ask("unregister", cache_id=cache_id, timeout=20)
    with pytest.raises(cc.CacheNotFoundError):
        near.push()
