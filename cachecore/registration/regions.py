"""Native memory of the caches of one manager: the regions, and registering them with every engine or with none."""

from __future__ import annotations

from collections.abc import Sequence

from cachecore.engine import EngineBinding, Region, Registration
from cachecore.errors import CacheError, StillReachableError
from cachecore.types import Placement

__all__ = ["LocalRegion", "NativeRegistrations"]


class LocalRegion:
    """Native memory that at least one cache lies in."""

    __slots__ = ("base", "nbytes", "placement", "references", "registrations", "remote_references")

    def __init__(self, base: int, nbytes: int, placement: Placement) -> None:
        self.base = base
        self.nbytes = nbytes
        self.placement = placement
        self.references = 0
        #: How many of the references are remotely accessible; the engines know the region while this is above 0.
        self.remote_references = 0
        self.registrations: list[tuple[EngineBinding, Registration]] = []

    def is_registered_with(self, engine: EngineBinding) -> bool:
        """Whether this engine knows it; after a deregistration that failed half way, some may and others not."""
        return any(one is engine for one, _ in self.registrations)

    @property
    def end(self) -> int:
        """First address after it."""
        return self.base + self.nbytes

    @property
    def native(self) -> Region:
        """The same as an engine sees it."""
        return Region(self.base, self.nbytes, self.placement)


class NativeRegistrations:
    """Registers regions with all engines of a manager. The caller serialises the calls."""

    def __init__(self, engines: Sequence[EngineBinding]) -> None:
        self._engines = tuple((engine, _placements(engine)) for engine in engines)

    def register(self, regions: Sequence[LocalRegion]) -> None:
        """Make regions reachable; all of them over all engines, or nothing.

        Raises:
            EngineError: An engine refused; what was registered before is undone.
            StillReachableError: It could not be undone; the message says what must not be freed.
        """
        made: list[tuple[LocalRegion, EngineBinding, Registration]] = []
        try:
            for engine, placements in self._engines:
                # An engine is told of the memory it can move, for example no device memory where it only knows the host.
                moved = [r for r in regions if r.placement in placements and not r.is_registered_with(engine)]
                if not moved:
                    continue
                with engine.lock:
                    registrations = engine.engine.register([region.native for region in moved])
                made += [(r, engine, registration) for r, registration in zip(moved, registrations, strict=True)]
        except BaseException as error:
            _roll_back(made, error)
            raise
        for region, engine, registration in made:
            region.registrations.append((engine, registration))

    def deregister(self, region: LocalRegion) -> None:
        """Make a region unreachable.

        Raises:
            StillReachableError: An engine cannot promise that; the call can be repeated.
        """
        while region.registrations:
            engine, registration = region.registrations[-1]
            with engine.lock:
                engine.engine.deregister(registration)
            region.registrations.pop()


def _roll_back(made: Sequence[tuple[LocalRegion, EngineBinding, Registration]], cause: BaseException) -> None:
    stuck: list[tuple[Region, CacheError]] = []
    for region, engine, registration in reversed(made):
        try:
            with engine.lock:
                engine.engine.deregister(registration)
        except CacheError as error:
            stuck.append((region.native, error))
    if stuck:
        listed = ", ".join(f"{region.base:#x} ({region.nbytes} bytes)" for region, _ in stuck)
        raise StillReachableError(
            f"registration failed ({cause}) and could not be undone for {listed}: {stuck[0][1]}. "
            "Do not free this memory before the manager is closed"
        ) from cause


def _placements(engine: EngineBinding) -> frozenset[Placement]:
    pairs = engine.engine.capabilities().placement_pairs.value_or(frozenset())
    return frozenset(placement for pair in pairs for placement in pair)
