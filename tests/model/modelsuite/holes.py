"""The holes of the library that cachecore stands in for, put back one at a time into a worker process.

CACHECORE_MODEL_HOLE names one; the machine must then find a difference. Each function does to cachecore what one
sentence says of that library, and no more.
"""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import cachecore as cc
from cachecore._core import Geometry
from cachecore.api.layerwise import LayerwiseMethods
from cachecore.api.pushing import PushingMethods
from cachecore.engine import Operation
from cachecore.errors import CacheError, CacheTypeError, CacheValueError, MissingArgumentError, NotSupportedError
from cachecore.peers.dialogue import Dialogue
from cachecore.peers.remote import RemoteCatalogue, RemoteEntry
from cachecore.peers.usage import CacheUsage
from cachecore.planning import Part
from cachecore.shape import CacheShape
from cachecore.transfers import cache_task, copies, destinations, layer_gate, matching, pulls, pushes
from cachecore.transfers.running import Run

HOLES: dict[str, Callable[[], None]] = {}


def open_hole(name: str) -> None:
    """Put one back; none for an empty name."""
    if name:
        HOLES[name]()


def hole(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Under which name it is asked for."""

    def note(function: Callable[[], None]) -> Callable[[], None]:
        HOLES[name] = function
        return function

    return note


def geometry(of: Geometry, *, tensors: int = 0, **fields: int) -> Geometry:
    """The same tensors cut otherwise; `tensors` more than there are lie behind the last one."""
    bases = list(of.bases)
    while len(bases) < tensors:
        bases.append(bases[-1] + of.blocks * of.block_stride)
    given = {"blocks": of.blocks, "block_bytes": of.block_bytes, "block_stride": of.block_stride, "offset": of.offset}
    return Geometry(memoryview(array("Q", bases)), **(given | fields))


def entry_at(of: Geometry, offset: int, nbytes: int) -> Geometry:
    """One entry, anywhere."""
    return geometry(of, blocks=1, block_bytes=nbytes, block_stride=nbytes, offset=of.offset + offset)


# --- pulls and pushes ---------------------------------------------------------------------------------------------------


@hole("1")
def local_stride() -> None:
    """The remote offset of pull_cache uses the local stride, and the remote batch index is not checked."""
    real = pulls.plan_entry

    def plan_entry(local: Geometry, remote: Geometry, index: int, entry: int, **more: Any) -> object:
        return real(local, entry_at(remote, entry * local.block_stride, remote.block_bytes), index, 0, **more)

    def find_by_id(self: RemoteCatalogue, key: cc.CacheKeyByIdAndIndex) -> RemoteEntry | None:
        cache = self._by_id.get(key.cache_id)
        return None if cache is None else RemoteEntry(cache, key.batch_index)

    pulls.plan_entry = plan_entry
    RemoteCatalogue._find_by_id = find_by_id


@hole("2")
def unchecked_ends() -> None:
    """The remote tensor index and the end of a merged run of remote blocks are not checked."""
    planned, matched = pulls.plan_parts, matching.match_uniform

    def plan_parts(parts: Any, local_blocks: Any, remote_blocks: Any, **more: Any) -> object:
        if not isinstance(remote_blocks, list | tuple) or not all(type(block) is int for block in remote_blocks):
            return planned(parts, local_blocks, remote_blocks, **more)
        most = max([*remote_blocks, 0]) + 1
        wider = [part._replace(remote=geometry(part.remote, blocks=max(most, part.remote.blocks))) for part in parts]
        return planned(wider, local_blocks, remote_blocks, **more)

    def match_uniform(own: Any, other: Any, local: Any, remote: Any, op: Any, ranges: Any, *slices: Any) -> object:
        theirs = ranges.src if op is Operation.READ else ranges.dst
        if theirs is None or own.data_type is not other.data_type:
            return matched(own, other, local, remote, op, ranges, *slices)
        most = max(theirs.stop * ranges.tensors_per_layer, other.num_tensors)
        far = SimpleNamespace(num_tensors=most, owner=other.owner, data_type=other.data_type)
        source, target = (far, own) if op is Operation.READ else (own, far)
        src, dst, count = ranges.tensors(source, target)
        here, there = (dst, src) if op is Operation.READ else (src, dst)
        return matching.UniformMatch(
            local, geometry(remote, tensors=most), here, there, count, ranges.tensors_per_layer, *slices
        )

    pulls.plan_parts = pushes.plan_parts = plan_parts
    matching.match_uniform = match_uniform


@hole("3")
def local_block_bytes() -> None:
    """Block sizes of the two sides are not compared: the remote side is cut as the local one is."""
    real = pulls.plan_parts

    def plan_parts(parts: Any, local_blocks: Any, remote_blocks: Any, **more: Any) -> object:
        return real([_cut_alike(part) for part in parts], local_blocks, remote_blocks, **more)

    pulls.plan_parts = pushes.plan_parts = plan_parts


def _cut_alike(part: Part) -> Part:
    here = part.local
    if part.local_slice or part.remote_slice or here.block_bytes == part.remote.block_bytes:
        return part
    return part._replace(remote=geometry(part.remote, block_bytes=here.block_bytes, block_stride=here.block_stride))


@hole("4")
def neighbour_overwritten() -> None:
    """push_cache of a larger entry into a smaller one goes on into the next entry."""
    real = pushes.plan_entry

    def plan_entry(local: Geometry, remote: Geometry, index: int, entry: int, **more: Any) -> object:
        if entry >= remote.blocks or local.block_bytes <= remote.block_bytes:
            return real(local, remote, index, entry, **more)
        return real(local, entry_at(remote, entry * remote.block_stride, local.block_bytes), index, 0, **more)

    pushes.plan_entry = plan_entry


@hole("5")
def cut_to_the_remainder() -> None:
    """Where the remote tensor is no multiple of the block size, what is missing at its end is left out silently."""
    real = pulls.plan_parts

    def plan_parts(parts: Any, local_blocks: Any, remote_blocks: Any, **more: Any) -> object:
        (part,) = parts if len(parts) == 1 else (None,)
        listed = isinstance(local_blocks, list | tuple) and isinstance(remote_blocks, list | tuple)
        if part is None or part.local_slice or not listed or len(local_blocks) != len(remote_blocks):
            return real(parts, local_blocks, remote_blocks, **more)
        here, there = part.local, part.remote
        total = there.blocks * there.block_bytes
        if not total % here.block_bytes:
            return real(parts, local_blocks, remote_blocks, **more)
        grain = math.gcd(here.block_bytes, total)
        pieces = here.block_bytes // grain
        pairs = [
            (mine * pieces + i, theirs * pieces + i)
            for mine, theirs in zip(local_blocks, remote_blocks, strict=True)
            for i in range(pieces)
            if theirs * pieces + i < total // grain
        ]
        if not pairs:  # no plan can be made of nothing
            return real(parts, local_blocks, remote_blocks, **more)
        cut = Part(
            geometry(here, blocks=here.blocks * pieces, block_bytes=grain, block_stride=grain),
            geometry(there, blocks=total // grain, block_bytes=grain, block_stride=grain),
        )
        return real([cut], [mine for mine, _ in pairs], [theirs for _, theirs in pairs], **more)

    pulls.plan_parts = pushes.plan_parts = plan_parts


@hole("6")
def past_the_entry() -> None:
    """An entry behind the first is read past its end, when it is pulled into blocks."""
    real = pulls.plan_entry_to_blocks

    def plan_entry_to_blocks(local: Geometry, remote: Geometry, blocks: Any, entry: int, **more: Any) -> object:
        if not entry or not isinstance(blocks, list | tuple) or not blocks or entry >= remote.blocks:
            return real(local, remote, blocks, entry, **more)
        nbytes = max(len(blocks) * local.block_bytes, remote.block_bytes)
        return real(local, entry_at(remote, entry * remote.block_stride, nbytes), blocks, 0, **more)

    pulls.plan_entry_to_blocks = plan_entry_to_blocks


@hole("7")
def no_layer_is_success() -> None:
    """A cache of fewer tensors than tensor_num_per_layer pushes nothing and reports success."""

    def patched(real: Callable[..., None]) -> Callable[..., None]:
        def push(
            self: object, key: object, cache: object, *rest: Any, tensor_num_per_layer: Any = 2, **more: Any
        ) -> None:
            few = isinstance(cache, cc.Cache) and isinstance(tensor_num_per_layer, int)
            if few and len(cache.tensor_addrs) < tensor_num_per_layer:
                return
            real(self, key, cache, *rest, tensor_num_per_layer=tensor_num_per_layer, **more)

        return push

    PushingMethods.push_blocks = patched(PushingMethods.push_blocks)
    PushingMethods.push_cache = patched(PushingMethods.push_cache)


@hole("8")
def nothing_is_told() -> None:
    """A failure at a layer does not say that the layers before it are delivered."""
    Run._landed = lambda self: ()


# --- transfer_cache_async -----------------------------------------------------------------------------------------------


@hole("9-layers")
def absolute_layers() -> None:
    """The layer of the destination is the absolute number of the source's."""
    real = destinations.Destinations.request

    def request(self: object, config: Any) -> object:
        if isinstance(config, cc.TransferWithCacheKeyConfig) and config.src_layer_range is not None:
            config = dataclasses.replace(config, dst_layer_range=config.src_layer_range)
        return real(self, config)

    destinations.Destinations.request = request


class AbortedError(CacheError):
    """Another destination failed."""


@hole("9-abort")
def first_failure_aborts() -> None:
    """The first destination that fails ends the others, whose result stays None."""
    real, told = destinations.Destinations.request, cache_task._status

    def request(self: Any, config: Any) -> object:
        if getattr(self, "aborted", False):
            raise AbortedError("another destination failed")
        try:
            return real(self, config)
        except (MissingArgumentError, CacheTypeError, CacheValueError, NotSupportedError):
            raise
        except CacheError:
            self.aborted = True
            raise

    destinations.Destinations.request = request
    cache_task._status = lambda one, end: None if isinstance(one, AbortedError) else told(one, end)


@hole("9-exception")
def exception_is_success() -> None:
    """An exception in the thread that sends the layers reads as success."""
    told = cache_task._status

    def status(one: Any, end: float | None) -> object:
        code = told(one, end)
        error = one if isinstance(one, CacheError) else one.exception(0)
        while error is not None and error.__cause__ is not None:
            error = error.__cause__
        return code if error is None or isinstance(error, CacheError) else cc.StatusCode.SUCCESS

    cache_task._status = status


@hole("9-timeout")
def no_timeout() -> None:
    """The synchronizer is never told how much time there is."""
    real = layer_gate.LayerGate.__init__

    def init(self: object, synchronizer: Any, layers: Any, deadline: float) -> None:
        told = SimpleNamespace(synchronize_layer=lambda layer, left: synchronizer.synchronize_layer(layer, None))
        real(self, told, layers, deadline)

    layer_gate.LayerGate.__init__ = init


def _before_sending(change: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> None:
    real = LayerwiseMethods.transfer_cache_async

    def transfer_cache_async(self: object, *given: Any, **more: Any) -> object:
        change(given, more)
        return real(self, *given, **more)

    LayerwiseMethods.transfer_cache_async = transfer_cache_async


@hole("9-pairs")
def pairs_only() -> None:
    """A layer is two tensors, always."""
    _before_sending(lambda given, more: more.update(tensor_num_per_layer=2))


@hole("9-configs")
def configs_change() -> None:
    """What the caller gave is filled in."""

    def change(given: tuple[Any, ...], more: dict[str, Any]) -> None:
        for config in given[2] if isinstance(given[2], list) else ():
            if config.src_layer_range is None and isinstance(given[0], cc.Cache):
                layers = len(given[0].tensor_addrs) // more.get("tensor_num_per_layer", 2)
                object.__setattr__(config, "src_layer_range", range(layers))

    _before_sending(change)


# --- copies, links and processes ----------------------------------------------------------------------------------------


@hole("10")
def empty_map() -> None:
    """copy_blocks with an empty map copies the first entry onto itself: it succeeds and changes nothing."""
    real = copies.Copies.copy_blocks

    def copy_blocks(self: object, cache: Any, mapping: Any, deadline: float, after: object) -> None:
        if mapping != {}:
            real(self, cache, mapping, deadline, after)

    copies.Copies.copy_blocks = copy_blocks


@hole("11")
def any_cache_id() -> None:
    """swap_blocks never looks whether a cache is registered."""
    real = copies.Copies._given

    def given(self: object, name: str, cache: Any) -> object:
        if not isinstance(cache, cc.Cache) or cache.cache_id == -1 or not cache.is_blocks_cache:
            return real(self, name, cache)
        desc = cache.cache_desc
        bases = memoryview(array("Q", cache.tensor_addrs))
        shape = CacheShape(name, bases, desc.shape, desc.data_type, desc.placement, desc.batch_dim, True)
        return copies._Side(shape, None)

    copies.Copies._given = given


@hole("12")
def read_once() -> None:
    """What a peer registers after the first transfer over a link stays invisible."""
    began, add = CacheUsage.begin, CacheUsage._add

    def begin(self: Any, cache: object) -> None:
        self.read = True
        began(self, cache)

    CacheUsage.begin = begin
    CacheUsage._add = lambda self, records: None if getattr(self, "read", False) else add(self, records)


@hole("13")
def not_noticed() -> None:
    """The end of a peer is noticed by timeouts only."""
    real = Dialogue.lose

    def lose(self: object, reason: str, announce: bool = True) -> None:
        if not announce:  # this side ends the link
            real(self, reason, announce)

    Dialogue.lose = lose


@hole("14")
def one_manager() -> None:
    """There is one manager for a process."""
    real, living = cc.CacheManager.__init__, []

    def init(self: Any, *given: Any, **more: Any) -> None:
        living[:] = [one for one in living if not one._closed]
        if living:
            raise CacheError("there is a manager in this process already")
        real(self, *given, **more)
        living.append(self)

    cc.CacheManager.__init__ = init
