"""Waiting for an event of the device in the calling thread.

The runtime lets streams wait for an event; here a few bytes of the host's are copied behind it, and the copy is waited
for, which has a deadline and gives up cleanly.
"""

from __future__ import annotations

import ctypes
from typing import Final

from cachecore.errors import CacheTimeoutError, CacheTypeError, NotSupportedError
from cachecore.outcome import FailureCause, OutcomeState
from cachecore.planning import Geometry, plan_entry
from cachecore_ascend_runtime.device import Device
from cachecore_ascend_runtime.errors import AscendError

__all__ = ["EventWait"]

_BYTES: Final = 64


class EventWait:
    """For one driver and many threads.

    Args:
        device: Whose events.
        product: Name of the driver, for errors.
    """

    def __init__(self, device: Device, product: str) -> None:
        self._device, self._product = device, product
        #: What may still be written behind events that did not happen in time.
        self._behind: list[tuple[object, object]] = []

    def wait(self, event: object, deadline: float) -> None:
        """Wait for one event.

        Args:
            event: A recorded `torch.npu.Event`, or the handle of an aclrtEvent as an integer.
            deadline: On `time.monotonic()`.

        Raises:
            NotSupportedError: It is neither.
            CacheTimeoutError: It did not happen before the deadline.
            AscendError: The runtime refused the event.
        """
        scratch = ctypes.create_string_buffer(2 * _BYTES)
        start = ctypes.addressof(scratch)
        to, origin = (Geometry([base], blocks=1, block_bytes=_BYTES) for base in (start, start + _BYTES))
        try:
            outcome = self._device.copy(plan_entry(to, origin, 0, 0), deadline, event)
        except CacheTypeError as error:
            raise NotSupportedError(str(error), product=self._product, feature="after") from error
        self._behind = [(ticket, kept) for ticket, kept in self._behind if not self._device.quiescent(ticket)]
        if outcome.state is OutcomeState.DONE:
            return
        if outcome.ticket is not None:
            self._behind.append((outcome.ticket, scratch))
        if outcome.cause is FailureCause.DEADLINE:
            raise CacheTimeoutError("the event given as after did not happen before the deadline")
        raise AscendError(f"the event given as after cannot be waited for: {outcome.message}", code=outcome.code)
