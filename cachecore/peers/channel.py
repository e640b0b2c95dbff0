"""One DEALER socket to one listener, with its monitor. Lives in the service thread.

A default DEALER reconnects by itself and delivers queued messages to whoever listens there then, possibly a restarted
peer that knows nothing of them. This one connects once (RECONNECT_IVL -1), queues nothing before the connection is
there (IMMEDIATE), and ends when the connection ends.
"""

from __future__ import annotations

import enum
import errno
import itertools
import time
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from cachecore.peers.addresses import ResolvedAddress
from cachecore.peers.liveness import Timing
from cachecore.peers.messages import MAX_OWNER_FRAME
from cachecore.peers.security import CurveKeys
from cachecore.peers.service import Service

__all__ = ["Channel", "Ending", "open_monitor", "read_monitor", "set_common_options"]

#: Messages queued towards one peer before sending fails.
HIGH_WATER_MARK = 1000
_monitor_names = itertools.count()

_EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Ending(enum.Enum):
    """How a connection ended."""

    REFUSED = "nobody listens there, or it cannot be reached"
    SILENT = "nothing came from there in time"
    KEYS = "the listener does not admit this key"
    MECHANISM = "one side uses keys and the other does not, or it is no manager"
    DROPPED = "the listener closed the connection during the exchange of keys"
    LOST = "the connection is gone"


class Channel:
    """Connects when made. Exactly one of `on_open` and `on_end` comes first, and `on_end` comes at most once.

    Args:
        service: Whose thread this is.
        address: Where to.
        keys: CURVE keys, None for a plain connection.
        timing: Intervals.
        on_open: The keys were accepted; messages may be sent.
        on_frames: Frames of one message that came.
        on_end: The connection could not be made or is gone. Frames that came before it are delivered before it.

    Raises:
        zmq.ZMQError: A socket cannot be made (no descriptors).
    """

    def __init__(
        self,
        service: Service,
        address: ResolvedAddress,
        keys: CurveKeys | None,
        timing: Timing,
        on_open: Callable[[], None],
        on_frames: Callable[[list[bytes]], None],
        on_end: Callable[[Ending], None],
    ) -> None:
        self.address = address
        self._service = service
        self._on_open, self._on_frames, self._on_end = on_open, on_frames, on_end
        self._opened = self._closed = False
        self._connected_at: float | None = None
        self._dialed_at = time.monotonic()
        self._patience = timing.handshake / 2
        self._problem: Ending | None = None
        self._socket = service.context.socket(zmq.DEALER)
        self._monitor: zmq.Socket[bytes] | None = None
        try:
            set_common_options(self._socket, timing, MAX_OWNER_FRAME)
            self._socket.setsockopt(zmq.RECONNECT_IVL, -1)
            self._socket.setsockopt(zmq.IMMEDIATE, 1)
            self._socket.setsockopt(zmq.CONNECT_TIMEOUT, _milliseconds(timing.handshake))
            if keys is not None:
                assert keys.server is not None
                self._socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
                self._socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
                self._socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server.encode())
            self._monitor = open_monitor(service.context, self._socket, _EVENTS)
            service.watch(self._socket, self._readable)
            service.watch(self._monitor, self.read_events)
            self._socket.connect(f"tcp://{address}")
            # ZeroMQ says nothing when it could not even open a TCP socket.
            service.after(2 * timing.handshake + 0.5, self._give_up)
        except BaseException:
            self.close()
            raise

    def send(self, frame: bytes) -> bool:
        """Queue a message. Returns False when it cannot be: too many are queued, or the connection is gone."""
        if self._closed:
            return False
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Drop the connection and what is queued. `on_end` is not called."""
        self._closed = True
        if self._monitor is not None:
            self._service.unwatch(self._monitor)
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
        self._service.unwatch(self._socket)
        self._socket.close(0)

    def read_events(self) -> None:
        """Look now whether the connection is still there."""
        while self._monitor is not None:
            event = read_monitor(self._monitor)
            if event is None:
                return
            self._event(*event)

    def read_messages(self) -> None:
        """Deliver everything that has come by now."""
        while not self._closed and self._receive():
            pass

    def _readable(self) -> None:
        for _ in range(100):  # then others get their turn
            if self._closed or not self._receive():
                return

    def _receive(self) -> bool:
        try:
            frames = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._on_frames(frames)
        return True

    def _event(self, event: int, value: int) -> None:
        if event == zmq.EVENT_CONNECTED:
            self._connected_at = time.monotonic()
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._opened = True
            self._on_open()
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self._problem = Ending.KEYS
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            self._problem = Ending.MECHANISM
        elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            # The listener's own time for this is over in the same moment as ours, and it may be the one that closes.
            waited = self._connected_at is not None and time.monotonic() - self._connected_at > self._patience
            silent = waited or value in (0, errno.EAGAIN)
            self._problem = self._problem or (Ending.SILENT if silent else Ending.DROPPED)
        elif event in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED):
            self.read_messages()
            if not self._closed:
                self.close()
                self._on_end(self._ending())

    def _ending(self) -> Ending:
        if self._opened:
            return Ending.LOST
        if self._problem is not None:
            return self._problem
        if self._connected_at is not None:
            return Ending.DROPPED
        return Ending.SILENT if time.monotonic() - self._dialed_at > self._patience else Ending.REFUSED

    def _give_up(self) -> None:
        if not (self._opened or self._closed):
            self.close()
            self._on_end(Ending.SILENT)


def set_common_options(socket: zmq.Socket[Any], timing: Timing, largest_frame: int) -> None:
    """Options of both ends. Heartbeats come from ZeroMQ's own thread and show whether the process is there at all."""
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _milliseconds(timing.handshake))
    socket.setsockopt(zmq.HEARTBEAT_IVL, _milliseconds(timing.heartbeat_interval))
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _milliseconds(timing.heartbeat_timeout))
    socket.setsockopt(zmq.MAXMSGSIZE, largest_frame)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)


def open_monitor(context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[Any], events: int) -> zmq.Socket[bytes]:
    """The socket on which ZeroMQ reports what happens to the connections of `socket`."""
    # pyzmq's own helper names the endpoint after a descriptor, which is used again too soon.
    address = f"inproc://monitor-{next(_monitor_names)}"
    monitor = context.socket(zmq.PAIR)
    try:
        monitor.setsockopt(zmq.LINGER, 0)
        # ZeroMQ's thread blocks when this queue is full, and heartbeats stop. It may fill while Python is busy.
        monitor.setsockopt(zmq.RCVHWM, 100_000)
        socket.monitor(address, events)
        monitor.connect(address)
    except BaseException:
        monitor.close(0)
        raise
    return monitor


def read_monitor(monitor: zmq.Socket[bytes]) -> tuple[int, int] | None:
    """(event, value) of the next report, None when there is none."""
    try:
        report = parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))
    except zmq.Again:
        return None
    return int(report["event"]), int(report["value"])


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
