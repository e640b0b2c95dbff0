"""What all messages between managers are made of."""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = ["Message", "Proof", "Text", "Token"]

#: 128 random bits, hexadecimal: names a session, a life of a manager, a lease.
Token = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}\\Z")]
Proof = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}\\Z")]
#: A sentence for people.
Text = Annotated[str, msgspec.Meta(max_length=1000)]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every message; each has a tag of its own."""
