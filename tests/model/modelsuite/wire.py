"""What the driving process and a worker say to each other: pickles over a pipe, and references to what a worker has."""

from __future__ import annotations

import os
import pickle
import select
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

WORKER = Path(__file__).with_name("worker.py")


class WorkerGoneError(Exception):
    """The worker ended, or did not answer in time."""


class WorkerFaultError(Exception):
    """Something other than a `CacheError` was raised in the worker."""


@dataclass(frozen=True)
class Place:
    """An address inside one of a worker's buffers."""

    buffer: str
    offset: int = 0


@dataclass(frozen=True)
class CacheRef:
    """A cache that the worker has, by its id."""

    cache_id: int


@dataclass(frozen=True)
class HostCacheRef:
    """An unregistered cache in host memory, made from places when it is used."""

    shape: tuple[int, ...]
    places: tuple[Place, ...]


@dataclass(frozen=True)
class TensorRef:
    """One tensor of `register_layers`: strides in bytes."""

    place: Place
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    data_type: int


@dataclass(frozen=True)
class ArrayRef:
    """A numpy array over a place, for `register_..._tensors`."""

    place: Place
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class MovingRef:
    """An array of bytes over a worker's buffer that `moved` lets say that it lies elsewhere."""

    place: Place
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Failure:
    """A `CacheError` of the worker."""

    name: str
    status: int
    text: str
    landed: tuple = ()
    unknown: tuple = ()


@dataclass(frozen=True)
class Fault:
    """Anything but a `CacheError`, with its traceback."""

    text: str


@dataclass(frozen=True)
class Answer:
    """What a call gave, and a digest of every buffer of the worker afterwards."""

    value: object
    digests: dict[str, bytes] = field(default_factory=dict)


def send(descriptor: int, message: object) -> None:
    """Write one message."""
    data = pickle.dumps(message)
    view = memoryview(struct.pack("<Q", len(data)) + data)
    while view:
        view = view[os.write(descriptor, view) :]


def receive(descriptor: int, seconds: float) -> object:
    """Read one message.

    Raises:
        WorkerGoneError: The pipe ended, or nothing came for `seconds`.
    """
    end = time.monotonic() + seconds
    (size,) = struct.unpack("<Q", _read(descriptor, 8, end))
    return pickle.loads(_read(descriptor, size, end))  # our own child


def _read(descriptor: int, size: int, end: float) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            raise WorkerGoneError("no answer in time")
        part = os.read(descriptor, size - len(parts))
        if not part:
            raise WorkerGoneError("the pipe ended")
        parts += part
    return bytes(parts)


class Worker:
    """One process with the managers of some clusters."""

    def __init__(self, seconds: float = 120.0) -> None:
        self.seconds = seconds
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        """Start the process, or a new one after the last was killed."""
        self.process = subprocess.Popen([sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, cluster: int, what: str, *arguments: object, **more: object) -> object:
        """Have one side do something; what it raises that is no `CacheError` ends the test."""
        send(self.process.stdin.fileno(), (cluster, what, arguments, more))
        answer = receive(self.process.stdout.fileno(), self.seconds)
        if isinstance(answer, Fault):
            raise WorkerFaultError(f"cluster {cluster}: {answer.text}")
        return answer

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.wait(30)
        self.process.stdin.close()
        self.process.stdout.close()
