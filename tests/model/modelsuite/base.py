"""The state machine's frame: workers, performing a call, comparing every byte afterwards, counting what happened."""

from __future__ import annotations

import atexit
import hashlib
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

import cachecore as cc
from cachecore.types import NO_ID
from modelsuite import wire
from modelsuite.oracle import Cache, Key, Node, Oracle, fresh

#: (operation, "ok" or the name of the error) -> how often.
COUNTS: Counter[tuple[str, str]] = Counter()
#: Called after every operation; the long run shows its progress with it.
WATCHERS: list[Callable[[], None]] = []
_NAMES = ("pull_blocks", "push_blocks", "pull_cache", "push_cache")
_KINDS = (
    "",
    "_async",
    " of an entry",
    "_async of an entry",
    " of layers",
    "_async of layers",
    " leased",
    "_async leased",
)
_SENT = ("", " by address", " of an entry", " of an entry by address", " of an entry to blocks")
_SENT += (" of an entry to blocks by address", " to host memory")
#: Operations that move bytes.
TRANSFERS = {name + kind for name in _NAMES for kind in _KINDS}
TRANSFERS |= {"transfer_cache_async" + what for what in _SENT}
TRANSFERS |= {"copy_cache", "copy_blocks", "swap_blocks"}

#: Seconds that a manager may take to notice what another did.
NOTICED = float(os.environ.get("CACHECORE_MODEL_NOTICED", "15"))
#: Whether to end at the first difference, without showing the operations before it.
ONLY_FIRST: list[bool] = []

_pool: list[wire.Worker] = []


def workers(count: int) -> list[wire.Worker]:
    """As many worker processes, kept for all examples."""
    while len(_pool) < count:
        _pool.append(wire.Worker())
    return _pool[:count]


@atexit.register
def end_workers() -> None:
    """End the processes."""
    while _pool:
        _pool.pop().kill()


def real_key(key: Key) -> object:
    """The key as callers write it."""
    kind, cluster, *rest = key
    if kind == "blocks":
        return cc.BlocksCacheKey(cluster, rest[0])
    if kind == "req":
        return cc.CacheKey(cluster, rest[0], rest[1])
    if kind == "prefix":
        return cc.CacheKey(cluster, NO_ID, rest[1], rest[0])
    return cc.CacheKeyByIdAndIndex(cluster, rest[0], rest[1])


class Frame(RuleBasedStateMachine):
    """Real managers on one side, the oracle on the other."""

    #: Clusters 1, 2, ... and the process that each lives in.
    seats: tuple[int, ...] = (0, 1)
    #: Options of every manager.
    options: dict[str, object] = {}  # never changed

    def __init__(self) -> None:
        super().__init__()
        started = workers(max(self.seats) + 1)
        self.workers = {cluster: started[process] for cluster, process in enumerate(self.seats, 1)}
        self.oracle = Oracle()
        self.addresses: dict[int, str] = {}
        self.lives = 0
        self.seed = 0
        #: How often each number was drawn.
        self.drawn: Counter[int] = Counter()
        #: The process that is stopped now.
        self.absent: int | None = None

    @initialize(seed=st.integers(0, 2**24 - 1))
    def begin(self, seed: int) -> None:
        self.seed = seed
        for cluster in self.workers:
            self.make(cluster, seed)
        for me in self.nodes:
            for other in self.nodes:
                if me is not other:
                    self.call(me, "link", other.cluster, self.addresses[other.cluster], timeout=30.0)
                    me.links[other.cluster] = other.life

    def details(self, number: int) -> random.Random:
        """The details of one operation.

        Shrinking drops operations and keeps the details of the others as they are: draws of hypothesis would make most
        operations alike, and too many of them fail. It also likes to repeat a number, which is another operation each
        time.
        """
        self.drawn[number] += 1
        return random.Random(f"{self.seed} {number} {self.drawn[number]}")

    def make(self, cluster: int, seed: int) -> None:
        """A new manager in a worker."""
        facts = self.ask(cluster, "reset", seed, dict(self.options))
        self.lives += 1
        self.addresses[cluster] = facts["address"]
        self.oracle.nodes[cluster] = fresh(cluster, self.seats[cluster - 1], seed, self.lives, facts)

    def teardown(self) -> None:
        """Nothing may be left behind: `reset` closes each manager, which raises when memory is still in use."""

    @property
    def nodes(self) -> list[Node]:
        """All managers."""
        return list(self.oracle.nodes.values())

    def ask(self, cluster: int, what: str, *arguments: object, **more: object) -> object:
        """Have the worker of a cluster do something."""
        try:
            return self.workers[cluster].ask(cluster, what, *arguments, **more)
        except wire.WorkerFaultError as error:
            self.fail(f"{named(what, arguments)} was a fault in the worker: {error}")
        except (wire.WorkerGoneError, BrokenPipeError) as error:
            for worker in _pool:  # what they know of each other is worth nothing any more
                worker.kill()
                worker.start()
            self.fail(f"{named(what, arguments)} of cluster {cluster} ended or stopped the worker: {error}")

    # --- calls ------------------------------------------------------------------------------------------------------

    def call(self, me: Node, method: str, *arguments: object, **more: object) -> object:
        """Call and compare; returns the value or a `Failure`."""
        answer = self.ask(me.cluster, "call", method, *arguments, **more)
        self.last = me, answer
        return answer.value

    def perform(
        self,
        me: Node,
        method: str,
        arguments: Sequence[object],
        errors: set[str],
        effect: Callable[[object], str | None] | None = None,
        *,
        label: str = "",
        **more: object,
    ) -> object:
        """Call a method that must succeed when `errors` is empty, and else fail with one of them and no effect.

        What `effect` returns is counted as the outcome of a success in place of "ok".
        """
        value = self.call(me, method, *arguments, **more)
        shown = f"{method}({', '.join(map(repr, arguments))[:2000]}, {more}) of cluster {me.cluster}"
        outcome = None
        if isinstance(value, wire.Failure):
            if value.name not in errors:
                self.fail(f"{shown} raised {value.name}, not one of {sorted(errors)}: {value.text}")
            if value.landed or value.unknown:
                self.fail(f"{shown} was refused and moved something: {value}")
            outcome = value.name
        else:
            if errors:
                self.fail(f"{shown} returned {value!r} and should have raised one of {sorted(errors)}")
            if effect is not None:
                told = effect(value)
                outcome = told if isinstance(told, str) else None
        self.count(label or method, outcome or "ok", shown)
        return value

    def count(self, name: str, outcome: str, shown: str = "") -> None:
        """An operation has ended: compare everything."""
        COUNTS[name, outcome] += 1
        self.compare(shown or name)
        for watch in WATCHERS:
            watch()

    def compare(self, shown: str) -> None:
        """Every byte of every manager is as the oracle says."""
        called, answer = self.last
        for node in self.nodes:
            if node.process == self.absent:  # compared with the first operation after it goes on
                continue
            digests = answer.digests if node is called else self.ask(node.cluster, "digests")
            expected = {name: hashlib.blake2b(data, digest_size=8).digest() for name, data in node.buffers.items()}
            if digests != expected:
                self.explain(node, digests, expected, shown)

    def explain(self, node: Node, digests: dict[str, bytes], expected: dict[str, bytes], shown: str) -> None:
        """Fail with the first byte that differs."""
        if digests.keys() != expected.keys():
            self.fail(f"after {shown} cluster {node.cluster} has the buffers {sorted(digests)}")
        for name, data in node.buffers.items():
            if digests[name] != expected[name]:
                real = self.ask(node.cluster, "content", name)
                differing = [i for i, (a, b) in enumerate(zip(real, data, strict=True)) if a != b]
                self.fail(
                    f"after {shown} buffer {name} of cluster {node.cluster} differs from byte {differing[0]} on "
                    f"({len(differing)} are wrong)"
                )

    @staticmethod
    def fail(text: str) -> None:
        """Say it at once: where timing plays a part, the repetitions that follow may not show it again."""
        print(f"DIFFERENCE: {text}", file=sys.stderr, flush=True)
        if ONLY_FIRST:
            end_workers()
            os._exit(1)
        raise AssertionError(text)

    def expect(self, condition: object, text: str) -> None:
        """Fail unless it is so."""
        if not condition:
            self.fail(text)

    def until(self, condition: Callable[[], bool], text: str) -> None:
        """Wait for what another manager learns a moment later."""
        end = time.monotonic() + NOTICED
        while not condition():
            if time.monotonic() > end:
                self.fail(f"{text}: not within {NOTICED:g} s")
            time.sleep(0.002)

    # --- choices ----------------------------------------------------------------------------------------------------

    def any_node(self, rnd: object) -> Node:
        return rnd.choice(self.nodes)

    def reachable(self, me: Node) -> list[Node]:
        """Managers `me` can transfer with, itself included."""
        return [me] + [n for n in self.nodes if n is not me and me.links.get(n.cluster) == n.life]

    def lost(self, me: Node) -> list[int]:
        """Clusters whose manager has ended since `me` linked to it."""
        return [cluster for cluster, life in me.links.items() if self.oracle.nodes[cluster].life != life]


def named(what: str, arguments: Sequence[object]) -> str:
    """An operation, for messages."""
    return str(arguments[0]) if what == "call" else what


def unused_id(node: Node) -> int:
    """A cache id that was never given out."""
    return node.last_id + 7


def chance(rnd: object, share: float) -> bool:
    """Whether something happens."""
    return rnd.random() < share


def hinder(wrong: str, more: dict[str, object], errors: set[str]) -> set[str]:
    """Let a call that moves bytes meet an engine that fails, or an event that is none; returns its errors."""
    if wrong == "engine":
        more["fail_at"] = 1
        return errors or {"TransferError"}
    if wrong == "event":
        more["after"] = "no event"
        return errors | {"NotSupportedError"}
    return errors


def fault(rnd: object, names: Sequence[str], share: float = 0.45) -> str:
    """What is to be wrong with a call: mostly nothing, else each as often as any other."""
    return rnd.choice(names) if chance(rnd, share) else ""


__all__ = [
    "COUNTS",
    "TRANSFERS",
    "WATCHERS",
    "Cache",
    "Frame",
    "chance",
    "fault",
    "real_key",
    "unused_id",
]
