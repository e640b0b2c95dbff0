"""A transfer that was checked and planned and has not started; what pulls and pushes have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cachecore import _arguments as arguments
from cachecore import _core
from cachecore.engine import Operation
from cachecore.errors import CacheIncompatibleError, CacheValueError
from cachecore.planning import CopyPlan, Part
from cachecore.registration.local_caches import Registered
from cachecore.tensors import check_unmoved
from cachecore.transfers.ends import End
from cachecore.transfers.finding import Ends
from cachecore.transfers.matching import Matched
from cachecore.types import NO_ID, BlocksCacheKey, CacheKey, CacheKeyByIdAndIndex, TransferKey

__all__ = ["Request", "Step", "check_key", "entry_of", "find_entries", "frozen"]

#: Makes the plan of some of the parts of a request.
Planner = Callable[[Sequence[Part]], CopyPlan]


class Step:
    """One plan of a transfer: all of it, or one layer.

    Args:
        plan: What moves.
        tensor_indexes: Index in the caller's cache of each tensor of the plan, for what an error reports.
        layers: How many layers it moves.
    """

    __slots__ = ("layers", "plan", "tensor_indexes")

    def __init__(self, plan: CopyPlan, tensor_indexes: Sequence[int], layers: int = 1) -> None:
        self.plan = plan
        self.tensor_indexes = tensor_indexes
        self.layers = layers


class Request:
    """A checked transfer that has not started.

    Attributes:
        end: What the key names.
        own: The caller's cache.
        op: READ for a pull, WRITE for a push.
        deadline: On `time.monotonic()`.
        whole: All of it in one step.
        matched: Which tensors move.
        consumes: The key that its success uses up, where the owner lets pulls do that; None for no key.
        lease_id: The block lease that it is made under, None for none.
    """

    __slots__ = ("_planner", "consumes", "deadline", "end", "lease_id", "matched", "op", "own", "whole")

    def __init__(
        self, end: End, own: Registered, op: Operation, deadline: float, matched: Matched, planner: Planner
    ) -> None:
        self.end, self.own, self.op, self.deadline = end, own, op, deadline
        self.matched = matched
        self.consumes: CacheKey | None = None
        self.lease_id: str | None = None
        self._planner = planner
        self.whole = Step(planner(matched.parts), matched.tensor_indexes, len(matched.names))

    def by_layer(self) -> list[Step]:
        """The same as one step a layer."""
        matched = self.matched
        return [
            Step(self._planner(matched.layer_parts(layer)), matched.layer_tensor_indexes(layer))
            for layer in range(len(matched.names))
        ]

    def check_unmoved(self) -> None:
        """Refuse to go on when a tensor of the caller's cache was resized since the call.

        Raises:
            AddressMovedError: It was.
        """
        if self.own.tensors:
            check_unmoved(self.own.tensors)


def frozen(blocks: Any) -> Any:
    """A copy of a block list, for what reads it more than once; what is no list is left to planning to refuse."""
    if isinstance(blocks, tuple | range):
        return blocks
    try:
        return memoryview(_core.pack_blocks(blocks, "blocks")).cast("Q")
    except Exception:  # noqa: BLE001  # planning says what is wrong with it
        return blocks


def check_key(name: str, key: object) -> TransferKey:
    """A key of a known kind that names something.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: None; another type; a CacheKey with none or both of
            `req_id` and `prefix_id`.
    """
    arguments.instance(name, key, (CacheKey, BlocksCacheKey, CacheKeyByIdAndIndex))
    assert isinstance(key, CacheKey | BlocksCacheKey | CacheKeyByIdAndIndex)
    if isinstance(key, CacheKey):
        if key.is_placeholder:
            raise CacheValueError(f"{name} is {key}, a placeholder that names nothing; give req_id or prefix_id")
        if key.req_id != NO_ID and key.prefix_id != NO_ID:
            raise CacheValueError(f"{name} is {key}; give exactly one of req_id and prefix_id")
    return key


def find_entries(
    ends: Ends, key_name: str, key: object, cache_name: str, cache: object, other: str, deadline: float
) -> tuple[Registered, End]:
    """Both ends of a transfer from entry to entry.

    Args:
        ends: Finds them.
        key_name: The parameter, for messages.
        key: As the caller gave it.
        cache_name: The parameter, for messages.
        cache: As the caller gave it.
        other: The method for paged caches, for messages.
        deadline: On `time.monotonic()`.
    """
    checked = check_key(key_name, key)
    if isinstance(checked, BlocksCacheKey):
        raise arguments.wrong_type(key_name, key, f"a CacheKey or CacheKeyByIdAndIndex; {other} takes it")
    own = ends.own(cache_name, cache)
    end = ends.find(checked, own, deadline)
    if own.shape.is_blocks:
        raise CacheIncompatibleError(f"{cache_name} is {own.shape.owner}, which is paged; use {other} for it")
    return own, end


def entry_of(end: End) -> int:
    """The entry that a key of an entry names."""
    assert end.entry is not None, "paged caches were refused before"
    return end.entry
