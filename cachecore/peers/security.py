"""Which keys protect a listener or a link. Every connection is encrypted and authenticated with CURVE.

On addresses that cannot leave the machine the key pair of the user does both sides (see `keyfiles`). Any other address
needs explicit keys: a `Security`. `insecure=True` switches all of it off, loudly.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zmq
import zmq.utils.z85

from cachecore import _arguments as arguments
from cachecore.errors import AuthenticationError, CacheValueError
from cachecore.peers import keyfiles
from cachecore.peers.addresses import ResolvedAddress

__all__ = ["CurveKeys", "InsecureLinkWarning", "Keyring", "Security"]

_logger = logging.getLogger("cachecore.peers")
_REMEDY = (
    "give security=cachecore.Security(...) with explicit keys on both sides, use a loopback address, or say insecure=True "
    "where everybody who can reach the address may read the caches"
)


class InsecureLinkWarning(UserWarning):
    """A manager was told to link without encryption and authentication."""


@dataclass(frozen=True)
class Security:
    """Explicit keys, in the Z85 text that ZeroMQ uses (40 characters).

    Attributes:
        public_key: This manager's public key.
        secret_key: Its secret key.
        server_key: Public key of the listener that is linked to. Needed to link.
        allowed_keys: Public keys of the managers that may link to this one. Needed to listen.

    Raises:
        CacheTypeError, CacheValueError: A key is not a key, or the pair does not belong together.
    """

    public_key: str
    secret_key: str = field(repr=False)
    server_key: str | None = None
    allowed_keys: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        _check_key("public_key", self.public_key)
        _check_key("secret_key", self.secret_key)
        if zmq.curve_public(self.secret_key.encode()).decode() != self.public_key:
            raise CacheValueError("public_key does not belong to secret_key; give the two keys of one pair")
        if self.server_key is not None:
            _check_key("server_key", self.server_key)
        if isinstance(self.allowed_keys, str):  # type: ignore[unreachable]  # callers are not all type-checked
            raise arguments.wrong_type("allowed_keys", self.allowed_keys, "a set of public keys")
        object.__setattr__(self, "allowed_keys", frozenset(self.allowed_keys))
        for key in self.allowed_keys:
            _check_key("allowed_keys", key)

    @classmethod
    def from_files(
        cls,
        key_file: str | os.PathLike[str],
        *,
        server_key_file: str | os.PathLike[str] | None = None,
        allowed_key_files: Iterable[str | os.PathLike[str]] = (),
    ) -> Security:
        """Keys from ZeroMQ certificate files, as `zmq.auth.create_certificates` writes them.

        Args:
            key_file: This manager's own pair; must belong to the user and be unreadable for others.
            server_key_file: Public certificate of the listener that is linked to.
            allowed_key_files: Public certificates of those who may link to this manager.

        Raises:
            AuthenticationError: A file cannot be read, holds no key, or is readable for others.
        """
        public, secret = keyfiles.read_pair(Path(key_file))
        server = None if server_key_file is None else keyfiles.read_public(Path(server_key_file))
        return cls(public, secret, server, frozenset(keyfiles.read_public(Path(name)) for name in allowed_key_files))


@dataclass(frozen=True)
class CurveKeys:
    """What a socket is set up with.

    Attributes:
        public: Own public key.
        secret: Own secret key.
        server: The listener's public key; None for a listener.
        allowed: Keys a listener admits.
        origin: Where the keys come from, for messages.
    """

    public: str
    secret: str = field(repr=False)
    server: str | None
    allowed: frozenset[str]
    origin: str


class Keyring:
    """Which keys one manager uses, by what it was given and where the connection goes. Thread-safe.

    Args:
        security: The manager's explicit keys, None for links within this machine.
        insecure: Neither encryption nor authentication.

    Raises:
        CacheTypeError, CacheValueError: A bad argument, or both were given.
    """

    def __init__(self, security: Security | None, insecure: bool) -> None:
        if security is not None:
            arguments.instance("security", security, Security)
        if arguments.boolean("insecure", insecure) and security is not None:
            raise CacheValueError("security is given and insecure is True; choose one of them")
        self._security, self._insecure = security, insecure
        # Read once: the listener keeps its pair for life, and reading needs a descriptor that may not be there later.
        self._loopback: CurveKeys | None = None

    def listening(self, text: str, addresses: Sequence[ResolvedAddress]) -> CurveKeys | None:
        """Keys of a listener on `addresses`, None for a plain one.

        Raises:
            AuthenticationError: The address needs explicit keys and there are none, or nobody would be admitted.
        """
        if self._insecure:
            _warn(f"this manager listens on {text} without encryption and authentication (insecure=True)")
            return None
        security = self._security
        if security is None:
            own = self._own("listen", text, addresses)
            return dataclasses.replace(own, allowed=frozenset({own.public}))
        if not security.allowed_keys:
            raise AuthenticationError(
                f"listen is {text!r} and security.allowed_keys is empty, so nobody could link; put the public keys of "
                "the managers that may link there"
            )
        return CurveKeys(security.public_key, security.secret_key, None, security.allowed_keys, "security=")

    def dialing(
        self, text: str, addresses: Sequence[ResolvedAddress], override: Security | None = None
    ) -> CurveKeys | None:
        """Keys of a link to `addresses`, None for a plain one.

        Args:
            text: The address as the caller gave it.
            addresses: What it resolved to.
            override: Keys for this link instead of the manager's.

        Raises:
            AuthenticationError: The address needs explicit keys and there are none.
        """
        if override is not None:
            arguments.instance("security", override, Security)
        elif self._insecure:
            _warn(f"the link to {text} has neither encryption nor authentication (insecure=True)")
            return None
        security = override or self._security
        if security is None:
            own = self._own("address", text, addresses)
            return dataclasses.replace(own, server=own.public)
        if security.server_key is None:
            raise AuthenticationError(
                f"address is {text!r} and security.server_key is None; put the public key of that listener there"
            )
        return CurveKeys(security.public_key, security.secret_key, security.server_key, frozenset(), "security=")

    def _own(self, name: str, text: str, addresses: Sequence[ResolvedAddress]) -> CurveKeys:
        outside = [address for address in addresses if not address.is_loopback]
        if outside:
            raise AuthenticationError(
                f"{name} is {text!r}, which is not on this machine's loopback ({outside[0].host}), and there are no "
                f"keys for it; {_REMEDY}"
            )
        if self._loopback is None:
            public, secret, path = keyfiles.loopback_pair()
            self._loopback = CurveKeys(public, secret, None, frozenset(), f"the key file {path}")
        return self._loopback


def _check_key(name: str, key: object) -> None:
    arguments.instance(name, key, str)
    assert isinstance(key, str)
    shown = "a value not shown here" if name == "secret_key" else repr(key)
    try:
        good = len(key) == 40 and len(zmq.utils.z85.decode(key.encode("ascii"))) == 32
    except (ValueError, KeyError, UnicodeEncodeError):
        good = False
    if not good:
        raise CacheValueError(
            f"{name} is {shown}; a CURVE key is 40 characters of Z85, as zmq.curve_keypair() makes it"
        )


def _warn(message: str) -> None:
    _logger.warning("%s", message)
    warnings.warn(message, InsecureLinkWarning, stacklevel=5)  # who made or linked the manager
