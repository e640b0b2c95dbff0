"""Registering model layouts as they are: named layers whose tensors may all be different."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cachecore.api.base import ManagerParts
from cachecore.layers import LayersCache
from cachecore.types import BlocksCacheKey

__all__ = ["LayersMethods"]


class LayersMethods(ManagerParts):
    """`register_layers`."""

    def register_layers(
        self,
        layers: Mapping[str, Sequence[object]],
        *,
        key: BlocksCacheKey | None = None,
        group: str = "",
        remote_accessible: bool | None = None,
    ) -> LayersCache:
        """Register the tensors of a model's layers as one paged cache, see docs/layouts.md.

        Shapes, strides, data types and the number of tensors may differ from layer to layer; the first dimension of
        every tensor counts blocks and is equal. Tensors may be strided as long as each block is contiguous, and may
        view the same memory. They are merged into native regions by the allocation they were cut from, and only
        these count against the product's address budget. Peers find the cache by `key` and `group`, and its layers by
        name; both sides may have different numbers of blocks, and different layers.

        Args:
            layers: By name the tensors of each layer: numpy arrays, torch tensors or objects with a buffer, which are
                kept alive until the cache is unregistered, or `TensorSpec`s, whose memory the caller keeps.
            key: Name for peers; None: they find the cache by its id only.
            group: Name of the block list. A model with several of them registers one cache for each, with one key.
            remote_accessible: Whether peers may reach it; None = True for DEVICE memory, False for HOST memory.

        Raises:
            MissingArgumentError, CacheTypeError, CacheValueError: None or another type where it must not be; a block is
                not contiguous.
            CacheIncompatibleError: Two tensors have different numbers of blocks.
            AddressBudgetError, CacheKeyExistsError, MemoryAccessError, PlacementError, CacheValueError: A rule is
                broken, see docs/layouts.md. Nothing is registered.
            OverlapError: A tensor shares bytes with a cache of another key or of another register function, or lies
                partly in a region that is registered.
            AlignmentError, NotSupportedError: A rule of the product is broken by a region.
            RegistrationRefusedError, EngineError: A policy or a native registration refused; what was registered
                before it is undone.
        """
        self._enter()
        return self._registrar.register_layers(layers, key=key, group=group, remote_accessible=remote_accessible)
