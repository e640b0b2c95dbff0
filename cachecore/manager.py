"""The CacheManager: register KV caches, link to peers, move blocks. It owns everything below it."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType

from cachecore import _arguments as arguments
from cachecore import options as manager_options
from cachecore import plugins, selection
from cachecore.api.allocating import AllocatingMethods
from cachecore.api.asynchronous import AsynchronousMethods
from cachecore.api.base import DEFAULT_TIMEOUT
from cachecore.api.copying import CopyingMethods
from cachecore.api.layers import LayersMethods
from cachecore.api.layerwise import LayerwiseMethods
from cachecore.api.leasing import LeasingMethods
from cachecore.api.linking import LinkingMethods
from cachecore.api.memory import MemoryMethods
from cachecore.api.notifying import NotifyingMethods
from cachecore.api.pulling import PullingMethods
from cachecore.api.pushing import PushingMethods
from cachecore.api.registering import RegisteringMethods
from cachecore.driver import BackendDriver
from cachecore.engine import EngineBinding, PeerIdentity
from cachecore.errors import (
    CacheBusyError,
    ForkedProcessError,
    ManagerClosedError,
    StillReachableError,
)
from cachecore.events import Listeners
from cachecore.layers import LayersCache
from cachecore.peer import Peer
from cachecore.peers import Peers, Security
from cachecore.registration.allocations import Allocations
from cachecore.registration.registrar import Registrar
from cachecore.registration.registry import Registry, State
from cachecore.registration.retirement import Retirement
from cachecore.stats import Stats
from cachecore.transfers.copies import Copies
from cachecore.transfers.differences import layout_differences
from cachecore.transfers.finding import Ends
from cachecore.transfers.pool import Pool
from cachecore.transfers.pulls import Pulls
from cachecore.transfers.pushes import Pushes
from cachecore.transfers.running import Transfers
from cachecore.types import Cache, CacheKey

__all__ = ["CacheManager"]


class CacheManager(
    RegisteringMethods,
    LayersMethods,
    AllocatingMethods,
    CopyingMethods,
    MemoryMethods,
    LinkingMethods,
    PullingMethods,
    PushingMethods,
    AsynchronousMethods,
    LayerwiseMethods,
    LeasingMethods,
    NotifyingMethods,
):
    """Registers KV caches of one process and moves their blocks from and to linked peers.

    A context manager: leaving the block closes it. May be used by many threads at once; not by a forked child.

    Args:
        cluster_id: Names this manager to its peers, 0 to 2**64-1.
        device: Device index; None = the calling thread's current one.
        backend: A driver's name, or "auto" to choose by the SoC found (CACHECORE_BACKEND overrides "auto").
        engine: An engine's name, or "auto" for all that serve the driver's memory.
        listen: "host:port" where peers may link, port 0 = any free one, "[::1]:0" for IPv6; None = do not listen.
        security: Keys for addresses other than loopback.
        insecure: Allow unencrypted, unauthenticated links; warned about each time.
        options: Options by dotted name: of the manager ({"manager.remote_cache_accessible": False}, see
            docs/allocation.md), of drivers and engines ({"local.allow_reader": "any"}).

    Attributes:
        backend: The driver in use, with `.name`.

    Raises:
        MissingArgumentError, CacheTypeError, CacheValueError: A bad argument.
        BackendError: No driver or engine could be chosen or started.
        LinkFailedError: The address cannot be listened on.
    """

    def __init__(
        self,
        cluster_id: int,
        *,
        device: int | None = None,
        backend: str = "auto",
        engine: str = "auto",
        listen: str | None = None,
        security: Security | None = None,
        insecure: bool = False,
        options: Mapping[str, object] | None = None,
    ) -> None:
        self._cluster_id = arguments.integer("cluster_id", cluster_id, 0, 2**64 - 1)
        if device is not None:
            device = arguments.integer("device", device, 0, 2**31 - 1)
        for name, value in (("backend", backend), ("engine", engine)):
            arguments.instance(name, value, str)
        if listen is not None:
            arguments.instance("listen", listen, str)
        if security is not None:
            arguments.instance("security", security, Security)
        arguments.boolean("insecure", insecure)
        found = plugins.discover()
        checked = selection.checked_options(options, found)
        self._pid = os.getpid()
        self._closing = self._closed = False
        self._close_lock = threading.Lock()
        self._listeners = Listeners(found.listeners)
        self.backend: BackendDriver = selection.make_driver(selection.choose_driver(backend, found), device, checked)
        self._engines: list[EngineBinding] = []
        try:
            self.backend.bind_thread()
            self._options = manager_options.read(checked, self.backend)
            self._engines = selection.make_engines(engine, self.backend, found, checked)
            self._registry = Registry(self._cluster_id, self.backend, self._engines, found.policies)
            self._transfers = Transfers(self.backend, self._registry)
            self._identity = PeerIdentity(self._cluster_id, socket.gethostname(), self._pid, secrets.token_hex(16))
            self._peers = Peers(
                self._identity,
                listen=listen,
                security=security,
                insecure=insecure,
                engines=self._engines,
                events=self._listeners.send,
                bind_thread=self.backend.bind_thread,
                on_consumed=self._on_consumed,
                compare_layouts=partial(layout_differences, self._registry),
            )
            self._registrar = Registrar(
                self._cluster_id, self.backend, self._registry, self._peers, self._engines, self._listeners
            )
            self._retirement = Retirement(self.backend, self._registry, self._peers)
            self._allocations = Allocations(
                self._cluster_id,
                self.backend,
                self._registry,
                self._peers,
                self._engines,
                self._retirement,
                self._listeners,
                not self._options.remote_cache_accessible,
            )
            self._copies = Copies(self.backend, self._registry, self._transfers.quarantine)
            self._ends = Ends(
                self._cluster_id, self.backend, self._registry, self._peers, self._allocations.consume_own
            )
            self._pulls, self._pushes = Pulls(self._ends), Pushes(self._ends)
            self._pool = Pool(self.backend.bind_thread, self._options.transfer_threads)
            self._peers.start()
        except BaseException:
            for running in reversed(self._engines):
                running.engine.close(time.monotonic())
            self.backend.close()
            raise

    # --- what it is ----------------------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> int:
        """The id given."""
        return self._cluster_id

    @property
    def address(self) -> str | None:
        """Where peers may link, "host:port"; None when it does not listen."""
        return self._peers.address

    @property
    def caches(self) -> tuple[Cache | LayersCache, ...]:
        """Registered and allocated caches, oldest first."""
        self._check_process()
        return tuple(item.cache for item in self._registry.caches() if item.state is State.LIVE and not item.released)

    @property
    def links(self) -> tuple[Peer, ...]:
        """Peers this manager linked to, in any state."""
        self._check_process()
        return tuple(Peer(link) for link in self._peers.links)

    def stats(self) -> Stats:
        """Counters so far; see `Stats`."""
        self._check_process()
        caches, addresses, nbytes = self._registry.usage()
        allocated = [item.allocation.nbytes for item in self._registry.caches() if item.allocation is not None]
        counted = self._transfers.counters
        return Stats(
            pulls=counted.pulls,
            pulls_failed=counted.pulls_failed,
            pushes=counted.pushes,
            pushes_failed=counted.pushes_failed,
            transfers_cancelled=counted.cancelled,
            transfers_queued=self._pool.queued,
            transfers_running=self._pool.running,
            blocks=counted.blocks,
            nbytes=counted.nbytes,
            chunks=counted.chunks,
            seconds=counted.seconds,
            registered_caches=caches,
            registered_addresses=addresses,
            registered_bytes=nbytes,
            copies=self._copies.counters.copies,
            copies_failed=self._copies.counters.copies_failed,
            copied_bytes=self._copies.counters.nbytes,
            allocated_caches=len(allocated),
            allocated_bytes=sum(allocated),
            quarantined=len(self._transfers.quarantine),
            links=len(self._peers.links),
            sessions=len(self._peers.sessions),
            listener_failures=self._listeners.failures,
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.address or "not listening"
        emulated = " (emulated)" if self.backend.emulated else ""
        return f"<CacheManager cluster {self._cluster_id} on {self.backend.name}{emulated}, {state}>"

    # --- closing -------------------------------------------------------------------------------------------------

    def close(self, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Refuse new calls, wait for what runs, unlink, unregister everything. Closing twice is harmless.

        Args:
            timeout: Seconds to wait for transfers of this process and of peers.

        Raises:
            CacheBusyError: Memory is still in use at the deadline, or an engine cannot say that it is not; `ranges`
                must not be freed. The call can be repeated.
        """
        if os.getpid() != self._pid:
            return  # a forked child owns nothing of it
        deadline = arguments.deadline("timeout", timeout)
        self._closing = True
        self._peers.inbox.close()  # nobody can read it any more: peers that notify now are told so
        # Outside of the lock: callbacks of transfers that never started run in here, and may close the manager too.
        ended = self._pool.close(deadline)  # if not, what follows says which memory is still in use
        with self._close_lock:
            if self._closed:
                return
            with self._retirement.retired(self._registry.caches(), deadline) as caches:
                held = self._transfers.quarantine.wait_empty(deadline)
                if held:
                    raise _unsafe("failed transfers may still be writing", held)
                if not ended and not self._pool.close(deadline):
                    raise CacheBusyError(f"{self._pool.running} asynchronous transfers have not ended; repeat the call")
                self._peers.close(deadline=deadline)
                for cache in caches:
                    # An engine that cannot let go of memory while a peer is connected may still end that peer's access
                    # when it is closed: what it says then is what counts.
                    with contextlib.suppress(StillReachableError):
                        self._registry.remove(cache)
            unsafe = [region for running in self._engines for region in running.engine.close(deadline)]
            if unsafe:
                raise _unsafe("engines could not make it unreachable", [(r.base, r.nbytes) for r in unsafe])
            self.backend.close()
            self._closed = True

    def __enter__(self) -> CacheManager:  # noqa: PYI034  # typing.Self needs Python 3.11
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An error of close() is raised even while another one passes: which memory must not be freed is the more
        # urgent news, and the first error stays attached to it as __context__.
        self.close()

    # --- inside --------------------------------------------------------------------------------------------------

    def _on_consumed(self, cache_id: int, key: CacheKey) -> bool:
        return self._allocations.consumed(cache_id, key)

    def _enter(self) -> None:
        self._check_process()
        if self._closing:
            raise ManagerClosedError(f"the manager of cluster {self._cluster_id} is closed; make a new one")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedProcessError(
                f"this manager was made by process {self._pid} and used by its fork {os.getpid()}; threads, sockets "
                "and device contexts do not survive fork(): make a manager in the child, or start it with spawn"
            )


def _unsafe(why: str, ranges: Sequence[tuple[int, int]] | list[tuple[int, int]]) -> CacheBusyError:
    listed = ", ".join(f"{base:#x} ({nbytes} bytes)" for base, nbytes in ranges[:8])
    return CacheBusyError(
        f"{why}: {listed}{' and more' if len(ranges) > 8 else ''}. Do not free this memory", ranges=tuple(ranges)
    )
