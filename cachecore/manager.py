"""The CacheManager: register KV caches, link to peers, move blocks. It owns everything below it."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from cachecore import _arguments as arguments
from cachecore import plugins, pulls, selection
from cachecore.driver import BackendDriver
from cachecore.engine import EngineBinding, PeerIdentity
from cachecore.errors import (
    CacheBusyError,
    CacheNotFoundError,
    ForkedProcessError,
    ManagerClosedError,
    StillReachableError,
)
from cachecore.events import Event, Listeners
from cachecore.peer import Peer
from cachecore.peers import Peers, Security
from cachecore.registrar import Registrar
from cachecore.registry import Registry, State
from cachecore.retirement import Retirement
from cachecore.sources import Sources
from cachecore.stats import Stats
from cachecore.transfers import Transfers
from cachecore.types import (
    BlocksCacheKey,
    Cache,
    CacheDesc,
    CacheKey,
    CacheKeyByIdAndIndex,
)

__all__ = ["CacheManager"]

#: Seconds a call waits unless it is told otherwise. Above the 20 s after which a silent peer counts as gone.
DEFAULT_TIMEOUT = 30.0


class CacheManager:
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
        options: Driver and engine options by dotted name, for example {"local.allow_reader": "any"}.

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
            )
            self._registrar = Registrar(
                self._cluster_id, self.backend, self._registry, self._peers, self._engines, self._listeners
            )
            self._sources = Sources(self._cluster_id, self.backend, self._registry, self._peers)
            self._retirement = Retirement(self.backend, self._registry, self._peers)
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
    def caches(self) -> tuple[Cache, ...]:
        """Registered caches, oldest first."""
        return tuple(item.cache for item in self._registry.caches() if item.state is State.LIVE)

    @property
    def links(self) -> tuple[Peer, ...]:
        """Peers this manager linked to, in any state."""
        return tuple(Peer(link) for link in self._peers.links)

    def stats(self) -> Stats:
        """Counters so far; see `Stats`."""
        caches, addresses, nbytes = self._registry.usage()
        counted = self._transfers.counters
        return Stats(
            pulls=counted.pulls,
            pulls_failed=counted.failed,
            blocks=counted.blocks,
            nbytes=counted.nbytes,
            chunks=counted.chunks,
            seconds=counted.seconds,
            registered_caches=caches,
            registered_addresses=addresses,
            registered_bytes=nbytes,
            quarantined=len(self._transfers.quarantine),
            links=len(self._peers.links),
            sessions=len(self._peers.sessions),
            listener_failures=self._listeners.failures,
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.address or "not listening"
        emulated = " (emulated)" if self.backend.emulated else ""
        return f"<CacheManager cluster {self._cluster_id} on {self.backend.name}{emulated}, {state}>"

    # --- registering ---------------------------------------------------------------------------------------------

    def register_cache(
        self,
        cache_desc: CacheDesc,
        addrs: Sequence[int],
        cache_keys: Sequence[CacheKey] = (),
        remote_accessible: bool | None = None,
    ) -> Cache:
        """Register memory that the caller allocated as a contiguous (not paged) cache.

        Args:
            cache_desc: Shape of each tensor.
            addrs: One address for each tensor. Not owned: the caller keeps the memory until it is unregistered.
            cache_keys: Names for the batch entries, in order, at most one an entry.
            remote_accessible: Whether peers may reach it; None = True for DEVICE memory, False for HOST memory.

        Raises:
            MissingArgumentError, CacheTypeError: None or another type where it must not be.
            AddressBudgetError, OverlapError, MemoryAccessError, PlacementError, CacheKeyExistsError, CacheValueError:
                A rule is broken; see docs/registration.md. Nothing is registered.
            AlignmentError, NotSupportedError: A rule of the product is broken.
            EngineError: A native registration failed; what was registered before it is undone.
        """
        self._enter()
        return self._registrar.register(
            "register_cache", cache_desc, addrs, is_blocks=False, keys=cache_keys, remote_accessible=remote_accessible
        )

    def register_blocks_cache(
        self,
        cache_desc: CacheDesc,
        addrs: Sequence[int],
        blocks_cache_key: BlocksCacheKey | None = None,
        remote_accessible: bool | None = None,
    ) -> Cache:
        """Register memory that the caller allocated as a paged cache.

        Args:
            cache_desc: Shape of each tensor; the first dimension is the number of blocks.
            addrs: One address for each tensor. Not owned: the caller keeps the memory until it is unregistered.
            blocks_cache_key: Name for peers; one cache for each model id.
            remote_accessible: Whether peers may reach it; None = True for DEVICE memory, False for HOST memory.

        Raises:
            As `register_cache`.
        """
        self._enter()
        return self._registrar.register(
            "register_blocks_cache",
            cache_desc,
            addrs,
            is_blocks=True,
            blocks_key=blocks_cache_key,
            remote_accessible=remote_accessible,
        )

    def register_cache_tensors(
        self,
        tensors: Sequence[object],
        *,
        cache_keys: Sequence[CacheKey] = (),
        remote_accessible: bool | None = None,
        batch_dim_index: int = 0,
        seq_len_dim_index: int = -1,
    ) -> Cache:
        """Register tensors as a contiguous cache; they are kept alive until it is unregistered.

        Args:
            tensors: numpy arrays, torch tensors or objects with a buffer; all of one shape and data type.
            cache_keys: As in `register_cache`.
            remote_accessible: As in `register_cache`.
            batch_dim_index: Dimension that counts batch entries.
            seq_len_dim_index: Dimension that counts tokens, -1 for none.

        Raises:
            As `register_cache`; later `AddressMovedError` from a transfer, when a tensor was resized.
        """
        self._enter()
        return self._registrar.register_tensors(
            "register_cache_tensors",
            tensors,
            is_blocks=False,
            keys=cache_keys,
            remote_accessible=remote_accessible,
            batch_dim_index=batch_dim_index,
            seq_len_dim_index=seq_len_dim_index,
        )

    def register_blocks_tensors(
        self,
        tensors: Sequence[object],
        *,
        blocks_cache_key: BlocksCacheKey | None = None,
        remote_accessible: bool | None = None,
    ) -> Cache:
        """Register tensors as a paged cache; they are kept alive until it is unregistered.

        Args:
            tensors: As in `register_cache_tensors`; the first dimension is the number of blocks.
            blocks_cache_key: As in `register_blocks_cache`.
            remote_accessible: As in `register_blocks_cache`.

        Raises:
            As `register_cache_tensors`.
        """
        self._enter()
        return self._registrar.register_tensors(
            "register_blocks_tensors",
            tensors,
            is_blocks=True,
            blocks_key=blocks_cache_key,
            remote_accessible=remote_accessible,
        )

    def unregister_cache(self, cache_id: int, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Unregister a cache, after every peer has stopped using it. Afterwards its memory may be freed.

        Args:
            cache_id: `Cache.cache_id`.
            timeout: Seconds to wait for transfers that run. A peer that does not answer counts as gone after 20 s.

        Raises:
            CacheNotFoundError: It is not registered.
            CacheBusyError: It is still in use at the deadline. The memory stays registered, new transfers are
                refused, and the call can be repeated.
            StillReachableError: An engine cannot make the memory unreachable; the same holds.
        """
        self._enter()
        deadline = arguments.deadline("timeout", timeout)
        number = arguments.integer("cache_id", cache_id, -(2**63), 2**64 - 1)
        with self._retirement.retired([self._registry.by_id(number)], deadline) as caches:
            if not caches:
                raise CacheNotFoundError(f"cache_id is {number}, which another thread has just unregistered")
            self._registry.remove(caches[0])
        self._listeners.send(Event("unregistered", self._cluster_id, cache_id=number))

    # --- links ---------------------------------------------------------------------------------------------------

    def link(
        self,
        cluster_id: int | None,
        address: str,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        security: Security | None = None,
    ) -> Peer:
        """Link to a listening peer, so that its remotely accessible caches can be pulled from.

        Args:
            cluster_id: The peer's id; None accepts the one it declares.
            address: Its "host:port".
            timeout: Seconds for the whole handshake.
            security: Keys for this link, instead of the manager's.

        Raises:
            AlreadyLinkedError: There is a live link to this cluster id. A link that was lost is replaced.
            AuthenticationError: No common keys.
            LinkFailedError: The peer does not answer, is another cluster, or no engine reaches it.
        """
        self._enter()
        if cluster_id is not None:
            cluster_id = arguments.integer("cluster_id", cluster_id, 0, 2**64 - 1)
        arguments.instance("address", address, str)
        if security is not None:
            arguments.instance("security", security, Security)
        deadline = arguments.deadline("timeout", timeout)
        return Peer(self._peers.link(cluster_id, address, deadline=deadline, security=security))

    def unlink(self, cluster_id: int, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """End a link, after the transfers that run on it.

        Raises:
            NotLinkedError: There is no link to this cluster id.
            CacheBusyError: A transfer still runs at the deadline; the call can be repeated.
        """
        self._enter()
        number = arguments.integer("cluster_id", cluster_id, 0, 2**64 - 1)
        self._peers.unlink(number, deadline=arguments.deadline("timeout", timeout))

    # --- transfers -----------------------------------------------------------------------------------------------

    def pull_blocks(
        self,
        src_cache_key: BlocksCacheKey | CacheKey | CacheKeyByIdAndIndex,
        dst_cache: Cache,
        src_blocks: Any = (),
        dst_blocks: Any = (),
        *,
        src_layer_range: range | None = None,
        dst_layer_range: range | None = None,
        tensor_num_per_layer: int = 2,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """Read blocks of a peer's cache, or of another cache of this manager, into a paged cache.

        Args:
            src_cache_key: With a BlocksCacheKey block `src_blocks[i]` goes to block `dst_blocks[i]`. With another
                key the source is one contiguous entry: `dst_blocks[i]` takes its bytes [i * block, (i + 1) * block).
            dst_cache: A registered blocks cache of this manager.
            src_blocks: Block ids: list, tuple, range, integer array, memoryview or CPU tensor.
            dst_blocks: The same, without repeats.
            src_layer_range: Layers of the source, None = all; range(first, last) with step 1.
            dst_layer_range: Layers of the destination, as many.
            tensor_num_per_layer: Tensors of one layer: 2 for K and V, 1 for a joint latent.
            timeout: Seconds until it gives up.

        Raises:
            MissingArgumentError, CacheTypeError, CacheValueError, CacheIncompatibleError, OverlapError: A bad
                argument; nothing moved.
            NotLinkedError, CacheNotFoundError: No such link, key or cache; nothing moved.
            AddressMovedError, CacheBusyError: A registered tensor moved; blocks are quarantined. Nothing moved.
            LinkLostError, TransferTimeoutError, TransferError: It started and did not finish; the error says which
                blocks landed and which are unknown.
        """
        self._enter()
        deadline = arguments.deadline("timeout", timeout)
        layers = pulls.Layers(src_layer_range, dst_layer_range, tensor_num_per_layer)
        key = pulls.check_key("src_cache_key", src_cache_key)
        target = self._sources.target("dst_cache", dst_cache)
        source = self._sources.find(key, target, deadline)
        plan, first = pulls.plan_pull_blocks(source, target.shape, src_blocks, dst_blocks, layers)
        self._transfers.pull(source, target, plan, first, deadline)

    def pull_cache(
        self,
        cache_key: CacheKey | CacheKeyByIdAndIndex,
        cache: Cache,
        batch_index: int = 0,
        size: int = -1,
        *,
        src_layer_range: range | None = None,
        dst_layer_range: range | None = None,
        tensor_num_per_layer: int = 2,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """Read one batch entry of a peer's contiguous cache into one of a contiguous cache of this manager.

        Args:
            cache_key: Names the entry.
            cache: A registered contiguous cache of this manager.
            batch_index: Its batch entry that is written.
            size: Bytes of each tensor's entry to move, from its start; -1 = the whole source entry.
            src_layer_range: As in `pull_blocks`.
            dst_layer_range: As in `pull_blocks`.
            tensor_num_per_layer: As in `pull_blocks`.
            timeout: Seconds until it gives up.

        Raises:
            As `pull_blocks`.
        """
        self._enter()
        deadline = arguments.deadline("timeout", timeout)
        layers = pulls.Layers(src_layer_range, dst_layer_range, tensor_num_per_layer)
        key = pulls.check_key("cache_key", cache_key)
        if isinstance(key, BlocksCacheKey):
            raise arguments.wrong_type("cache_key", key, "a CacheKey or CacheKeyByIdAndIndex; pull_blocks takes it")
        target = self._sources.target("cache", cache)
        source = self._sources.find(key, target, deadline)
        plan, first = pulls.plan_pull_cache(source, target.shape, batch_index, size, layers)
        self._transfers.pull(source, target, plan, first, deadline)

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
        with self._close_lock:
            if self._closed:
                return
            self._closing = True
            with self._retirement.retired(self._registry.caches(), deadline) as caches:
                held = self._transfers.quarantine.wait_empty(deadline)
                if held:
                    raise _unsafe("failed transfers may still be writing", held)
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

    def _enter(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedProcessError(
                f"this manager was made by process {self._pid} and used by its fork {os.getpid()}; threads, sockets "
                "and device contexts do not survive fork(): make a manager in the child, or start it with spawn"
            )
        if self._closing:
            raise ManagerClosedError(f"the manager of cluster {self._cluster_id} is closed; make a new one")


def _unsafe(why: str, ranges: Sequence[tuple[int, int]] | list[tuple[int, int]]) -> CacheBusyError:
    listed = ", ".join(f"{base:#x} ({nbytes} bytes)" for base, nbytes in ranges[:8])
    return CacheBusyError(
        f"{why}: {listed}{' and more' if len(ranges) > 8 else ''}. Do not free this memory", ranges=tuple(ranges)
    )
