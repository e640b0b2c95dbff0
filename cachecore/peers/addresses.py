"""Addresses of managers: "host:port" and "[ipv6]:port" text, resolved before anything is decided or sent.

Host names are resolved first because the decision whether a link stays on this machine, and so which keys protect it,
must be made on the numbers that are connected to, never on a name.
"""

from __future__ import annotations

import ipaddress
import queue
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

from cachecore import _arguments as arguments
from cachecore.errors import CacheTimeoutError, CacheValueError, LinkFailedError

__all__ = ["ResolvedAddress", "parse", "resolve"]


@dataclass(frozen=True)
class ResolvedAddress:
    """A numeric address of one listener.

    Attributes:
        host: Numeric IPv4 or IPv6 address, an IPv6 one with its zone where there is one ("fe80::1%eth0").
        port: 0 asks for any free port when listening.
    """

    host: str
    port: int

    @property
    def is_ipv6(self) -> bool:
        """Whether it is an IPv6 address."""
        return ":" in self.host

    @property
    def is_loopback(self) -> bool:
        """Whether packets to it cannot leave this machine."""
        address = ipaddress.ip_address(self.host.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        return bool((mapped or address).is_loopback)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if self.is_ipv6 else f"{self.host}:{self.port}"


def parse(name: str, text: object, *, lowest_port: int) -> tuple[str, int]:
    """Split "host:port" or "[ipv6]:port".

    Args:
        name: The argument, for messages.
        text: What the caller gave.
        lowest_port: 0 where "any free port" makes sense, 1 where a peer must be named.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: Not such a text.
    """
    arguments.instance(name, text, str)
    assert isinstance(text, str)
    remedy = 'write "host:port", or "[address]:port" for IPv6, for example "10.0.0.7:26000"'
    host, colon, port_text = text.rpartition(":")
    if not colon or not host or not port_text:
        raise CacheValueError(f"{name} is {text!r}; host or port is missing; {remedy}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if ":" not in host:
            raise CacheValueError(f"{name} is {text!r}; only an IPv6 address stands in brackets; {remedy}")
    elif "://" in host:
        raise CacheValueError(f"{name} is {text!r}; {host.partition('://')[0]}:// does not belong to it; {remedy}")
    elif ":" in host:
        raise CacheValueError(f"{name} is {text!r}; an IPv6 address needs brackets around it; {remedy}")
    if any(character.isspace() or character in "/*[]@" for character in host):
        raise CacheValueError(
            f"{name} is {text!r}; {host!r} is not a host ('0.0.0.0' or '[::]' listens everywhere); {remedy}"
        )
    if not (port_text.isascii() and port_text.isdigit() and lowest_port <= int(port_text) <= 65535):
        raise CacheValueError(f"{name} is {text!r}; the port must be a number from {lowest_port} to 65535; {remedy}")
    return host, int(port_text)


def resolve(name: str, text: object, deadline: float, *, lowest_port: int) -> list[ResolvedAddress]:
    """Numeric addresses of `text`, in the system's order of preference, without repeats.

    Args:
        name: The argument, for messages.
        text: "host:port" or "[ipv6]:port".
        deadline: On `time.monotonic()`; the system's resolver keeps none of its own.
        lowest_port: As in `parse`.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: Bad text.
        LinkFailedError: The name is not known.
        CacheTimeoutError: The resolver did not answer in time.
    """
    host, port = parse(name, text, lowest_port=lowest_port)
    try:
        found: list[Any] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = _look_up(name, host, port, deadline)
    except UnicodeError as error:
        raise CacheValueError(f"{name} is {text!r}; {host!r} is not a host name: {error}") from error
    addresses = []
    for family, _, _, _, where in found:
        numeric = str(where[0])
        zone = where[3] if family == socket.AF_INET6 and len(where) == 4 else 0
        if zone and "%" not in numeric:
            numeric = f"{numeric}%{zone}"
        addresses.append(ResolvedAddress(numeric, port))
    return list(dict.fromkeys(addresses))


def _look_up(name: str, host: str, port: int, deadline: float) -> list[Any]:
    """`socket.getaddrinfo` with a deadline: it cannot be interrupted, so it runs in a thread that may outlive us."""
    answers: queue.SimpleQueue[object] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answers.put(error)

    threading.Thread(target=ask, name="cachecore-resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        raise CacheTimeoutError(f"{name}: the resolver has not found {host!r} before the deadline") from None
    if isinstance(answer, Exception):
        raise LinkFailedError(
            f"{name}: the host name {host!r} cannot be resolved ({answer}); check the name, or give the address"
        ) from answer
    assert isinstance(answer, list)
    return answer
