"""Sending a cache layer by layer, while it is being computed, to several destinations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

from cachecore import _arguments as arguments
from cachecore.api.base import DEFAULT_TIMEOUT, ManagerParts
from cachecore.engine import CancelToken
from cachecore.errors import CacheError, CacheTypeError, CacheValueError, MissingArgumentError, NotSupportedError
from cachecore.layerwise import LayerSynchronizer, TransferConfig, TransferWithCacheKeyConfig
from cachecore.transfers.cache_task import CacheTask
from cachecore.transfers.destinations import Destinations
from cachecore.transfers.handles import Transfer
from cachecore.transfers.layer_gate import LayerGate
from cachecore.transfers.requests import Request, frozen
from cachecore.types import Cache

__all__ = ["LayerwiseMethods"]

_numbers = itertools.count(1)


class LayerwiseMethods(ManagerParts):
    """`transfer_cache_async`."""

    def transfer_cache_async(
        self,
        src_cache: Cache,
        layer_synchronizer: LayerSynchronizer,
        transfer_configs: Sequence[TransferConfig | TransferWithCacheKeyConfig],
        src_block_indices: Any = None,
        dst_block_indices: Any = None,
        dst_block_memory_size: int | None = None,
        *,
        tensor_num_per_layer: int = 2,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> CacheTask:
        """Push a cache layer by layer to one or more destinations, each layer when it is ready.

        Each destination goes at its own pace in a thread of its own; one that fails does not end the others.

        Args:
            src_cache: A registered cache of this manager.
            layer_synchronizer: Asked once for each layer that some destination wants, in ascending order.
            transfer_configs: The destinations. Layer i of a source range goes to layer i of the destination's range.
            src_block_indices: Blocks of a paged source; None for a contiguous one.
            dst_block_indices: Blocks of paged destinations, the same for all; None for contiguous ones. With a paged
                source block `src_block_indices[i]` goes to block `dst_block_indices[i]`; with a contiguous one block
                `dst_block_indices[i]` takes bytes [i * block, (i + 1) * block) of the entry.
            dst_block_memory_size: Bytes of a block of the destinations, to be compared; None or 0 = not said.
            tensor_num_per_layer: Tensors of one layer: 2 for K and V, 1 for a joint latent.
            timeout: Seconds until it gives up, from this call on; layers that are not ready count too.

        Returns:
            The task, which has one status for each destination.

        Raises:
            MissingArgumentError, CacheTypeError, CacheValueError, CacheIncompatibleError, NotSupportedError: A bad
                argument; nothing was started. Addresses that are not tensors of a cache that the peer offers are one.
            CacheNotFoundError, AddressMovedError: `src_cache` is not registered, or a tensor of it moved.
        """
        self._enter()
        deadline = arguments.deadline("timeout", timeout)
        arguments.instance("layer_synchronizer", layer_synchronizer, LayerSynchronizer)
        configs = _checked(transfer_configs)
        per_layer = arguments.integer("tensor_num_per_layer", tensor_num_per_layer, 1, 2**32 - 1)
        block_bytes = None
        if dst_block_memory_size is not None:
            block_bytes = arguments.integer("dst_block_memory_size", dst_block_memory_size, 0, 2**64 - 1) or None
        own = self._ends.own("src_cache", src_cache)
        destinations = Destinations(
            self._ends,
            own,
            per_layer,
            frozen(src_block_indices),
            frozen(dst_block_indices),
            block_bytes,
            deadline,
            len(configs),
        )
        planned: list[tuple[Request, range] | CacheError] = []
        for config in configs:
            try:
                planned.append(destinations.request(config))
            except (MissingArgumentError, CacheTypeError, CacheValueError, NotSupportedError):
                raise
            except CacheError as error:  # this destination cannot be reached: the others can
                planned.append(error)
        wanted = [layer for one in planned if not isinstance(one, CacheError) for layer in one[1]]
        gate = LayerGate(layer_synchronizer, wanted, deadline)
        ready: list[Transfer | CacheError] = [
            one if isinstance(one, CacheError) else Transfer(self._transfers, one[0], gate=partial(_pass, gate, one[1]))
            for one in planned
        ]
        for index, transfer in enumerate(ready):
            if isinstance(transfer, Transfer):
                try:
                    transfer.start(self._pool, apart=f"cachecore-layers-{next(_numbers)}")
                except CacheError as error:
                    ready[index] = error
                except Exception as error:  # noqa: BLE001  # those that were started must not lose their handle
                    ready[index] = CacheError(f"a thread for a destination could not be started: {error}")
        return CacheTask(ready)


def _pass(gate: LayerGate, layers: range, position: int, cancel: CancelToken) -> None:
    gate.wait(layers[position], cancel)


def _checked(configs: object) -> tuple[TransferConfig | TransferWithCacheKeyConfig, ...]:
    arguments.not_none("transfer_configs", configs)
    if not isinstance(configs, list | tuple):
        raise arguments.wrong_type(
            "transfer_configs", configs, "a list of TransferConfig or TransferWithCacheKeyConfig"
        )
    if not configs:
        raise CacheValueError("transfer_configs is empty; give at least one destination")
    for index, config in enumerate(configs):
        arguments.instance(f"transfer_configs[{index}]", config, (TransferConfig, TransferWithCacheKeyConfig))
    return tuple(configs)
