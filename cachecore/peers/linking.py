"""How a link is made: connect, exchange keys and greetings, give one engine access, be counted as a reader.

Runs in the thread that calls `link()`, which waits for the service thread with a deadline at every step. A link that
fails at any step leaves nothing behind on either side.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import zmq

from cachecore.engine import EngineBinding, PeerIdentity
from cachecore.errors import AuthenticationError, CacheError, CacheTimeoutError, LinkFailedError
from cachecore.peers import process
from cachecore.peers.addresses import ResolvedAddress
from cachecore.peers.channel import Channel, Ending
from cachecore.peers.descriptors import Door
from cachecore.peers.events import PeerEvent
from cachecore.peers.link import Link
from cachecore.peers.liveness import Timing
from cachecore.peers.messages import (
    PROTOCOL_VERSION,
    EngineOffer,
    Hello,
    IdentityRecord,
    MalformedMessageError,
    OtherVersionError,
    Refusal,
    Refused,
    Welcome,
    decode_owner_message,
    encode,
)
from cachecore.peers.notices import Post
from cachecore.peers.security import CurveKeys
from cachecore.peers.service import Service
from cachecore.peers.worker import Worker

__all__ = ["Dialer"]

_logger = logging.getLogger("cachecore.peers")
_SAME_KEYS = (
    "On loopback both sides must use the same key file (the same user and CACHECORE_KEY_DIR); elsewhere server_key must be "
    "the listener's public key and its allowed_keys must name this manager's"
)
#: Between two looks whether there are descriptors for a link.
_LOOK_AGAIN_SECONDS = 0.02


@dataclasses.dataclass(frozen=True)
class Dialer:
    """Makes links of one manager.

    Attributes:
        identity: Of this manager.
        timing: Intervals.
        service: Its service thread.
        worker: Its thread for engine calls.
        notify: Takes events.
        door: Held while a link takes its descriptors.
        post: Where notifications go.
    """

    identity: PeerIdentity
    timing: Timing
    service: Service
    worker: Worker
    notify: Callable[[PeerEvent], None]
    door: Door
    post: Post

    def greet(
        self,
        addresses: Sequence[ResolvedAddress],
        keys: CurveKeys | None,
        ended: Callable[[ResolvedAddress], tuple[str, ...]],
        deadline: float,
    ) -> tuple[Link, Welcome, bool]:
        """Connect to the first address that answers, and exchange greetings.

        Returns:
            The link, of which the owner knows and which reads nothing yet; the owner's greeting; whether the owner is in
            this process.

        Raises:
            AuthenticationError: The keys do not fit.
            LinkFailedError: Nobody answers there, or not as a manager does.
            CacheTimeoutError: Not before the deadline.
        """
        problems: list[CacheError] = []
        for address in addresses:
            try:
                return self._greet(address, keys, ended(address), deadline)
            except (AuthenticationError, CacheTimeoutError):
                raise
            except LinkFailedError as error:
                problems.append(error)
        if len(problems) == 1:
            raise problems[0]
        raise LinkFailedError("; ".join(str(problem) for problem in problems)) from problems[-1]

    def _greet(
        self, address: ResolvedAddress, keys: CurveKeys | None, ended: tuple[str, ...], deadline: float
    ) -> tuple[Link, Welcome, bool]:
        challenge = process.new_token()
        hello = Hello(IdentityRecord.of(self.identity), challenge, ended)
        while True:
            call = _Call(self, address, keys, hello)
            try:
                call.dial(deadline)
                link, welcome = call.answer(deadline)
            except _StillSilentError as error:
                call.hang_up()
                # Most likely its interpreter is busy or its door is shut. Worth another try while there is time.
                if time.monotonic() >= deadline:
                    raise CacheTimeoutError(str(error)) from None
            except BaseException:
                call.hang_up()
                raise
            else:
                proof = process.answer(challenge, welcome.identity.incarnation)
                return link, welcome, proof == welcome.proof

    def choose_engine(
        self, link: Link, offers: Sequence[EngineOffer], bindings: Sequence[EngineBinding], deadline: float
    ) -> None:
        """Connect the best engine that both sides have; the next one where it cannot reach the peer.

        Raises:
            LinkFailedError: None can; the message says why for each.
            CacheTimeoutError: Not before the deadline.
        """
        offered = {offer.wire_id: offer for offer in offers}
        common = [binding for binding in bindings if binding.wire_id in offered]
        common.sort(key=lambda binding: (binding.rank, offered[binding.wire_id].rank), reverse=True)
        if not common:
            raise LinkFailedError(
                f"cluster {link.identity.cluster_id} has the engines {sorted(offered) or 'none'} and this manager "
                f"{sorted(binding.wire_id for binding in bindings) or 'none'}; no engine is common to both: install or "
                "choose the same one on both sides"
            )
        problems: list[tuple[EngineBinding, Exception]] = []
        for binding in common:
            try:
                self._connect(link, binding, offered[binding.wire_id].endpoint, deadline)
            except CacheTimeoutError:
                raise
            except Exception as error:  # noqa: BLE001  # whatever an engine raises, the next one gets its chance
                _logger.info("engine %s cannot reach cluster %d: %s", binding.wire_id, link.identity.cluster_id, error)
                problems.append((binding, error))
            else:
                return
        reasons = "; ".join(f"{binding.name} ({binding.wire_id}): {error}" for binding, error in problems)
        raise LinkFailedError(
            f"no engine can reach the memory of cluster {link.identity.cluster_id}: {reasons}"
        ) from problems[0][1]

    @staticmethod
    def _connect(link: Link, binding: EngineBinding, endpoint: bytes, deadline: float) -> None:
        while True:
            number = link.number
            try:
                link.connect_engine(binding, endpoint, deadline)
            except LinkFailedError:
                # A cache that was taken back while the engine connected explains the failure: try what is there now.
                if link.number == number or time.monotonic() >= deadline:
                    raise
            else:
                return


class _StillSilentError(Exception):
    """The connection was accepted and the peer's keys did not come in time."""


class _Call:
    """One connection while it is being made."""

    def __init__(self, dialer: Dialer, address: ResolvedAddress, keys: CurveKeys | None, hello: Hello) -> None:
        self._dialer, self._address, self._keys, self._hello = dialer, address, keys, hello
        self._service = dialer.service
        self._opened: Future[Any] = self._service.future()
        self._answered: Future[Any] = self._service.future()
        self._channel: Channel | None = None
        self._link: Link | None = None
        self._hung_up = False
        self._at_door = False

    def dial(self, deadline: float) -> None:
        """Connect and exchange keys."""
        self._service.submit(self._open)
        self._service.wait(self._opened, deadline, f"address {self._address}: nobody has answered")

    def answer(self, deadline: float) -> tuple[Link, Welcome]:
        """Exchange greetings."""
        self._service.submit(self._say_hello)
        result = self._service.wait(
            self._answered, deadline, f"address {self._address}: the manager there took the keys and sent no greeting"
        )
        link, welcome = result
        return link, welcome

    def hang_up(self) -> None:
        """Drop the connection."""
        self._hung_up = True
        try:
            self._service.submit(self._close)
        except CacheError:  # the service thread has ended and with it the connection
            return

    # --- service thread ------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._hung_up:
            return  # see _close for a door that was left shut
        self._at_door = self._dialer.door.hold()
        if not self._at_door:
            self._service.after(_LOOK_AGAIN_SECONDS, self._open)
            return
        try:
            self._channel = Channel(
                self._service,
                self._address,
                self._keys,
                self._dialer.timing,
                self._on_open,
                self._on_frames,
                self._on_end,
            )
        except zmq.ZMQError as error:
            self._leave_door()
            self._settle_error(
                LinkFailedError(
                    f"no socket for a link to {self._address} can be made: {error.strerror} (error {error.errno}); raise "
                    "the limit of open files (ulimit -n) or close some"
                )
            )

    def _close(self) -> None:
        self._leave_door()
        if self._link is not None:
            self._link.dialogue.lose("linking was given up", announce=False)
        elif self._channel is not None:
            self._channel.close()

    def _leave_door(self) -> None:
        if self._at_door:
            self._at_door = False
            self._dialer.door.let_go()

    def _say_hello(self) -> None:
        if self._channel is not None and not self._channel.send(encode(self._hello)):
            self._settle_error(LinkFailedError(f"address {self._address}: the connection is gone again"))

    def _on_open(self) -> None:
        self._leave_door()
        self._service.settle(self._opened)

    def _on_end(self, ending: Ending) -> None:
        if self._link is not None:
            self._link.dialogue.ended(ending)
            return
        self._leave_door()
        self._settle_error(self._explain(ending))

    def _on_frames(self, frames: list[bytes]) -> None:
        if self._link is not None:
            self._link.dialogue.receive(frames)
            return
        try:
            message = decode_owner_message(frames[0])
            if len(frames) != 1 or not isinstance(message, Welcome | Refused):
                raise MalformedMessageError("the first message is no greeting")
        except OtherVersionError as error:
            self._settle_error(
                LinkFailedError(
                    f"address {self._address}: the manager there speaks version {error.version} of the link protocol and "
                    f"this one version {PROTOCOL_VERSION}; install the same release of cachecore on both sides"
                )
            )
        except MalformedMessageError as error:
            self._settle_error(LinkFailedError(f"address {self._address}: what answers there is no manager: {error}"))
        else:
            self._greeted(message)

    def _greeted(self, message: Welcome | Refused) -> None:
        assert self._channel is not None
        if isinstance(message, Refused):
            reason = Refusal.__members__.get(message.reason)
            text = reason.value if reason is not None else message.reason
            self._settle_error(LinkFailedError(f"address {self._address} refuses the link: {text} ({message.detail})"))
            return
        dialer = self._dialer
        self._link = Link(
            self._service, dialer.worker, self._channel, message, dialer.timing, dialer.notify, dialer.post
        )
        self._link.dialogue.take_over()
        self._service.settle(self._answered, (self._link, message))

    def _settle_error(self, error: Exception) -> None:
        self._service.settle(self._opened, error=error)
        self._service.settle(self._answered, error=error)

    def _explain(self, ending: Ending) -> Exception:
        where = f"address {self._address}"
        origin = self._keys.origin if self._keys is not None else "insecure=True"
        if ending is Ending.SILENT:
            return _StillSilentError(
                f"{where}: nothing has come from there in time; what listens there is busy or no manager, or packets do not "
                "get there"
            )
        if ending is Ending.KEYS:
            return AuthenticationError(f"{where}: {ending.value} (from {origin}). {_SAME_KEYS}")
        if ending is Ending.MECHANISM or (ending is Ending.DROPPED and self._keys is None):
            return AuthenticationError(
                f"{where}: {Ending.MECHANISM.value}; this side uses {origin}. Give both sides keys, or both insecure=True"
            )
        if ending is Ending.DROPPED:
            return AuthenticationError(
                f"{where}: {ending.value}; either it has another key than this side expects (from {origin}) or none, or "
                f"it is no manager, or it ended at this moment. {_SAME_KEYS}"
            )
        if ending is Ending.LOST:
            return LinkFailedError(f"{where}: the connection broke before the greeting came")
        return LinkFailedError(f"{where}: {ending.value}; is the manager running, and listening on this address?")
