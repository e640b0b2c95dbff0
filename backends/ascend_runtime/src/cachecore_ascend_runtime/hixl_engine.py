"""The engine between accelerators of Ascend products: one-sided reads and writes through the vendor's HIXL.

    from cachecore_ascend_runtime.hixl_engine import ENGINE     # the EngineSpec: name "hixl", wire id "hixl/1"

It serves every driver that says how its product uses HIXL (`hixl_profile`). Options: `hixl_options`.

HIXL knows only the memory that was registered before a link was made, and deregisters memory only while there are no
links. The engine follows from that: a link is a promise to make a native link when it is next used. It is cut and made
again when memory changes on either side; transfers that run are waited for, new ones wait.

| module | subject |
|---|---|
| `hixl_engine` | the contract of the core |
| `hixl_profile`, `hixl_options`, `hixl_facts` | what the product says, what the user says, what the engine can do |
| `hixl_module`, `hixl_native` | the vendor's module, its engine object |
| `hixl_shared` | one native engine for a process and device |
| `hixl_memory`, `hixl_links`, `hixl_link` | registrations and native links of a native engine |
| `hixl_peer`, `hixl_endpoint`, `hixl_transfer` | a peer, how it is found, one transfer |
| `hixl_readers` | who connects to this side |
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from cachecore import _core
from cachecore.driver import BackendDriver
from cachecore.engine import (
    CancelToken,
    EngineCapabilities,
    EngineSpec,
    Operation,
    PeerIdentity,
    Region,
    Registration,
    RemoteRegion,
    TransferEngine,
)
from cachecore.errors import CacheValueError, EngineError, ForkedProcessError, LinkFailedError, NotSupportedError
from cachecore.outcome import FailureCause, Outcome
from cachecore.planning import CopyPlan
from cachecore_ascend_runtime import hixl_facts, hixl_shared
from cachecore_ascend_runtime.hixl_endpoint import Endpoint
from cachecore_ascend_runtime.hixl_link import NoLinkError
from cachecore_ascend_runtime.hixl_native import FAILED
from cachecore_ascend_runtime.hixl_options import OPTION_NAMES, HixlOptions
from cachecore_ascend_runtime.hixl_peer import HixlPeer
from cachecore_ascend_runtime.hixl_profile import has_profile
from cachecore_ascend_runtime.hixl_readers import Readers
from cachecore_ascend_runtime.hixl_transfer import Ticket, Transfer

__all__ = ["ENGINE", "HixlEngine", "create_engine"]

#: Seconds that `update` waits for transfers before a link is cut; past them the last transfer cuts it.
_PATIENCE: Final = 5.0
#: Seconds for which a link stays cut after its owner took memory back: until then the owner has deregistered it.
_HOLD_OFF: Final = 0.5
#: Seconds of `close` for transfers that were told to give up.
_ABORT_SECONDS: Final = 2.0


class HixlEngine(TransferEngine):
    """One manager's part of the HIXL engine of its device.

    Args:
        driver: Of an Ascend product.
        options: Those of all managers of a process on one device are equal.

    Raises:
        BackendError, EngineError: The native engine cannot be had; see `hixl_shared.acquire`.
    """

    wire_id = "hixl/1"

    def __init__(self, driver: BackendDriver, options: HixlOptions) -> None:
        self._pid = os.getpid()
        self._driver = driver
        self._shared = hixl_shared.acquire(driver, options)
        self._profile = self._shared.profile
        self.emulated = self._shared.endpoint.emulated
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._registrations: dict[int, Registration] = {}
        self._peers: dict[PeerIdentity, HixlPeer] = {}
        self._leaving: list[tuple[PeerIdentity, HixlPeer]] = []
        self._readers = Readers()
        self._closed = self._released = False

    def capabilities(self) -> EngineCapabilities:
        """What HIXL can do on this product."""
        return hixl_facts.capabilities(self._profile)

    # --- own memory -------------------------------------------------------------------------------------------------

    def register(self, regions: Sequence[Region]) -> list[Registration]:
        """Register; links made before are made again when they are next used.

        Raises:
            NotSupportedError: The product cannot move memory of this placement.
            EngineError, PlacementError, StillReachableError: See `RegisteredMemory.add`.
        """
        self._enter()
        for index, region in enumerate(regions):
            if region.placement not in self._profile.placements:
                raise NotSupportedError(
                    f"regions[{index}] is {region.placement.name} memory; HIXL on {self._profile.product} over "
                    f"{', '.join(self._profile.protocols)} moves {self._pairs_text()} only",
                    product=self._profile.product,
                    feature=f"HIXL transfers of {region.placement.name} memory",
                )
        self._shared.memory.add(regions)
        made = [Registration(region, b"", next(self._numbers)) for region in regions]
        with self._lock:
            self._registrations.update((int(str(one.token)), one) for one in made)
        return made

    def _pairs_text(self) -> str:
        pairs = sorted(self._profile.placement_pairs.value_or(frozenset()), reverse=True)
        return ", ".join(f"{here.name} (here) with {there.name} (there)" for here, there in pairs)

    def deregister(self, registration: Registration) -> None:
        """Undo `register`. The links of this process are cut for it and made again when they are next used.

        Raises:
            CacheValueError: The registration is not live.
            StillReachableError: A peer has not ended its link; the memory stays registered.
        """
        self._enter(closed_too=True)
        token = registration.token
        with self._lock:
            live = isinstance(token, int) and self._registrations.get(token) is registration
        if not live or not isinstance(token, int):
            raise CacheValueError(
                f"registration is {registration}, which is not live in this engine; deregister each one once"
            )
        self._shared.memory.remove(registration.region, self._readers.describe)
        with self._lock:
            del self._registrations[token]

    @property
    def live_regions(self) -> int:
        """Registrations of this engine that are not undone."""
        return len(self._registrations)

    def endpoint(self) -> bytes:
        """Where the native engine listens and what it is; constant."""
        self._enter()
        return self._shared.endpoint.encode()

    def watch(self, peer: PeerIdentity, endpoint: bytes) -> None:
        """A peer connects to this side; remembered for messages about memory that is still reachable."""
        self._readers.add(peer, Endpoint.decode(endpoint).address)

    def unwatch(self, peer: PeerIdentity) -> None:
        """It does not any more, as far as the core knows."""
        self._readers.left(peer)

    # --- peers ------------------------------------------------------------------------------------------------------

    def connect(self, peer: PeerIdentity, endpoint: bytes, regions: Sequence[RemoteRegion], deadline: float) -> None:
        """Make a native link to the peer's engine. A deadline nearer than 0.25 s is exceeded by up to that."""
        self._enter()
        there = Endpoint.decode(endpoint)
        self._shared.endpoint.check_reachable(there)
        if time.monotonic() >= deadline:
            raise LinkFailedError(f"the deadline passed before the engine at {there.address} was looked for")
        connected = HixlPeer(self._shared.links, there.address, regions)
        try:
            try:
                connected.link.changed_there()  # the link may be there for another peer in that process
                connected.link.acquire(deadline)
                connected.link.release()
            except NoLinkError as error:
                raise LinkFailedError(f"{error}{self._hint(error.status)}") from error
            with self._lock:
                if peer in self._peers:
                    raise LinkFailedError(f"{peer} is connected already; disconnect it first")
                self._peers[peer] = connected
        except BaseException:
            if not connected.close(time.monotonic()):
                with self._lock:
                    self._leaving.append((peer, connected))
            raise

    def _hint(self, status: int) -> str:
        if status != FAILED or not self._profile.link_hint:
            return ""
        return (
            f". On {self._profile.product} look first at the memory registered on both sides: {self._profile.link_hint}"
        )

    def update(self, peer: PeerIdentity, added: Sequence[RemoteRegion], removed: Sequence[RemoteRegion]) -> None:
        """Follow a change of the peer's memory.

        New memory is reached over a link that is made anew before the next transfer. For memory that is taken back,
        the link is cut now, because the peer cannot deregister it before; where transfers run for longer than 5 s, the
        last one cuts it. The same where nothing is named, because the memory was never known here.
        """
        self._enter()
        with self._lock:
            known = self._peers.get(peer)
        if known is None:
            raise CacheValueError(f"{peer} is not connected")
        known.change(added, removed)
        if removed or not added:
            known.link.cut(time.monotonic() + _PATIENCE, _HOLD_OFF, insist=True)
        if added:
            known.link.changed_there()

    def disconnect(self, peer: PeerIdentity, deadline: float) -> bool:
        """Start nothing more, wait for what runs, and end the native link; True when that is done. Can be repeated."""
        self._enter(closed_too=True)
        with self._lock:
            known = self._peers.pop(peer, None)
            if known is not None:
                self._leaving.append((peer, known))
            leaving = [other for who, other in self._leaving if who == peer]
        return not self._close_peers(leaving, deadline)

    def _close_peers(self, leaving: Sequence[HixlPeer], deadline: float) -> list[HixlPeer]:
        """Wait for peers that are given up; returns those that are not quiescent."""
        busy = [peer for peer in leaving if not peer.close(deadline)]
        with self._lock:
            self._leaving = [(who, peer) for who, peer in self._leaving if peer not in leaving or peer in busy]
        return busy

    # --- transfers --------------------------------------------------------------------------------------------------

    def transfer(
        self, peer: PeerIdentity, plan: CopyPlan, op: Operation, deadline: float, cancel: CancelToken | None = None
    ) -> Outcome:
        """Move batch after batch; makes the native link anew first where memory has changed."""
        self._enter(closed_too=True)
        with self._lock:
            known = self._peers.get(peer)
        if known is None:
            return Outcome.untouched_by(FailureCause.PEER_GONE, plan.chunks, message=f"{peer} is not connected")
        with known.begin(plan) as running:
            if running is None:
                return Outcome.untouched_by(FailureCause.PEER_GONE, plan.chunks, message=f"{peer} was disconnected")
            refusal = self._refusal(known, plan)
            if refusal is not None:
                return refusal
            return Transfer(self._shared.native, known.link, running, op, deadline, cancel).run()

    def _refusal(self, known: HixlPeer, plan: CopyPlan) -> Outcome | None:
        if not _core.plan_within(plan, known.packed, False):
            return Outcome.untouched_by(
                FailureCause.REMOTE_FAULT,
                plan.chunks,
                message=f"the plan leaves the regions that the peer at {known.link.remote} registered",
            )
        if not _core.plan_within(plan, self._shared.memory.packed, True):
            return Outcome.untouched_by(
                FailureCause.LOCAL_FAULT,
                plan.chunks,
                message="the plan leaves the regions that this process registered; HIXL reaches no other memory",
            )
        return None

    def quiescent(self, ticket: object) -> bool:
        """Whether the link of a transfer that was given up has been cut. Tries to, which may take 0.25 s."""
        if not isinstance(ticket, Ticket):
            raise CacheValueError(f"ticket is {ticket!r}, which is none of this engine's")
        self._enter(closed_too=True)
        return self._released or ticket.quiescent()

    # --- end --------------------------------------------------------------------------------------------------------

    def close(self, deadline: float) -> list[Region]:
        """End the links, deregister, and end the native engine with its last manager. Can be repeated.

        Returns:
            Memory here that running transfers or peers may still reach.
        """
        if os.getpid() != self._pid:
            return []  # in a fork nothing of it lives
        self._driver.bind_thread()
        with self._lock:
            if self._released:
                return []
            self._closed = True
            self._leaving += self._peers.items()
            self._peers.clear()
            leaving = [peer for _, peer in self._leaving]
        busy = self._close_peers(leaving, deadline)
        for peer in busy:
            peer.abort()
        busy = self._close_peers(busy, max(deadline, time.monotonic() + _ABORT_SECONDS)) if busy else []
        if any(peer.regions_in_use() for peer in busy):
            return [region for peer in busy for region in peer.regions_in_use()]
        if self._shared.users > 1:  # or else everything ends with the native engine
            self._deregister_all()
        unsafe = hixl_shared.release(self._driver, self._shared, deadline)
        self._released = True
        self._registrations.clear()
        return unsafe

    def _deregister_all(self) -> None:
        """Deregister what can be. The rest is left to `release`, which says what is still there."""
        left = list(self._registrations.values())
        try:
            while left:
                self.deregister(left[-1])
                left.pop()
        except EngineError:  # the same would be waited for again with each of the others
            for registration in left:
                self._shared.memory.abandon(registration.region)

    def _enter(self, *, closed_too: bool = False) -> None:
        if os.getpid() != self._pid:
            raise ForkedProcessError(
                f"this engine was made by process {self._pid} and used by its fork {os.getpid()}; make one in the child"
            )
        if self._closed and not closed_too:
            raise EngineError("this engine is closed; make a new one")
        self._driver.bind_thread()

    def __repr__(self) -> str:
        emulated = "emulated, " if self.emulated else ""
        return f"<HixlEngine {emulated}{self._shared.native.address}, {self.live_regions} regions, {len(self._peers)} peers>"


def create_engine(driver: BackendDriver, options: Mapping[str, object]) -> TransferEngine:
    """Make the engine; the factory of its `EngineSpec`.

    Args:
        driver: Of an Ascend product.
        options: See `hixl_options`, without the prefix.

    Raises:
        CacheTypeError, CacheValueError: An option is out of range.
        BackendError, EngineError: The native engine cannot be had.
    """
    return HixlEngine(driver, HixlOptions.checked(options))


#: Above the local engine (50): accelerator memory on either side is the accelerator's to move.
ENGINE: Final = EngineSpec(
    name="hixl",
    wire_id=HixlEngine.wire_id,
    rank=100,
    serves=has_profile,
    factory=create_engine,
    option_names=OPTION_NAMES,
)
