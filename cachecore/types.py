"""Values of the CacheManager API: data types, placements, descriptors, keys and caches.

Names, fields and numeric values follow Ascend LLM-DataDist, so that connector code ports by changing an import.
Everything is validated when it is made.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any, Final

from cachecore import _arguments as arguments
from cachecore.errors import CacheValueError

__all__ = [
    "NO_ID",
    "BlocksCacheKey",
    "Cache",
    "CacheDesc",
    "CacheKey",
    "CacheKeyByIdAndIndex",
    "DataType",
    "MemInfo",
    "Memtype",
    "Placement",
    "RegisterMemStatus",
    "TransferKey",
]

#: The value of `req_id` or `prefix_id` that means "none".
NO_ID: Final = 2**64 - 1
#: Most dimensions of one tensor; a peer refuses a catalogue in which one has more.
MAX_RANK: Final = 32


class DataType(enum.IntEnum):
    """Element type of a cache, numbered as the Ascend runtime does."""

    DT_FLOAT = 0
    DT_FLOAT16 = 1
    DT_INT8 = 2
    DT_INT32 = 3
    DT_UINT8 = 4
    DT_INT16 = 6
    DT_UINT16 = 7
    DT_UINT32 = 8
    DT_INT64 = 9
    DT_UINT64 = 10
    DT_DOUBLE = 11
    DT_BOOL = 12
    DT_STRING = 13
    DT_BF16 = 27
    DT_FLOAT8_E5M2 = 35
    DT_FLOAT8_E4M3FN = 36

    @property
    def itemsize(self) -> int:
        """Bytes of one element; 0 for DT_STRING, which has no fixed size and is refused for caches."""
        return _ITEMSIZE[self]


_ITEMSIZE = {
    DataType.DT_FLOAT: 4,
    DataType.DT_FLOAT16: 2,
    DataType.DT_INT8: 1,
    DataType.DT_INT32: 4,
    DataType.DT_UINT8: 1,
    DataType.DT_INT16: 2,
    DataType.DT_UINT16: 2,
    DataType.DT_UINT32: 4,
    DataType.DT_INT64: 8,
    DataType.DT_UINT64: 8,
    DataType.DT_DOUBLE: 8,
    DataType.DT_BOOL: 1,
    DataType.DT_STRING: 0,
    DataType.DT_BF16: 2,
    DataType.DT_FLOAT8_E5M2: 1,
    DataType.DT_FLOAT8_E4M3FN: 1,
}


class Placement(enum.IntEnum):
    """Where the memory of a cache is. On a machine without an accelerator DEVICE means the host's own memory."""

    HOST = 0
    DEVICE = 1


class Memtype(enum.IntEnum):
    """Kind of memory in `remap_registered_memory`."""

    MEM_TYPE_DEVICE = 0
    MEM_TYPE_HOST = 1


class RegisterMemStatus(enum.IntEnum):
    """State of the registrations of a link, see `CacheManager.query_register_mem_status`."""

    OK = 0
    PREPARING = 1
    FAILED = 2


class MemInfo:
    """A range of memory for `remap_registered_memory`. Immutable.

    Args:
        mem_type: Kind of memory.
        addr: Start address, above 0.
        size: Bytes, above 0.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: A bad value; the range runs past the address space.
    """

    __slots__ = ("addr", "mem_type", "size")
    mem_type: Memtype
    addr: int
    size: int

    def __init__(self, mem_type: Memtype, addr: int, size: int) -> None:
        object.__setattr__(self, "mem_type", arguments.member("mem_type", mem_type, Memtype))
        object.__setattr__(self, "addr", arguments.integer("addr", addr, 1, 2**64 - 1))
        object.__setattr__(self, "size", arguments.integer("size", size, 1, 2**64 - 1))
        if self.addr + self.size > 2**64:
            raise CacheValueError(f"addr is {self.addr:#x} and size {self.size} bytes; they run past the address space")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"MemInfo.{name} cannot be changed; make a new one")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MemInfo):
            return NotImplemented
        return (self.mem_type, self.addr, self.size) == (other.mem_type, other.addr, other.size)

    def __hash__(self) -> int:
        return hash((self.mem_type, self.addr, self.size))

    def __reduce__(self) -> tuple[Any, ...]:
        return MemInfo, (self.mem_type, self.addr, self.size)

    def __repr__(self) -> str:
        return f"MemInfo({self.mem_type.name}, {self.addr:#x}, {self.size})"


class CacheDesc:
    """Shape of a cache: `num_tensors` tensors that all have `shape` and `data_type`.

    Registering copies the descriptor and never changes the caller's.

    Args:
        num_tensors: Number of tensors, 1 to 2**32-1. A layer is `tensor_num_per_layer` consecutive ones.
        shape: 1 to 32 dimensions, each above 0. For a blocks cache the first one is the number of blocks.
        data_type: Element type; DT_STRING is refused.
        placement: Where the memory is.
        batch_dim_index: Dimension that counts batch entries.
        seq_len_dim_index: Dimension that counts tokens, -1 for none.
        kv_tensor_format: Free text handed through, or None.

    Raises:
        MissingArgumentError: A parameter is None that must not be.
        CacheTypeError: A parameter has the wrong type.
        CacheValueError: A value is out of range, or a tensor would have more than 2**64-1 bytes.
    """

    __slots__ = (
        "_batch_dim_index",
        "_data_type",
        "_kv_tensor_format",
        "_num_tensors",
        "_placement",
        "_seq_len_dim_index",
        "_shape",
    )

    def __init__(
        self,
        num_tensors: int,
        shape: Sequence[int],
        data_type: DataType,
        placement: Placement = Placement.DEVICE,
        batch_dim_index: int = 0,
        seq_len_dim_index: int = -1,
        kv_tensor_format: str | None = None,
    ) -> None:
        self._num_tensors = arguments.integer("num_tensors", num_tensors, 1, 2**32 - 1)
        self._data_type = arguments.member("data_type", data_type, DataType)
        if self._data_type is DataType.DT_STRING:
            raise CacheValueError("data_type is DT_STRING, which has no fixed size; use DT_UINT8 for raw bytes")
        self._shape = _checked_shape(shape, self._data_type)
        self._placement = arguments.member("placement", placement, Placement)
        rank = len(self._shape)
        self._batch_dim_index = arguments.integer("batch_dim_index", batch_dim_index, 0, rank - 1)
        self._seq_len_dim_index = arguments.integer("seq_len_dim_index", seq_len_dim_index, -1, rank - 1)
        if kv_tensor_format is not None:
            arguments.instance("kv_tensor_format", kv_tensor_format, str)
        self._kv_tensor_format = kv_tensor_format

    @property
    def num_tensors(self) -> int:
        """Number of tensors."""
        return self._num_tensors

    @property
    def shape(self) -> list[int]:
        """Dimensions of one tensor, as a new list."""
        return list(self._shape)

    @property
    def data_type(self) -> DataType:
        """Element type."""
        return self._data_type

    @property
    def placement(self) -> Placement:
        """Where the memory is."""
        return self._placement

    @property
    def batch_dim(self) -> int:
        """Index of the dimension that counts batch entries."""
        return self._batch_dim_index

    @property
    def batch_size(self) -> int:
        """Number of batch entries."""
        return self._shape[self._batch_dim_index]

    @property
    def seq_len_dim_index(self) -> int:
        """Index of the dimension that counts tokens, -1 for none."""
        return self._seq_len_dim_index

    @property
    def size(self) -> int:
        """Bytes of one tensor."""
        return math.prod(self._shape) * self._data_type.itemsize

    @property
    def kv_tensor_format(self) -> str | None:
        """The text given, or None."""
        return self._kv_tensor_format

    def update_dim(self, index: int, value: int) -> None:
        """Change one dimension of this descriptor. Caches registered with it keep theirs.

        Raises:
            CacheTypeError, CacheValueError: As in the constructor; the descriptor is then unchanged.
        """
        position = arguments.integer("index", index, 0, len(self._shape) - 1)
        shape = list(self._shape)
        shape[position] = value
        self._shape = _checked_shape(shape, self._data_type)

    @staticmethod
    def _given(cache_desc: object) -> CacheDesc:
        """A copy of the descriptor that a caller gives: he may go on changing it, in another thread too.

        Raises:
            MissingArgumentError, CacheTypeError: None; another type.
        """
        arguments.instance("cache_desc", cache_desc, CacheDesc)
        assert isinstance(cache_desc, CacheDesc)
        return cache_desc._copy()

    def _copy(self) -> CacheDesc:
        twin = CacheDesc.__new__(CacheDesc)
        for name in CacheDesc.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CacheDesc):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in CacheDesc.__slots__)

    __hash__ = None  # type: ignore[assignment]  # update_dim changes the value

    def __repr__(self) -> str:
        return (
            f"CacheDesc(num_tensors={self._num_tensors}, shape={list(self._shape)}, "
            f"data_type={self._data_type.name}, placement={self._placement.name})"
        )


def _checked_shape(shape: object, data_type: DataType) -> tuple[int, ...]:
    arguments.not_none("shape", shape)
    if not isinstance(shape, list | tuple):
        raise arguments.wrong_type("shape", shape, "a list or tuple of integers")
    if not 1 <= len(shape) <= MAX_RANK:
        raise CacheValueError(f"shape has {len(shape)} dimensions; a tensor has 1 to {MAX_RANK}")
    checked = tuple(arguments.integer(f"shape[{i}]", dim, 1, 2**63 - 1) for i, dim in enumerate(shape))
    size = math.prod(checked) * data_type.itemsize
    if size > 2**64 - 1:
        raise CacheValueError(f"shape {list(checked)} of {data_type.name} needs {size} bytes, more than 2**64-1")
    return checked


class _Key:
    """Shared behaviour of the keys: immutable, comparable, hashable, all fields integers."""

    __slots__: tuple[str, ...] = ()

    def _fields(self) -> tuple[int, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed; make a new key")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((type(self), self._fields()))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._fields()

    def __repr__(self) -> str:
        pairs = (f"{name}={getattr(self, name)}" for name in self.__slots__)
        return f"{type(self).__name__}({', '.join(pairs)})"

    def _set(self, name: str, value: int) -> None:
        object.__setattr__(self, name, value)


def _cluster_id(cluster_id: int | None, prompt_cluster_id: int | None) -> int:
    if cluster_id is not None and prompt_cluster_id is not None:
        raise CacheValueError("cluster_id and prompt_cluster_id are two names of one field; give one of them")
    value = prompt_cluster_id if cluster_id is None else cluster_id
    return arguments.integer("cluster_id", value, 0, 2**64 - 1)


class CacheKey(_Key):
    """Names one batch entry of a contiguous cache by request or by prefix.

    On a pull exactly one of `req_id` and `prefix_id` is a real id (0 to 2**64-2). With neither, the key is a
    placeholder for an unused batch entry in the key list of `register_cache`.

    Args:
        cluster_id: Whose cache; `prompt_cluster_id` is the vendor's older name of it.
        req_id: Request, or NO_ID.
        model_id: Model.
        prefix_id: Shared prefix, or NO_ID.
        prompt_cluster_id: The older name of `cluster_id`.
    """

    __slots__ = ("cluster_id", "req_id", "model_id", "prefix_id")  # noqa: RUF023  # the order of the arguments
    cluster_id: int
    req_id: int
    model_id: int
    prefix_id: int

    def __init__(
        self,
        cluster_id: int | None = None,
        req_id: int = NO_ID,
        model_id: int = 0,
        prefix_id: int = NO_ID,
        *,
        prompt_cluster_id: int | None = None,
    ) -> None:
        self._set("cluster_id", _cluster_id(cluster_id, prompt_cluster_id))
        self._set("req_id", arguments.integer("req_id", req_id, 0, NO_ID))
        self._set("model_id", arguments.integer("model_id", model_id, 0, 2**64 - 1))
        self._set("prefix_id", arguments.integer("prefix_id", prefix_id, 0, NO_ID))

    @property
    def prompt_cluster_id(self) -> int:
        """The vendor's older name of `cluster_id`."""
        return self.cluster_id

    @property
    def is_placeholder(self) -> bool:
        """Whether it names nothing and only holds a place in a key list."""
        return self.req_id == NO_ID and self.prefix_id == NO_ID

    @property
    def is_prefix(self) -> bool:
        """Whether it names a shared prefix, which many requests read."""
        return self.prefix_id != NO_ID


class BlocksCacheKey(_Key):
    """Names the blocks cache of a model; a manager has one for each model id.

    Args:
        cluster_id: Whose cache; `prompt_cluster_id` is the vendor's older name of it.
        model_id: Model.
        prompt_cluster_id: The older name of `cluster_id`.
    """

    __slots__ = ("cluster_id", "model_id")
    cluster_id: int
    model_id: int

    def __init__(
        self, cluster_id: int | None = None, model_id: int = 0, *, prompt_cluster_id: int | None = None
    ) -> None:
        self._set("cluster_id", _cluster_id(cluster_id, prompt_cluster_id))
        self._set("model_id", arguments.integer("model_id", model_id, 0, 2**64 - 1))

    @property
    def prompt_cluster_id(self) -> int:
        """The vendor's older name of `cluster_id`."""
        return self.cluster_id


class CacheKeyByIdAndIndex(_Key):
    """Names one batch entry of a contiguous cache by the owner's cache id.

    Args:
        cluster_id: Whose cache.
        cache_id: `Cache.cache_id` at the owner.
        batch_index: Which batch entry.
    """

    __slots__ = ("cluster_id", "cache_id", "batch_index")  # noqa: RUF023  # the order of the arguments
    cluster_id: int
    cache_id: int
    batch_index: int

    def __init__(self, cluster_id: int, cache_id: int, batch_index: int = 0) -> None:
        self._set("cluster_id", arguments.integer("cluster_id", cluster_id, 0, 2**64 - 1))
        self._set("cache_id", arguments.integer("cache_id", cache_id, 0, 2**63 - 1))
        self._set("batch_index", arguments.integer("batch_index", batch_index, 0, 2**32 - 1))


#: Any key a transfer takes.
TransferKey = CacheKey | BlocksCacheKey | CacheKeyByIdAndIndex


class Cache:
    """A registered cache. Made by `CacheManager`, compared by identity.

    Attributes:
        cache_id: Counts from 1 in each manager and is never used twice; -1 for `create_cpu_cache`.
        cache_desc: The descriptor it was registered with.
        tensor_addrs: Start address of each tensor.
        is_blocks_cache: Whether it is paged.
    """

    __slots__ = ("__weakref__", "_addrs", "_cache_id", "_desc", "_is_blocks_cache")

    def __init__(
        self, cache_id: int, cache_desc: CacheDesc, tensor_addrs: Sequence[int], is_blocks_cache: bool
    ) -> None:
        self._cache_id = cache_id
        self._desc = cache_desc
        self._addrs = tuple(tensor_addrs)
        self._is_blocks_cache = is_blocks_cache

    @staticmethod
    def create_cpu_cache(cache_desc: CacheDesc, addrs: Sequence[int]) -> Cache:
        """Make an unregistered HOST blocks cache for `swap_blocks`.

        Raises:
            MissingArgumentError, CacheTypeError, CacheValueError: As in `register_blocks_cache`.
        """
        cache_desc = CacheDesc._given(cache_desc)
        if cache_desc.placement is not Placement.HOST:
            raise CacheValueError(f"cache_desc.placement is {cache_desc.placement.name}; a CPU cache needs HOST")
        return Cache(-1, cache_desc, arguments.addresses(addrs, cache_desc.num_tensors, cache_desc.size), True)

    @property
    def cache_id(self) -> int:
        """Counts from 1 in each manager; -1 for `create_cpu_cache`."""
        return self._cache_id

    @property
    def cache_desc(self) -> CacheDesc:
        """A copy of the descriptor it was registered with."""
        return self._desc._copy()

    @property
    def tensor_addrs(self) -> list[int]:
        """Start address of each tensor, as a new list."""
        return list(self._addrs)

    @property
    def is_blocks_cache(self) -> bool:
        """Whether it is paged: the first dimension counts blocks."""
        return self._is_blocks_cache

    def __repr__(self) -> str:
        kind = "blocks" if self._is_blocks_cache else "contiguous"
        return f"<Cache {self._cache_id} {kind} {self._desc!r}>"
