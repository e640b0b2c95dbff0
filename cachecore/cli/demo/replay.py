"""The parent's side of the demo: feeds requests to both processes, one step ahead of the transfer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TypeVar, final

from cachecore.cli.demo.messages import (
    Prepare,
    Prepared,
    Pull,
    Pulled,
    Ready,
    Release,
    Settings,
    Setup,
    Stop,
    Stopped,
)
from cachecore.cli.demo.processes import ChildFailedError, ChildProcess, wait_for_any
from cachecore.cli.demo.report import Totals
from cachecore.cli.demo.workload import Part
from cachecore.errors import CacheError

__all__ = ["Replay"]

# While one part is pulled and verified the next one is written.
_PARTS_HELD = 2
# A fresh interpreter, a device to open and memory to allocate: none of it is what the timeout is about.
_START_SECONDS = 60.0
M = TypeVar("M")


@final
class Replay:
    """A prefill and a decode process and what they have done so far.

    Args:
        settings: Given to both processes.
        speed: How many times faster than its timestamps the workload is replayed; 0 = timestamps are not waited for.
        report: Called after each part with the totals so far.
    """

    def __init__(self, settings: Settings, *, speed: float = 0.0, report: Callable[[Totals], None]) -> None:
        self._settings = settings
        self._speed = speed
        self._report = report
        self.totals = Totals()
        self._children: list[ChildProcess] = []

    def __enter__(self) -> Replay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children:
            child.end()

    def start(self) -> tuple[ChildProcess, ChildProcess]:
        """Start both processes; returns the prefill and the decode process once their caches are registered and linked.

        Raises:
            CacheError: One of them failed or does not answer.
        """
        settings, totals = self._settings, self.totals
        for role in ("prefill", "decode"):
            self._children.append(ChildProcess(role, settings.timeout))
        prefill, decode = self._children
        prefill.ask(Setup("prefill", settings), _START_SECONDS)
        serving = _expect(Ready, prefill.receive())
        decode.ask(Setup("decode", settings, serving.address), _START_SECONDS)
        linked = _expect(Ready, decode.receive())
        totals.backend, totals.emulated, totals.engine = linked.backend, linked.emulated, linked.engine
        return prefill, decode

    def run(self, parts: Iterable[Part]) -> None:
        """Replay all parts, then end both processes in order.

        Raises:
            CacheError: One of the processes failed, was killed or does not answer. The message names every process
                in trouble.
        """
        prefill, decode = self._children
        started = time.monotonic()
        try:
            self._replay(prefill, decode, parts)
            decode.ask(Stop())
            stopped = _expect(Stopped, decode.receive())
            self.totals.add_final_check(stopped)
            prefill.ask(Stop())
            _expect(Stopped, prefill.receive())
            decode.finish()
            prefill.finish()
        except CacheError as error:
            raise self._with_other_troubles(error) from error
        finally:
            self.totals.seconds = time.monotonic() - started

    def _replay(self, prefill: ChildProcess, decode: ChildProcess, parts: Iterable[Part]) -> None:
        waiting = iter(parts)
        upcoming = next(waiting, None)
        held: list[Part] = []  # sent to prefill and not released; those before `ready` end in a pull
        ready: list[tuple[Part, Prepared]] = []
        started = time.monotonic()
        while upcoming or held:
            arrival = self._arrival(started, upcoming)
            if upcoming and not prefill.waiting and self._fits(held, upcoming) and time.monotonic() >= arrival:
                prefill.ask(Prepare(upcoming.number, list(upcoming.content_ids)))
                held.append(upcoming)
                upcoming = next(waiting, None)
                arrival = self._arrival(started, upcoming)
            if ready and not decode.waiting:
                part, prepared = ready.pop(0)
                decode.ask(Pull(part.number, list(part.content_ids), prepared.blocks))
            # Wake up for an arrival only where one can be served; its turn comes after an answer otherwise.
            idle_until = arrival if not prefill.waiting and self._fits(held, upcoming) else float("inf")
            due = min(prefill.due, decode.due)
            answering = wait_for_any((prefill, decode), min(due, idle_until))
            if not answering and time.monotonic() >= due:
                raise min(prefill, decode, key=lambda child: child.due).late()
            for child in answering:
                if child is prefill:
                    answer = _expect(Prepared, child.receive())
                    self.totals.add_prepared(answer)
                    ready.append((held[-1], answer))
                else:
                    pulled = _expect(Pulled, child.receive())
                    part = held.pop(0)
                    prefill.post(Release(part.number))
                    self.totals.add_pulled(pulled, last=part.last)
                    self._report(self.totals)

    def _arrival(self, started: float, part: Part | None) -> float:
        if part is None:
            return float("inf")
        return started + part.timestamp / self._speed if self._speed else started

    def _fits(self, held: list[Part], part: Part | None) -> bool:
        """Whether prefill can keep the blocks of `part` beside those that are being pulled."""
        if part is None or len(held) >= _PARTS_HELD:
            return False
        return sum(len(one.content_ids) for one in (*held, part)) <= self._settings.blocks

    def _with_other_troubles(self, error: CacheError) -> CacheError:
        """`error` and what the other process has to say: the death of a peer shows on both sides."""
        role = error.role if isinstance(error, ChildFailedError) else ""
        others = (child.trouble() for child in self._children if child.role != role)
        texts = [str(error), *(str(other) for other in others if other is not None)]
        return ChildFailedError("; ".join(texts), role=role, status_code=error.status_code)


def _expect(kind: type[M], message: object) -> M:
    if not isinstance(message, kind):
        raise ChildFailedError(f"a child process answered {type(message).__name__} where {kind.__name__} was due")
    return message
