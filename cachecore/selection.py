"""Which backend driver and which engines a manager uses. There is never a silent fallback."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from cachecore import options as manager_options
from cachecore.driver import BackendDriver, DeviceInfo, DriverSpec
from cachecore.engine import EngineBinding, EngineSpec
from cachecore.errors import BackendError, CacheTypeError, CacheValueError
from cachecore.plugins import BrokenPlugin, Plugins

__all__ = ["Choice", "choose_driver", "make_driver", "make_engines"]

ENVIRONMENT = "CACHECORE_BACKEND"


@dataclass(frozen=True)
class Choice:
    """The driver chosen.

    Attributes:
        spec: The driver.
        device: The detected device it was chosen for, None when there is none.
        devices: Everything that was detected.
        failed: Plugins whose detection failed.
        reason: Why this one, for people.
    """

    spec: DriverSpec
    device: DeviceInfo | None
    devices: tuple[DeviceInfo, ...]
    failed: tuple[BrokenPlugin, ...]
    reason: str


def choose_driver(backend: str, plugins: Plugins) -> Choice:
    """Choose the driver.

    Args:
        backend: A driver's name, or "auto": the environment variable CACHECORE_BACKEND if set, else the single best
            match between the devices detected and the drivers installed. The host driver matches only when no
            accelerator was seen.
        plugins: What is installed.

    Raises:
        BackendError: No driver, more than one, an accelerator without a driver, an unsupported product, or an
            unknown name. The message says what was seen and what to do.
    """
    name, why = backend, f"backend={backend!r} was given"
    if backend == "auto" and os.environ.get(ENVIRONMENT, "auto") != "auto":
        name = os.environ[ENVIRONMENT]
        why = f"{ENVIRONMENT}={name} is set"
    devices, failed = plugins.detect()
    if name != "auto":
        spec = _by_name(name, plugins)
        device = next((d for d in devices if not d.unsupported and _matches(spec, d)), None)
        return Choice(spec, device, devices, failed, why)
    if failed:
        raise BackendError(
            f"backend='auto' cannot choose: {'; '.join(map(str, failed))}. "
            f"Repair that plugin, or name a backend: {_names(plugins)}"
        )
    return _automatic(plugins, devices)


def _automatic(plugins: Plugins, devices: tuple[DeviceInfo, ...]) -> Choice:
    for found in devices:
        if found.unsupported:
            raise BackendError(
                f"found {_show(found)}: {found.unsupported}. To run without it, name a backend: {_names(plugins)}"
            )
    seen: tuple[DeviceInfo | None, ...] = devices or (None,)
    matches = [(spec, device) for device in seen for spec in plugins.drivers if _matches(spec, device)]
    if not matches:
        raise BackendError(_nothing_matches(plugins, devices))
    if len({spec.name for spec, _ in matches}) > 1 or len({d.soc for _, d in matches if d}) > 1:
        pairs = ", ".join(f"{spec.name} for {_show(device)}" for spec, device in matches)
        raise BackendError(f"backend='auto' has more than one match: {pairs}. Name one with backend=")
    spec, device = matches[0]
    reason = f"found {_show(device)}" if device else "no accelerator was seen"
    return Choice(spec, device, devices, (), reason)


def _matches(spec: DriverSpec, device: DeviceInfo | None) -> bool:
    try:
        return bool(spec.matches(device))
    except Exception as error:
        raise BackendError(
            f"driver {spec.name!r} failed while asked about {_show(device)}: {type(error).__name__}: {error}. "
            "Repair or uninstall it"
        ) from error


def _show(device: DeviceInfo | None) -> str:
    if device is None:
        return "no accelerator"
    emulated = "emulated " if device.emulated else ""
    return f"{emulated}{device.soc or device.kind} (x{device.count}, by {device.source})"


def _names(plugins: Plugins) -> str:
    return ", ".join(sorted(repr(spec.name) for spec in plugins.drivers)) or "none is installed"


def _broken(plugins: Plugins) -> str:
    return f" Broken plugins: {'; '.join(map(str, plugins.broken))}." if plugins.broken else ""


def _by_name(name: str, plugins: Plugins) -> DriverSpec:
    for spec in plugins.drivers:
        if spec.name == name:
            return spec
    raise BackendError(f"backend {name!r} is not installed; installed: {_names(plugins)}.{_broken(plugins)}")


def _nothing_matches(plugins: Plugins, devices: tuple[DeviceInfo, ...]) -> str:
    if not devices:
        return f"no accelerator was seen and no driver serves a plain host; installed: {_names(plugins)}.{_broken(plugins)}"
    device = devices[0]
    if device.install:
        # The bare name on the index belongs to another project, hence the wheelhouse form.
        remedy = f"install its driver: pip install --find-links WHEELHOUSE 'cachecore-kv[{device.install}]'"
    else:
        known = ", ".join(soc for spec in plugins.drivers for soc in spec.known_socs) or "none"
        remedy = f"known to the installed drivers: {known}"
    return f"found {_show(device)}, which no installed driver serves ({_names(plugins)}); {remedy}.{_broken(plugins)}"


def checked_options(options: Mapping[str, object] | None, plugins: Plugins) -> dict[str, object]:
    """A copy of `options` in which every name is one that the manager, or an installed driver or engine, knows.

    Raises:
        CacheTypeError, CacheValueError: Not a mapping; an unknown name.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise CacheTypeError(f"options is {type(options).__name__}; it must be a mapping of dotted names")
    specs: tuple[DriverSpec | EngineSpec, ...] = plugins.drivers + plugins.engines
    known = {f"{spec.name}.{option}" for spec in specs for option in spec.option_names}
    known |= {f"{manager_options.PREFIX}.{option}" for option in manager_options.OPTION_NAMES}
    for name in options:
        if name not in known:
            raise CacheValueError(f"options has the unknown name {name!r}; known: {', '.join(sorted(known)) or 'none'}")
    return dict(options)


def _for_prefix(options: Mapping[str, object], prefix: str) -> dict[str, object]:
    return {name[len(prefix) + 1 :]: value for name, value in options.items() if name.startswith(f"{prefix}.")}


def make_driver(choice: Choice, device: int | None, options: Mapping[str, object]) -> BackendDriver:
    """Start the chosen driver on `device` (None = the calling thread's current one)."""
    return choice.spec.factory(device, _for_prefix(options, choice.spec.name))


def make_engines(
    engine: str, driver: BackendDriver, plugins: Plugins, options: Mapping[str, object]
) -> list[EngineBinding]:
    """Start the engines of a manager, best rank first.

    Args:
        engine: An engine's name, or "auto" for all that serve the driver's memory.
        driver: The driver in use.
        plugins: What is installed.
        options: Checked options.

    Raises:
        BackendError: No engine serves, or one that serves cannot be started; those started before it are closed.
    """
    specs = [spec for spec in plugins.engines if spec.serves(driver)]
    if engine != "auto":
        installed = ", ".join(repr(spec.name) for spec in plugins.engines) or "none"
        specs = [spec for spec in specs if spec.name == engine]
        if not specs:
            raise BackendError(
                f"engine {engine!r} is not installed or does not serve {driver.name}; installed: {installed}"
            )
    if not specs:
        raise BackendError(f"no installed engine serves the driver {driver.name!r}")
    started: list[EngineBinding] = []
    try:
        for spec in specs:
            running = spec.factory(driver, _for_prefix(options, spec.name))
            started.append(EngineBinding(spec.name, spec.wire_id, spec.rank, running))
    except BaseException as error:
        for binding in reversed(started):
            binding.engine.close(0.0)
        if isinstance(error, Exception):
            raise BackendError(
                f"engine {specs[len(started)].name!r} could not be started: {error}. "
                "Repair it, or name another with engine="
            ) from error
        raise
    return started
