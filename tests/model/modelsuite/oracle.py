"""What managers, caches, blocks and leases are, in plain Python: bytes in dictionaries.

Nothing here knows how cachecore works. Each check returns the names of the errors that the documentation promises for
a call, all of them where several rules are broken; a call without any must succeed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from modelsuite.sizes import BUFFERS, content

NOT_FOUND, VALUE, INCOMPATIBLE = "CacheNotFoundError", "CacheValueError", "CacheIncompatibleError"

#: A key: ("blocks", cluster, model) | ("req" or "prefix", cluster, id, model) | ("index", cluster, cache id, entry)
Key = tuple
Slice = tuple[int, int, int, int]  # offset, bytes, count, stride
Slices = None | Slice | list[Slice | None]


@dataclass
class Tensor:
    """Blocks (or entries) of one tensor."""

    buffer: str
    offset: int
    blocks: int
    block_bytes: int
    stride: int
    data_type: int = 4

    def piece(self, block: int, offset: int, nbytes: int) -> tuple[str, int, int]:
        """Bytes inside one block: buffer, offset, count."""
        return self.buffer, self.offset + block * self.stride + offset, nbytes


@dataclass
class Cache:
    """One cache. `kind` is "blocks", "entries" or "layers"."""

    cache_id: int
    kind: str
    data_type: int
    tensors: list[Tensor]
    remote: bool
    allocated: bool = False
    model: int | None = None
    keys: list[Key | None] = field(default_factory=list)
    group: str = ""
    layers: dict[str, list[int]] = field(default_factory=dict)

    @property
    def blocks(self) -> int:
        """Blocks or entries of each tensor."""
        return self.tensors[0].blocks

    @property
    def block_bytes(self) -> int:
        """Bytes of one; all alike but in "layers"."""
        return self.tensors[0].block_bytes


@dataclass
class Lease:
    """A lease that a node has granted; the worker's value travels with it."""

    value: object
    node: int
    cache_id: int
    blocks: frozenset[int]
    live: bool = True


@dataclass
class Node:
    """One manager."""

    cluster: int
    process: int
    buffers: dict[str, bytearray]
    caches: dict[int, Cache] = field(default_factory=dict)
    last_id: int = 0
    life: int = 0
    #: Cluster id of a peer -> the life it had when it was linked.
    links: dict[int, int] = field(default_factory=dict)
    leases: list[Lease] = field(default_factory=list)
    inbox: list[tuple[int, str, bytes]] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    #: Caches of this manager's own buffers that were unregistered.
    gone: list[Cache] = field(default_factory=list)
    #: Caches that were deallocated and are kept by their keys, and the content of their memory, which only peers see.
    released: dict[int, Cache] = field(default_factory=dict)
    hidden: dict[str, bytearray] = field(default_factory=dict)

    def memory(self, name: str) -> bytearray:
        """Content of a buffer, also of a cache that was released."""
        return self.buffers[name] if name in self.buffers else self.hidden[name]

    def of_kind(self, kind: str) -> list[Cache]:
        """Its caches of one kind."""
        return [cache for cache in self.caches.values() if cache.kind == kind]

    def add(self, cache: Cache) -> None:
        """A cache was registered; ids count up."""
        assert cache.cache_id > self.last_id, "a cache id was used twice"
        self.last_id = cache.cache_id
        self.caches[cache.cache_id] = cache

    def named(self) -> list[Cache]:
        """Every cache whose keys name it."""
        return [*self.caches.values(), *self.released.values()]

    def used_up(self, cache: Cache) -> None:
        """A key of a cache is gone: memory that only keys kept is freed with the last one."""
        if cache.cache_id in self.released and not any(cache.keys):
            del self.released[cache.cache_id]
            for tensor in cache.tensors:
                del self.hidden[tensor.buffer]


def fresh(cluster: int, process: int, seed: int, life: int, facts: dict[str, object]) -> Node:
    """A manager that was just made."""
    buffers = {name: bytearray(content(seed, name, nbytes)) for name, nbytes in BUFFERS.items()}
    return Node(cluster, process, buffers, life=life, facts=facts)


class Oracle:
    """All nodes, by cluster id."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}

    # --- finding ----------------------------------------------------------------------------------------------------

    def find(self, me: Node, key: Key) -> tuple[set[str], Node | None, Cache | None, int | None]:
        """What a key names for `me`: errors, or node, cache and entry (None for a paged cache as a whole)."""
        errors, node = self.reached(me, key[1])
        if node is None:
            return errors, None, None, None
        errors, cache, entry = self._named(node, key, everything=node is me)
        return errors, node, cache, entry

    def reached(self, me: Node, cluster: int) -> tuple[set[str], Node | None]:
        """The manager of a cluster, or why `me` does not reach it."""
        if cluster == me.cluster:
            return set(), me
        if cluster not in me.links:
            return {"NotLinkedError"}, None
        node = self.nodes[cluster]
        return (set(), node) if node.life == me.links[cluster] else ({"LinkLostError", "NotLinkedError"}, None)

    @staticmethod
    def at(me: Node, node: Node, spots: Sequence[tuple[str, int]], kind: str) -> list[tuple[Cache, int, list[int]]]:
        """What addresses (buffer, offset) of a node name for `me`: caches, each with the entry and the tensors.

        Each is where another tensor of the cache starts, or the same entry of it; "blocks" have no entries.
        """
        found = []
        for cache in node.of_kind(kind):
            for entry in range(cache.blocks if kind == "entries" else 1):
                starts = [tensor.piece(entry, 0, 0)[:2] for tensor in cache.tensors]
                if (cache.remote or node is me) and set(spots) <= set(starts) and len(set(spots)) == len(spots):
                    found.append((cache, entry, [starts.index(spot) for spot in spots]))
        return found

    def _named(self, node: Node, key: Key, *, everything: bool) -> tuple[set[str], Cache | None, int | None]:
        caches = [cache for cache in node.named() if everything or cache.remote]
        if key[0] == "blocks":
            for cache in caches:
                if cache.kind == "blocks" and cache.model == key[2]:
                    return set(), cache, None
            return {NOT_FOUND}, None, None
        if key[0] == "index":
            for cache in caches:
                if cache.cache_id == key[2]:
                    if cache.kind != "entries":
                        if key[3] == 0 and cache.kind == "blocks":
                            return set(), cache, None
                        return {INCOMPATIBLE, VALUE, NOT_FOUND}, None, None
                    if key[3] >= cache.blocks:
                        return {VALUE}, None, None
                    return set(), cache, key[3]
            return {NOT_FOUND}, None, None
        for cache in caches:
            for entry, name in enumerate(cache.keys):
                if name == key:
                    return set(), cache, entry
        return {NOT_FOUND}, None, None

    # --- planning ---------------------------------------------------------------------------------------------------

    @staticmethod
    def crossing(me: Node, node: Node | None, own: Cache) -> set[str]:
        """A cache that was registered for this process only takes no part in transfers between processes."""
        return {VALUE} if node is not None and node.process != me.process and not own.remote else set()

    @staticmethod
    def tensor_ranges(
        src: Cache, dst: Cache, src_range: range | None, dst_range: range | None, per_layer: int
    ) -> tuple[set[str], range, range]:
        """Indexes of the tensors that move."""
        errors: set[str] = set()
        found = []
        for cache, layers in ((src, src_range), (dst, dst_range)):
            count = len(cache.tensors)
            if count % per_layer:
                errors.add(INCOMPATIBLE)
            total = count // per_layer
            layers = range(total) if layers is None else layers
            if not layers or layers.step != 1 or layers.start < 0 or layers.stop > total:
                errors.add(VALUE if total else INCOMPATIBLE)
            found.append(range(layers.start * per_layer, layers.stop * per_layer))
        if len(found[0]) != len(found[1]):
            errors.add(INCOMPATIBLE)
        return errors, found[0], found[1]

    @staticmethod
    def block_lists(src: Sequence[int], dst: Sequence[int], src_blocks: int, dst_blocks: int) -> set[str]:
        """What is wrong with the ids."""
        bad = not src or len(src) != len(dst) or len(set(dst)) != len(dst)
        bad = bad or any(not 0 <= b < src_blocks for b in src) or any(not 0 <= b < dst_blocks for b in dst)
        return {VALUE} if bad else set()

    @staticmethod
    def stream(block_bytes: int, part: Slice | None) -> tuple[set[str], list[tuple[int, int]]]:
        """The (offset, bytes) pieces of one block that move."""
        if part is None:
            return set(), [(0, block_bytes)]
        offset, nbytes, count, stride = part
        pieces = [(offset + i * stride, nbytes) for i in range(count)]
        inside = nbytes >= 1 and all(first + nbytes <= block_bytes for first, _ in pieces)
        return (set() if inside else {VALUE}), pieces

    def streams(
        self, src: Tensor, dst: Tensor, parts: tuple[Slice | None, Slice | None]
    ) -> tuple[set[str], list[tuple[int, int]], list[tuple[int, int]]]:
        """The pieces of a block of either tensor that move: as many bytes."""
        errors, left = self.stream(src.block_bytes, parts[0])
        bad, right = self.stream(dst.block_bytes, parts[1])
        errors = errors | bad
        if sum(n for _, n in left) != sum(n for _, n in right):
            errors |= {INCOMPATIBLE} if parts == (None, None) else {INCOMPATIBLE, VALUE}
        return errors, left, right

    @staticmethod
    def part_of_each(given: tuple[Slices, Slices], count: int) -> tuple[set[str], list[tuple[Slice | None, ...]]]:
        """The slices of both sides for each tensor of a layer; a list has one for each."""
        errors: set[str] = set()
        sides = []
        for side in given:
            if isinstance(side, list) and len(side) != count:
                errors = {VALUE}
            sides.append(side if isinstance(side, list) and len(side) == count else [side] * count)
        return errors, [] if errors else list(zip(*sides, strict=True))

    @staticmethod
    def pair(src: Iterable[tuple[str, int, int]], dst: Iterable[tuple[str, int, int]]) -> list[tuple]:
        """Two byte streams cut at each other's ends: (buffer, offset, buffer, offset, bytes)."""
        moves, left, right = [], [list(s) for s in src], [list(d) for d in dst]
        while left and right:
            count = min(left[0][2], right[0][2])
            moves.append((left[0][0], left[0][1], right[0][0], right[0][1], count))
            for side in (left, right):
                side[0][1] += count
                side[0][2] -= count
                if not side[0][2]:
                    side.pop(0)
        return moves

    def shared(self, src: Node, dst: Node, moves: list[tuple]) -> set[str]:
        """Within one process no byte may be read that is also written."""
        if src is not dst:
            return set()
        written = {(buffer, byte) for _, _, buffer, at, count in moves for byte in range(at, at + count)}
        read = ((buffer, byte) for buffer, at, _, _, count in moves for byte in range(at, at + count))
        return {"OverlapError"} if any(one in written for one in read) else set()

    @staticmethod
    def move(src: Node, dst: Node, moves: list[tuple]) -> None:
        """Copy."""
        data = [bytes(src.memory(a)[i : i + n]) for a, i, _, _, n in moves]
        for (_, _, buffer, at, count), part in zip(moves, data, strict=True):
            dst.memory(buffer)[at : at + count] = part
