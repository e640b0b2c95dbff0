"""Rules of registration and transfer that hold on every product. Pure functions: arguments in, exceptions out.

What only one product asks for (alignment, kinds of memory, unsupported features) is in that product's driver.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cachecore import _arguments as arguments
from cachecore.driver import MemoryInfo
from cachecore.errors import (
    AddressBudgetError,
    CacheIncompatibleError,
    CacheKeyExistsError,
    CacheValueError,
    MemoryAccessError,
    NotSupportedError,
    OverlapError,
    PlacementError,
)
from cachecore.types import NO_ID, BlocksCacheKey, CacheDesc, CacheKey, Placement

__all__ = [
    "OwnedRange",
    "check_budget",
    "check_bytes",
    "check_layers",
    "check_mapped",
    "check_no_overlap",
    "check_placement",
    "checked_blocks_key",
    "checked_cache_keys",
    "default_remote_accessible",
]


#: Why memory of other caches cannot be registered again, not even its exact range.
IN_LAYERS: Final = (
    "memory of register_layers, with what lies between its tensors in one allocation, can only be shared by "
    "register_layers: register this cache first, or from an allocation of its own"
)
ALLOCATED: Final = (
    "the manager allocated that memory and frees it with its cache: use that cache, or memory of your own"
)
STALE: Final = "that memory was freed while it was registered: unregister its cache"


@dataclass(frozen=True, slots=True)
class OwnedRange:
    """A range of addresses and who it belongs to, for messages."""

    base: int
    nbytes: int
    owner: str
    #: Why the exact same range may not be registered again, empty when it may.
    exclusive: str = ""

    @property
    def end(self) -> int:
        """First address after it."""
        return self.base + self.nbytes


def check_budget(
    used: int,
    asked: int,
    limit: int,
    *,
    name: str = "addrs",
    what: str = "addresses",
    remedy: str = "use fewer and larger tensors",
) -> None:
    """Refuse more addresses than the product registers, over all register functions together.

    Args:
        used: Addresses registered now.
        asked: How many the call would add.
        limit: How many there can be.
        name: The parameter that asks for them.
        what: What it asks for.
        remedy: What to do beside unregistering.

    Raises:
        AddressBudgetError: With how many are used, asked for and left.
    """
    if used + asked > limit:
        raise AddressBudgetError(
            f"{name} asks for {asked} {what}; {used} of {limit} are registered, {limit - used} are left. "
            f"Unregister a cache, or {remedy}",
            used=used,
            asked=asked,
            limit=limit,
        )


def check_bytes(placement: Placement, used: int, asked: int, limit: int | None, *, name: str = "addrs") -> None:
    """Refuse more registered bytes of one placement than the product can hold.

    Args:
        placement: Which memory.
        used: Bytes of it that are registered now.
        asked: Bytes of it this call would add; a range that is registered already adds nothing.
        limit: The driver's limit in bytes, None = none.
        name: The parameter that asks for them, for messages.

    Raises:
        CacheValueError: With the limit, how many are used, asked for and left.
    """
    if limit is not None and used + asked > limit:
        raise CacheValueError(
            f"{name} asks for {asked} bytes of {placement.name} memory; {used} of {limit} are registered, "
            f"{limit - used} are left. Unregister a cache, or register a smaller one"
        )


def check_no_overlap(new: Sequence[OwnedRange], live: Sequence[OwnedRange]) -> None:
    """Refuse tensors that share bytes with each other or with a live registration.

    The exact range of a live registration may be registered again; the region is then counted.

    Args:
        new: The tensors of this call.
        live: Regions registered now.

    Raises:
        OverlapError: Names both owners and both ranges.
    """
    ordered = sorted(new, key=lambda item: item.base)
    for first, second in itertools.pairwise(ordered):
        if second.base < first.end:
            raise _overlap(second, first, "tensors of one call must not share bytes")
    merged = sorted([*live, *ordered], key=lambda item: (item.base, item.nbytes))
    furthest: OwnedRange | None = None
    wanted = {id(item) for item in ordered}
    for item in merged:
        if furthest is not None and item.base < furthest.end:
            same = (item.base, item.nbytes) == (furthest.base, furthest.nbytes)
            same = same and not item.exclusive and not furthest.exclusive
            # Two live regions never overlap, two new ones were checked above: this is one of each.
            if not same:
                mine, other = (item, furthest) if id(item) in wanted else (furthest, item)
                rule = other.exclusive or mine.exclusive or "only the exact same range may be registered again"
                raise _overlap(mine, other, rule)
        if furthest is None or item.end >= furthest.end:
            furthest = item


def _overlap(mine: OwnedRange, other: OwnedRange, rule: str) -> OverlapError:
    start, end = max(mine.base, other.base), min(mine.end, other.end)
    return OverlapError(
        f"{mine.owner} at [{mine.base:#x}, {mine.end:#x}) overlaps {other.owner} at [{other.base:#x}, {other.end:#x}) "
        f"by {end - start} bytes from {start:#x}; {rule}"
    )


def check_mapped(
    ranges: Sequence[tuple[int, int]], infos: Sequence[MemoryInfo], label: Callable[[int], str] = "addrs[{}]".format
) -> None:
    """Refuse ranges that the driver says nothing may be registered in.

    Args:
        ranges: (address, bytes) of each.
        infos: What the driver says about each.
        label: What the caller calls the range at a position.

    Raises:
        MemoryAccessError: Names tensor index, range and the driver's reason.
    """
    for index, ((base, nbytes), info) in enumerate(zip(ranges, infos, strict=True)):
        if info.placements is not None and not info.placements:
            raise MemoryAccessError(
                f"{label(index)} is {base:#x} with {nbytes} bytes: {info.reason}. "
                "Register memory that is mapped readable and writable in this process for its whole length"
            )


def check_placement(
    placement: Placement,
    ranges: Sequence[tuple[int, int]],
    infos: Sequence[MemoryInfo],
    label: Callable[[int], str] = "addrs[{}]".format,
    said: str = "cache_desc.placement",
) -> None:
    """Refuse memory that is not where the descriptor says; where the runtime cannot tell, HOST is believed.

    Args:
        placement: Where it should be.
        ranges: (address, bytes) of each.
        infos: What the driver says about each.
        label: What the caller calls the range at a position.
        said: What said where it should be.

    Raises:
        PlacementError: Names tensor index, address, where it is and what the descriptor says.
    """
    for index, ((base, _), info) in enumerate(zip(ranges, infos, strict=True)):
        possible = info.placements
        if placement in (possible if possible is not None else {Placement.HOST}):
            continue
        where = " or ".join(sorted(p.name for p in possible)) if possible else "not known to the runtime"
        raise PlacementError(
            f"{label(index)} is {base:#x}, memory that is {where} ({info.origin.value}"
            f"{', ' + info.reason if info.reason else ''}); {said} is {placement.name}. "
            "Give the placement that the memory has"
        )


def default_remote_accessible(value: object, placement: Placement, optional: bool, product: str) -> bool:
    """The caller's choice, else True for DEVICE memory and False for HOST memory.

    Args:
        value: What the caller gave, None for nothing.
        placement: What the descriptor says.
        optional: Whether the product has memory that is not remotely accessible; where not, the default is True.
        product: The driver's name, for messages.

    Raises:
        CacheTypeError: The value is not True, False or None.
        NotSupportedError: False, on a product where remote access is always on.
    """
    if value is None:
        return placement is Placement.DEVICE or not optional
    chosen = arguments.boolean("remote_accessible", value)
    if not chosen and not optional:
        raise NotSupportedError(
            f"remote_accessible is False; on {product} remote access is always on: leave it out or give True",
            product=product,
            feature="remote_accessible=False",
        )
    return chosen


def checked_blocks_key(
    key: object, cluster_id: int, live: Iterable[BlocksCacheKey], *, name: str = "blocks_cache_key"
) -> BlocksCacheKey | None:
    """The key of a blocks cache: this manager's cluster id, not in use.

    Raises:
        CacheTypeError, CacheValueError, CacheKeyExistsError: Another type; another cluster; in use.
    """
    if key is None:
        return None
    arguments.instance(name, key, BlocksCacheKey)
    assert isinstance(key, BlocksCacheKey)
    _check_own(name, key, cluster_id)
    if key in live:
        raise CacheKeyExistsError(
            f"{name} is {key}, which names a live cache; unregister that one first or use another model_id"
        )
    return key


def checked_cache_keys(
    keys: object, desc: CacheDesc, cluster_id: int, live: Iterable[CacheKey]
) -> tuple[CacheKey, ...]:
    """The keys of a contiguous cache: at most one a batch entry, in order; placeholders skip an entry.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError, CacheKeyExistsError: None; another type; too many, or
            another cluster; twice in the list or in use.
    """
    arguments.not_none("cache_keys", keys)
    if not isinstance(keys, list | tuple):
        raise arguments.wrong_type("cache_keys", keys, "a list or tuple of CacheKey")
    if len(keys) > desc.batch_size:
        raise CacheValueError(
            f"cache_keys has {len(keys)} keys and the cache {desc.batch_size} batch entries; give at most one an entry"
        )
    live = set(live)
    seen: set[CacheKey] = set()
    for index, key in enumerate(keys):
        name = f"cache_keys[{index}]"
        arguments.instance(name, key, CacheKey)
        _check_own(name, key, cluster_id)
        if key.is_placeholder:
            continue
        if key.req_id != NO_ID and key.prefix_id != NO_ID:
            raise CacheValueError(
                f"{name} is {key} with both req_id and prefix_id; transfers name an entry by one: give one"
            )
        if key in seen:
            raise CacheKeyExistsError(f"{name} is {key}, which is in the list already; a key names one entry")
        if key in live:
            raise CacheKeyExistsError(f"{name} is {key}, which names an entry of a live cache; unregister that first")
        seen.add(key)
    return tuple(keys)


def _check_own(name: str, key: CacheKey | BlocksCacheKey, cluster_id: int) -> None:
    if key.cluster_id != cluster_id:
        raise CacheValueError(
            f"{name} has cluster_id {key.cluster_id} and this manager is cluster {cluster_id}; "
            "a cache is registered under the manager's own id"
        )


def check_layers(name: str, layers: object, num_tensors: int, tensors_per_layer: int, *, side: str) -> tuple[int, int]:
    """The tensors [first, last) of a range of layers; a layer is `tensors_per_layer` consecutive tensors.

    Args:
        name: Parameter, for messages.
        layers: A range with step 1, or None for all layers.
        num_tensors: Tensors of the cache.
        tensors_per_layer: `tensor_num_per_layer`.
        side: "source" or "destination".

    Raises:
        CacheTypeError, CacheValueError, CacheIncompatibleError: Not a range; empty, stepped or outside; the tensors
            do not divide into layers.
    """
    if num_tensors % tensors_per_layer:
        raise CacheIncompatibleError(
            f"tensor_num_per_layer is {tensors_per_layer} and the {side} cache has {num_tensors} tensors, which do not "
            "divide into layers; use 1 for caches with a single tensor a layer"
        )
    total = num_tensors // tensors_per_layer
    if layers is None:
        return 0, num_tensors
    if not isinstance(layers, range):
        raise arguments.wrong_type(name, layers, "a range of layers, for example range(0, 4)")
    if layers.step != 1:
        raise CacheValueError(f"{name} is {layers}; layers are taken with step 1")
    if not layers:
        raise CacheValueError(f"{name} is {layers}, which is empty; leave it out to move all layers")
    if layers.start < 0 or layers.stop > total:
        raise CacheValueError(f"{name} is {layers} and the {side} cache has layers 0 to {total - 1}")
    return layers.start * tensors_per_layer, layers.stop * tensors_per_layer
