"""Whether a peer is a manager of this very process, which is then copied to and from without any engine.

A process id or a host name proves nothing: containers repeat both. The proof is a secret that never leaves the process:
the caller sends a random challenge and only code in the same process can answer it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets

__all__ = ["answer", "new_token"]

_SECRET = secrets.token_bytes(32)


def new_token() -> str:
    """128 random bits, hexadecimal."""
    return secrets.token_hex(16)


def answer(challenge: str, incarnation: str) -> str:
    """What the manager `incarnation`, if it lives in this process, answers to `challenge`.

    A forked child inherits the secret and differs in its process id.
    """
    text = f"{challenge}:{os.getpid()}:{incarnation}".encode()
    return hmac.new(_SECRET, text, hashlib.sha256).hexdigest()
