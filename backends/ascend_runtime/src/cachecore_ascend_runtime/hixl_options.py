"""Options of the HIXL engine, and what they become in the vendor's `initialize`.

| option | default | meaning |
|---|---|---|
| `hixl.host` | 127.0.0.1 | address at which peers find this engine; for peers on other machines one that they can route to |
| `hixl.ports` | 26300-26555 | "first-last": one of them is listened on; the engine takes no port from the kernel |
| `hixl.traffic_class` | the vendor's | RoCE traffic class, 0 to 255, a multiple of 4 |
| `hixl.service_level` | the vendor's | RoCE service level, 0 to 7 |
| `hixl.buffer_pool` | 0:0 | "number:MB" of relay buffers; with any, memory that is not registered is moved as if it were the host's |
| `hixl.local_comm_res` | by product | JSON text that describes this side's network devices |
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cachecore import _arguments as arguments
from cachecore.errors import CacheValueError
from cachecore_ascend_runtime.hixl_profile import HixlProfile

__all__ = ["DEFAULT_PORTS", "OPTION_NAMES", "HixlOptions"]

#: Below the ports that Linux gives out by itself (32768 and up), away from 16666, which the device listens on.
DEFAULT_PORTS: Final = "26300-26555"

OPTION_NAMES: Final = ("buffer_pool", "host", "local_comm_res", "ports", "service_level", "traffic_class")

#: No relay buffers. With the vendor's default, A2 and A3 move memory that is not registered as if it were the host's.
NO_POOL: Final = "0:0"

_PREFIX: Final = "options['hixl."
_SHORTEST_COMM_RES: Final = '{"version": "1.3"}'


@dataclass(frozen=True)
class HixlOptions:
    """Checked options. Equal ones can share the one engine of a process and device.

    Attributes:
        host: IP address, without brackets.
        first_port: First port to try.
        last_port: Last port to try.
        traffic_class: None = the vendor's default.
        service_level: None = the vendor's default.
        buffer_pool: "number:MB".
        local_comm_res: JSON, None = by product.
    """

    host: str = "127.0.0.1"
    first_port: int = 26300
    last_port: int = 26555
    traffic_class: int | None = None
    service_level: int | None = None
    buffer_pool: str = NO_POOL
    local_comm_res: str | None = None

    @classmethod
    def checked(cls, options: Mapping[str, object]) -> HixlOptions:
        """Check what a caller gave, without the prefix "hixl.".

        Raises:
            CacheTypeError, CacheValueError: An option has the wrong type or is out of range.
        """
        first, last = _ports(_text(options, "ports", DEFAULT_PORTS))
        traffic_class = _number(options, "traffic_class", 255)
        if traffic_class is not None and traffic_class % 4:
            raise CacheValueError(f"{_PREFIX}traffic_class'] is {traffic_class}; it must be a multiple of 4")
        pool = _text(options, "buffer_pool", NO_POOL)
        if not re.fullmatch(r"\d{1,6}:\d{1,6}", pool):
            raise CacheValueError(
                f"{_PREFIX}buffer_pool'] is {pool!r}; it must be 'number:MB', for example {NO_POOL!r}"
            )
        return cls(
            host=_host(_text(options, "host", "127.0.0.1")),
            first_port=first,
            last_port=last,
            traffic_class=traffic_class,
            service_level=_number(options, "service_level", 7),
            buffer_pool=pool,
            local_comm_res=_json(options, "local_comm_res"),
        )

    def address(self, port: int) -> str:
        """This engine as the vendor's module spells it: "ip:port" or "[v6]:port"."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    def native(self, profile: HixlProfile) -> dict[str, str]:
        """The dictionary for `Hixl.initialize`."""
        resources = {"comm_resource_config.protocol_desc": list(profile.protocols)}
        comm_res = self.local_comm_res
        if comm_res is None:
            comm_res = _SHORTEST_COMM_RES if profile.needs_local_comm_res else ""
        options = {"GlobalResourceConfig": json.dumps(resources), "LocalCommRes": comm_res}
        if profile.fabric_memory:
            options["EnableUseFabricMem"] = "1"  # and no BufferPool: the two exclude each other
        elif self.buffer_pool != NO_POOL or not profile.needs_local_comm_res:
            # The products that must be told LocalCommRes relay nothing, and their manual does not list the option.
            options["BufferPool"] = self.buffer_pool
        if self.traffic_class is not None:
            options["RdmaTrafficClass"] = str(self.traffic_class)
        if self.service_level is not None:
            options["RdmaServiceLevel"] = str(self.service_level)
        return options


def _text(options: Mapping[str, object], name: str, default: str) -> str:
    value = options.get(name, default)
    arguments.instance(f"{_PREFIX}{name}']", value, str)
    return str(value).strip()


def _number(options: Mapping[str, object], name: str, high: int) -> int | None:
    value = options.get(name)
    return None if value is None else arguments.integer(f"{_PREFIX}{name}']", value, 0, high)


def _host(text: str) -> str:
    try:
        address = ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        address = None
    if address is None or address.is_unspecified:
        raise CacheValueError(
            f"{_PREFIX}host'] is {text!r}; it must be one IP address of this machine, not a name: peers are told it"
        )
    return str(address)


def _ports(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last <= 65535:
        raise CacheValueError(
            f"{_PREFIX}ports'] is {text!r}; it must be 'first-last' with 1 <= first <= last <= 65535, for example "
            f"{DEFAULT_PORTS!r}"
        )
    return first, last


def _json(options: Mapping[str, object], name: str) -> str | None:
    if options.get(name) is None:
        return None
    text = _text(options, name, "")
    if not text:
        return text
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CacheValueError(f"{_PREFIX}{name}'] is {text!r:.80}, which is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise CacheValueError(f"{_PREFIX}{name}'] is {text!r:.80}; it must be a JSON object with a version")
    return text
