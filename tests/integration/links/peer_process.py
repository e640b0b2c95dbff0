"""One manager's links in a process of its own, for tests: does what its parent says, line by line.

Run by path. Reads one JSON object a line from stdin and answers each with one on stdout, in any order: every command runs
in a thread. It ends when stdin ends, so that it never outlives the test.
"""

import ctypes
import gc
import json
import os
import resource
import secrets
import socket
import sys
import threading
import time
import warnings

from cachecore.engine import EngineBinding, PeerIdentity, TransferEngine
from cachecore.errors import CacheError, LinkFailedError
from cachecore.peers import BlocksKeyRecord, CacheRecord, Peers, RegionRecord, Security, Timing
from cachecore.types import BlocksCacheKey, DataType, Placement


class FakeEngine(TransferEngine):
    """Moves nothing and notes everything. `unreachable` fails connect; `proves` says whether a process lives."""

    def __init__(self, wire_id, unreachable="", proves=False):
        self.wire_id, self.unreachable, self.proves = wire_id, unreachable, proves
        self.calls = []

    def connect(self, peer, endpoint, regions, deadline):
        self.calls.append(["connect", peer.cluster_id, endpoint.decode(), [region.base for region in regions]])
        if self.unreachable:
            raise LinkFailedError(self.unreachable)

    def update(self, peer, added, removed):
        self.calls.append(["update", [region.base for region in added], [region.base for region in removed]])

    def disconnect(self, peer, deadline):
        self.calls.append(["disconnect", peer.cluster_id])
        return True

    def endpoint(self):
        return f"{self.wire_id} of {os.getpid()}".encode()

    def watch(self, peer, endpoint):
        if self.proves:
            self.calls.append(["watch", peer.cluster_id, endpoint.decode()])

    def unwatch(self, peer):
        if self.proves:
            self.calls.append(["unwatch", peer.cluster_id])

    def peer_alive(self, peer):
        if not self.proves:
            return None
        try:
            with open(f"/proc/{peer.pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] not in "ZX"
        except FileNotFoundError:
            return False

    def capabilities(self):
        raise NotImplementedError

    register = deregister = transfer = quiescent = close = capabilities


class Program:
    """The commands."""

    peers = None

    def start(self, cluster_id, listen=None, timing=None, engines=(("fake/1", 1),), security=None, insecure=False):
        self.engines = {wire_id: FakeEngine(wire_id, *more) for wire_id, _, *more in engines}
        self.events = []
        self.peers = Peers(
            PeerIdentity(cluster_id, socket.gethostname(), os.getpid(), secrets.token_hex(16)),
            listen=listen,
            engines=[EngineBinding(one[0], one[0], one[1], self.engines[one[0]]) for one in engines],
            events=lambda event: self.events.append([event.kind, event.peer]),
            timing=Timing(**timing) if timing else None,
            security=Security(**security) if security else None,
            insecure=insecure,
        )
        self.peers.start()
        return self.peers.address

    def link(self, cluster_id, address, seconds=20.0, writes=False):
        started = time.monotonic()
        link = self.peers.link(cluster_id, address, deadline=started + seconds, writes=writes)
        return {"cluster": link.identity.cluster_id, "wire_id": link.wire_id, "seconds": time.monotonic() - started}

    def unlink(self, cluster_id, seconds=20.0):
        self.peers.unlink(cluster_id, deadline=time.monotonic() + seconds)

    def state(self, cluster_id):
        link = self.peers.get(cluster_id)
        return {"state": link.state, "lease": link.lease_holds(), "fetches": link.fetches}

    def until_state(self, cluster_id, state, seconds=20.0):
        """Seconds until the link is in this state."""
        started = time.monotonic()
        while self.peers.get(cluster_id).state != state:
            if time.monotonic() - started > seconds:
                raise CacheError(f"it is {self.peers.get(cluster_id).state} and not {state}")
            time.sleep(0.002)
        return time.monotonic() - started

    def lookup(self, cluster_id, model_id, seconds=20.0):
        key = BlocksCacheKey(cluster_id, model_id)
        return self.peers.get(cluster_id).lookup(key, deadline=time.monotonic() + seconds).cache.cache_id

    def begin(self, cluster_id, cache_id):
        link = self.peers.get(cluster_id)
        link.begin(next(cache for cache in link.caches if cache.cache_id == cache_id))

    def end(self, cluster_id, cache_id):
        link = self.peers.get(cluster_id)
        link.end(next(cache for cache in link.caches if cache.cache_id == cache_id))

    def publish(self, *cache_ids):
        self.peers.publish(
            [
                CacheRecord(
                    cache_id,
                    True,
                    (BlocksKeyRecord(cache_id),),
                    1,
                    (4, 8),
                    DataType.DT_UINT8,
                    Placement.HOST,
                    0,
                    (cache_id << 12,),
                    {wire_id: (RegionRecord(cache_id << 12, 4096, Placement.HOST, b"d"),) for wire_id in self.engines},
                )
                for cache_id in cache_ids
            ]
        )

    def retire(self, cache_id, seconds=20.0):
        started = time.monotonic()
        self.peers.retire([cache_id], deadline=started + seconds)
        return time.monotonic() - started

    def sessions(self):
        return [[info.peer.cluster_id, info.state, info.wire_id] for info in self.peers.sessions]

    def calls(self, wire_id="fake/1"):
        return self.engines[wire_id].calls

    def seen(self):
        return self.events

    def counters(self):
        counters = self.peers.counters
        return {name: getattr(counters, name) for name in counters.__dataclass_fields__}

    def hold(self, seconds):
        """Keep the interpreter busy: PyDLL does not release the GIL."""
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))

    def limit_files(self, spare):
        """Let `spare` more descriptors be opened."""
        used = len(os.listdir("/proc/self/fd")) - 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        return used

    def start_with(self, spare):
        """Start with so few descriptors to spare, then without a limit."""
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.limit_files(spare)
        try:
            self.start(1, listen="127.0.0.1:0")
        except CacheError as error:
            return f"{type(error).__name__}: {error}"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        self.close()

    def forked_child(self, command, **arguments):
        """What `command` does in a forked child."""
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # forking with threads is the point
            pid = os.fork()
        if pid == 0:
            os.write(writing, json.dumps(self.run(command, arguments)).encode())
            gc.collect()
            self.peers = None
            gc.collect()
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            answer = json.loads(file.read())
        return {"exit": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), **answer}

    def fork_and_stay(self):
        """A child that inherits everything and lives until it is killed."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pid = os.fork()
        if pid == 0:
            for descriptor in range(3):  # or whoever reads our output would wait for the child
                os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
            time.sleep(60)
            os._exit(0)
        return pid

    def close(self, seconds=5.0):
        started = time.monotonic()
        unsafe = self.peers.close(deadline=started + seconds)
        return {"seconds": time.monotonic() - started, "unsafe": len(unsafe)}

    def drop(self):
        """Forget the manager without closing it. Answers how many threads are left."""
        self.peers = None
        gc.collect()
        end = time.monotonic() + 10
        while any(thread.name.startswith("cachecore-") for thread in threading.enumerate()) and time.monotonic() < end:
            time.sleep(0.01)
        return sum(thread.name.startswith("cachecore-") for thread in threading.enumerate())

    def run(self, command, arguments):
        try:
            return {"result": getattr(self, command)(*arguments.pop("args", ()), **arguments)}
        except Exception as error:
            return {"error": type(error).__name__, "message": str(error)}


def main():
    program, lock = Program(), threading.Lock()

    def handle(request):
        answer = {"id": request.pop("id"), **program.run(request.pop("do"), request)}
        with lock:
            print(json.dumps(answer), flush=True)

    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "exit":  # without closing anything
            sys.exit(request["code"])
        threading.Thread(target=handle, args=(request,), daemon=True).start()


if __name__ == "__main__":
    main()
