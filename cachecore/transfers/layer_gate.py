"""Asking the caller's `LayerSynchronizer` once for each layer, for several destinations that move at their own pace."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from typing import Final

from cachecore.engine import CancelToken
from cachecore.errors import CacheError, CacheTimeoutError, TransferCancelledError
from cachecore.layerwise import LayerSynchronizer

__all__ = ["LayerGate"]

#: Seconds between two looks at the cancel flag.
_SLICE: Final = 0.05


class LayerGate:
    """Lets layers pass in ascending order. For many threads; whoever comes first asks, the others wait for the answer.

    Args:
        synchronizer: The caller's.
        layers: Every layer that some destination wants.
        deadline: On `time.monotonic()`.
    """

    def __init__(self, synchronizer: LayerSynchronizer, layers: Iterable[int], deadline: float) -> None:
        self._synchronizer = synchronizer
        self._layers = sorted(set(layers))
        self._deadline = deadline
        self._changed = threading.Condition(threading.Lock())
        self._passed = 0  # how many of the layers
        self._asking = False
        self._error: CacheError | None = None

    def wait(self, layer: int, cancel: CancelToken) -> None:
        """Wait until a layer is ready.

        Raises:
            CacheTimeoutError: The synchronizer said that it is not, or the deadline passed.
            TransferCancelledError: Somebody cancelled.
            CacheError: The synchronizer raised; the exception is the cause.
        """
        position = self._layers.index(layer)
        while True:
            with self._changed:
                while self._asking and self._passed <= position and self._error is None:
                    if cancel.cancelled:
                        raise TransferCancelledError(f"the transfer was cancelled while it waited for layer {layer}")
                    if time.monotonic() >= self._deadline:
                        raise _late(layer)
                    self._changed.wait(_SLICE)
                if self._passed > position:
                    return
                if self._error is not None:
                    raise self._error
                self._asking = True
                following = self._layers[self._passed]
            error = self._ask(following)
            with self._changed:
                self._asking = False
                if error is None:
                    self._passed += 1
                else:
                    self._error = error
                self._changed.notify_all()

    def _ask(self, layer: int) -> CacheError | None:
        left = max(0, math.ceil((self._deadline - time.monotonic()) * 1000))
        try:
            ready = self._synchronizer.synchronize_layer(layer, left)
        except BaseException as error:  # noqa: BLE001  # the caller's code, in a thread of ours
            failed = CacheError(f"synchronize_layer({layer}) raised {type(error).__name__}: {error}")
            failed.__cause__ = error
            return failed
        if not ready:
            return CacheTimeoutError(
                f"synchronize_layer({layer}) returned {ready!r:.80}: the layer was not ready within {left} ms"
            )
        return None


def _late(layer: int) -> CacheTimeoutError:
    return CacheTimeoutError(f"layer {layer} was not ready before the deadline; give a longer timeout")
