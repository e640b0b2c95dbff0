"""Managers and their memory, told what to do over standard input. Started by `wire.Worker`."""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import os
import sys
import threading
import time
import traceback
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import zmq

import cachecore as cc
import cachecore.peers.manager as peers
from cachecore.peers import inbox
from cachecore.peers.keyfiles import loopback_pair
from cachecore.peers.liveness import Timing
from cachecore.testing.harness import MemoryHarness
from modelsuite import holes, wire
from modelsuite.sizes import BUFFERS, HOST, LAYERED, content
from modelsuite.standins import Breaker, Deaf, DeviceTensor, Layer, Moving

#: Bytes of an allocation that shares none with another: the 950 cuts smaller ones from common ones, and the layers of
#: a cache that lie in one are registered with everything between them.
APART = 4 << 20
ENTRIES = inbox.MAX_ENTRIES
#: As the documented intervals, but that a peer which does not answer is noticed sooner.
TIMING = Timing(ping_interval=0.25, stall_after=0.75)
#: What callers give and must get back as it was.
PLAIN = (list, dict, tuple, range, cc.CacheDesc, cc.TransferWithCacheKeyConfig)


class Side:
    """The manager, its buffers and everything it handed out."""

    def __init__(self, cluster_id: int) -> None:
        self.cluster_id = cluster_id
        self.manager: cc.CacheManager | None = None
        #: Memory that no driver gave out.
        self.unknown = np.zeros(4096, np.uint8)

    # --- life -------------------------------------------------------------------------------------------------------

    def reset(self, seed: int, options: dict[str, object]) -> dict[str, object]:
        """A new manager, every buffer filled anew."""
        self.end()
        self.manager = cc.CacheManager(self.cluster_id, listen="127.0.0.1:0", options=options)
        self.waiting = None
        self.memory = MemoryHarness(self.manager.backend)
        self.caches: dict[int, object] = {}
        self.buffers: dict[str, tuple[int, int]] = {}
        self.is_host = self.manager.backend.name == "host"
        for name, nbytes in BUFFERS.items():
            placement = cc.Placement.HOST if name in HOST else cc.Placement.DEVICE
            apart = name in LAYERED and not self.is_host
            address = self.memory.allocate(APART if apart else nbytes, placement)
            self.buffers[name] = address, nbytes
            self.write(address, content(seed, name, nbytes))
        self.breaker = Breaker(self.manager)
        limits = self.manager.backend.capabilities()
        return {
            "address": self.manager.address,
            "backend": self.manager.backend.name,
            "optional": limits.remote_access_optional.value_or(True),
            "allocate": limits.allocate_caches.value_or(True),
            "unknown_memory": self.unknown.ctypes.data,
            "two_sided": options.get("manager.remote_cache_accessible") is False,
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
        self,
        method: str,
        *arguments: object,
        then: str = "",
        fill: int | None = None,
        fail_at: int = 0,
        gives_up: bool = False,
        never: bool = False,
        refuse: str = "",
        closed: bool = False,
        forked: bool = False,
        **more: object,
    ) -> wire.Answer:
        """Call a method of the manager; references become what they stand for.

        Args:
            method: Its name.
            arguments: Of the call.
            then: What to do with what it returns.
            fill: How to fill the memory of a cache that is allocated.
            fail_at: Which native transfer fails, counted from 1.
            gives_up: Whether the engine cannot say what that one did, nor, until `settle`, that it has stopped.
            never: Whether it comes after an event that never happens.
            refuse: Who refuses: "policy" or "engine" a registration, "deregister" its end, or nobody.
            closed: Whether to call a manager that was closed.
            forked: Whether to call from a forked child.
            more: Arguments with names.
        """
        breaker = self.breaker
        breaker.fail_at, breaker.gives_up, breaker.refuse, breaker.stopped = fail_at, gives_up, refuse, not gives_up
        try:
            given = [self.resolve(one) for one in arguments], {name: self.resolve(one) for name, one in more.items()}
            before = [repr(one) for one in (*given[0], *given[1].values()) if isinstance(one, PLAIN)]
            after = {"after": threading.Event()} if never else {}
            manager = self.closed_manager() if closed else self.manager
            if forked:
                return wire.Answer(in_a_child(getattr(manager, method), *given[0], **given[1]), self.digests())
            result = getattr(manager, method)(*given[0], **given[1], **after)
            if then:
                result = getattr(self, then)(result)
            value = self.keep(result, fill)
            if before != [repr(one) for one in (*given[0], *given[1].values()) if isinstance(one, PLAIN)]:
                raise RuntimeError(f"{method} changed what the caller gave: {before} became {given}")
        except cc.CacheError as error:
            value = wire.Failure(
                type(error).__name__,
                int(error.status_code),
                str(error),
                tuple(getattr(error, "landed", ())),
                tuple(getattr(error, "unknown", ())),
            )
        finally:
            breaker.fail_at, breaker.refuse = 0, ""
        return wire.Answer(value, self.digests())

    def closed_manager(self) -> cc.CacheManager:
        """One that was closed."""
        manager = cc.CacheManager(self.cluster_id, backend="host")
        manager.close()
        return manager

    def moved(self, moved: bool) -> None:
        """The last moving array is elsewhere, or back."""
        self.moving.moved = moved

    def inbox_takes(self, entries: int | None) -> None:
        """How many notifications this process lets wait; None = what it is made for."""
        inbox.MAX_ENTRIES = ENTRIES if entries is None else entries

    # --- what is done with the handle of a transfer -----------------------------------------------------------------

    def wait(self, transfer: object) -> object:
        """Wait for all of it."""
        return transfer.wait(60.0)

    def await_(self, transfer: object) -> object:
        """As a server waits for it."""
        return asyncio.run(awaited(transfer))

    def layers(self, transfer: object) -> object:
        """Wait for every layer, then for all of it."""
        for layer in range(transfer.progress.layers):
            transfer.wait_layer(layer, 60.0)
        transfer.wait(60.0)
        progress = transfer.progress
        if progress.layers_done != progress.layers:
            raise RuntimeError(f"{transfer} has ended with {progress}")
        return None

    def cancel(self, transfer: object) -> object:
        """Cancel it at once, and wait for what that gives."""
        transfer.cancel()
        return transfer.wait(60.0)

    def leave(self, transfer: object) -> object:
        """Let it wait for its event until `end_waiting`."""
        self.waiting = transfer
        return None

    def results(self, task: object) -> list[tuple[int | None, str | None, int]]:
        """For each destination its status, the name of its error, and that error's status."""
        codes, told = task.get_results(60_000), []
        for code, error in zip(codes, task.errors, strict=True):
            own = cc.StatusCode.SUCCESS if error is None else getattr(error, "status_code", cc.StatusCode.FAILED)
            told.append((code and int(code), error and type(error).__name__, int(own)))
        if not task.done or task.synchronize(0) != next((code for code in codes if code != 0), 0):
            raise RuntimeError(f"{task} has ended with {codes} and synchronize says {task.synchronize(0)}")
        return told

    def begun(self) -> bool:
        """Whether the transfer that waits for its event is counted by both sides."""
        return any(cache.running for cache in self.manager._registry.caches())

    def claimed(self) -> bool:
        """Whether a pull runs under a lease of this manager."""
        return any(info.readers for info in self.manager.leases)

    def end_waiting(self) -> str:
        """Cancel it; returns its error."""
        self.waiting.cancel()
        error = self.waiting.exception(60.0)
        if getattr(error, "landed", ()) or getattr(error, "unknown", ()):
            raise RuntimeError(f"{self.waiting} was cancelled before it began and moved {error.landed}")
        self.waiting = None
        return type(error).__name__

    def impatient(self, transfer: object) -> list[str]:
        """Wait for a transfer that never begins, in vain; returns the errors."""
        told = []
        for wait in (lambda: transfer.wait(0.01), lambda: transfer.wait_layer(0, 0.01), lambda: transfer.exception(0)):
            try:
                wait()
            except cc.CacheError as error:
                told.append(type(error).__name__)
        transfer.cancel()
        return [*told, type(transfer.exception(60.0)).__name__]

    def settle(self) -> list[tuple[int, int]]:
        """What the engine gave up has stopped; returns what is quarantined afterwards."""
        self.breaker.stopped = True
        return self.manager._transfers.quarantine.wait_empty(time.monotonic() + 60.0)

    # --- what managers know -----------------------------------------------------------------------------------------

    def link_is_lost(self, cluster: int) -> bool:
        """Whether the end of a peer was noticed."""
        return self.manager._peers.get(cluster).state == "LOST"

    def lose_link(self, cluster: int) -> None:
        """As when an engine reports that the peer is gone."""
        self.manager._peers.get(cluster).report_gone("on purpose")
        while not self.link_is_lost(cluster):
            time.sleep(0.001)

    def notify_and_lose(self, cluster: int) -> str:
        """Lose the link while a notification waits for its confirmation; returns the error."""
        told: list[str] = []

        def notify() -> None:
            try:
                self.manager.notify(cluster, "late", b"", timeout=60.0)
            except cc.CacheError as error:
                told.append(type(error).__name__)

        thread = threading.Thread(target=notify)
        thread.start()
        time.sleep(0.1)  # a notification that was not sent by then is sent to nobody, which is another error
        self.lose_link(cluster)
        thread.join()
        return told[0] if told else "ok"

    def link_state(self, cluster: int) -> str:
        """As operators see it."""
        return next(peer.state for peer in self.manager.links if peer.cluster_id == cluster)

    def numbers(self, cluster: int | None) -> int:
        """Of the last change of a catalogue: of the manager's own, or of a peer's as far as it is known."""
        peers = self.manager._peers
        return peers._sessions._catalogue.number if cluster is None else peers.get(cluster).number

    # --- arguments and results --------------------------------------------------------------------------------------

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
        if isinstance(given, wire.ArrayRef):
            if not self.is_host or not given.place.buffer:
                return DeviceTensor(self.resolve(given.place), given.shape, given.dtype)
            kind = np.dtype(given.dtype)
            count = int(np.prod(given.shape)) * kind.itemsize
            memory = (ctypes.c_uint8 * count).from_address(self.resolve(given.place))
            return np.frombuffer(memory, kind).reshape(given.shape)
        if isinstance(given, wire.MovingRef):
            tensor = self.resolve(wire.ArrayRef(given.place, given.shape, "uint8"))
            self.moving = Moving(tensor) if self.is_host else tensor
            return self.moving
        if given == "a deaf address":
            self.deaf = Deaf()
            return self.deaf.address
        if given == "foreign keys":
            return foreign_keys()
        if isinstance(given, list):
            return [self.resolve(item) for item in given]
        if isinstance(given, dict):
            return {key: self.resolve(item) for key, item in given.items()}
        if isinstance(given, str) and given.startswith("synchronizer: "):
            return Layer(given.removeprefix("synchronizer: "))
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

    def where(self) -> dict[str, int]:
        """The address of every buffer."""
        return {name: address for name, (address, _) in self.buffers.items()}

    def content(self, name: str) -> bytes:
        """One buffer, for messages."""
        return self.memory.read(*self.buffers[name])

    def notifications(self, how: str, count: int) -> list[tuple[int, str, bytes]]:
        """What came, oldest first."""
        manager = self.manager
        got: list[object] = []
        if how == "wait":
            while (note := manager.wait_notification(0.0)) is not None:
                got.append(note)
        elif how == "callback":
            manager.on_notification(got.append)
            end = time.monotonic() + 60.0
            while len(got) < count and time.monotonic() < end:
                time.sleep(0.001)
            try:
                manager.notifications()
            except cc.CacheValueError:
                pass
            else:
                raise RuntimeError("notifications are polled although a callback takes them")
            manager.on_notification(None)
        got += manager.notifications()
        return [(note.cluster_id, note.name, bytes(note.payload)) for note in got]


def in_a_child(method: object, *arguments: object, **more: object) -> wire.Failure:
    """The error that a forked child gets."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            method(*arguments, **more)
            told = "none"
        except BaseException as error:  # whatever it is, this process ends here
            told = type(error).__name__
        os.write(writing, told.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        name = answer.read()
    os.waitpid(child, 0)
    return wire.Failure(name, 0, "in a child")


def foreign_keys() -> cc.Security:
    """A pair that nobody admits, for the listeners of this user."""
    public, secret = (key.decode() for key in zmq.curve_keypair())
    return cc.Security(public, secret, server_key=loopback_pair()[0])


async def awaited(transfer: object) -> object:
    """The result of a transfer, the way a server waits for it."""
    return await asyncio.wait_for(transfer, 60.0)


def main() -> None:
    """Answer until the pipe ends."""
    incoming, outgoing = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # whatever prints must not reach the pipe
    sides: dict[int, Side] = {}
    peers.Timing = lambda: TIMING
    holes.open_hole(os.environ.get("CACHECORE_MODEL_HOLE", ""))
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
            answer = wire.Fault(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        wire.send(outgoing, answer)


if __name__ == "__main__":
    main()
