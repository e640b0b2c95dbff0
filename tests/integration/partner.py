"""A manager in a process of its own that grants leases, pulls, pushes and notifies as its parent tells it, line by line.

Run by path; reads one JSON object a line from stdin and answers each with one on stdout. It ends when stdin ends, so
that it never outlives the test. `pull` runs in a thread and waits for `go`, so that the parent can see it under way.
"""

import json
import os
import sys
import threading

import cachecore as cc
from cachecore import _core

TENSORS, BLOCKS, BLOCK_BYTES = 2, 16, 4096


class Partner:
    """The commands."""

    def __init__(self, cluster_id, listen):
        self.manager = cc.CacheManager(cluster_id, backend="host", listen=listen)
        self.pulls = {}

    def link(self, cluster_id, address):
        self.manager.link(cluster_id, address, timeout=20)

    def register(self):
        self.cache, self.addresses = register(self.manager)
        return self.cache.cache_id

    def lease(self, blocks, ttl):
        return self.manager.lease(self.cache, blocks, ttl).to_bytes().hex()

    def pull(self, name, cluster_id, blocks, lease=None, wait=True, timeout=60.0):
        """Start to pull into the same blocks; a pull that waits does so after it has claimed its lease."""
        go, result = threading.Event(), []
        if not wait:
            go.set()
        given = None if lease is None else cc.BlockLease.from_bytes(bytes.fromhex(lease))

        def run():
            key = cc.BlocksCacheKey(cluster_id)
            result.append(
                outcome(
                    lambda: self.manager.pull_blocks(
                        key, self.cache, blocks, blocks, lease=given, after=go, timeout=timeout
                    )
                )
            )

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.pulls[name] = (thread, go, result)

    def go(self, name):
        self.pulls[name][1].set()

    def go_when_notified(self, name):
        """As `go`, when a notification comes."""
        self.manager.on_notification(lambda item: self.go(name))

    def result(self, name, seconds=60.0):
        thread, _, result = self.pulls[name]
        thread.join(seconds)
        return result[0] if result else None

    def wrong(self, blocks, content):
        """Blocks that do not hold what `content` says."""
        return wrong(self.addresses, blocks, content)

    def notify(self, cluster_id, name, payload="", timeout=20.0):
        return outcome(lambda: self.manager.notify(cluster_id, name, payload.encode(), timeout=timeout))

    def notifications(self, seconds=0.0):
        items = self.manager.notifications()
        if not items and (item := self.manager.wait_notification(seconds)) is not None:
            items = [item]
        return [[item.cluster_id, item.name, item.payload.decode()] for item in items]


def register(manager):
    """A blocks cache of known content."""
    made = [manager.backend.allocate(BLOCKS * BLOCK_BYTES, cc.Placement.DEVICE) for _ in range(TENSORS)]
    addresses = [allocation.address for allocation in made]
    fill(addresses, manager.cluster_id)
    desc = cc.CacheDesc(TENSORS, [BLOCKS, BLOCK_BYTES], cc.DataType.DT_UINT8)
    key = cc.BlocksCacheKey(manager.cluster_id)
    return manager.register_blocks_cache(desc, addresses, key), addresses


def seeds(tensor, blocks, content):
    return [content * 2**40 + tensor * 2**20 + block for block in blocks]


def fill(addresses, content, blocks=range(BLOCKS)):
    """Write `content` into blocks of every tensor."""
    for tensor, base in enumerate(addresses):
        places = [base + block * BLOCK_BYTES for block in blocks]
        _core.fill_blocks(places, seeds(tensor, blocks, content), BLOCK_BYTES)


def wrong(addresses, blocks, content):
    found = []
    for tensor, base in enumerate(addresses):
        places = [base + block * BLOCK_BYTES for block in blocks]
        found += [
            [tensor, blocks[index]]
            for index, _ in _core.find_mismatches(places, seeds(tensor, blocks, content), BLOCK_BYTES)
        ]
    return found


def outcome(call):
    try:
        call()
    except cc.CacheError as error:
        return [type(error).__name__, str(error)]
    return ["done", ""]


def main():
    partner = Partner(int(sys.argv[1]), sys.argv[2] or None)
    print(json.dumps({"address": partner.manager.address, "pid": os.getpid()}), flush=True)
    lock = threading.Lock()

    def handle(request):
        try:
            answer = {"result": getattr(partner, request.pop("do"))(**request)}
        except Exception as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        with lock:
            print(json.dumps(answer), flush=True)

    for line in sys.stdin:
        handle(json.loads(line))
    partner.manager.close()


if __name__ == "__main__":
    main()
