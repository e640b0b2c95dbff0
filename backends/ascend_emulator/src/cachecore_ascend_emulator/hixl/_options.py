"""The options of ``Hixl.initialize``: checked as the vendor's manual states them, and what they come to."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from cachecore_ascend_emulator.hixl._types import PARAM_INVALID, UNSUPPORTED


class Line(IntEnum):
    """Product lines as the native library numbers them."""

    A2 = 0
    A3 = 1
    ASCEND950 = 2
    UNLISTED = 3


# Bits of the native library, in the order in which a link prefers the protocols.
PROTOCOLS = {
    "hccs:device": 1,
    "ub_ctp:device": 2,
    "ub_ctp:host": 4,
    "ub_rtp:device": 8,
    "uboe:device": 16,
    "roce:device": 32,
    "roce:host": 64,
}
RELAY, FABRIC_MEMORY, AUTO_CONNECT = 1, 2, 4

_DEFAULT = {Line.A2: "hccs:device", Line.A3: "hccs:device", Line.ASCEND950: "ub_ctp:device"}
_LONGEST_FILE = 1 << 20


class OptionError(Exception):
    """An option is refused.

    Attributes:
        status: The status code that ``initialize`` returns.
    """

    def __init__(self, message: str, status: int = PARAM_INVALID) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Settings:
    """What the options come to: bits of protocols and of flags for the native library."""

    protocols: int
    flags: int


def _number(name: str, text: object, low: int, high: int) -> int:
    digits = isinstance(text, str) and text.isascii() and text.isdigit()
    if not digits and (not isinstance(text, int) or isinstance(text, bool)):
        raise OptionError(f"{name} is {text!r}; it must be a whole number from {low} to {high}")
    number = int(text)  # type: ignore[call-overload]
    if not low <= number <= high:
        raise OptionError(f"{name} is {number}; it must be from {low} to {high}")
    return int(number)


def _switch(name: str, text: str) -> bool:
    if text not in ("0", "1"):
        raise OptionError(f"{name} is {text!r}; it must be '0' or '1'")
    return text == "1"


def _json_object(name: str, text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{name} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise OptionError(f"{name} must be a JSON object")
    return value


def _buffer_pool(text: str) -> bool:
    """Whether unregistered addresses are relayed: not with "0:0"."""
    number, colon, size = text.partition(":")
    if not colon or not all(part.isascii() and part.isdigit() for part in (number, size)):
        raise OptionError(f"BufferPool is {text!r}; it must be 'NUMBER:MEGABYTES', such as '4:8' or '0:0'")
    if (int(number) == 0) != (int(size) == 0):
        raise OptionError(f"BufferPool is {text!r}; either both parts are 0 or none")
    return int(number) > 0


def _traffic_class(text: str) -> None:
    if _number("RdmaTrafficClass", text, 0, 255) % 4:
        raise OptionError(f"RdmaTrafficClass is {text}; it must be a multiple of 4")


def _protocol_desc(value: object, line: Line) -> set[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise OptionError("comm_resource_config.protocol_desc must be a protocol or a list of them")
    for name in names:
        if name not in PROTOCOLS:
            raise OptionError(f"protocol_desc has {name!r}; known are {', '.join(PROTOCOLS)}")
        family = name.partition(":")[0]
        if family == "hccs" and line is Line.ASCEND950:
            raise OptionError(f"protocol_desc has {name!r}; there is no HCCS on this product")
        if family.startswith("ub") and line in (Line.A2, Line.A3):
            raise OptionError(f"protocol_desc has {name!r}; this product has HCCS and RoCE only")
    return set(names)


# Keys of GlobalResourceConfig that only need to be sound: what they tune does not exist here.
_TUNING: dict[str, Callable[[str, object], object]] = {
    "comm_resource_config.listen_port": lambda name, value: _number(name, value, 1, 65535),
    "comm_resource_config.qos": lambda name, value: _number(name, value, 0, 7),
    "comm_resource_config.max_active_channels": lambda name, value: _number(name, value, 1, 8192),
    "connect_pool.thread_num": lambda name, value: _number(name, value, 1, 64),
    "connect_pool.task_queue_capacity": lambda name, value: _number(name, value, 1, 65535),
    "fabric_memory.max_capacity": lambda name, value: _number(name, value, 1, 1024),
    "fabric_memory.start_address": lambda name, value: _number(name, value, 0, 1024),
    "fabric_memory.task_stream_num": lambda name, value: _number(name, value, 1, 8),
}


def _resources(text: str, line: Line) -> tuple[set[str] | None, str]:
    """Protocols that GlobalResourceConfig allows (None: says nothing), and the content of a LocalCommRes file."""
    protocols: set[str] | None = None
    local = ""
    for name, value in _json_object("GlobalResourceConfig", text).items():
        if name == "comm_resource_config.protocol_desc":
            protocols = _protocol_desc(value, line)
        elif name == "local_comm_res_path":
            local = _read_file(value)
        elif name in _TUNING:
            _TUNING[name](f"GlobalResourceConfig {name}", value)
        else:
            raise OptionError(f"GlobalResourceConfig has {name!r}, which the emulated engine does not know")
    return protocols, local


def _read_file(value: object) -> str:
    path = Path(str(value))
    if not isinstance(value, str) or not path.is_file() or not 1 <= path.stat().st_size <= _LONGEST_FILE:
        raise OptionError(f"local_comm_res_path is {value!r}; it must be a regular file of 1 byte to 1 MiB")
    return path.read_text(encoding="utf-8")


def _local_resources(text: str, line: Line) -> set[str] | None:
    """Protocols of the endpoints that LocalCommRes lists; None when they are found automatically."""
    if not text:
        if line is Line.ASCEND950:
            raise OptionError("LocalCommRes is missing; this product needs at least {'version': '1.3'} as JSON")
        return None
    value = _json_object("LocalCommRes", text)
    versions = ("1.3",) if line is Line.ASCEND950 else ("1.0", "1.2", "1.3")
    if value.get("version") not in versions:
        raise OptionError(f"LocalCommRes has version {value.get('version')!r}; it must be {' or '.join(versions)}")
    endpoints = value.get("endpoint_list")
    if endpoints is None or value["version"] != "1.3":
        return None
    if not isinstance(endpoints, list) or not all(isinstance(endpoint, dict) for endpoint in endpoints):
        raise OptionError("endpoint_list of LocalCommRes must be a list of objects")
    return _protocol_desc([f"{one.get('protocol')}:{one.get('placement')}" for one in endpoints], line)


_KNOWN = frozenset(
    {
        "AutoConnect",
        "BufferPool",
        "EnableUseFabricMem",
        "GlobalResourceConfig",
        "LocalCommRes",
        "RdmaServiceLevel",
        "RdmaTrafficClass",
    }
)


def read_options(options: Mapping[str, str], line: Line) -> Settings:
    """Check all options.

    Args:
        options: As given to ``initialize``.
        line: Product line of the emulated SoC.

    Raises:
        OptionError: One is unknown, malformed, out of range, or not for this product.
        TypeError: A name or value is no text.
    """
    if not all(isinstance(part, str) for item in options.items() for part in item):
        raise TypeError("options maps text to text")
    if unknown := sorted(set(options) - _KNOWN):
        raise OptionError(f"unknown option {unknown[0]!r}; known are {', '.join(sorted(_KNOWN))}")
    flags = 0
    if _switch("AutoConnect", options.get("AutoConnect", "0")):
        flags |= AUTO_CONNECT
    if _switch("EnableUseFabricMem", options.get("EnableUseFabricMem", "0")):
        if line is not Line.A3:
            raise OptionError("EnableUseFabricMem is '1'; only the Atlas A3 products have fabric memory", UNSUPPORTED)
        if "BufferPool" in options:
            raise OptionError("EnableUseFabricMem and BufferPool cannot be given together")
        flags |= FABRIC_MEMORY
    if _buffer_pool(options.get("BufferPool", "4:8")) and line in (Line.A2, Line.A3) and not flags & FABRIC_MEMORY:
        flags |= RELAY
    _traffic_class(options.get("RdmaTrafficClass", "132"))
    _number("RdmaServiceLevel", options.get("RdmaServiceLevel", "4"), 0, 7)
    allowed, local = _resources(options.get("GlobalResourceConfig") or "{}", line)
    listed = _local_resources(options.get("LocalCommRes") or local, line)
    return Settings(_protocols(allowed, listed, line), flags)


def _protocols(allowed: set[str] | None, listed: set[str] | None, line: Line) -> int:
    if listed is not None:
        chosen = listed if allowed is None else listed & allowed
    elif allowed is not None:
        chosen = allowed
    elif line in (Line.A2, Line.A3) and os.environ.get("HCCL_INTRA_ROCE_ENABLE") == "1":
        chosen = {"roce:device"}
    else:
        chosen = {_DEFAULT.get(line, "roce:device")}
    if not chosen:
        raise OptionError("LocalCommRes and GlobalResourceConfig have no protocol in common")
    return sum(PROTOCOLS[name] for name in chosen)
