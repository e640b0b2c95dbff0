"""The one engine of a process and device, shared by the managers of the process and counted."""

from __future__ import annotations

import os
import secrets
import threading
import time
from dataclasses import fields
from typing import Final

from cachecore.driver import BackendDriver
from cachecore.engine import Region
from cachecore.errors import BackendError
from cachecore_ascend_runtime.hixl_endpoint import Endpoint, network_name
from cachecore_ascend_runtime.hixl_links import Links
from cachecore_ascend_runtime.hixl_memory import RegisteredMemory
from cachecore_ascend_runtime.hixl_module import find_module
from cachecore_ascend_runtime.hixl_native import start
from cachecore_ascend_runtime.hixl_options import HixlOptions
from cachecore_ascend_runtime.hixl_profile import HixlProfile, profile_of

__all__ = ["SharedEngine", "acquire", "release"]

#: Seconds that the end of the engine waits for native calls at least; each of them has a deadline of its own.
_FINALIZE_SECONDS: Final = 1.0


class SharedEngine:
    """A native engine with its links and registrations.

    Attributes:
        profile: Of the product.
        options: It was started with.
        endpoint: What peers are told.
        native: The engine.
        links: Its links to peers.
        memory: What is registered.
        users: Managers that use it.
    """

    def __init__(self, profile: HixlProfile, options: HixlOptions) -> None:
        module, emulated = find_module()
        self.profile, self.options = profile, options
        self.native = start(module, options, profile)
        self.links = Links(self.native)
        self.memory = RegisteredMemory(self.native, self.links)
        self.endpoint = Endpoint(
            self.native.address,
            secrets.token_hex(16),
            os.getpid(),
            profile.soc,
            profile.protocols,
            emulated,
            network_name(),
        )
        self.users = 0


_lock = threading.Lock()
_engines: dict[tuple[int, int | None], SharedEngine] = {}


def acquire(driver: BackendDriver, options: HixlOptions) -> SharedEngine:
    """The engine of the driver's device, for one more user; started for the first one. `release` must follow.

    Raises:
        BackendError: It runs with other options already, or the `hixl` module is not there.
        EngineError: It cannot be started.
    """
    profile = profile_of(driver)
    key = os.getpid(), driver.device  # a fork does not inherit it
    with _lock:
        shared = _engines.get(key)
        if shared is None:
            driver.bind_thread()
            shared = _engines[key] = SharedEngine(profile, options)
        elif (shared.options, shared.profile) != (options, profile):
            changed = ", ".join(
                f"{name} {old!r} and not {new!r}"
                for name, old, new in _differences((shared.options, shared.profile), (options, profile))
            )
            raise BackendError(
                f"device {driver.device} has a HIXL engine in this process already, at {shared.native.address}, with {changed}. "
                "A process has one for each device: give all its managers the same options"
            )
        shared.users += 1
        return shared


def _differences(
    old: tuple[HixlOptions | HixlProfile, ...], new: tuple[HixlOptions | HixlProfile, ...]
) -> list[tuple[str, object, object]]:
    return [
        (field.name, getattr(before, field.name), getattr(after, field.name))
        for before, after in zip(old, new, strict=True)
        for field in fields(before)
        if getattr(before, field.name) != getattr(after, field.name)
    ]


def release(driver: BackendDriver, shared: SharedEngine, deadline: float) -> list[Region]:
    """One user less; the last one ends the engine. Returns memory that may still be reached.

    The user has no link and no transfer on it.
    """
    with _lock:
        if shared.users > 1:
            shared.users -= 1
            return shared.memory.retry()
        if not shared.native.finalize(max(deadline, time.monotonic() + _FINALIZE_SECONDS)):
            return shared.memory.regions
        shared.users = 0
        _engines.pop((os.getpid(), driver.device), None)
        return []
