"""A driver and an engine in plain Python: slow, short and easy to see through.

They are what the conformance suites are proven with: unchanged they pass, and each planted fault must fail. They are
not discovered as plugins and no manager chooses them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import struct
import threading
import time
from collections.abc import Mapping, Sequence

from cachecore.driver import BackendDriver, Capability, DriverSpec, Knowledge
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
from cachecore.errors import CacheValueError, EngineError, LinkFailedError
from cachecore.outcome import FailureCause, Outcome
from cachecore.planning import CopyPlan
from cachecore.testing._process_memory import chunks_of, covered, mapped, move_bytes, run_plan
from cachecore.testing._reference_driver import ReferenceDriver
from cachecore.types import Placement

__all__ = ["DRIVER", "ENGINE", "ReferenceDriver", "ReferenceEngine"]

_SOURCE = "cachecore.testing.reference"


class ReferenceEngine(TransferEngine):
    """Reads and writes the memory of another process of the same user, chunk by chunk.

    The endpoint is process id, address of a random number and the number: reading it back proves who the peer is.
    """

    wire_id = "reference/1"

    def __init__(self) -> None:
        self._nonce = ctypes.create_string_buffer(secrets.token_bytes(16), 16)
        self._lock = threading.Condition()
        self._running: dict[PeerIdentity, int] = {}
        self._live: list[Registration] = []
        self._peers: dict[PeerIdentity, tuple[int, int, bytes, list[RemoteRegion]]] = {}

    @property
    def live_regions(self) -> int:
        """Registrations not undone."""
        return len(self._live)

    def capabilities(self) -> EngineCapabilities:
        """What plain system calls can do."""
        return EngineCapabilities(
            placement_pairs=Capability(frozenset((a, b) for a in Placement for b in Placement), _SOURCE),
            max_chunks_per_call=Capability(None, _SOURCE),
            register_while_linked=Capability(True, _SOURCE),
            deregister_while_linked=Capability(True, _SOURCE),
            deregistration_is_fence=Capability(False, _SOURCE),
            can_cancel=Capability(True, _SOURCE),
            failure_knowledge=Capability(Knowledge.EXACT, _SOURCE),
            local_registration_required=Capability(False, _SOURCE),
        )

    def register(self, regions: Sequence[Region]) -> list[Registration]:
        """Note them, one after the other as a native engine would."""
        made: list[Registration] = []
        try:
            for index, region in enumerate(regions):
                self._check(index, region)
                made.append(Registration(region, b""))
                with self._lock:
                    self._live.append(made[-1])
        except BaseException:
            self._roll_back(made)
            raise
        return made

    def _check(self, index: int, region: Region) -> None:
        if not covered(mapped(), region.base, region.nbytes):
            raise EngineError(
                f"regions[{index}] ({region.nbytes} bytes at {region.base:#x}) is not mapped",
                operation="register",
                code=errno.EFAULT,
            )

    def _roll_back(self, made: Sequence[Registration]) -> None:
        for registration in made:
            self.deregister(registration)

    def deregister(self, registration: Registration) -> None:
        """Forget it."""
        with self._lock:
            at = next((i for i, live in enumerate(self._live) if live is registration), None)
            if at is None:
                raise CacheValueError(f"{registration.region} is not registered")
            del self._live[at]

    def endpoint(self) -> bytes:
        """Process id, address of the random number, the number."""
        return struct.pack("QQ16s", os.getpid(), ctypes.addressof(self._nonce), self._nonce.raw)

    def connect(self, peer: PeerIdentity, endpoint: bytes, regions: Sequence[RemoteRegion], deadline: float) -> None:
        """Prove that the process is the one that made the endpoint."""
        if time.monotonic() >= deadline:
            raise LinkFailedError("the deadline passed before the peer was looked for")
        try:
            pid, address, nonce = struct.unpack("QQ16s", endpoint)
        except struct.error as error:
            raise LinkFailedError(f"the endpoint of {len(endpoint)} bytes is not one of this engine") from error
        if not self._is(pid, address, nonce):
            raise LinkFailedError(f"process {pid} is not the one that made this endpoint, or may not be read")
        with self._lock:
            self._peers[peer] = pid, address, nonce, list(regions)

    def update(self, peer: PeerIdentity, added: Sequence[RemoteRegion], removed: Sequence[RemoteRegion]) -> None:
        """Change what may be reached."""
        with self._lock:
            pid, address, nonce, regions = self._peers[peer]
            kept = [region for region in regions if region not in removed]
            self._peers[peer] = pid, address, nonce, kept + list(added)

    def disconnect(self, peer: PeerIdentity, deadline: float) -> bool:
        """Forget the peer, and wait for transfers that started before."""
        with self._lock:
            self._peers.pop(peer, None)
            return self._lock.wait_for(lambda: not self._running.get(peer), max(0.0, deadline - time.monotonic()))

    def transfer(
        self, peer: PeerIdentity, plan: CopyPlan, op: Operation, deadline: float, cancel: CancelToken | None = None
    ) -> Outcome:
        """Move chunk by chunk after a check that the peer still is who it was."""
        with self._lock:
            known = self._peers.get(peer)
            self._running[peer] = self._running.get(peer, 0) + 1
        try:
            return self._transfer(peer, known, plan, op, deadline, cancel)
        finally:
            with self._lock:
                self._running[peer] -= 1
                self._lock.notify_all()

    def _transfer(
        self,
        peer: PeerIdentity,
        known: tuple[int, int, bytes, list[RemoteRegion]] | None,
        plan: CopyPlan,
        op: Operation,
        deadline: float,
        cancel: CancelToken | None,
    ) -> Outcome:
        if known is None:
            return Outcome.untouched_by(FailureCause.PEER_GONE, plan.chunks, message=f"{peer} is not connected")
        pid, address, nonce, regions = known
        spans = [(region.base, region.base + region.nbytes) for region in regions]
        if not all(covered(spans, remote, nbytes) for _, remote, nbytes in chunks_of(plan)):
            return Outcome.untouched_by(
                FailureCause.REMOTE_FAULT, plan.chunks, message="the plan leaves the regions of the peer"
            )
        if not self._is(pid, address, nonce):
            return Outcome.untouched_by(FailureCause.PEER_GONE, plan.chunks, message=f"process {pid} is gone")
        return run_plan(plan, pid, op, deadline, cancel)

    def quiescent(self, ticket: object) -> bool:
        """Nothing runs on after `transfer` has returned."""
        return True

    def close(self, deadline: float) -> list[Region]:
        """Forget everything."""
        with self._lock:
            self._peers.clear()
            self._live.clear()
        return []

    @staticmethod
    def _is(pid: int, address: int, nonce: bytes) -> bool:
        found = ctypes.create_string_buffer(16)
        return move_bytes(pid, ctypes.addressof(found), address, 16, Operation.READ) == 16 and found.raw == nonce


def _driver(device: int | None, options: Mapping[str, object]) -> BackendDriver:
    return ReferenceDriver()


def _engine(driver: BackendDriver, options: Mapping[str, object]) -> TransferEngine:
    return ReferenceEngine()


DRIVER = DriverSpec("reference", "plain Python, for tests of the suites", lambda device: False, _driver)
ENGINE = EngineSpec("reference", ReferenceEngine.wire_id, 0, lambda driver: True, _engine)
