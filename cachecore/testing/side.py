"""One side of an engine under test, in this process or in another one.

`EngineSide` holds a driver, an engine and memory. `PeerProcess` runs an `EngineSide` in a fresh interpreter and
calls its methods through a pipe, so that a test can look into the peer's memory, stop it or kill it.
"""

from __future__ import annotations

import functools
import importlib
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cachecore.driver import BackendDriver, DriverSpec
from cachecore.engine import EngineSpec, PeerIdentity, Region, Registration, RemoteRegion, TransferEngine
from cachecore.testing.harness import MemoryHarness
from cachecore.types import Placement

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["EngineSide", "PeerProcess", "SideSpec", "load", "pattern"]


_PERIOD = (1 << 20) + 4099


def pattern(seed: int, nbytes: int) -> bytes:
    """Bytes that differ from seed to seed and, within some 2**20 bytes, from place to place."""
    return (_tile(seed) * (nbytes // _PERIOD + 1))[:nbytes]


@functools.lru_cache(8)
def _tile(seed: int) -> bytes:
    return random.Random(seed).randbytes(_PERIOD)


def load(reference: str) -> Any:
    """The object that `package.module:name` names."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


@dataclass(frozen=True)
class SideSpec:
    """How to make a side; plain data, so that another process can follow it.

    Attributes:
        driver: `package.module:name` of a `DriverSpec`.
        engine: The same of an `EngineSpec`.
        device: Given to the driver's factory.
        driver_options: Options of the driver, without prefix.
        engine_options: Options of the engine, without prefix.
        foreign: Whether memory is the process's own and not allocated by the driver.
    """

    driver: str
    engine: str
    device: int | None = None
    driver_options: Mapping[str, object] = field(default_factory=dict)
    engine_options: Mapping[str, object] = field(default_factory=dict)
    foreign: bool = False


class EngineSide:
    """A driver, an engine made for it and memory, as one end of a link.

    Args:
        spec: What to make.
        cluster_id: Its id.
        make_engine: Makes the engine in place of the one that `spec` names.
    """

    def __init__(
        self, spec: SideSpec, cluster_id: int, make_engine: Callable[[BackendDriver], TransferEngine] | None = None
    ) -> None:
        driver: DriverSpec = load(spec.driver)
        self.driver = driver.factory(spec.device, spec.driver_options)
        self.driver.bind_thread()
        if make_engine is None:
            engine: EngineSpec = load(spec.engine)
            self.engine = engine.factory(self.driver, spec.engine_options)
        else:
            self.engine = make_engine(self.driver)
        self.memory = MemoryHarness(self.driver, foreign=spec.foreign)
        self.registrations: dict[int, Registration] = {}
        self.identity = PeerIdentity(cluster_id, socket.gethostname(), os.getpid(), secrets.token_hex(16))

    def describe_side(self) -> tuple[PeerIdentity, bytes]:
        """Who it is and its endpoint."""
        return self.identity, self.engine.endpoint()

    def allocate(self, nbytes: int, placement: Placement = Placement.DEVICE) -> int:
        """Get memory; returns its address."""
        return self.memory.allocate(nbytes, placement)

    def fill(self, address: int, nbytes: int, seed: int) -> None:
        """Write `pattern(seed, nbytes)`."""
        self.memory.write(address, pattern(seed, nbytes))

    def register(self, ranges: Sequence[tuple[int, int]], placement: Placement) -> list[RemoteRegion]:
        """Register (address, bytes) ranges; returns what a peer is told about them."""
        made = self.engine.register([Region(base, nbytes, placement) for base, nbytes in ranges])
        self.registrations.update((one.region.base, one) for one in made)
        return [RemoteRegion(one.region.base, one.region.nbytes, placement, one.descriptor) for one in made]

    def deregister(self, base: int) -> None:
        """Undo `register` of the region that starts at `base`."""
        self.engine.deregister(self.registrations.pop(base))

    def call(self, name: str, *args: Any) -> Any:
        """Call a method by name; "memory.x", "engine.x" and "driver.x" reach the parts."""
        target: Any = self
        for part in name.split("."):
            target = getattr(target, part)
        return target(*args)

    def reset(self) -> None:
        """Deregister everything and give all memory back."""
        for base in list(self.registrations):
            self.deregister(base)
        self.memory.close()

    def close(self) -> None:
        """End engine and driver, in the order a manager does."""
        self.reset()
        left = self.engine.close(time.monotonic() + 10.0)
        assert not left, f"the engine does not let go of {left}"
        self.driver.close()


class PeerProcess:
    """An `EngineSide` in a process of its own.

    Args:
        spec: What to make there.
        cluster_id: Its id.
        setup: Python source the process runs before anything else, for example to drop privileges.
        prefix: Put before the command line, for example a program that changes the user.

    Attributes:
        identity: Who the peer is.
        endpoint: Its engine's endpoint.
    """

    def __init__(
        self, spec: SideSpec, cluster_id: int = 1, *, setup: str = "", prefix: Sequence[str] = (), timeout: float = 60.0
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [*prefix, sys.executable, "-c", f"from {__name__} import _serve; _serve({theirs.fileno()})"]
            # From the root folder: a checkout in the current one would shadow the installed package.
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd="/", stdin=subprocess.DEVNULL)
        self._pipe = Connection(ours.detach())
        self._timeout = timeout
        try:
            self._pipe.send((setup, spec, cluster_id))
            self.identity, self.endpoint = self._answer()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def call(self, name: str, *args: Any) -> Any:
        """Call a method of the side there, see `EngineSide.call`; its exceptions are raised here.

        Raises:
            TimeoutError: It did not answer.
            EOFError: It is gone.
        """
        self._pipe.send((name, args))
        return self._answer()

    def allocate(self, nbytes: int, placement: Placement = Placement.DEVICE) -> int:
        """Get memory there; returns its address."""
        address: int = self.call("allocate", nbytes, placement)
        return address

    def register(
        self, ranges: Sequence[tuple[int, int]], placement: Placement = Placement.DEVICE
    ) -> list[RemoteRegion]:
        """Register ranges there."""
        regions: list[RemoteRegion] = self.call("register", ranges, placement)
        return regions

    def write(self, address: int, data: bytes) -> None:
        """Put bytes into its memory, by its own hand."""
        self.call("memory.write", address, data)

    def read(self, address: int, nbytes: int) -> bytes:
        """Read its memory, by its own hand."""
        data: bytes = self.call("memory.read", address, nbytes)
        return data

    def kill(self, *, reap: bool = True) -> None:
        """Kill it at once; without `reap` it stays a zombie."""
        self._process.kill()
        if reap:
            self._process.wait(self._timeout)
        else:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def stop(self) -> None:
        """Suspend it; from when this returns it runs no more."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Let it run again."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it."""
        self._pipe.close()  # the peer ends when its pipe does
        self.resume()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self) -> Any:
        if not self._pipe.poll(self._timeout):
            raise TimeoutError(f"the peer process {self.pid} did not answer within {self._timeout} s")
        succeeded, value = self._pipe.recv()
        if not succeeded:
            raise value
        return value


def _serve(descriptor: int) -> None:
    """The program of the peer process: answer calls until the pipe ends."""
    pipe = Connection(descriptor)
    setup, spec, cluster_id = pipe.recv()
    side: EngineSide | None = None
    name, args = "describe_side", ()
    while True:
        try:
            if side is None:
                exec(setup, {})  # noqa: S102  # the test's own words
                side = EngineSide(spec, cluster_id)
            answer: tuple[bool, Any] = True, side.call(name, *args)
        except Exception as error:  # noqa: BLE001  # raised again by the caller
            if hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"in the peer process:\n{traceback.format_exc()}")
            answer = False, error
        try:
            pipe.send(answer)
            name, args = pipe.recv()
        except (EOFError, OSError):
            break
    if side is not None:
        side.close()
