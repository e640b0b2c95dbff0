"""Plugins: the hooks, and discovery that one broken plugin cannot stop.

A plugin is a module named by an entry point of group `cachecore.plugins`. It states `CACHECORE_PLUGIN_API` and
implements hooks that return data; hooks only find and create, no hook is called on the path of a transfer. The
built-in host driver and local engine come through the same door (`cachecore.host.plugin`).
"""

from __future__ import annotations

import importlib.metadata
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol, TypeVar

import pluggy

from cachecore.driver import DeviceInfo, DriverSpec
from cachecore.engine import EngineSpec
from cachecore.events import Listener
from cachecore.probes import Finding, Probe

__all__ = ["API_VERSION", "BrokenPlugin", "LoadedPlugin", "Plugins", "Policy", "discover", "hookimpl"]

PROJECT = "cachecore"
GROUP = "cachecore.plugins"
#: Version of the hooks and contracts below; a plugin states the one it was written for.
API_VERSION = 1

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
T = TypeVar("T")


class Policy(Protocol):
    """What a plugin's `cachecore_policies` hook returns: may refuse a registration."""

    def check_registration(self, function: str, cluster_id: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Raise to refuse. Any exception refuses (fail closed).

        No other cache is registered or taken back meanwhile; a policy that does so itself refuses, with a CacheError.

        Args:
            function: Name of the register function.
            cluster_id: The manager's id.
            ranges: (address, bytes) per tensor.
        """


class HookSpecs:
    """The hooks a plugin may implement. Each is called once for each discovery, plugin by plugin."""

    @hookspec
    def cachecore_devices(self) -> list[DeviceInfo]:  # type: ignore[empty-body]  # a specification has no body
        """Accelerators of this machine. Imports no vendor library before it must, creates no device context."""

    @hookspec
    def cachecore_drivers(self) -> list[DriverSpec]:  # type: ignore[empty-body]
        """Backend drivers, one for each product line."""

    @hookspec
    def cachecore_engines(self) -> list[EngineSpec]:  # type: ignore[empty-body]
        """Transfer engines."""

    @hookspec
    def cachecore_policies(self) -> list[Policy]:  # type: ignore[empty-body]
        """Objects that may refuse a registration."""

    @hookspec
    def cachecore_probes(self) -> list[Probe]:  # type: ignore[empty-body]
        """What `cachecore doctor` reports beside what it knows itself. Called only by it."""

    @hookspec
    def cachecore_explain_code(self, code: int) -> list[str]:  # type: ignore[empty-body]
        """What an error code means to the libraries this plugin uses, a sentence for each; empty for a stranger."""

    @hookspec
    def cachecore_listeners(self) -> list[Listener]:  # type: ignore[empty-body]
        """Objects that are told what happens."""


@dataclass(frozen=True)
class LoadedPlugin:
    """A plugin that passed validation."""

    name: str
    distribution: str
    version: str
    module: ModuleType = field(repr=False)
    hooks: pluggy.PluginManager = field(repr=False)


@dataclass(frozen=True)
class BrokenPlugin:
    """A plugin that was left out, and why."""

    name: str
    distribution: str
    version: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution} {self.version}): {self.reason}"


@dataclass(frozen=True)
class Plugins:
    """Everything that was found.

    Attributes:
        loaded: Plugins in use.
        broken: Plugins left out.
        drivers: All driver specs.
        engines: All engine specs, best rank first.
        policies: All policies.
        listeners: All listeners.
    """

    loaded: tuple[LoadedPlugin, ...]
    broken: tuple[BrokenPlugin, ...]
    drivers: tuple[DriverSpec, ...]
    engines: tuple[EngineSpec, ...]
    policies: tuple[Policy, ...]
    listeners: tuple[Listener, ...]

    def detect(self) -> tuple[tuple[DeviceInfo, ...], tuple[BrokenPlugin, ...]]:
        """Ask every plugin for devices; returns them and the plugins whose detection failed."""
        devices: list[DeviceInfo] = []
        failed: list[BrokenPlugin] = []
        for plugin in self.loaded:
            try:
                devices += _collect(plugin.hooks.hook.cachecore_devices, DeviceInfo)
            except (Exception, SystemExit) as error:  # noqa: BLE001  # third-party code
                reason = f"device detection failed: {_describe(error)}"
                failed.append(BrokenPlugin(plugin.name, plugin.distribution, plugin.version, reason))
        return tuple(devices), tuple(failed)

    def probes(self) -> tuple[Probe, ...]:
        """The probes of every plugin; a plugin whose hook fails gives one that says so."""
        found: list[Probe] = []
        for plugin in self.loaded:
            try:
                found += _collect(plugin.hooks.hook.cachecore_probes, Probe)
            except (Exception, SystemExit) as error:  # noqa: BLE001  # third-party code
                problem = Finding("its probes", "could not be listed", _describe(error))
                found.append(Probe(f"plugin {plugin.name}", lambda problem=problem: [problem]))  # type: ignore[misc]
        return tuple(found)


class _Invalid(Exception):
    """A plugin breaks the plugin contract; the text is the reason."""


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _collect(hook: Callable[[], list[Any]], cls: type[T] | None) -> list[T]:
    items: list[T] = []
    for answer in hook():
        if not isinstance(answer, list | tuple):
            raise _Invalid(f"a hook returned {type(answer).__name__}; it must return a list")
        for item in answer:
            if cls is not None and not isinstance(item, cls):
                raise _Invalid(f"a hook returned a list with {type(item).__name__} in it; it must hold {cls.__name__}")
            items.append(item)
    return items


def _validated(module: ModuleType) -> pluggy.PluginManager:
    """Register the module in a manager of its own, so that what is wrong with it stays there."""
    version = getattr(module, "CACHECORE_PLUGIN_API", None)
    if version is None:
        raise _Invalid("it does not state CACHECORE_PLUGIN_API")
    if version != API_VERSION:
        age = "older" if isinstance(version, int) and version < API_VERSION else "newer"
        raise _Invalid(
            f"it was written for plugin API {version!r}, {age} than {API_VERSION}, the one of this cachecore; "
            "install versions that belong together"
        )
    hooks = pluggy.PluginManager(PROJECT)
    hooks.add_hookspecs(HookSpecs)
    hooks.register(module)
    hooks.check_pending()
    for name, value in vars(module).items():
        if name.startswith("cachecore_") and callable(value) and not hasattr(value, f"{PROJECT}_impl"):
            raise _Invalid(f"{name} looks like a hook and is not marked with cachecore.plugins.hookimpl")
    return hooks


def load(entry_points: Iterable[importlib.metadata.EntryPoint]) -> Plugins:
    """Load, validate and ask the given plugins one by one; a failure of one is recorded and hides no other."""
    loaded: list[LoadedPlugin] = []
    broken: list[BrokenPlugin] = []
    drivers: list[DriverSpec] = []
    engines: list[EngineSpec] = []
    policies: list[Policy] = []
    listeners: list[Listener] = []
    for entry in entry_points:
        distribution = entry.dist.name if entry.dist else "unknown distribution"
        version = entry.dist.version if entry.dist else "?"
        try:
            module = entry.load()
            hooks = _validated(module)
            # All of a plugin or nothing of it: ask everything before anything joins.
            its_drivers = _collect(hooks.hook.cachecore_drivers, DriverSpec)
            its_engines = _collect(hooks.hook.cachecore_engines, EngineSpec)
            its_policies: list[Policy] = _collect(hooks.hook.cachecore_policies, None)
            its_listeners: list[Listener] = _collect(hooks.hook.cachecore_listeners, None)
            _no_doubles("driver", drivers, its_drivers)
            _no_doubles("engine", engines, its_engines)
        except _Invalid as error:
            broken.append(BrokenPlugin(entry.name, distribution, version, str(error)))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # third-party code
            broken.append(BrokenPlugin(entry.name, distribution, version, _describe(error)))
        else:
            loaded.append(LoadedPlugin(entry.name, distribution, version, module, hooks))
            drivers += its_drivers
            engines += its_engines
            policies += its_policies
            listeners += its_listeners
    engines.sort(key=lambda spec: -spec.rank)
    return Plugins(tuple(loaded), tuple(broken), tuple(drivers), tuple(engines), tuple(policies), tuple(listeners))


def _no_doubles(what: str, known: Sequence[DriverSpec | EngineSpec], new: Sequence[DriverSpec | EngineSpec]) -> None:
    names = {spec.name for spec in known}
    for spec in new:
        if spec.name in names:
            raise _Invalid(f"it brings a {what} named {spec.name!r}, a name another plugin has already")
        names.add(spec.name)


_lock = threading.Lock()
_found: Plugins | None = None


def discover(*, refresh: bool = False) -> Plugins:
    """The plugins installed in this environment, loaded once for each process.

    Args:
        refresh: Look again, for example after an installation.
    """
    global _found
    with _lock:
        if _found is None or refresh:
            entries = sorted(importlib.metadata.entry_points(group=GROUP), key=lambda entry: entry.name)
            _found = load(entries)
        return _found
