"""Choosing caches, keys, blocks and layers for transfers: mostly such that it succeeds, else with one thing wrong."""

from __future__ import annotations

import cachecore as cc
from modelsuite import wire
from modelsuite.base import Frame, chance, hinder
from modelsuite.oracle import NOT_FOUND, VALUE, Cache, Key, Node, Slice, Slices, Tensor

#: How a transfer is called: blocking, or what is done with its handle.
FORMS = ["", "", "", "", "", "wait", "await_", "layers", "wait layerwise", "layers layerwise"]
#: What can be wrong with every transfer.
FAULTS = ["key", "none", "none", "type", "type", "unlinked", "unlinked", "stale", "late", "late", "cancelled"]
FAULTS += ["engine", "engine", "event"]
#: Seconds of transfers that are to be late.
SHORT = 0.03


class Choosing(Frame):
    """Draws for all rules that move bytes."""

    #: The manager that transfers go to while links to it are lost.
    towards: Node | None = None
    #: What the call that was planned last would move: source, destination, pieces.
    moves: tuple[Node, Node, list[tuple]] | None = None

    def draw_pair(
        self, rnd: object, own_kind: str, other_kind: str, wrong: str = ""
    ) -> tuple[Node, Cache, Node, Cache] | None:
        """A cache of the caller and another one; they fit each other unless that is what is wrong."""
        if self.towards is not None:
            return self.towards_the_lost(rnd, own_kind, other_kind)
        fitting, uneven, unlike, same, hidden = [], [], [], [], []
        for me in self.nodes:
            for own in me.of_kind(own_kind):
                for node in self.reachable(me):
                    for other in node.of_kind(other_kind):
                        pair = me, own, node, other
                        crossing = node.process != me.process
                        named = other.model is not None or other.kind == "entries"
                        fits = named and other.data_type == own.data_type and len(other.tensors) == len(own.tensors)
                        even = own.block_bytes == other.block_bytes
                        if node is me and sharing(own, other):
                            same.append(pair)
                        elif (crossing and not own.remote) or (node is not me and not other.remote):
                            hidden.append(pair)
                        else:
                            if fits and not even:
                                uneven.append(pair)
                            if fits and (even or own_kind != "blocks" or other_kind != "blocks"):
                                fitting.append(pair)
                            elif not fits:
                                unlike.append(pair)
        if uneven and (wrong == "slices" or (wrong == "fit" and chance(rnd, 0.7))):
            return rnd.choice(uneven)
        found = {"overlap": same, "fit": unlike, "hidden": hidden}.get(wrong) or fitting
        if not found:
            return rnd.choice(unlike) if unlike and chance(rnd, 0.1) else None
        if found is fitting:
            apart = [pair for pair in fitting if pair[0] is not pair[2]]
            return rnd.choice(apart if apart and chance(rnd, 0.9) else fitting)
        return rnd.choice(found)

    def towards_the_lost(self, rnd: object, own_kind: str, other_kind: str) -> tuple[Node, Cache, Node, Cache] | None:
        """The other cache was there before its manager ended: any one that looks like one."""
        node = self.towards
        owners = [me for me in self.nodes if node.cluster in self.lost(me) and me.of_kind(own_kind)]
        if not owners:
            return None
        me = rnd.choice(owners)
        own = rnd.choice(me.of_kind(own_kind))
        model = 1 if other_kind != "entries" else None
        return me, own, node, Cache(1, other_kind, own.data_type, own.tensors, True, model=model, layers=own.layers)

    def draw_key(self, rnd: object, me: Node, node: Node, cache: Cache, wrong: str = "") -> Key:
        """A key that names the cache, or nearly."""
        cluster = node.cluster
        if wrong == "unlinked":
            strangers = [one.cluster for one in self.nodes if one is not me and one.cluster not in me.links]
            cluster = rnd.choice(strangers) if strangers else me.cluster + 40
        if cache.kind != "entries":
            if wrong == "key" or cache.model is None:
                return ("blocks", cluster, 77)
            if cache.kind == "blocks" and chance(rnd, 0.2):
                return ("index", cluster, cache.cache_id, 0)
            return ("blocks", cluster, cache.model)
        entry = rnd.randrange(cache.blocks)
        if wrong == "key":
            return ("req", cluster, 99, 1) if chance(rnd, 0.7) else ("index", cluster, cache.cache_id, cache.blocks + 1)
        names = [key for key in cache.keys if key]
        if names and chance(rnd, 0.6):
            kind, _, *rest = rnd.choice(names)
            return (kind, cluster, *rest)
        return ("index", cluster, cache.cache_id, entry)

    def draw_own(self, rnd: object, me: Node, own: Cache, wrong: str) -> tuple[wire.CacheRef, set[str]]:
        """The caller's cache, or one that was unregistered."""
        stale = [cache for cache in me.gone if cache.kind == own.kind]
        if wrong == "stale" and stale:
            return wire.CacheRef(rnd.choice(stale).cache_id), {NOT_FOUND}
        return wire.CacheRef(own.cache_id), set()

    def draw_blocks(self, rnd: object, src: int, dst: int, wrong: str = "") -> tuple[list[int], list[int]]:
        """Ids that exist and are not written twice, unless they are what is wrong."""
        count = rnd.randint(1, min(src, dst))
        source, target = rnd.sample(range(src), count), rnd.sample(range(dst), count)
        if chance(rnd, 0.5):
            source.sort()
            target.sort()
        elif chance(rnd, 0.2):
            source = [source[0]] * count  # a source may repeat
        if wrong == "ids":
            what = rnd.randrange(5)
            if what == 0:
                source[-1] = src
            elif what == 1:
                target[-1] = dst + 3
            elif what == 2:
                target.append(target[0])
                source.append(source[0])
            elif what == 3:
                source = source[:-1]
            else:
                source, target = [], []
        return source, target

    def draw_ranges(
        self, rnd: object, src: Cache, dst: Cache, wrong: str = ""
    ) -> tuple[range | None, range | None, int]:
        """Layers of both sides and tensors of a layer."""
        per_layer = rnd.choice([1, 2, 2])
        if len(src.tensors) % 2 or len(dst.tensors) % 2:
            per_layer = 1
        if wrong == "layers" and chance(rnd, 0.4):
            return None, None, rnd.choice([3, 2 * max(len(src.tensors), len(dst.tensors))])
        if wrong != "layers" and chance(rnd, 0.6):
            return None, None, per_layer
        left, right = len(src.tensors) // per_layer, len(dst.tensors) // per_layer
        count = rnd.randint(1, max(1, min(left, right)))
        first, other = rnd.randint(0, max(0, left - count)), rnd.randint(0, max(0, right - count))
        ranges = [range(first, first + count), range(other, other + count)]
        if wrong == "layers":
            side, total = rnd.randrange(2), (left, right)
            bad = [range(total[side], total[side] + 1), range(0), range(ranges[side].start, ranges[side].stop + 1)]
            ranges[side] = rnd.choice(bad)
        return ranges[0], ranges[1], per_layer

    def draw_slices(
        self, rnd: object, src: list[Tensor], dst: list[Tensor], count: int, must: bool, wrong: str = ""
    ) -> tuple[Slices, Slices]:
        """Parts of blocks: one for every tensor of a layer, or a list with one for each of `count`.

        Args:
            rnd: The details.
            src: Tensors of a layer, or one where all are alike.
            dst: The same for the destination.
            count: How many tensors a layer has.
            must: Whether some must be given.
            wrong: What is to be wrong.
        """
        if not must and chance(rnd, 0.7):
            return None, None
        sizes = [(src[i % len(src)].block_bytes, dst[i % len(dst)].block_bytes) for i in range(count)]
        if chance(rnd, 0.5):  # of every tensor: as many bytes as the smallest block has, at most
            parts = self.draw_slice_pair(rnd, *(min(sizes) for sizes in zip(*sizes, strict=True)), len(src) == 1)
            if wrong == "slices":
                parts = spoiled(rnd, parts, sizes[0][0])
            return parts
        pairs = [self.draw_slice_pair(rnd, *size) for size in sizes]
        if wrong == "slices" and chance(rnd, 0.5):
            pairs[-1] = spoiled(rnd, pairs[-1], sizes[-1][0])
        elif wrong == "slices":
            pairs = [*pairs, pairs[0]] if chance(rnd, 0.5) else pairs[:-1]
        return [left for left, _ in pairs], [right for _, right in pairs]

    def draw_slice_pair(self, rnd: object, src_bytes: int, dst_bytes: int, whole: bool = True) -> tuple[Slice, Slice]:
        """As many bytes on both sides: anywhere, the start of blocks that are partly filled, or a whole block."""
        total = rnd.choice([8, 16, 32, min(src_bytes, dst_bytes)])
        partly = chance(rnd, 0.3)
        slices: list[Slice | None] = []
        for size in (src_bytes, dst_bytes):
            if total == size and whole and chance(rnd, 0.6):
                slices.append(None)
                continue
            count = 1 if partly else rnd.choice([1, 2, 4])
            nbytes = total // count
            stride = rnd.choice([nbytes, nbytes, 2 * nbytes]) if count > 1 else 0
            if (count - 1) * stride + nbytes > size:
                stride = nbytes if count > 1 else 0
            reach = (count - 1) * stride + nbytes
            slices.append((0 if partly else rnd.randint(0, size - reach), nbytes, count, stride))
        return tuple(slices)

    @staticmethod
    def give_slices(rnd: object, more: dict[str, object], slices: tuple[Slices, Slices], wrong: str = "") -> set[str]:
        """Add them to the arguments of a call, in one of the ways in which callers write them."""
        for name, given in zip(("src_slice", "dst_slice"), slices, strict=True):
            if given is not None:
                more[name] = [written(rnd, one) for one in given] if isinstance(given, list) else written(rnd, given)
        if wrong != "slices" or not chance(rnd, 0.2):
            return set()
        given, error = rnd.choice([(7, "CacheTypeError"), ((0, None), "MissingArgumentError"), ((0, 8, 1), VALUE)])
        if given != 7 and chance(rnd, 0.5):  # which is wrong too where a layer has another number of tensors
            given = [given, given]
        more[rnd.choice(["src_slice", "dst_slice"])] = given
        return {error, VALUE}

    def go(
        self,
        rnd: object,
        me: Node,
        method: str,
        arguments: list[object],
        errors: set[str],
        more: dict[str, object],
        label: str = "",
        then: object = None,
        wrong: str = "",
    ) -> None:
        """Perform it, blocking or in one of the other forms."""
        moves = self.moves if not errors else None
        form = rnd.choice(FORMS)
        more = {name: value for name, value in more.items() if value is not None} | {"timeout": 60.0}
        if wrong == "none":
            arguments[rnd.choice([0, 1])] = None
            errors = errors | {"MissingArgumentError"}
        elif wrong == "type":
            what = rnd.randrange(4)
            if what < 2:
                arguments[what] = "a cache"
            else:
                more["tensor_num_per_layer" if what == 2 else "src_layer_range"] = "2"
            errors = errors | {"CacheTypeError"}
        elif wrong == "late":
            more |= {"never": True, "timeout": SHORT}
            # A look-up that asks the peer, or the claim of a lease, may also be late.
            errors = (errors or {"TransferTimeoutError"}) | {"CacheTimeoutError", "LinkLostError"}
        elif wrong == "cancelled":
            form = "cancel"
            more["never"] = True
            errors = errors or {"TransferCancelledError"}
        else:
            errors = hinder(wrong, more, errors)

        def effect(value: object) -> None:
            self.oracle.move(*moves)
            if then is not None:
                then()

        name = method + label
        if form:
            method += "_async"
            name = method + label
            how, _, layerwise = form.partition(" ")
            more["then"] = how
            if layerwise:
                more["layerwise"] = True
        self.perform(me, method, arguments, errors, effect, label=name, **more)


def sharing(one: Cache, other: Cache) -> bool:
    """Whether two caches lie in one buffer."""
    return bool({t.buffer for t in one.tensors} & {t.buffer for t in other.tensors})


def spoiled(rnd: object, parts: tuple[Slice | None, Slice | None], src_bytes: int) -> tuple[Slice, Slice]:
    """A slice behind the end of its block, or two of different numbers of bytes."""
    left, right = ((0, 8, 1, 0) if part is None else part for part in parts)
    if chance(rnd, 0.5):
        return (src_bytes, *left[1:]), right
    return left, (0, left[1] * left[2] - 1, 1, 0)


def written(rnd: object, part: Slice | None) -> object:
    """A slice as callers write it."""
    if part is None:
        return None
    return rnd.choice([part, list(part), cc.BlockSlice(*part), part[:2] if part[2] == 1 else part])
