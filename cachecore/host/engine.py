"""The engine between processes of one machine and one user: one copy, by the process that wants it.

Memory that the host driver allocated is mapped by the reader and copied by the processor. Other memory is read and
written with process_vm_readv and process_vm_writev, for which the kernel's ptrace permission is needed. Nothing but
the death of a peer fences it: a peer that was told to stop reading can be trusted to, not forced.

Between processes of one user the library enforces bounds; the kernel permits everything.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cachecore import _arguments as arguments
from cachecore import _core
from cachecore.driver import BackendDriver, Capability, Knowledge
from cachecore.engine import (
    CancelToken,
    EngineCapabilities,
    Operation,
    PeerIdentity,
    Region,
    Registration,
    RemoteRegion,
    TransferEngine,
)
from cachecore.errors import CacheValueError, EngineError, ForkedProcessError, LinkFailedError
from cachecore.host.driver import HostDriver
from cachecore.host.identity import Process, check_deadline, decode_endpoint, make_endpoint
from cachecore.host.link import Link
from cachecore.host.moves import move
from cachecore.host.permissions import advice
from cachecore.host.registrations import Registrations
from cachecore.host.sharing import BlockServer, fetch, new_socket_name
from cachecore.outcome import FailureCause, Outcome
from cachecore.planning import CopyPlan
from cachecore.types import Placement

__all__ = ["LocalEngine", "create_engine"]

#: Options of the engine, as they stand behind "local." in the options of a manager.
OPTION_NAMES: Final = ("allow_reader", "threads")

_log = logging.getLogger("cachecore")

_HERE: Final = "cachecore local engine"
_MANUAL: Final = "process_vm_readv(2)"
#: Seconds that `update` and `watch` wait for a peer; both are called while somebody else waits.
_PATIENCE: Final = 1.0


class LocalEngine(TransferEngine):
    """One side's way to peers of this machine.

    Args:
        driver: The host driver shares what it allocated and all its memory can be moved; of other drivers only HOST
            memory, by system calls.
        threads: Threads of one large transfer.
    """

    wire_id = "local/1"

    def __init__(self, driver: BackendDriver, *, threads: int = 2) -> None:
        self._pid = os.getpid()
        self._threads = threads
        self._host = driver if isinstance(driver, HostDriver) else None
        self._placements = frozenset(Placement) if self._host is not None else frozenset({Placement.HOST})
        self._registrations = Registrations(None if self._host is None else self._host.blocks, self._placements)
        self._nonce = _core.Nonce()
        self._endpoint = make_endpoint(new_socket_name(), self._nonce)
        self._server: BlockServer | None = None
        self._lock = threading.Lock()
        self._links: dict[PeerIdentity, Link] = {}
        self._leaving: list[tuple[PeerIdentity, Link]] = []
        self._watched: dict[PeerIdentity, Process] = {}
        self._closed = False

    def capabilities(self) -> EngineCapabilities:
        """What system calls and shared memory can do."""
        pairs = frozenset((here, there) for here in self._placements for there in self._placements)
        return EngineCapabilities(
            placement_pairs=Capability(pairs, _HERE),
            max_chunks_per_call=Capability(None, f"{_HERE}: it takes plans and makes its own batches"),
            register_while_linked=Capability(True, _HERE),
            deregister_while_linked=Capability(True, _HERE),
            deregistration_is_fence=Capability(False, f"{_MANUAL}: only the end of a process stops its copies"),
            can_cancel=Capability(True, f"{_HERE}: looks between batches of 2 MiB"),
            failure_knowledge=Capability(Knowledge.EXACT, f"{_MANUAL}: a partial count ends at the bad page"),
            local_registration_required=Capability(False, _HERE),
        )

    # --- own memory -------------------------------------------------------------------------------------------------

    def register(self, regions: Sequence[Region]) -> list[Registration]:
        """Note what may be reached; memory of the host driver gets a descriptor by which peers can map it."""
        self._check_open()
        return self._registrations.add(regions)

    def deregister(self, registration: Registration) -> None:
        """Hand the memory out no more. Peers stop because the core tells them, not because they must."""
        self._registrations.remove(registration)

    @property
    def live_regions(self) -> int:
        """Registrations not undone."""
        return len(self._registrations)

    def endpoint(self) -> bytes:
        """Who this process is, and its socket, which is opened by the first call."""
        self._check_open()
        with self._lock:
            if self._server is None:
                try:
                    self._server = BlockServer(
                        self._endpoint.socket, self._endpoint.nonce, self._registrations.duplicate
                    )
                except OSError as error:
                    raise EngineError(
                        f"the socket that hands memory to peers could not be opened: {error}",
                        operation="bind",
                        code=error.errno or 0,
                    ) from error
        return msgspec.msgpack.encode(self._endpoint)

    # --- peers ------------------------------------------------------------------------------------------------------

    def connect(self, peer: PeerIdentity, endpoint: bytes, regions: Sequence[RemoteRegion], deadline: float) -> None:
        """Prove who the peer is and map what it shares.

        Where the kernel forbids to read the peer, this works only if every region is shared.
        """
        self._check_open()
        process, readable = self._identify(endpoint, deadline)
        link = Link(decode_endpoint(endpoint), process, readable)
        try:
            # With another way to its memory, a peer that does not answer is not waited for to the end.
            patience = time.monotonic() + _PATIENCE if readable else deadline
            problems = link.change(regions, (), min(deadline, patience))
            unreachable = problems or not all(region.descriptor for region in regions)
            if not readable and unreachable:
                reasons = f" Shared memory: {'; '.join(problems)}." if problems else ""
                raise LinkFailedError(f"{advice(process.pid)}.{reasons}")
            if problems:
                _log.warning("memory of process %d is not mapped and read instead: %s", process.pid, problems)
            with self._lock:
                if peer in self._links:
                    raise LinkFailedError(f"{peer} is connected already; disconnect it first")
                self._links[peer] = link
        except BaseException:
            link.close(0.0)
            raise

    def _identify(self, data: bytes, deadline: float) -> tuple[Process, bool]:
        """The process that made an endpoint, proven, and whether it can be read."""
        endpoint = decode_endpoint(data)
        check_deadline(deadline, "the peer was looked for")
        process = Process(endpoint)
        try:
            readable = process.check_nonce(deadline)
            if not readable:
                try:
                    fetch(endpoint, [], deadline)
                except LinkFailedError as error:
                    raise LinkFailedError(f"{advice(process.pid)}. Nor could it be identified: {error}") from error
                if process.alive is not True:  # alive before and after: what answered has the number
                    raise LinkFailedError(f"process {process.pid} ended while it was looked at")
        except BaseException:
            process.close()
            raise
        return process, readable

    def update(self, peer: PeerIdentity, added: Sequence[RemoteRegion], removed: Sequence[RemoteRegion]) -> None:
        """Map what is new, forget what is gone. What could not be mapped is asked for again when it is transferred."""
        self._check_open()
        with self._lock:
            link = self._links.get(peer)
        if link is None:
            raise CacheValueError(f"{peer} is not connected")
        problems = link.change(added, removed, time.monotonic() + _PATIENCE)
        if problems:
            _log.warning("memory of process %d is not mapped: %s", link.process.pid, problems)

    def disconnect(self, peer: PeerIdentity, deadline: float) -> bool:
        """Start nothing more, wait for what runs; True when nothing is left. Can be repeated."""
        with self._lock:
            link = self._links.pop(peer, None)
            if link is not None:
                self._leaving.append((peer, link))
            leaving = [other for who, other in self._leaving if who == peer]
        return not self._busy(leaving, deadline)

    def _busy(self, leaving: Sequence[Link], deadline: float) -> list[Link]:
        """Wait for links that are given up; returns those with transfers that still run."""
        busy = [link for link in leaving if not link.close(deadline)]
        with self._lock:
            self._leaving = [(who, link) for who, link in self._leaving if link not in leaving or link in busy]
        return busy

    def watch(self, peer: PeerIdentity, endpoint: bytes, deadline: float | None = None) -> None:
        """Notice the end of a peer that connects to this side, for `peer_alive`. Grants nothing.

        Args:
            peer: Who.
            endpoint: What its engine's `endpoint()` gives.
            deadline: On `time.monotonic()`; None = a second from now.

        Raises:
            LinkFailedError: It could not be proven which process it is.
        """
        self._check_open()
        process, _ = self._identify(endpoint, time.monotonic() + _PATIENCE if deadline is None else deadline)
        with self._lock:
            old = self._watched.pop(peer, None)
            self._watched[peer] = process
        if old is not None:
            old.close()

    def unwatch(self, peer: PeerIdentity) -> None:
        """Undo `watch`; nothing happens where there was none."""
        with self._lock:
            process = self._watched.pop(peer, None)
        if process is not None:
            process.close()

    def peer_alive(self, peer: PeerIdentity) -> bool | None:
        """False only on proof that the peer's process has ended; None when this engine does not know the peer."""
        with self._lock:
            link = self._links.get(peer)
            process = self._watched.get(peer) if link is None else link.process
        return None if process is None else process.alive

    # --- transfers --------------------------------------------------------------------------------------------------

    def transfer(
        self, peer: PeerIdentity, plan: CopyPlan, op: Operation, deadline: float, cancel: CancelToken | None = None
    ) -> Outcome:
        """Copy through the mapping where every region of the plan is mapped, else by system calls.

        When it returns, nothing of it runs any more.
        """
        self._check_process()
        with self._lock:
            link = self._links.get(peer)
        begun = None if link is None else link.begin(plan)
        if link is None or begun is None:
            return Outcome.untouched_by(FailureCause.PEER_GONE, plan.chunks, message=f"{peer} is not connected")
        number, view = begun
        try:
            return move(link, view, self._host, plan, op, deadline, cancel, self._threads)
        finally:
            link.end(number)

    def quiescent(self, ticket: object) -> bool:
        """True: nothing runs after `transfer` has returned."""
        return True

    # --- end --------------------------------------------------------------------------------------------------------

    def close(self, deadline: float) -> list[Region]:
        """Stop; peers that read or write through system calls fail from now on. Can be repeated.

        Returns:
            Memory here that transfers of this side still use: from the first to the last byte of each tensor.
        """
        if os.getpid() != self._pid:
            return []  # in a fork nothing of it lives
        with self._lock:
            self._closed = True
            self._leaving += self._links.items()
            self._links.clear()
            leaving = [link for _, link in self._leaving]
            watched, self._watched = list(self._watched.values()), {}
        for process in watched:
            process.close()
        if self._server is not None:
            self._server.close()
            self._server = None
        self._nonce.close()
        busy = self._busy(leaving, deadline)
        if not busy:
            self._registrations.clear()
        return [region for link in busy for region in link.regions_in_use()]

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedProcessError(
                f"this engine was made by process {self._pid} and used by its fork {os.getpid()}; make one in the child"
            )

    def _check_open(self) -> None:
        self._check_process()
        if self._closed:
            raise EngineError("this engine is closed; make a new one")

    def __repr__(self) -> str:
        return f"<LocalEngine {self.live_regions} regions, {len(self._links)} peers>"


def create_engine(driver: BackendDriver, options: Mapping[str, object]) -> TransferEngine:
    """Make the engine; the factory of its `EngineSpec`.

    Args:
        driver: Whose memory.
        options: `threads` (1 to 64); `allow_reader`: "any", or the id of one process that may read this one where the
            Yama module restricts ptrace. It opens the whole process to that reader, hence it is never set silently.

    Raises:
        CacheTypeError, CacheValueError: An option is out of range.
        EngineError: The kernel refused the reader.
    """
    threads = arguments.integer("options['local.threads']", options.get("threads", 2), 1, 64)
    reader = options.get("allow_reader")
    if reader is not None:
        pid = None if reader == "any" else arguments.integer("options['local.allow_reader']", reader, 1, 2**31 - 1)
        if not _core.allow_reader(pid):
            _log.info("local.allow_reader is set, and this kernel has no Yama module that would restrict readers")
    return LocalEngine(driver, threads=threads)
