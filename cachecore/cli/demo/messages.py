"""What the demo's processes tell each other, and the channel that carries it."""

from __future__ import annotations

import contextlib
import socket
import struct
from multiprocessing.connection import Connection

import msgspec

from cachecore.errors import CacheError

__all__ = [
    "Block",
    "Channel",
    "ChannelClosedError",
    "Failed",
    "Message",
    "Mismatch",
    "Prepare",
    "Prepared",
    "Pull",
    "Pulled",
    "Ready",
    "Release",
    "Settings",
    "Setup",
    "Stop",
    "Stopped",
]

Block = int


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What both roles need to make their cache.

    Attributes:
        layers: Number of layers; each has a K and a V tensor.
        blocks: Blocks of each tensor.
        block_bytes: Bytes of one block of one tensor.
        backend: Driver to use, or "auto".
        engine: Engine to use, or "auto".
        timeout: Longest time for one link or one pull, in seconds.
    """

    layers: int
    blocks: int
    block_bytes: int
    backend: str
    engine: str
    timeout: float

    @property
    def tensors(self) -> int:
        """Tensors of one cache: K and V of each layer."""
        return 2 * self.layers

    @property
    def tensor_bytes(self) -> int:
        """Bytes of one tensor."""
        return self.blocks * self.block_bytes

    @property
    def cache_bytes(self) -> int:
        """Bytes of one cache."""
        return self.tensors * self.tensor_bytes


class _Message(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    pass


class Setup(_Message):
    """Become a role. `peer_address` is where the prefill side listens; the prefill side itself gets ""."""

    role: str
    settings: Settings
    peer_address: str = ""


class Ready(_Message):
    """The cache is registered (and, on the decode side, linked)."""

    backend: str
    emulated: bool
    address: str = ""
    engine: str = ""


class Prepare(_Message):
    """Have this content in the cache and keep it until `Release` of the same part."""

    part: int
    content_ids: list[int]


class Prepared(_Message):
    """Where the content is, in the order asked for; how many blocks had to be written and evicted for it."""

    part: int
    blocks: list[Block]
    written: int
    evicted: int


class Release(_Message):
    """The blocks of a part may be given to other content. Has no answer."""

    part: int


class Pull(_Message):
    """Have this content in the cache; what is not resident is in these blocks of the prefill side."""

    part: int
    content_ids: list[int]
    src_blocks: list[Block]


class Mismatch(_Message):
    """A block of one tensor that does not hold its content; `word` is its first wrong 64-bit word."""

    layer: int
    tensor: str
    content_id: int
    block: Block
    word: int
    expected: int
    found: int


class Pulled(_Message):
    """What a `Pull` did.

    Attributes:
        part: Which.
        moved: Blocks pulled (of the whole cache: K and V of all layers).
        resident: Blocks that were there already.
        evicted: Contents evicted for it.
        nbytes: Bytes moved, as the manager counts them.
        runs: Contiguous runs the blocks were moved in, per tensor.
        seconds: Time inside `pull_blocks`.
        mismatches: Blocks of one tensor that were wrong.
        first_mismatch: One of them.
    """

    part: int
    moved: int
    resident: int
    evicted: int
    nbytes: int
    runs: int
    seconds: float
    mismatches: int
    first_mismatch: Mismatch | None


class Stop(_Message):
    """Check what is resident, give everything back, and end."""


class Stopped(_Message):
    """All is given back. The decode side has checked all resident blocks once more."""

    checked: int = 0
    mismatches: int = 0
    first_mismatch: Mismatch | None = None


class Failed(_Message):
    """The role cannot go on; the process ends after it."""

    error: str
    text: str


Message = Setup | Ready | Prepare | Prepared | Release | Pull | Pulled | Stop | Stopped | Failed
_decoder = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()


class ChannelClosedError(CacheError, ConnectionError):
    """The other process is gone, or takes and gives nothing for longer than the channel waits."""


class Channel:
    """Messages over one end of a socket pair.

    Args:
        end: The socket; the channel owns it from now on.
        timeout: Longest time for one message to go through once it has begun, in seconds; None = no limit. A
            process that is stopped in the middle of a message would otherwise block this one for ever.
    """

    def __init__(self, end: socket.socket, timeout: float | None = None) -> None:
        if timeout is not None:
            interval = struct.pack("@ll", int(timeout), int(timeout % 1 * 1e6))
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
        self._connection = Connection(end.detach())
        self._failure_sent = False

    def fileno(self) -> int:
        """The descriptor, to wait on."""
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Send one message.

        Raises:
            ChannelClosedError: It did not go through.
        """
        try:
            self._connection.send_bytes(_encoder.encode(message))
        except OSError as error:
            raise ChannelClosedError(f"the other process takes no messages: {error}") from error

    def send_failure(self, error: Exception) -> None:
        """Tell the parent, the first time only, what this process failed with; a closed channel is ignored."""
        if not self._failure_sent:
            self._failure_sent = True
            with contextlib.suppress(ChannelClosedError):
                self.send(Failed(type(error).__name__, str(error)))

    def receive(self) -> Message:
        """Wait for one message.

        Raises:
            ChannelClosedError: The other end is closed, or stopped in the middle of a message.
        """
        try:
            return _decoder.decode(self._connection.recv_bytes())
        except EOFError as error:
            raise ChannelClosedError("the other process has closed the channel") from error
        except OSError as error:
            raise ChannelClosedError(f"the other process sends no whole message: {error}") from error

    def close(self) -> None:
        """Close this end; the other one sees it."""
        self._connection.close()
