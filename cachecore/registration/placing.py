"""Where the tensors of a `register_layers` call go: into regions that exist, or into new ones."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from cachecore.driver import MemoryInfo
from cachecore.errors import CacheKeyExistsError, OverlapError, PlacementError
from cachecore.registration.given_layers import GivenLayers
from cachecore.registration.local_caches import LocalLayers, Registered
from cachecore.registration.merging import Extent, View, merge
from cachecore.registration.regions import LocalRegion
from cachecore.registration.rules import ALLOCATED
from cachecore.tensors import TensorView
from cachecore.types import BlocksCacheKey, Placement

__all__ = ["PlacedRegion", "check_key_and_group", "common_placement", "place"]


class PlacedRegion:
    """A region that the call uses.

    Attributes:
        region: Which; not registered anywhere where it is new.
        first_view: Position of one of the call's tensors that lie in it.
        label: What the caller can recognise it by.
        is_new: Whether no cache used it before.
    """

    __slots__ = ("first_view", "is_new", "label", "region")

    def __init__(self, region: LocalRegion, first_view: int, label: str, is_new: bool) -> None:
        self.region, self.first_view, self.label, self.is_new = region, first_view, label, is_new


def common_placement(views: Sequence[TensorView], infos: Sequence[MemoryInfo]) -> Placement:
    """Where all tensors are: as their `TensorSpec`s say, else as the driver does.

    Of other tensors memory that may be called both, on a plain host, is the device's; unknown memory is the host's.

    Raises:
        PlacementError: Not all of them are in one place.
    """
    first: Placement | None = None
    for view, info in zip(views, infos, strict=True):
        placement = view.placement
        if placement is None:
            placement = Placement.DEVICE if info.placements and Placement.DEVICE in info.placements else Placement.HOST
        first = placement if first is None else first
        if placement is not first:
            raise PlacementError(
                f"{view.name} is {placement.name} memory and {views[0].name} is {first.name} memory; the tensors of one call "
                "have one placement: register the others with another call and group"
            )
    assert first is not None, "a call has at least one tensor"
    return first


def check_key_and_group(key: BlocksCacheKey | None, group: str, caches: Sequence[Registered]) -> None:
    """Refuse a key that names a cache of the raw-address functions, or this group already.

    Raises:
        CacheKeyExistsError: Names the cache.
    """
    for cache in caches if key is not None else ():
        if cache.blocks_key != key:
            continue
        if not isinstance(cache, LocalLayers):
            raise CacheKeyExistsError(
                f"key is {key}, which names {cache}, a cache whose tensors have one shape; unregister that first or use "
                "another model_id"
            )
        if cache.group == group:
            raise CacheKeyExistsError(
                f"key is {key} and group {group!r}, which together name {cache}; unregister that first, or give this call "
                "another group"
            )


def place(
    given: GivenLayers,
    infos: Sequence[MemoryInfo],
    placement: Placement,
    key: BlocksCacheKey | None,
    caches: Sequence[Registered],
    regions: Sequence[LocalRegion],
) -> list[PlacedRegion]:
    """Find the regions for the tensors: registered ones that contain them, else new ones, merged by allocation.

    Args:
        given: The tensors.
        infos: What the driver says about each.
        placement: Where they are.
        key: Of the call.
        caches: Registered now.
        regions: Registered now.

    Raises:
        OverlapError: A tensor shares bytes with a cache that it must not share bytes with, or lies in a region only partly.
        PlacementError: It lies in a region that is registered with the other placement.
    """
    live = _LiveRegions(caches, regions)
    reused: dict[int, PlacedRegion] = {}
    rest: list[View] = []
    for index, (view, (base, nbytes), info) in enumerate(zip(given.views, given.ranges, infos, strict=True)):
        region = live.containing(view.name, base, base + nbytes, placement, key)
        if region is None:
            rest.append(View(index, base, base + nbytes, _allocation(view, info)))
        else:
            reused.setdefault(region.base, PlacedRegion(region, index, view.name, False))
    new = [
        PlacedRegion(
            LocalRegion(merged.start, merged.end - merged.start, placement),
            merged.views[0],
            _label(given.views, merged.views),
            True,
        )
        for merged in merge(rest, live.extents)
    ]
    return sorted([*reused.values(), *new], key=lambda placed: placed.region.base)


class _LiveRegions:
    """The regions registered now, by address, and who uses each."""

    def __init__(self, caches: Sequence[Registered], regions: Sequence[LocalRegion]) -> None:
        self._regions = sorted(regions, key=lambda region: region.base)
        self._starts = [region.base for region in self._regions]
        self.extents: list[Extent] = [(region.base, region.end) for region in self._regions]
        self._users: dict[int, list[Registered]] = {}
        for cache in caches:
            for region in cache.regions:
                self._users.setdefault(region.base, []).append(cache)

    def containing(
        self, name: str, start: int, end: int, placement: Placement, key: BlocksCacheKey | None
    ) -> LocalRegion | None:
        """The region that contains a tensor; None where it overlaps none."""
        found = bisect.bisect_left(self._starts, end) - 1  # the last one that starts before the tensor ends
        if found < 0 or self._regions[found].end <= start:
            return None
        region = self._regions[found]
        users = self._users[region.base]
        rule = ""
        if any(user.allocation is not None for user in users):
            rule = ALLOCATED
        elif not all(isinstance(user, LocalLayers) for user in users):
            rule = (
                "memory of a cache whose tensors have one shape cannot be shared with layers: unregister that cache first, "
                "or register its tensors with register_layers too"
            )
        elif any(user.blocks_key != key for user in users):
            rule = (
                "only calls of register_layers with one key may share memory: give both calls the same key and different "
                f"groups; this one has {key}"
            )
        elif start < region.base or end > region.end:
            rule = (
                "a region that is registered cannot grow: register both in one call, or first the one that reaches further; "
                "where each reaches further at one end, first the whole buffer, with this key and a group of its own"
            )
        if rule:
            shared = min(end, region.end) - max(start, region.base)
            raise OverlapError(
                f"{name} at [{start:#x}, {end:#x}) overlaps {', '.join(map(str, users))} at [{region.base:#x}, "
                f"{region.end:#x}) by {shared} bytes from {max(start, region.base):#x}; {rule}"
            )
        if region.placement is not placement:
            raise PlacementError(
                f"{name} is {placement.name} memory and lies in a region that {users[0]} registered as "
                f"{region.placement.name}; register the same memory with one placement"
            )
        return region


def _allocation(view: TensorView, info: MemoryInfo) -> Extent | None:
    """What the tensor was cut from, as its library knows it, else as the driver does."""
    known = [view.storage] if view.storage is not None else []
    if info.block_base is not None and info.block_bytes is not None:
        known.append((info.block_base, info.block_bytes))
    # A library that names other memory than the tensor's knows nothing about it.
    return next(((base, base + nbytes) for base, nbytes in known if base <= view.address < base + nbytes), None)


def _label(views: Sequence[TensorView], indexes: Sequence[int]) -> str:
    first = views[indexes[0]].name
    return first if len(indexes) == 1 else f"the region of {first} and {len(indexes) - 1} more tensors"
