"""What `transfer_cache_async` returns: one status for each destination, whatever became of the others."""

from __future__ import annotations

import time
from collections.abc import Sequence

from cachecore import _arguments as arguments
from cachecore.errors import CacheError, CacheTimeoutError, StatusCode
from cachecore.transfers.handles import Transfer

__all__ = ["CacheTask"]


class CacheTask:
    """A cache on its way to several destinations. Made by `CacheManager.transfer_cache_async`.

    Args:
        destinations: In the order of the configurations: a transfer that was started, or why it was not.
    """

    def __init__(self, destinations: Sequence[Transfer | CacheError]) -> None:
        self._destinations = tuple(destinations)

    @property
    def done(self) -> bool:
        """Whether every destination has ended, in whatever way."""
        return all(not isinstance(one, Transfer) or one.done for one in self._destinations)

    @property
    def errors(self) -> tuple[BaseException | None, ...]:
        """Why each destination failed so far; None for one that is under way or has succeeded."""
        return tuple(
            (one.exception(0) if one.done else None) if isinstance(one, Transfer) else one for one in self._destinations
        )

    def synchronize(self, timeout_in_millis: int | None = None) -> StatusCode:
        """Wait until every destination has ended.

        Args:
            timeout_in_millis: Milliseconds, None = until the transfer's own deadline has ended it.

        Returns:
            SUCCESS when all succeeded, else the first status of `get_results` that is not.

        Raises:
            CacheTypeError, CacheValueError: `timeout_in_millis` is no number of milliseconds.
        """
        return next(
            (one for one in self.get_results(timeout_in_millis) if one is not StatusCode.SUCCESS), StatusCode.SUCCESS
        )

    def get_results(self, timeout_in_millis: int | None = None) -> list[StatusCode]:
        """Wait until every destination has ended.

        Args:
            timeout_in_millis: Milliseconds, None = until the transfer's own deadline has ended it.

        Returns:
            One status for each configuration, in their order. WAIT_PROC_TIMEOUT for a destination that had not ended by
            then: it goes on, and the call can be repeated.

        Raises:
            CacheTypeError, CacheValueError: `timeout_in_millis` is no number of milliseconds.
        """
        end = None
        if timeout_in_millis is not None:
            end = time.monotonic() + arguments.integer("timeout_in_millis", timeout_in_millis, 0, 10**12) / 1000
        return [_status(one, end) for one in self._destinations]

    def cancel(self) -> None:
        """Ask every destination that is under way to end; returns at once."""
        for one in self._destinations:
            if isinstance(one, Transfer):
                one.cancel()

    def __repr__(self) -> str:
        ended = sum(not isinstance(one, Transfer) or one.done for one in self._destinations)
        return f"<CacheTask {ended} of {len(self._destinations)} destinations ended>"


def _status(one: Transfer | CacheError, end: float | None) -> StatusCode:
    try:
        error = (
            one.exception(None if end is None else max(0.0, end - time.monotonic()))
            if isinstance(one, Transfer)
            else one
        )
    except CacheTimeoutError:
        return StatusCode.WAIT_PROC_TIMEOUT
    if error is None:
        return StatusCode.SUCCESS
    return error.status_code if isinstance(error, CacheError) else StatusCode.FAILED
