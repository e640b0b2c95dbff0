"""The engine between processes of one machine and one user: one copy, by the process that wants it.

Memory that the host driver allocated is mapped by the reader and copied by the processor. Other memory is read and
written with process_vm_readv and process_vm_writev, for which the kernel's ptrace permission is needed. Nothing but
the death of a peer fences it: a peer that was told to stop reading can be trusted to, not forced.

Between processes of one user the library enforces bounds; the kernel permits everything.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, cast

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
from cachecore.host.link import Link, View
from cachecore.host.permissions import advice
from cachecore.host.results import outcome_of
from cachecore.host.sharing import BlockServer, SharedRange, fetch, new_socket_name
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
        placements = list(Placement) if self._host is not None else [Placement.HOST]
        self._placements = frozenset((here, there) for here in placements for there in placements)
        self._nonce = _core.Nonce()
        self._endpoint = make_endpoint(new_socket_name(), self._nonce)
        self._server: BlockServer | None = None
        self._lock = threading.Lock()
        self._live: dict[int, Registration] = {}
        self._offered: Counter[int] = Counter()
        self._count = 0
        self._links: dict[PeerIdentity, Link] = {}
        self._leaving: list[tuple[PeerIdentity, Link]] = []
        self._watched: dict[PeerIdentity, Process] = {}
        self._closed = False

    def capabilities(self) -> EngineCapabilities:
        """What system calls and shared memory can do."""
        return EngineCapabilities(
            placement_pairs=Capability(self._placements, _HERE),
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
        mappings = _core.describe_mappings([(region.base, region.nbytes) for region in regions])
        parts = [self._part(i, region, found) for i, (region, found) in enumerate(zip(regions, mappings, strict=True))]
        made = []
        with self._lock:
            for region, part in zip(regions, parts, strict=True):
                self._count += 1
                descriptor = b"" if part is None else msgspec.msgpack.encode(part)
                made.append(Registration(region, descriptor, (self._count, None if part is None else part.block)))
                self._live[self._count] = made[-1]
                if part is not None:
                    self._offered[part.block] += 1
        return made

    def _part(self, index: int, region: Region, mapping: _core.RangeMapping) -> SharedRange | None:
        where = f"regions[{index}] ({region.nbytes} bytes at {region.base:#x})"
        if (region.placement, region.placement) not in self._placements:
            raise EngineError(f"{where} is {region.placement.name} memory, which {self.wire_id} cannot move")
        if mapping.special or not mapping.accessible:
            raise EngineError(
                f"{where} could not be registered: {mapping.fault_address or region.base:#x} is "
                f"{'memory of a device' if mapping.special else mapping.permissions}; it must be ordinary memory, "
                "mapped readable and writable",
                operation="register",
                code=errno.EFAULT,
            )
        block = None if self._host is None else self._host.blocks.find(region.base, region.nbytes)
        return None if block is None else SharedRange(block.number, region.base - block.address, block.nbytes)

    def deregister(self, registration: Registration) -> None:
        """Hand the memory out no more. Peers stop because the core tells them, not because they must."""
        with self._lock:
            number, block = registration.token if isinstance(registration.token, tuple) else (0, None)
            if self._live.get(number) is not registration:
                raise CacheValueError(f"registration is {registration}, which is not live in this engine")
            del self._live[number]
            if block is not None:
                self._offered[block] -= 1
                self._offered += Counter()  # drops what is zero

    @property
    def live_regions(self) -> int:
        """Registrations not undone."""
        return len(self._live)

    def _duplicate(self, block: int) -> int | None:
        with self._lock:
            offered = self._offered[block] > 0
        return self._host.blocks.duplicate(block) if offered and self._host is not None else None

    def endpoint(self) -> bytes:
        """Who this process is, and its socket, which is opened by the first call."""
        self._check_open()
        with self._lock:
            if self._server is None:
                try:
                    self._server = BlockServer(self._endpoint.socket, self._endpoint.nonce, self._duplicate)
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
        link = Link(decode_endpoint(endpoint), process)
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
        """Map what is new, forget what is gone. What cannot be reached fails when it is transferred."""
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
            return self._move(link, view, plan, op, deadline, cancel)
        finally:
            link.end(number)

    def _move(
        self, link: Link, view: View, plan: CopyPlan, op: Operation, deadline: float, cancel: CancelToken | None
    ) -> Outcome:
        pid = link.process.pid
        flag = None if cancel is None else cancel.flag
        write = op is Operation.WRITE
        what = f"{'writing to' if write else 'reading from'} process {pid}"
        mapped = _core.map_plan(plan, view.mapped, write) if view.mapped else None
        if mapped is not None:
            if link.process.alive is False:  # its memory would still be there
                return Outcome.untouched_by(FailureCause.PEER_GONE, plan.chunks, message=f"process {pid} has ended")
            # The caller's own addresses are his word only: without the kernel's checks nothing but our own memory.
            owned = self._host is not None and self._host.owns(plan, local=True)
            copy = _core.memcpy_plan if owned else _core.vm_copy
            report = copy(mapped, deadline, flag, threads=self._threads)
            return outcome_of(report, plan, what, swapped=write, advice=_SELF_ADVICE)
        if not _core.plan_within(plan, view.regions, False):
            return Outcome.untouched_by(
                FailureCause.REMOTE_FAULT,
                plan.chunks,
                message=f"{what} was refused: the plan leaves the regions that the peer registered",
            )
        move = _core.vm_write if write else _core.vm_read
        endpoint = link.endpoint
        report = move(plan, pid, endpoint.nonce_address, endpoint.nonce, deadline, flag, threads=self._threads)
        return outcome_of(report, plan, what, advice=advice(pid) if report.cause == "not permitted" else "")

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
        plans = [plan for link in self._busy(leaving, deadline) for plan in link.running]
        if not plans:
            with self._lock:
                self._live.clear()
                self._offered.clear()
        return [region for plan in plans for region in _local_regions(plan)]

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


_SELF_ADVICE: Final = "A seccomp filter forbids process_vm_readv; allow it, or use memory that cachecore allocated"


def _local_regions(plan: CopyPlan) -> list[Region]:
    """What of this side a plan touches, from the first to the last byte of each tensor."""
    found = []
    for bases, runs in plan.groups():
        spans = [(offset, offset + nbytes) for offset, _, nbytes in cast("list[list[int]]", runs.tolist())]
        start, end = min(low for low, _ in spans), max(high for _, high in spans)
        for local, _ in cast("list[list[int]]", bases.tolist()):
            found.append(Region(local + start, end - start, Placement.HOST))
    return found


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
