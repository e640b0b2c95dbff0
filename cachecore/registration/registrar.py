"""The way into the registry: from what a caller gives (addresses or tensors) to a registered and published cache."""

from __future__ import annotations

from collections.abc import Sequence

from cachecore import _arguments as arguments
from cachecore import tensors
from cachecore.driver import BackendDriver
from cachecore.engine import EngineBinding
from cachecore.events import Event, Listeners
from cachecore.layers import LayersCache
from cachecore.peers import Peers
from cachecore.registration import rules
from cachecore.registration.given_layers import check_group, look_at_layers
from cachecore.registration.offers import record_of
from cachecore.registration.registry import Registered, Registry
from cachecore.types import Cache, CacheDesc, Placement

__all__ = ["Registrar"]


class Registrar:
    """Registers caches for one manager."""

    def __init__(
        self,
        cluster_id: int,
        driver: BackendDriver,
        registry: Registry,
        peers: Peers,
        engines: Sequence[EngineBinding],
        listeners: Listeners,
    ) -> None:
        self._cluster_id = cluster_id
        self._driver = driver
        self._registry = registry
        self._peers = peers
        self._engines = tuple(engines)
        self._listeners = listeners
        self._remote_access_optional = driver.capabilities().remote_access_optional.value_or(True)

    def register(
        self,
        function: str,
        desc: object,
        addrs: object,
        *,
        is_blocks: bool,
        blocks_key: object = None,
        keys: object = (),
        remote_accessible: object = None,
        views: Sequence[tensors.TensorView] = (),
    ) -> Cache:
        """Check, register and publish; see `CacheManager.register_cache` for what is raised.

        Args:
            function: The public function, for drivers, policies and messages.
            desc: As the caller gave it.
            addrs: As the caller gave them.
            is_blocks: Paged or contiguous.
            blocks_key: Key of a paged cache, as the caller gave it.
            keys: Keys of a contiguous cache, as the caller gave them.
            remote_accessible: As the caller gave it.
            views: The tensors that own the memory, kept alive.
        """
        desc = CacheDesc._given(desc)
        checked = arguments.addresses(addrs, desc.num_tensors, desc.size)
        cache = self._registry.register(
            function,
            desc,
            checked,
            is_blocks=is_blocks,
            blocks_key=blocks_key,
            keys=keys,
            remote_accessible=rules.default_remote_accessible(
                remote_accessible, desc.placement, self._remote_access_optional, self._driver.name
            ),
            tensors=views,
            joined=self._publish,
        ).cache
        self._listeners.send(Event("registered", self._cluster_id, cache_id=cache.cache_id, detail=repr(desc)))
        return cache

    def register_tensors(
        self,
        function: str,
        given: object,
        *,
        is_blocks: bool,
        blocks_key: object = None,
        keys: object = (),
        remote_accessible: object = None,
        batch_dim_index: int = 0,
        seq_len_dim_index: int = -1,
    ) -> Cache:
        """The same for tensors, whose descriptor is inferred."""
        views = tensors.infer(given)
        tensors.same_geometry(views)
        first = views[0]
        desc = CacheDesc(
            len(views),
            list(first.shape),
            first.data_type,
            self._placement(first),
            batch_dim_index=batch_dim_index,
            seq_len_dim_index=seq_len_dim_index,
        )
        return self.register(
            function,
            desc,
            [view.address for view in views],
            is_blocks=is_blocks,
            blocks_key=blocks_key,
            keys=keys,
            remote_accessible=remote_accessible,
            views=views,
        )

    def register_layers(
        self, layers: object, *, key: object = None, group: object = "", remote_accessible: object = None
    ) -> LayersCache:
        """Check, register and publish named layers; see `CacheManager.register_layers` for what is raised.

        Args:
            layers: As the caller gave them.
            key: As the caller gave it.
            group: As the caller gave it.
            remote_accessible: As the caller gave it.
        """
        name = check_group(group)
        cache = self._registry.register_layers(
            look_at_layers(layers),
            name,
            key=key,
            remote_accessible=lambda placement: rules.default_remote_accessible(
                remote_accessible, placement, self._remote_access_optional, self._driver.name
            ),
            joined=self._publish,
        ).cache
        self._listeners.send(Event("registered", self._cluster_id, cache_id=cache.cache_id, detail=repr(cache)))
        self._peers.look_at_layouts()
        return cache

    def _placement(self, view: tensors.TensorView) -> Placement:
        """Where a tensor is: on a plain host, which allows both names, it is the device's; unknown is the host's."""
        self._driver.bind_thread()
        possible = self._driver.describe([(view.address, view.nbytes)])[0].placements
        return Placement.DEVICE if possible and Placement.DEVICE in possible else Placement.HOST

    def _publish(self, cache: Registered) -> None:
        if cache.remote_accessible:
            self._peers.publish([record_of(cache, self._engines)])
