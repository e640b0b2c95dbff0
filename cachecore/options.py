"""Options of a manager itself, as opposed to those of its driver and engines: the names that begin with "manager."."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cachecore import _arguments as arguments
from cachecore.driver import BackendDriver
from cachecore.errors import NotSupportedError

__all__ = ["OPTION_NAMES", "PREFIX", "ManagerOptions", "read"]

PREFIX: Final = "manager"
#: As they stand behind "manager." in the options of a manager.
OPTION_NAMES: Final = ("remote_cache_accessible", "transfer_threads")


@dataclass(frozen=True)
class ManagerOptions:
    """Checked options.

    Attributes:
        remote_cache_accessible: True: a pull is one-sided, and the owner's keys stay. False: a successful `pull_cache`
            by the key of a request consumes that key at its owner, for caches that `allocate_cache` made there.
        transfer_threads: Most threads that run asynchronous transfers, 1 to 64.
    """

    remote_cache_accessible: bool = True
    transfer_threads: int = 4


def read(options: Mapping[str, object], driver: BackendDriver) -> ManagerOptions:
    """Check the options of a manager.

    Args:
        options: All options by dotted name; those of others are left alone.
        driver: Whose product must be able to do it.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: A bad value, naming the option.
        NotSupportedError: The product, or its transport, does not have it, or it is not known whether it has.
    """
    accessible = arguments.boolean(
        _name("remote_cache_accessible"), options.get(f"{PREFIX}.remote_cache_accessible", True)
    )
    if not accessible:
        fact = driver.capabilities().two_sided_lifetime
        if fact.value is not True:
            known = "does not have it" if fact.known else "is not known to have it"
            raise NotSupportedError(
                f"{_name('remote_cache_accessible')} is False, and {driver.name} {known} ({fact.source}). Leave the "
                "option out: pulls are then one-sided and consume no keys; use remove_cache_key",
                product=driver.name,
                feature="remote_cache_accessible=False",
            )
    threads = arguments.integer(_name("transfer_threads"), options.get(f"{PREFIX}.transfer_threads", 4), 1, 64)
    return ManagerOptions(accessible, threads)


def _name(option: str) -> str:
    return f"options['{PREFIX}.{option}']"
