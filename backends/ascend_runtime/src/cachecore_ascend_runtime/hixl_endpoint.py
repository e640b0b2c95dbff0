"""What an engine tells the engines of peers about itself: where it listens and how it talks."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from cachecore.errors import LinkFailedError

__all__ = ["Endpoint", "network_name"]

_LONGEST: Final = 4096
_CHECKSUM_BYTES: Final = 4
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_ADDRESS: Final = re.compile(r"(\d+\.\d+\.\d+\.\d+|\[[0-9a-fA-F:.]+\]):\d{1,5}")


@dataclass(frozen=True)
class Endpoint:
    """One life of a native engine.

    Attributes:
        address: "ip:port" or "[v6]:port".
        identity: 128 random bits of this life of the engine, hexadecimal.
        pid: Its process, for people.
        soc: Name of its SoC.
        protocols: What it has, by the vendor's names.
        emulated: Whether an emulator answers there.
        network: Names the machine, this boot of it, and the network namespace, as `network_name` does.
    """

    address: str
    identity: str
    pid: int
    soc: str
    protocols: tuple[str, ...]
    emulated: bool
    network: str

    def encode(self) -> bytes:
        """As it travels: a checksum, then JSON."""
        body = json.dumps(asdict(self), separators=(",", ":")).encode()
        return zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") + body

    @classmethod
    def decode(cls, data: bytes) -> Endpoint:
        """Read what a peer sent.

        Raises:
            LinkFailedError: It is damaged, or not of this engine.
        """
        body = data[_CHECKSUM_BYTES:]
        if len(data) > _LONGEST or zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") != data[:_CHECKSUM_BYTES]:
            raise LinkFailedError(f"the endpoint of {len(data)} bytes is damaged, or not one of the HIXL engine")
        try:
            value: Any = json.loads(body)
            endpoint = cls(
                str(value["address"]),
                str(value["identity"]),
                int(value["pid"]),
                str(value["soc"]),
                tuple(str(name) for name in value["protocols"]),
                bool(value["emulated"]),
                str(value["network"]),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise LinkFailedError(f"the endpoint of {len(data)} bytes is not one of this version: {error}") from error
        if not _ADDRESS.fullmatch(endpoint.address):
            raise LinkFailedError(f"the endpoint names the address {endpoint.address!r:.80}, which is not ip:port")
        return endpoint

    @property
    def is_loopback(self) -> bool:
        """Whether the address means another process to every machine."""
        try:
            return ipaddress.ip_address(self.address.rpartition(":")[0].strip("[]")).is_loopback
        except ValueError:
            return False

    def check_reachable(self, peer: Endpoint) -> None:
        """Refuse a peer that this engine cannot talk to, before anything native is tried.

        Raises:
            LinkFailedError: Another kind of engine, no protocol in common, an address that leads elsewhere, or this very
                engine.
        """
        if peer.identity == self.identity:
            raise LinkFailedError(f"{peer.address} is this process's own engine; HIXL does not connect to itself")
        if peer.is_loopback and peer.network != self.network:
            raise LinkFailedError(
                f"the peer's HIXL engine listens at {peer.address}, which leads to the peer on its own machine (or in its own "
                "container) only; give the peer options['hixl.host'], an address that this machine can route to"
            )
        if peer.emulated != self.emulated:
            kinds = {True: "emulated", False: "a real device's"}
            raise LinkFailedError(
                f"the engine at {peer.address} is {kinds[peer.emulated]} and this one is {kinds[self.emulated]}; set "
                "CACHECORE_EMULATE on both sides or on neither"
            )
        if not set(peer.protocols) & set(self.protocols):
            raise LinkFailedError(
                f"the engine at {peer.address} ({peer.soc}) talks {', '.join(peer.protocols)} and this one ({self.soc}) "
                f"{', '.join(self.protocols)}; choose the same transport on both sides (the driver's option transport)"
            )


def network_name() -> str:
    """A name for the network that a loopback address belongs to: equal for processes that reach each other by it."""
    try:
        return f"{_BOOT_ID.read_text().strip()} {os.readlink('/proc/self/ns/net')}"
    except OSError:  # a restricted container: say that no other process is known to share the network
        return f"unknown, process {os.getpid()}"
