"""The key pair of the user for links within this machine, made on first use, and key files given by name.

Whoever can read the file can link to the user's managers on loopback, so it is created 0600 and refused when somebody
else owns it, may read it, or could have replaced it (a symbolic link, a directory others may write to).
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import tempfile
from pathlib import Path

import zmq

from cachecore.errors import AuthenticationError, LinkFailedError

__all__ = ["loopback_pair", "read_pair", "read_public"]

_NAME = "loopback.key"
_LIMIT = 65536
#: Failures that mean "no file can be made here", not "somebody tampered".
_UNUSABLE = {errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EROFS, errno.ENOSPC, errno.EDQUOT}
_UNUSABLE |= {errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class _UnusableError(Exception):
    """No file can be made in this directory."""


def loopback_pair() -> tuple[str, str, Path]:
    """The user's public key, secret key and the file they are in.

    The file is `loopback.key` in $CACHECORE_KEY_DIR; without that variable in $XDG_CONFIG_HOME/cachecore or
    ~/.config/cachecore; where that cannot be written, in `cachecore-UID` below the directory for temporary files.

    Raises:
        AuthenticationError: There is a file and it cannot be trusted, or no place can hold one.
    """
    reasons = []
    for directory, strict in _candidates():
        try:
            public, secret = _pair_in(directory, strict)
        except _UnusableError as error:
            reasons.append(f"{directory}: {error}")
        else:
            return public, secret, directory / _NAME
    raise AuthenticationError(
        f"there is no place for the key file of loopback links ({'; '.join(reasons)}); set CACHECORE_KEY_DIR to a "
        "directory of yours that only you can write to"
    )


def read_pair(path: Path) -> tuple[str, str]:
    """Public and secret key of a certificate file that only the user can read.

    Raises:
        AuthenticationError: It is not such a file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise AuthenticationError(f"the key file {path} cannot be read: {error.strerror}") from error
    public, secret = _read_private(descriptor, path)
    return public, secret


def read_public(path: Path) -> str:
    """Public key of a certificate file.

    Raises:
        AuthenticationError: It is not such a file.
    """
    try:
        with open(path, "rb") as file:
            public, _ = _parse(file.read(_LIMIT))
    except OSError as error:
        raise AuthenticationError(f"the key file {path} cannot be read: {error.strerror}") from error
    if public is None:
        raise AuthenticationError(f"the key file {path} has no public-key; make one with zmq.auth.create_certificates")
    return public


def _candidates() -> list[tuple[Path, bool]]:
    """Directories to try, and whether each must be private itself because its parent is everybody's."""
    chosen = os.environ.get("CACHECORE_KEY_DIR")
    if chosen:
        return [(Path(chosen), False)]
    config = os.environ.get("XDG_CONFIG_HOME", "")
    home = Path(config) if os.path.isabs(config) else Path(os.path.expanduser("~")) / ".config"
    return [(home / "cachecore", False), (Path(tempfile.gettempdir()) / f"cachecore-{os.geteuid()}", True)]


def _pair_in(directory: Path, strict: bool) -> tuple[str, str]:
    descriptor = _open_directory(directory, strict)
    try:
        for _ in range(2):
            try:
                file = os.open(_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
            except FileNotFoundError:
                _create(descriptor)
                continue
            except OSError as error:
                _check_limit(error)
                if error.errno == errno.ELOOP:
                    raise _untrusted(directory / _NAME, "it is a symbolic link") from error
                raise _untrusted(directory / _NAME, f"it cannot be read ({error.strerror})") from error
            return _read_private(file, directory / _NAME)
    finally:
        os.close(descriptor)
    raise _UnusableError("the file vanished while it was made")


def _check_limit(error: OSError) -> None:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise LinkFailedError(
            f"the key file of loopback links cannot be opened: {error.strerror}; raise the limit of open files (ulimit "
            "-n) or close some"
        ) from error


def _open_directory(directory: Path, strict: bool) -> int:
    try:
        # A home that does not exist is not created: user accounts without one say so this way.
        if strict or os.environ.get("CACHECORE_KEY_DIR"):
            with contextlib.suppress(FileExistsError):
                directory.mkdir(mode=0o700)
        elif directory.parent.is_dir() or directory.parent.parent.is_dir():
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | (os.O_NOFOLLOW if strict else 0)
        descriptor = os.open(directory, flags)
    except OSError as error:
        _check_limit(error)
        if error.errno in _UNUSABLE and not (strict and directory.is_symlink()):
            raise _UnusableError(error.strerror) from error
        raise _untrusted(directory, str(error.strerror)) from error
    status = os.fstat(descriptor)
    if not strict and status.st_uid != os.geteuid():
        os.close(descriptor)
        raise _UnusableError(f"it belongs to user {status.st_uid}, not to {os.geteuid()}")
    if status.st_uid != os.geteuid() or status.st_mode & (0o077 if strict else 0o022):
        os.close(descriptor)
        raise _untrusted(
            directory, f"it belongs to user {status.st_uid} and has mode {stat.S_IMODE(status.st_mode):04o}"
        )
    return descriptor


def _create(directory: int) -> None:
    """Make the file, complete or not at all; of several processes at once exactly one wins."""
    public, secret = (key.decode() for key in zmq.curve_keypair())
    text = (
        "# ZeroMQ CURVE certificate of cachecore for links within this machine.\n"
        "# Whoever can read this file can read the KV caches of this user's processes.\n"
        f'metadata\ncurve\n    public-key = "{public}"\n    secret-key = "{secret}"\n'
    )
    temporary = f"{_NAME}.{secrets.token_hex(8)}"
    try:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
        try:
            os.fchmod(file, 0o600)
            os.write(file, text.encode())
            os.fsync(file)
        finally:
            os.close(file)
        try:
            # A hard link never replaces anything: the process that loses reads the winner's file.
            with contextlib.suppress(FileExistsError):
                os.link(temporary, _NAME, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            os.unlink(temporary, dir_fd=directory)
    except OSError as error:
        _check_limit(error)
        if error.errno in _UNUSABLE:
            raise _UnusableError(error.strerror) from error
        raise AuthenticationError(f"the key file of loopback links cannot be made: {error.strerror}") from error


def _read_private(descriptor: int, path: Path) -> tuple[str, str]:
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _untrusted(path, "it is not a regular file")
        if status.st_uid != os.geteuid():
            raise _untrusted(path, f"it belongs to user {status.st_uid}, not to {os.geteuid()}")
        if status.st_mode & 0o077:
            raise _untrusted(path, f"its mode is {stat.S_IMODE(status.st_mode):04o}; chmod 0600 if nobody else saw it")
        public, secret = _parse(file.read(_LIMIT))
    if public is None or secret is None or len(public) != 40 or len(secret) != 40:
        raise _untrusted(path, "it holds no key pair")
    if zmq.curve_public(secret.encode()).decode() != public:
        raise _untrusted(path, "its public key does not belong to its secret key")
    return public, secret


def _parse(content: bytes) -> tuple[str | None, str | None]:
    """public-key and secret-key of a ZeroMQ certificate."""
    found: dict[bytes, str] = {}
    for line in content.splitlines():
        name, equals, value = line.strip().partition(b"=")
        if equals and not name.startswith(b"#"):
            found[name.strip()] = value.strip(b" \t'\"").decode("ascii", "replace")
    return found.get(b"public-key"), found.get(b"secret-key")


def _untrusted(path: Path, reason: str) -> AuthenticationError:
    return AuthenticationError(
        f"{path} cannot be trusted with the keys of loopback links: {reason}; it must be yours, and nobody else may be "
        "able to read or replace it (delete it and a new one is made, or set CACHECORE_KEY_DIR)"
    )
