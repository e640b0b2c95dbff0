"""Checks of single arguments: the exception types the vendor's manual promises, with messages that help.

None that must not be -> AttributeError; wrong type -> TypeError; bad value -> ValueError.
"""

from __future__ import annotations

import enum
import operator
import time
from collections.abc import Sequence
from typing import TypeVar

from cachecore.errors import CacheTypeError, CacheValueError, MissingArgumentError

E = TypeVar("E", bound=enum.Enum)


def not_none(name: str, value: object) -> None:
    """Refuse None.

    Raises:
        MissingArgumentError: The value is None.
    """
    if value is None:
        raise MissingArgumentError(f"{name} is None; it must not be None, give a value")


def wrong_type(name: str, value: object, expected: str) -> CacheTypeError:
    """The error for a value of the wrong type."""
    kind = type(value).__name__
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:  # an array: its numbers would say nothing, and some print over many lines
        return CacheTypeError(f"{name} is of type {kind} and shape {shape}; it must be {expected}")
    shown = " ".join(repr(value).split())
    return CacheTypeError(f"{name} is {shown:.80} of type {kind}; it must be {expected}")


def instance(name: str, value: object, cls: type | tuple[type, ...]) -> None:
    """Refuse None and anything that is not an instance of `cls`."""
    not_none(name, value)
    if not isinstance(value, cls):
        names = " or ".join(c.__name__ for c in (cls if isinstance(cls, tuple) else (cls,)))
        raise wrong_type(name, value, names)


def member(name: str, value: object, cls: type[E]) -> E:
    """Refuse anything but a member of the enumeration `cls`."""
    not_none(name, value)
    if not isinstance(value, cls):
        raise wrong_type(name, value, f"a {cls.__name__}, for example {cls.__name__}.{next(iter(cls)).name}")
    return value


def boolean(name: str, value: object) -> bool:
    """Refuse anything but True and False."""
    not_none(name, value)
    if not isinstance(value, bool):
        raise wrong_type(name, value, "True or False")
    return value


def integer(name: str, value: object, low: int, high: int) -> int:
    """An integer in [low, high].

    Takes anything with `__index__` (numpy integers, torch scalars); refuses booleans of every library, because
    True as an address or a block id is always a mistake.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: None, not an integer, out of range.
    """
    if type(value) is not int:
        not_none(name, value)
        if isinstance(value, bool) or str(getattr(value, "dtype", "")).rpartition(".")[2] == "bool":
            raise wrong_type(name, value, "an integer, not a truth value")
        try:
            value = operator.index(value)  # type: ignore[arg-type]  # the exception is the check
        except TypeError:
            raise wrong_type(name, value, "an integer") from None
    if not low <= value <= high:
        raise CacheValueError(f"{name} is {value}; it must be from {low} to {high}")
    return value


def timeout(name: str, value: object) -> float:
    """A duration in seconds, from 0 to about 30 years; not NaN.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: None, not a number, out of range.
    """
    not_none(name, value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, value, "a number of seconds")
    if not 0 <= value <= 1e9:
        raise CacheValueError(f"{name} is {value}; it must be from 0 to 1e9 seconds")
    return float(value)


def deadline(name: str, value: object) -> float:
    """The moment on `time.monotonic()` at which a timeout that starts now ends."""
    return time.monotonic() + timeout(name, value)


def addresses(addrs: object, count: int, nbytes: int) -> tuple[int, ...]:
    """`count` start addresses of ranges of `nbytes` bytes, none of them zero or running past 2**64.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: Naming the tensor index.
    """
    not_none("addrs", addrs)
    if isinstance(addrs, str | bytes | bytearray) or (
        not isinstance(addrs, Sequence) and not hasattr(addrs, "__iter__")
    ):
        raise wrong_type("addrs", addrs, "a list of integer addresses")
    items = list(addrs)
    if len(items) != count:
        raise CacheValueError(
            f"addrs has {len(items)} addresses and cache_desc.num_tensors is {count}; give one address a tensor"
        )
    checked = []
    for index, item in enumerate(items):
        address = integer(f"addrs[{index}]", item, 0, 2**64 - 1)
        if address == 0:
            raise CacheValueError(f"addrs[{index}] is 0; a tensor has a real address (was it allocated?)")
        if address + nbytes > 2**64:
            raise CacheValueError(
                f"addrs[{index}] is {address:#x}; with {nbytes} bytes the tensor runs past the address space"
            )
        checked.append(address)
    return tuple(checked)
