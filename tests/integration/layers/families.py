"""The KV layouts of four families of models, as connectors of serving engines lay them out, at any tensor-parallel size.

Dimensions of heads are smaller than the real ones; layers, tensors, groups and the way they share memory are not.
"""

import math
from dataclasses import dataclass, field

import cachecore as cc

T = cc.DataType
FAMILIES = ("attention", "stacked", "mla", "indexer", "hybrid")


@dataclass(frozen=True)
class Tensor:
    """One tensor of one rank.

    Attributes:
        buffer: The allocation it lies in.
        offset: Bytes from its start to block 0.
        stride: Bytes from block to block.
        data_type: Element type.
        shape: Of one block of this rank.
        axis: Dimension of the block that the ranks share out; None: every rank has all of it.
    """

    buffer: str
    offset: int
    stride: int
    data_type: T
    shape: tuple
    axis: int | None

    @property
    def nbytes(self):
        return math.prod(self.shape) * self.data_type.itemsize


@dataclass
class Group:
    """Layers with one block list.

    Attributes:
        blocks: How many blocks each tensor has.
        served: Blocks that hold what a prefill side has computed. Groups that share a buffer use different pages of it.
        taken: Blocks of a decode side that receive it.
        layers: Tensors by layer name.
    """

    blocks: int
    served: list
    taken: list
    layers: dict = field(default_factory=dict)


@dataclass
class Layout:
    """Everything one rank registers.

    Attributes:
        buffers: Bytes of each allocation.
        groups: By name.
    """

    buffers: dict
    groups: dict


def layout(family, ranks):
    """The layout of one of `ranks` ranks."""
    return _MAKERS[family](ranks)


def _attention(ranks):
    """Grouped-query attention: K and V of each layer are tensors [blocks, tokens, heads, dim] of their own."""
    group = Group(7, [5, 0, 3], [1, 2, 6])
    buffers = {}
    shape = (16, 8 // ranks, 8)
    for layer in range(32):
        tensors = []
        for name in (f"k{layer}", f"v{layer}"):
            tensors.append(Tensor(name, 0, math.prod(shape) * 2, T.DT_FLOAT16, shape, 1))
            buffers[name] = 7 * tensors[-1].stride
        group.layers[f"model.layers.{layer}.self_attn.attn"] = tensors
    return Layout(buffers, {"": group})


def _stacked(ranks):
    """Grouped-query attention: one tensor [2, blocks, heads, tokens, dim] a layer, split into a view for K and one for V."""
    group = Group(6, [4, 1], [0, 5])
    buffers = {}
    shape = (8 // ranks, 16, 8)
    for layer in range(48):
        name, nbytes = f"kv{layer}", math.prod(shape) * 2
        buffers[name] = 2 * 6 * nbytes
        tensors = [Tensor(name, half * 6 * nbytes, nbytes, T.DT_BF16, shape, 0) for half in range(2)]
        group.layers[f"model.layers.{layer}.self_attn.attn"] = tensors
    return Layout(buffers, {"": group})


def _pages(group, buffers, layer, name, parts):
    """Add tensors to a layer that share the pages of one buffer: each page holds a block of each."""
    offset, tensors = 0, []
    page = sum(math.prod(shape) * data_type.itemsize for data_type, shape in parts)
    for data_type, shape in parts:
        tensors.append(Tensor(name, offset, page, data_type, shape, None))
        offset += tensors[-1].nbytes
    buffers[name] = group.blocks * page
    group.layers.setdefault(layer, []).extend(tensors)


def _mla(ranks):
    """Multi-head latent attention: k_nope and k_pe interleaved in one allocation a layer, the same on every rank."""
    group = Group(5, [2, 4], [3, 0])
    buffers = {}
    for layer in range(61):
        parts = [(T.DT_BF16, (16, 1, 32)), (T.DT_BF16, (16, 1, 8))]
        _pages(group, buffers, f"model.layers.{layer}.self_attn.attn", f"latent{layer}", parts)
    return Layout(buffers, {"": group})


def _indexer(ranks):
    """Latent attention with a sparse indexer: four tensors a layer, indexer keys and their fp8 scales in one buffer."""
    group = Group(5, [2, 4], [3, 0])
    buffers = {}
    for layer in range(61):
        name = f"model.layers.{layer}.self_attn"
        _pages(group, buffers, name, f"latent{layer}", [(T.DT_BF16, (16, 1, 32)), (T.DT_BF16, (16, 1, 8))])
        _pages(group, buffers, name, f"index{layer}", [(T.DT_FLOAT8_E4M3FN, (16, 1, 32)), (T.DT_FLOAT, (16, 1))])
    return Layout(buffers, {"": group})


def _hybrid(ranks):
    """Attention and state layers over the same raw pages: one attention and three state layers view each buffer.

    Blocks of attention are half a page, so that there are twice as many; conv and ssm state have different data types.
    """
    pages = 8
    heads, conv, state = (16, 4 // ranks, 8), (3, 64 // ranks), (8 // ranks, 4, 8)
    half = 2 * math.prod(heads) * 2
    page = 2 * half
    assert math.prod(conv) * 2 + math.prod(state) * 4 <= page
    groups = {"full_attention": Group(2 * pages, [0, 3, 1], [2, 1, 0])}
    for number in range(3):
        groups[f"linear_attention.{number}"] = Group(pages, [2 + 2 * number], [3 + 2 * number - number % 2])
    buffers = {f"raw{i}": pages * page for i in range(12)}
    for i, name in enumerate(buffers):
        groups["full_attention"].layers[f"model.layers.{4 * i + 3}.self_attn"] = [
            Tensor(name, 0, half, T.DT_FLOAT16, heads, 1),
            Tensor(name, half // 2, half, T.DT_FLOAT16, heads, 1),
        ]
        for number in range(3):
            groups[f"linear_attention.{number}"].layers[f"model.layers.{4 * i + number}.linear_attn"] = [
                Tensor(name, 0, page, T.DT_FLOAT16, conv, 1),
                Tensor(name, math.prod(conv) * 2, page, T.DT_FLOAT, state, 0),
            ]
    return Layout(buffers, groups)


_MAKERS = {"attention": _attention, "stacked": _stacked, "mla": _mla, "indexer": _indexer, "hybrid": _hybrid}


def part(tensor, rank, ranks):
    """The slice of a block of `tensor`, which holds all of it, that belongs to one of `ranks` ranks."""
    if tensor.axis is None:
        return None
    tail = math.prod(tensor.shape[tensor.axis :]) * tensor.data_type.itemsize
    count = math.prod(tensor.shape[: tensor.axis])
    return (rank * tail // ranks, tail // ranks, count, tail if count > 1 else 0)


def share(tensor, rank, ranks):
    """The share of the tokens of a block that one of `ranks` ranks sends, where each has all of them."""
    return (rank * tensor.nbytes // ranks, tensor.nbytes // ranks)
