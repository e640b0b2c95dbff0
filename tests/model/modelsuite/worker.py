"""Managers and their memory, told what to do over standard input. Started by `wire.Worker`."""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import os
import sys
import traceback
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import cachecore as cc
from cachecore.outcome import FailureCause, Outcome
from cachecore.testing.harness import MemoryHarness
from modelsuite import wire
from modelsuite.sizes import BUFFERS, HOST, content


class Layer(cc.LayerSynchronizer):
    """Says when a layer of `transfer_cache_async` is ready."""

    def __init__(self, ready: bool = True) -> None:
        self.ready = ready

    def synchronize_layer(self, layer_index: int, timeout_in_millis: int | None = None) -> bool:
        return self.ready


class Breaker:
    """Lets one native transfer fail before its first byte, as an engine reports it."""

    def __init__(self, manager: cc.CacheManager) -> None:
        self.fail_at = 0
        self.wrap(manager.backend, "copy", 0)
        for binding in manager._engines:
            self.wrap(binding.engine, "transfer", 1)

    def wrap(self, owner: object, name: str, plan_at: int) -> None:
        """Stand before a method."""
        real = getattr(owner, name)

        def method(*arguments: object, **more: object) -> Outcome:
            self.fail_at -= 1
            if self.fail_at == 0:
                return Outcome.untouched_by(FailureCause.NATIVE, arguments[plan_at].chunks, message="on purpose")
            return real(*arguments, **more)

        setattr(owner, name, method)


class Side:
    """The manager, its buffers and everything it handed out."""

    def __init__(self, cluster_id: int) -> None:
        self.cluster_id = cluster_id
        self.manager: cc.CacheManager | None = None

    # --- life -------------------------------------------------------------------------------------------------------

    def reset(self, seed: int) -> dict[str, object]:
        """A new manager, every buffer filled anew."""
        self.end()
        self.manager = cc.CacheManager(self.cluster_id, listen="127.0.0.1:0")
        self.memory = MemoryHarness(self.manager.backend)
        self.caches: dict[int, object] = {}
        self.buffers: dict[str, tuple[int, int]] = {}
        self.is_host = self.manager.backend.name == "host"
        for name, nbytes in BUFFERS.items():
            placement = cc.Placement.HOST if name in HOST else cc.Placement.DEVICE
            address = self.memory.allocate(nbytes, placement)
            self.buffers[name] = address, nbytes
            self.write(address, content(seed, name, nbytes))
        self.breaker = Breaker(self.manager)
        limits = self.manager.backend.capabilities()
        return {
            "address": self.manager.address,
            "backend": self.manager.backend.name,
            "optional": limits.remote_access_optional.value_or(True),
            "allocate": limits.allocate_caches.value_or(True),
            "copies": True,  # also where the vendor does not offer them
        }

    def end(self) -> None:
        """Close everything."""
        if self.manager is not None:
            self.manager.close(timeout=60.0)
            self.manager = None
            self.memory_closed()

    def memory_closed(self) -> None:
        """The driver is closed with the manager, which frees what it gave."""
        self.memory._allocations.clear()
        self.memory._staging = None

    # --- calls ------------------------------------------------------------------------------------------------------

    def call(
        self, method: str, *arguments: object, then: str = "", fill: int | None = None, fail_at: int = 0, **more: object
    ) -> wire.Answer:
        """Call a method of the manager; references become what they stand for."""
        self.breaker.fail_at = fail_at
        try:
            result = getattr(self.manager, method)(
                *(self.resolve(a) for a in arguments), **{name: self.resolve(a) for name, a in more.items()}
            )
            if then == "wait":
                result = result.wait(60.0)
            elif then == "await":
                result = asyncio.run(awaited(result))
            elif then == "results":
                result = [int(code) for code in result.get_results(60_000)]
            value = self.keep(result, fill)
        except cc.CacheError as error:
            value = wire.Failure(
                type(error).__name__,
                int(error.status_code),
                str(error),
                tuple(getattr(error, "landed", ())),
                tuple(getattr(error, "unknown", ())),
            )
        return wire.Answer(value, self.digests())

    def resolve(self, given: object) -> object:
        """What a reference stands for."""
        if isinstance(given, wire.Place):
            return self.buffers[given.buffer][0] + given.offset if given.buffer else given.offset
        if isinstance(given, wire.CacheRef):
            return self.caches[given.cache_id]
        if isinstance(given, wire.HostCacheRef):
            desc = cc.CacheDesc(len(given.places), list(given.shape), cc.DataType.DT_UINT8, cc.Placement.HOST)
            return cc.Cache.create_cpu_cache(desc, [self.resolve(place) for place in given.places])
        if isinstance(given, wire.TensorRef):
            return cc.TensorSpec(
                self.resolve(given.place), given.shape, given.strides, cc.DataType(given.data_type), cc.Placement.DEVICE
            )
        if isinstance(given, list):
            return [self.resolve(item) for item in given]
        if isinstance(given, dict):
            return {key: self.resolve(item) for key, item in given.items()}
        if given in ("layers that are ready", "a layer that is never ready"):
            return Layer(given == "layers that are ready")
        return given

    def keep(self, result: object, fill: int | None) -> object:
        """What travels: caches by id, everything else as it is."""
        if hasattr(result, "cache_id") and hasattr(result, "tensor_addrs"):
            self.caches[result.cache_id] = result
            if fill is not None:
                for index, address in enumerate(result.tensor_addrs):
                    name = f"cache {result.cache_id} tensor {index}"
                    nbytes = result.cache_desc.size
                    self.buffers[name] = address, nbytes
                    self.write(address, content(fill, name, nbytes))
            return result.cache_id
        if isinstance(result, cc.Peer):
            return result.cluster_id
        return result

    def forget(self, cache_id: int) -> None:
        """The memory of an allocated cache is gone."""
        for name in [name for name in self.buffers if name.startswith(f"cache {cache_id} ")]:
            del self.buffers[name]

    def digests(self) -> dict[str, bytes]:
        """Of every buffer."""
        return {
            name: hashlib.blake2b(self.read(address, nbytes), digest_size=8).digest()
            for name, (address, nbytes) in self.buffers.items()
        }

    def read(self, address: int, nbytes: int) -> bytes:
        """As the harness does, which would ask the kernel about every address again."""
        return ctypes.string_at(address, nbytes) if self.is_host else self.memory.read(address, nbytes)

    def write(self, address: int, data: bytes) -> None:
        """As `read`."""
        if self.is_host:
            ctypes.memmove(address, data, len(data))
        else:
            self.memory.write(address, data)

    def content(self, name: str) -> bytes:
        """One buffer, for messages."""
        return self.memory.read(*self.buffers[name])

    def notifications(self) -> list[tuple[int, str, bytes]]:
        """What came, oldest first."""
        return [(note.cluster_id, note.name, bytes(note.payload)) for note in self.manager.notifications()]


async def awaited(transfer: object) -> object:
    """The result of a transfer, the way a server waits for it."""
    return await asyncio.wait_for(transfer, 60.0)


def main() -> None:
    """Answer until the pipe ends."""
    incoming, outgoing = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # whatever prints must not reach the pipe
    sides: dict[int, Side] = {}
    while True:
        try:
            cluster, what, arguments, more = wire.receive(incoming, 86400.0)
        except wire.WorkerGoneError:
            for side in sides.values():
                side.end()
            return
        try:
            side = sides.setdefault(cluster, Side(cluster))
            answer = getattr(side, what)(*arguments, **more)
        except Exception as error:  # anything but a CacheError is a fault that ends the test
            answer = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        wire.send(outgoing, answer)


if __name__ == "__main__":
    main()
