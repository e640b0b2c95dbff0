"""Two caches of named layers side by side: which tensors belong together, and where the layouts differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cachecore import _arguments as arguments
from cachecore import slices
from cachecore.errors import CacheIncompatibleError, CacheValueError
from cachecore.planning import Part
from cachecore.shape import BlockKind, LayersShape
from cachecore.slices import BlockSlice

__all__ = ["LayersMatch", "LayersShape", "compare", "match"]

_SHOWN = 5
#: Most matches that a cache remembers; a connector makes the same few again and again.
_REMEMBERED = 32


class _Difference(NamedTuple):
    """Two tensors, or layers, that do not fit together.

    Attributes:
        kind: What differs, for counting those that differ in the same way.
        text: A sentence without an end.
    """

    kind: tuple[object, ...]
    text: str


class _Pair(NamedTuple):
    """Two tensors that belong together."""

    local: int
    remote: int
    local_slice: BlockSlice | None
    remote_slice: BlockSlice | None


class LayersMatch:
    """`matching.Matched` for two caches of named layers.

    Args:
        local: The caller's cache.
        remote: The other end's.
        names: The layers that move.
        layers: The pairs of each layer.

    Attributes:
        names: The layers that move.
        parts: All layers; tensors whose blocks look alike on both sides are one part.
        tensor_indexes: Position in the caller's cache of each pair of a plan over `parts`.
    """

    def __init__(
        self, local: LayersShape, remote: LayersShape, names: Sequence[str], layers: Sequence[Sequence[_Pair]]
    ) -> None:
        self._local, self._remote = local, remote
        self.names: Sequence[str] = tuple(names)
        self._layers = tuple(layers)
        self.parts, self.tensor_indexes = self._grouped([pair for pairs in layers for pair in pairs])

    def layer_parts(self, layer: int) -> Sequence[Part]:
        """The parts of one layer, counted from 0 among those that move."""
        return self._grouped(self._layers[layer])[0]

    def layer_tensor_indexes(self, layer: int) -> Sequence[int]:
        """Position in the caller's cache of each pair of a plan over `layer_parts(layer)`."""
        return self._grouped(self._layers[layer])[1]

    def _grouped(self, pairs: Sequence[_Pair]) -> tuple[Sequence[Part], Sequence[int]]:
        local, remote = self._local, self._remote
        groups: dict[tuple[BlockKind, BlockKind, BlockSlice | None, BlockSlice | None], list[_Pair]] = {}
        for pair in pairs:
            alike = local.kind(pair.local), remote.kind(pair.remote), pair.local_slice, pair.remote_slice
            groups.setdefault(alike, []).append(pair)
        parts = [
            Part(
                local.geometry(local_kind, [pair.local for pair in group]),
                remote.geometry(remote_kind, [pair.remote for pair in group]),
                local_slice,
                remote_slice,
            )
            for (local_kind, remote_kind, local_slice, remote_slice), group in groups.items()
        ]
        return tuple(parts), tuple(pair.local for group in groups.values() for pair in group)


def match(
    local: LayersShape,
    remote: LayersShape,
    layers: object = None,
    local_slice: object = None,
    remote_slice: object = None,
    *,
    local_name: str = "dst_slice",
    remote_name: str = "src_slice",
) -> LayersMatch:
    """Find the tensors that belong together: those at the same place of layers of the same name.

    Args:
        local: The caller's cache.
        remote: The other end's.
        layers: Names of the layers that move, None = all of the side that has fewer.
        local_slice: What moves of each block of the caller's cache; see `slices.checked`.
        remote_slice: The same for the other end.
        local_name: What the caller's user calls `local_slice`; for messages.
        remote_name: What the caller's user calls `remote_slice`; for messages.

    Raises:
        CacheTypeError, CacheValueError: `layers` is no list of different names; a slice is none.
        CacheIncompatibleError: The groups differ; a layer is missing on one side; the numbers of tensors, the data types
            or, without slices, the bytes of a block differ. The message names the first difference.
    """
    given = layers, local_slice, remote_slice
    wanted = (remote, _fixed(given)) if _is_plain(given) else None
    found = local.matches.get(wanted)
    if isinstance(found, LayersMatch):
        return found
    if local.group != remote.group:
        # Found by cache id: a key would have found the caller's group.
        raise CacheIncompatibleError(
            f"{local.owner} is of group {local.group!r} and {remote.owner} of group {remote.group!r}; each group has block ids "
            "of its own: name two caches of one group"
        )
    names = _names(local, remote, layers)
    counts = {len(shape.tensors(shape.positions[name])) for shape in (local, remote) for name in names}
    local_slices = {count: slices.checked(local_name, local_slice, count) for count in counts}
    remote_slices = {count: slices.checked(remote_name, remote_slice, count) for count in counts}
    sliced = local_slice is not None or remote_slice is not None
    pairs: list[list[_Pair]] = []
    for name in names:
        for difference in _differences(name, local, remote, check_bytes=not sliced):
            remedy = f", or move parts of blocks with {remote_name} and {local_name}"
            raise CacheIncompatibleError(
                f"{difference.text}; a transfer moves bytes and converts nothing: register both sides alike"
                f"{remedy if difference.kind[0] == 'bytes' else ''}"
            )
        here, there = local.tensors(local.positions[name]), remote.tensors(remote.positions[name])
        pairs.append(
            [_Pair(*pair) for pair in zip(here, there, local_slices[len(here)], remote_slices[len(there)], strict=True)]
        )
    made = LayersMatch(local, remote, names, pairs)
    if wanted is not None:
        if len(local.matches) >= _REMEMBERED:
            local.matches.clear()
        local.matches[wanted] = made
    return made


def compare(local: LayersShape, remote: LayersShape) -> tuple[str, ...]:
    """What would make a transfer of whole blocks between two caches fail, or take one value for another.

    One sentence for each kind of difference.

    Slices can bridge different bytes of a block, and caches may hold different layers, so that a difference is no error.

    Args:
        local: A cache of this manager.
        remote: The cache of a peer with the same key and group.
    """
    common = [name for name in local.layer_names if name in remote.positions]
    if not common:
        mine, theirs = _listed(local.layer_names), _listed(remote.layer_names)
        return (f"{local.owner} ({mine}) and {remote.owner} ({theirs}) have no layer in common.",)
    sentences = []
    missing = [name for name in local.layer_names if name not in remote.positions]
    more = [name for name in remote.layer_names if name not in local.positions]
    if missing and more:
        sentences.append(
            f"{remote.owner} does not have {_listed(missing)} of {local.owner}, which does not have {_listed(more)}."
        )
    alike: dict[tuple[object, ...], list[str]] = {}
    for name in common:
        for difference in _differences(name, local, remote, check_bytes=True, check_order=True):
            alike.setdefault(difference.kind, []).append(difference.text)
    for texts in alike.values():
        rest = f", and {len(texts) - 1} more like it" if len(texts) > 1 else ""
        sentences.append(f"{texts[0]}{rest}.")
    return tuple(sentences)


def _is_plain(value: object) -> bool:
    """Whether a value consists of what can be remembered. True is none: it is equal to 1 and no integer here."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (int, str, BlockSlice)


def _fixed(value: object) -> object:
    return tuple(map(_fixed, value)) if isinstance(value, list | tuple) else value


def _names(local: LayersShape, remote: LayersShape, layers: object) -> tuple[str, ...]:
    if layers is None:
        fewer, other = (local, remote) if len(local.layer_names) <= len(remote.layer_names) else (remote, local)
        missing = [name for name in fewer.layer_names if name not in other.positions]
        if missing:
            raise CacheIncompatibleError(
                f"{other.owner} does not have {_listed(missing)} of {fewer.owner}; it has {_listed(other.layer_names)}. Name "
                "the layers to move with layers=[...]"
            )
        return fewer.layer_names
    if not isinstance(layers, list | tuple):
        raise arguments.wrong_type("layers", layers, "a list or tuple of layer names, or None for all")
    if not layers:
        raise CacheValueError("layers is empty; leave it out to move all layers")
    for index, name in enumerate(layers):
        arguments.instance(f"layers[{index}]", name, str)
        for shape in (local, remote):
            if name not in shape.positions:
                raise CacheIncompatibleError(
                    f"layers[{index}] is {name!r}, which {shape.owner} does not have; it has {_listed(shape.layer_names)}"
                )
    if len(set(layers)) != len(layers):
        twice = next(name for name in layers if layers.count(name) > 1)
        raise CacheValueError(f"layers has {twice!r} twice; name each layer once")
    return tuple(layers)


def _differences(
    name: str, local: LayersShape, remote: LayersShape, *, check_bytes: bool, check_order: bool = False
) -> Iterator[_Difference]:
    here, there = local.tensors(local.positions[name]), remote.tensors(remote.positions[name])
    if len(here) != len(there):
        yield _Difference(
            ("count", len(here), len(there)),
            f"layer {name!r} has {len(here)} tensors in {local.owner} and {len(there)} in {remote.owner}",
        )
        return
    for index, (mine, theirs) in enumerate(zip(here, there, strict=True)):
        ours, other = local.kind(mine), remote.kind(theirs)
        if ours.data_type is not other.data_type:
            yield _Difference(
                ("data type", ours.data_type, other.data_type),
                f"tensor {index} of layer {name!r} holds {ours.data_type.name} in {local.owner} and "
                f"{other.data_type.name} in {remote.owner}",
            )
        elif check_bytes and ours.nbytes != other.nbytes:
            yield _Difference(
                ("bytes", ours.nbytes, other.nbytes),
                f"a block of tensor {index} of layer {name!r} has {ours.nbytes} bytes in {local.owner} and {other.nbytes} "
                f"in {remote.owner}",
            )
        elif check_order:
            # Only these: other dimensions of as many bytes may be meant, one side may flatten what the other does not.
            here_shape, there_shape = ([extent for extent in kind.shape if extent != 1] for kind in (ours, other))
            if here_shape != there_shape and sorted(here_shape) == sorted(there_shape):
                yield _Difference(
                    ("order", tuple(here_shape), tuple(there_shape)),
                    f"a block of tensor {index} of layer {name!r} is {here_shape} in {local.owner} and {there_shape} in "
                    f"{remote.owner}, the same dimensions in another order of memory; a transfer moves bytes as they are and "
                    "mixes up their elements: register both sides in one order",
                )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"layer{'s' if len(names) > 1 else ''} {', '.join(map(repr, names[:_SHOWN]))}{more}"
