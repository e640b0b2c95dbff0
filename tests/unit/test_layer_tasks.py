"""`transfer_cache_async`: each layer when it is ready, each destination for itself."""

import threading
import time

import numpy as np
import pytest

import cachecore as cc

LAYERS, PER_LAYER, BLOCKS, BLOCK = 4, 2, 4, 32
TENSORS = LAYERS * PER_LAYER
SUCCESS, TIMEOUT, FAILED = cc.StatusCode.SUCCESS, cc.StatusCode.TIMEOUT, cc.StatusCode.FAILED


class Layers(cc.LayerSynchronizer):
    """Layers become ready when the test says so."""

    def __init__(self, ready=LAYERS):
        self.asked, self.ready = [], ready
        self.changed = threading.Condition()

    def synchronize_layer(self, layer_index, timeout_in_millis):
        with self.changed:
            self.asked.append((layer_index, timeout_in_millis))
            return self.changed.wait_for(lambda: self.ready > layer_index, timeout_in_millis / 1000)

    def release(self, ready):
        with self.changed:
            self.ready = ready
            self.changed.notify_all()


class Sites:
    """A sender and two receivers in one process."""

    def __init__(self):
        self.receivers = [cc.CacheManager(n, backend="host", listen="127.0.0.1:0") for n in (1, 2)]
        self.sender = cc.CacheManager(3, backend="host")
        for number, receiver in enumerate(self.receivers, 1):
            self.sender.link(number, receiver.address, timeout=10)
        random = np.random.default_rng(3)
        self.source = [random.integers(1, 256, (BLOCKS, BLOCK), np.uint8) for _ in range(TENSORS)]
        self.paged = self.sender.register_blocks_tensors(self.source)
        self.plain_source = [tensor.copy() for tensor in self.source]
        self.plain = self.sender.register_cache_tensors(self.plain_source)
        self.arrived = [[np.zeros((BLOCKS, BLOCK), np.uint8) for _ in range(TENSORS)] for _ in range(2)]
        self.caches = [
            receiver.register_blocks_tensors(tensors, blocks_cache_key=cc.BlocksCacheKey(number))
            for number, (receiver, tensors) in enumerate(zip(self.receivers, self.arrived, strict=True), 1)
        ]

    def key(self, number, **more):
        return cc.TransferWithCacheKeyConfig(cc.BlocksCacheKey(number), **more)

    def send(self, synchronizer, configs, **more):
        return self.sender.transfer_cache_async(self.paged, synchronizer, configs, [0, 1], [2, 3], **more)

    def layers_at(self, receiver, source_layer=lambda layer: layer):
        """Layers of the receiver whose blocks 2 and 3 are blocks 0 and 1 of the source's layer."""
        return [
            layer
            for layer in range(LAYERS)
            if all(
                (
                    self.arrived[receiver][layer * PER_LAYER + t][2:]
                    == self.source[source_layer(layer) * PER_LAYER + t][:2]
                ).all()
                for t in range(PER_LAYER)
            )
        ]

    def close(self):
        for manager in (self.sender, *self.receivers):
            manager.close(timeout=20)


@pytest.fixture
def sites():
    made = Sites()
    yield made
    made.close()


def test_every_layer_arrives_after_it_was_ready(sites):
    synchronizer = Layers(ready=2)
    task = sites.send(synchronizer, [sites.key(1), sites.key(2)], timeout=20)
    wait_for(lambda: sites.layers_at(0) == sites.layers_at(1) == [0, 1])
    assert not task.done and task.get_results(0) == [cc.StatusCode.WAIT_PROC_TIMEOUT] * 2
    assert task.synchronize(0) is cc.StatusCode.WAIT_PROC_TIMEOUT
    synchronizer.release(LAYERS)
    assert task.get_results(20000) == [SUCCESS, SUCCESS] and task.synchronize() is SUCCESS and task.done
    assert sites.layers_at(0) == sites.layers_at(1) == [0, 1, 2, 3]
    assert [layer for layer, _ in synchronizer.asked] == [0, 1, 2, 3]  # once each, in order, for both destinations
    # Hole 9: the layer's timeout was always None. It is what is left of the whole.
    assert all(0 < millis <= 20000 for _, millis in synchronizer.asked)
    assert all(not tensor[:2].any() for tensor in sites.arrived[0])


def wait_for(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()


def test_the_destination_layer_counts_from_the_start_of_its_range(sites):
    """Hole 9: it was taken from the counter of the source, wrong where the source range does not start at 0."""
    configs = [
        sites.key(1, src_layer_range=range(2, 4), dst_layer_range=range(2)),
        cc.TransferConfig(2, sites.caches[1].tensor_addrs[2:6], range(2, 4)),
    ]
    assert sites.send(Layers(), configs).synchronize(20000) is SUCCESS
    assert sites.layers_at(0, lambda layer: min(layer + 2, 3)) == [0, 1]
    assert sites.layers_at(1, lambda layer: min(layer + 1, 3)) == [1, 2]
    assert sum(tensor.any() for tensor in sites.arrived[0] + sites.arrived[1]) == 8


def test_one_failing_destination_does_not_end_the_others(sites):
    """Hole 9: the first failure aborted the others, whose status stayed None."""
    sites.receivers[0].unregister_cache(sites.caches[0].cache_id)
    configs = [sites.key(7), sites.key(1), cc.TransferWithCacheKeyConfig(cc.CacheKeyByIdAndIndex(2, 99)), sites.key(2)]
    task = sites.send(Layers(), configs)
    missing = cc.StatusCode.KV_CACHE_NOT_EXIST
    assert task.get_results(20000) == [cc.StatusCode.NOT_YET_LINK, missing, missing, SUCCESS]
    assert task.synchronize() is cc.StatusCode.NOT_YET_LINK
    assert [type(error) for error in task.errors] == [
        cc.NotLinkedError,
        cc.CacheNotFoundError,
        cc.CacheNotFoundError,
        type(None),
    ]
    assert sites.layers_at(1) == [0, 1, 2, 3]


def test_a_destination_that_fails_on_the_way_leaves_the_other_alone(sites, monkeypatch):
    copy, broken = sites.sender.backend.copy, sites.caches[0].tensor_addrs[2 * PER_LAYER]

    def failing(plan, deadline):
        bases, _ = plan.groups()[0]
        if bases.tolist()[0][0] == broken:
            return cc.Outcome.untouched_by(cc.FailureCause.NATIVE, plan.chunks, message="a broken wire")
        return copy(plan, deadline)

    monkeypatch.setattr(sites.sender.backend, "copy", failing)
    task = sites.send(Layers(), [sites.key(1), sites.key(2)])
    assert task.get_results(20000) == [FAILED, SUCCESS]
    error = task.errors[0]
    assert "a broken wire" in str(error)  # hole 8: what had arrived before
    assert error.landed == tuple(cc.BlockRange(tensor, 2, 2) for tensor in range(2 * PER_LAYER))
    assert sites.layers_at(0) == [0, 1] and sites.layers_at(1) == [0, 1, 2, 3]


class Raising(Layers):
    def synchronize_layer(self, layer_index, timeout_in_millis):
        if layer_index == 2:
            raise ZeroDivisionError("the model failed")
        return super().synchronize_layer(layer_index, timeout_in_millis)


def test_an_exception_of_the_synchronizer_is_a_failure(sites):
    """Hole 9: it read as success. Who wants no later layer is not concerned."""
    task = sites.send(Raising(), [sites.key(1), sites.key(2, src_layer_range=range(2), dst_layer_range=range(2))])
    assert task.get_results(20000) == [FAILED, SUCCESS]
    error = task.errors[0]
    assert "ZeroDivisionError: the model failed" in str(error) and isinstance(error.__cause__, ZeroDivisionError)
    assert sites.layers_at(0) == [0, 1]


def test_a_layer_that_is_not_ready_in_time_is_a_timeout(sites):
    task = sites.send(Layers(ready=1), [sites.key(1)], timeout=0.2)
    assert task.get_results(20000) == [TIMEOUT] and "returned False" in str(task.errors[0])
    assert sites.layers_at(0) == [0] and sites.sender.stats().pushes_failed == 1
    # Hole 8: the error said that nothing had changed.
    assert isinstance(task.errors[0], cc.TransferTimeoutError)
    assert task.errors[0].landed == tuple(cc.BlockRange(tensor, 2, 2) for tensor in range(PER_LAYER))

    class Careless(cc.LayerSynchronizer):
        def synchronize_layer(self, layer_index, timeout_in_millis):
            """Returns None, which is not True."""

    assert sites.send(Careless(), [sites.key(1)]).get_results(20000) == [TIMEOUT]


def test_caches_with_one_tensor_a_layer(sites):
    """Hole 9: two tensors a layer were hard-wired."""
    task = sites.send(Layers(ready=TENSORS), [sites.key(1)], tensor_num_per_layer=1)
    assert task.synchronize(20000) is SUCCESS and sites.layers_at(0) == [0, 1, 2, 3]


def test_nothing_of_the_caller_is_changed(sites):
    """Hole 9: the configurations were changed."""
    addrs, src, dst = list(sites.caches[1].tensor_addrs), [0, 1], [2, 3]
    configs = [cc.TransferConfig(2, addrs), sites.key(1)]
    before = repr(configs)
    task = sites.sender.transfer_cache_async(sites.paged, Layers(ready=0), configs, src, dst, timeout=0.1)
    src[:], dst[:], addrs[:] = [3, 3], [0, 0], [0]
    assert task.get_results(20000) == [TIMEOUT, TIMEOUT] and repr(configs) == before


@pytest.mark.parametrize("by_addresses", [False, True])
def test_contiguous_sources_go_to_entries_and_to_blocks(sites, by_addresses):
    entry = [np.zeros((2, BLOCK), np.uint8) for _ in range(TENSORS)]
    plain = sites.receivers[0].register_cache_tensors(entry)
    small = [np.zeros((8, BLOCK // 2), np.uint8) for _ in range(TENSORS)]
    pages = sites.receivers[0].register_blocks_tensors(small, blocks_cache_key=cc.BlocksCacheKey(1, 5))
    if by_addresses:
        to_entry = cc.TransferConfig(1, [address + BLOCK for address in plain.tensor_addrs], None, 3)
        to_blocks = cc.TransferConfig(1, pages.tensor_addrs, src_batch_index=3)
    else:
        to_entry = cc.TransferWithCacheKeyConfig(cc.CacheKeyByIdAndIndex(1, plain.cache_id, 1), src_batch_index=3)
        to_blocks = cc.TransferWithCacheKeyConfig(cc.BlocksCacheKey(1, 5), src_batch_index=3)
    send = sites.sender.transfer_cache_async
    assert send(sites.plain, Layers(), [to_entry]).synchronize(20000) is SUCCESS
    assert send(sites.plain, Layers(), [to_blocks], None, [6, 1], BLOCK // 2).synchronize(20000) is SUCCESS
    for source, there, blocks in zip(sites.plain_source, entry, small, strict=True):
        assert (there[1] == source[3]).all() and not there[0].any()
        assert (np.concatenate([blocks[6], blocks[1]]) == source[3]).all() and not blocks[[0, 2, 3, 4, 5, 7]].any()


def test_addresses_are_looked_up_and_not_believed(sites):
    addrs = sites.caches[0].tensor_addrs
    hidden = sites.receivers[0].register_blocks_tensors(
        [np.zeros((BLOCKS, BLOCK), np.uint8) for _ in range(TENSORS)], remote_accessible=False
    )
    refused = {
        "is in no paged cache": [address + BLOCKS * BLOCK * 1000000 for address in addrs],
        "must be its start": [address + BLOCK for address in addrs],
        "dst_addrs\\[1\\] is .* not where a tensor": [addrs[0], addrs[1] + 1, *addrs[2:]],
        "as dst_addrs\\[0\\] is": [addrs[0], *addrs[:7]],
        "which makes 8": addrs[:4],
        "cluster 1 has registered": hidden.tensor_addrs,
    }
    for message, given in refused.items():
        with pytest.raises(cc.CacheValueError, match=message):
            sites.send(Layers(), [sites.key(2), cc.TransferConfig(1, given)])
    assert not any(tensor.any() for both in sites.arrived for tensor in both)  # nothing was started for anybody
    late = [np.zeros((BLOCKS, BLOCK), np.uint8) for _ in range(TENSORS)]
    cache = sites.receivers[0].register_blocks_tensors(late)
    assert sites.send(Layers(), [cc.TransferConfig(1, cache.tensor_addrs[::-1])]).synchronize(20000) is SUCCESS
    assert all((t[2:] == s[:2]).all() for t, s in zip(late[::-1], sites.source, strict=True))


def test_addresses_of_a_cache_that_shares_a_tensor_with_one_that_is_known(sites):
    sites.send(Layers(), [sites.key(1)]).synchronize(20000)
    late = [np.zeros((BLOCKS, BLOCK), np.uint8) for _ in range(TENSORS - 1)]
    cache = sites.receivers[0].register_blocks_tensors([sites.arrived[0][0], *late])
    task = sites.send(Layers(), [cc.TransferConfig(1, cache.tensor_addrs)])  # before the peer has told of it
    assert task.synchronize(20000) is SUCCESS
    assert all((t[2:] == s[:2]).all() for t, s in zip(late, sites.source[1:], strict=True))


def test_bad_arguments_are_refused_by_the_call(sites):
    send, key = sites.sender.transfer_cache_async, sites.key(1)
    named = sites.sender.register_layers({"layer": [np.zeros((4, BLOCK), np.uint8)]})
    bad = [
        (cc.MissingArgumentError, "transfer_configs", lambda: send(sites.paged, Layers(), None, [0], [0])),
        (cc.CacheValueError, "is empty", lambda: send(sites.paged, Layers(), [], [0], [0])),
        (cc.CacheTypeError, r"transfer_configs\[0\]", lambda: send(sites.paged, Layers(), [1], [0], [0])),
        (cc.CacheTypeError, "layer_synchronizer", lambda: send(sites.paged, object(), [key], [0], [0])),
        (cc.CacheIncompatibleError, "push_blocks_async", lambda: send(named, Layers(), [key], [0], [0])),
        (cc.CacheValueError, "give src_block_indices", lambda: send(sites.paged, Layers(), [key])),
        (cc.CacheValueError, "src_block_indices", lambda: send(sites.paged, Layers(), [key], [9], [0])),
        (cc.CacheValueError, "dst_block_indices", lambda: send(sites.paged, Layers(), [key], [0], [9])),
        (cc.CacheIncompatibleError, "has 32", lambda: send(sites.paged, Layers(), [key], [0], [0], 16)),
        (cc.CacheValueError, "give dst_block_indices", lambda: send(sites.plain, Layers(), [key])),
        (cc.CacheValueError, "leave it out", lambda: send(sites.plain, Layers(), [key], [0], [0])),
        (cc.CacheIncompatibleError, "divide", lambda: sites.send(Layers(), [key], tensor_num_per_layer=3)),
        (cc.CacheValueError, "src_batch_index is 1", lambda: sites.send(Layers(), [sites.key(1, src_batch_index=1)])),
        (cc.CacheTypeError, "dst_addrs", lambda: cc.TransferConfig(1, 5)),
        (cc.CacheTypeError, r"dst_addrs\[0\]", lambda: cc.TransferConfig(1, [1.5])),
        (cc.CacheTypeError, "cache_key", lambda: cc.TransferWithCacheKeyConfig(cc.CacheKey(1, 2))),
        (cc.CacheTypeError, "src_layer_range", lambda: sites.key(1, src_layer_range=[0, 1])),
    ]
    for error, message, call in bad:
        with pytest.raises(error, match=message):
            call()
    task = sites.send(Layers(), [key])
    with pytest.raises(cc.CacheTypeError, match="timeout_in_millis"):
        task.synchronize(1.5)
    assert task.synchronize(20000) is SUCCESS


def test_a_task_can_be_cancelled(sites):
    task = sites.send(Layers(ready=0), [sites.key(1), sites.key(2)], timeout=1)
    task.cancel()
    assert task.get_results(20000) in ([FAILED] * 2, [FAILED, TIMEOUT], [TIMEOUT, FAILED], [TIMEOUT] * 2)
    assert sites.layers_at(0) == sites.layers_at(1) == []


def test_a_peer_that_does_not_say_what_it_has_leaves_time_for_the_others(sites, monkeypatch):
    sites.sender.push_blocks(cc.BlocksCacheKey(2), sites.paged, [0], [0])  # its owner knows of writes
    asked = []

    def silent(deadline):
        asked.append(deadline - time.monotonic())
        raise cc.CacheTimeoutError("no answer")

    monkeypatch.setattr(sites.sender._peers.get(1).dialogue, "refresh", silent)
    unknown = cc.TransferWithCacheKeyConfig(cc.BlocksCacheKey(1, 77))
    task = sites.send(Layers(), [unknown, unknown, sites.key(2)], timeout=20)
    assert task.get_results(20000) == [TIMEOUT, TIMEOUT, SUCCESS]
    assert all(seconds < 10 for seconds in asked) and len(asked) == 2
