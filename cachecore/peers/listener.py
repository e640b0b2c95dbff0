"""The ROUTER socket that readers connect to, and the door before it. Lives in the service thread.

The TCP socket is made here and handed to ZeroMQ as a duplicate, so that the door can be shut: a socket filter then
drops the first packet of new connections in the kernel, whose callers try again by themselves, while those that exist
are not touched. (ZeroMQ's own unbind would end them.) That is done while too many connections have not proven a key,
and while the process is short of descriptors.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import logging
import os
import select
import socket
import time
import weakref
from collections.abc import Callable, Sequence

import zmq

from cachecore.errors import LinkFailedError
from cachecore.peers import doorkeeper
from cachecore.peers.addresses import ResolvedAddress
from cachecore.peers.channel import open_monitor, read_monitor, set_common_options
from cachecore.peers.descriptors import FOR_ONE_LINK, available
from cachecore.peers.liveness import Timing
from cachecore.peers.messages import MAX_READER_FRAME
from cachecore.peers.security import CurveKeys
from cachecore.peers.service import Service
from cachecore.peers.zap import DOMAIN, KeyGuard

__all__ = ["Delivery", "Listener"]

_logger = logging.getLogger("cachecore.peers")
#: Connections that may be without a proven key at once.
MAX_STRANGERS = 64
#: Connections that may be waiting to be accepted; they come in even when the door is shut.
_BACKLOG = 64
#: How long readers have to hear the last words and hang up when the listener closes, in seconds. Closing first could
#: reset a connection, and with it what is on its way.
_LAST_WORDS = 0.2

_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED


class Delivery(enum.Enum):
    """What became of a message to a reader."""

    SENT = enum.auto()
    FULL = enum.auto()
    GONE = enum.auto()


class Listener:
    """Listens from construction on.

    Args:
        service: Whose thread this is.
        text: The address as the caller gave it, for messages.
        addresses: What it resolved to; the first that can be bound is used.
        keys: CURVE keys, None for a plain listener.
        timing: Intervals.
        on_message: (routing id, frames, address of the connection) of each message.
        on_disconnect: Some connection is gone; ZeroMQ does not say whose.

    Raises:
        LinkFailedError: None of the addresses can be listened on.
        zmq.ZMQError: A socket cannot be made (no descriptors).
    """

    def __init__(
        self,
        service: Service,
        text: str,
        addresses: Sequence[ResolvedAddress],
        keys: CurveKeys | None,
        timing: Timing,
        on_message: Callable[[bytes, list[bytes], str], None],
        on_disconnect: Callable[[], None],
    ) -> None:
        self._service = service
        self._timing = timing
        self._on_message, self._on_disconnect = on_message, on_disconnect
        self.strangers_denied = 0
        self.pauses = 0
        #: `time.monotonic()` at which no message was waiting.
        self.drained_at = time.monotonic()
        self._connections: set[int] = set()
        self._fresh: dict[int, float] = {}
        self._proven: list[float] = []
        self._held_for_link = False
        self._shut = False
        self._duplicate: int | None = None
        self._tcp, self.address = _listen(text, addresses)
        _listeners.add(self)
        self._guard: KeyGuard | None = None
        self._router: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        try:
            if keys is not None:
                self._guard = KeyGuard(service.context, keys.allowed, self._denied)
                service.watch(self._guard.socket, self._guard.answer_all)
            self._router = service.context.socket(zmq.ROUTER)
            set_common_options(self._router, timing, MAX_READER_FRAME)
            # A message to somebody who is gone is an error, not dropped. Handover stays off: a connection that
            # names itself like a living one is turned away instead of taking its place.
            self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
            if keys is not None:
                self._router.setsockopt(zmq.CURVE_SERVER, 1)
                self._router.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
                self._router.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
                self._router.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
            self._monitor = open_monitor(service.context, self._router, _EVENTS)
            service.watch(self._router, self._readable)
            service.watch(self._monitor, self.read_events)
            self._bind()
        except BaseException:
            self.close()
            raise

    @property
    def accepting(self) -> bool:
        """Whether new connections are let in now."""
        return self._router is not None and not self._shut

    @property
    def somebody_waits(self) -> bool:
        """Whether connections are waiting to be accepted, which takes any descriptor that is free."""
        return bool(select.select([self._tcp], [], [], 0)[0])

    def send(self, routing_id: bytes, frame: bytes) -> Delivery:
        """Queue a message for one reader; never waits."""
        if self._router is None:
            return Delivery.GONE
        try:
            self._router.send_multipart([routing_id, frame], zmq.NOBLOCK)
        except zmq.Again:
            return Delivery.FULL
        except zmq.ZMQError as error:
            if error.errno == errno.EHOSTUNREACH:
                return Delivery.GONE
            raise
        return Delivery.SENT

    def read_messages(self, limit: int = 100) -> bool:
        """Deliver up to `limit` waiting messages. Returns whether none is left."""
        for _ in range(limit):
            if self._router is None:
                return True
            try:
                parts = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self.drained_at = time.monotonic()
                return True
            address = ""
            with contextlib.suppress(zmq.ZMQError, UnicodeDecodeError):
                address = str(parts[-1].get("Peer-Address"))
            self._on_message(parts[0].bytes, [part.bytes for part in parts[1:4]], address)
        return False

    def read_events(self) -> None:
        """Look now which connections came and went."""
        gone = self._read_reports()
        self.guard_door()
        if gone:
            self._on_disconnect()

    def _read_reports(self) -> bool:
        """Keep count of connections. Returns whether one has gone."""
        gone = False
        while self._monitor is not None:
            report = read_monitor(self._monitor)
            if report is None:
                break
            event, value = report
            if event == zmq.EVENT_ACCEPTED:
                self._connections.add(value)
                self._fresh[value] = time.monotonic()
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._proven.append(time.monotonic())
            else:
                self._connections.discard(value)
                self._fresh.pop(value, None)
                gone = True
        return gone

    def guard_door(self) -> None:
        """Let connections in or keep them out, by how many strangers are in and how many descriptors are left."""
        if self._router is None:
            return
        crowded = self._strangers() >= (MAX_STRANGERS if self.accepting else MAX_STRANGERS // 2)
        if crowded or self._held_for_link or not available(FOR_ONE_LINK):
            self._pause()
        else:
            self._resume()

    def hold_door(self, held: bool) -> None:
        """Keep newcomers out while a link of our own takes its descriptors."""
        self._held_for_link = held
        self.guard_door()

    def close(self) -> None:
        """Stop listening and drop every connection, once readers have had a moment to do so."""
        deadline = time.monotonic() + _LAST_WORDS
        while self._monitor is not None and self._connections and time.monotonic() < deadline:
            if self._monitor.poll(max(1, int((deadline - time.monotonic()) * 1000))):
                self._read_reports()
        if self._guard is not None:
            self._service.unwatch(self._guard.socket)
            self._guard.close()
            self._guard = None
        if self._router is not None:
            self._service.unwatch(self._router)
            if self._monitor is not None:
                self._service.unwatch(self._monitor)
                self._router.disable_monitor()
                self._monitor.close(0)
                self._monitor = None
            self._router.close(0)
            self._router = None
        self._duplicate = None
        _listeners.discard(self)
        self._tcp.close()

    def _readable(self) -> None:
        # Who has gone is known before what others say: a restarted peer must not meet its own ghost.
        self.read_events()
        self.read_messages()

    def _strangers(self) -> int:
        """How many connections may not have proven a key.

        The reports do not say which connection proved one, so all that are younger than the handshake time count, less
        the proofs of that time.
        """
        since = time.monotonic() - 1.25 * self._timing.handshake
        self._proven = [when for when in self._proven if when > since]
        self._fresh = {fd: when for fd, when in self._fresh.items() if when > since}
        return max(0, len(self._fresh) - len(self._proven))

    def _bind(self) -> None:
        assert self._router is not None
        duplicate = os.dup(self._tcp.fileno())
        self._router.setsockopt(zmq.USE_FD, duplicate)
        try:
            self._router.bind(f"tcp://{self.address}")
        except BaseException:
            os.close(duplicate)
            raise
        self._duplicate = duplicate  # ZeroMQ's from now on

    def _pause(self) -> None:
        if self._shut:
            return
        self._shut = True
        self.pauses += 1
        try:
            doorkeeper.shut(self._tcp)
        except OSError as error:
            _logger.warning("%s cannot keep strangers out (%s): raise the limit of open files", self.address, error)
            return
        _logger.warning("%s lets nobody in for now: too many strangers or too few descriptors", self.address)

    def _resume(self) -> None:
        if self._shut:
            self._shut = False
            with contextlib.suppress(OSError):  # it was not shut then
                doorkeeper.open(self._tcp)

    def _denied(self) -> None:
        self.strangers_denied += 1

    def _forget_in_child(self) -> None:
        """Close a forked child's copies of the TCP socket, or the port would stay taken when the parent is gone."""
        for descriptor in (self._duplicate, self._tcp.fileno()):
            if descriptor is not None and descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._tcp.detach()


def _listen(text: str, addresses: Sequence[ResolvedAddress]) -> tuple[socket.socket, ResolvedAddress]:
    problems = []
    for address in addresses:
        tcp = socket.socket(socket.AF_INET6 if address.is_ipv6 else socket.AF_INET, socket.SOCK_STREAM)
        try:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if address.is_ipv6:
                # "[::]" means IPv6 only: what an address covers must not depend on a system setting.
                tcp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            info = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
            tcp.bind(info[0][4])
            tcp.listen(_BACKLOG)
            tcp.setblocking(False)
        except OSError as error:
            tcp.close()
            problems.append(f"{address}: {error.strerror}")
            continue
        return tcp, ResolvedAddress(address.host, int(tcp.getsockname()[1]))
    raise LinkFailedError(
        f"listen is {text!r} and cannot be listened on ({'; '.join(problems)}); choose another port (0 finds a free one) "
        "or stop whatever uses it"
    )


_listeners: weakref.WeakSet[Listener] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for listener in list(_listeners):
        listener._forget_in_child()
    _listeners.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
