"""What stands in a worker in place of the real thing: arrays that move, peers that are deaf, engines that fail."""

from __future__ import annotations

import socket
import threading

import numpy as np

import cachecore as cc
from cachecore.errors import EngineError
from cachecore.outcome import FailureCause, Outcome, OutcomeState


class Layer(cc.LayerSynchronizer):
    """Says when a layer of `transfer_cache_async` is ready."""

    def __init__(self, does: str) -> None:
        self.does = does

    def synchronize_layer(self, layer_index: int, timeout_in_millis: int | None = None) -> bool:
        if not isinstance(timeout_in_millis, int) or not 0 < timeout_in_millis <= 60_000:
            raise ValueError(f"the milliseconds that are left are {timeout_in_millis}")
        if self.does == "raises":
            raise KeyError("on purpose")
        return self.does == "ready"


class Moving:
    """An array that can pretend to have been resized."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.dtype, self.moved = array, array.dtype, False

    @property
    def __array_interface__(self) -> dict[str, object]:
        facts = dict(self.array.__array_interface__)
        address, read_only = facts["data"]
        return facts | {"data": (address + 4096 * self.moved, read_only)}


class DeviceTensor:
    """What a torch tensor on a device shows of itself; it can pretend to have been resized."""

    layout = "torch.strided"

    def __init__(self, address: int, shape: tuple[int, ...], dtype: str) -> None:
        self.address, self.shape, self.dtype, self.moved = address, shape, f"torch.{dtype}", False

    def data_ptr(self) -> int:
        return self.address + 4096 * self.moved

    def is_contiguous(self) -> bool:
        return True


class Deaf:
    """Takes connections and never says a word."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"


class Breaker:
    """Lets one native call fail as an engine reports it.

    Attributes:
        fail_at: Which native transfer of the next call fails before its first byte, counted from 1; 0 = none.
        gives_up: Whether that one may still be writing: it has stopped when `stopped` says so.
        refuse: Who refuses: "policy", "engine" (to register), "deregister", or nobody.
    """

    def __init__(self, manager: cc.CacheManager) -> None:
        self.fail_at = 0
        self.gives_up = False
        self.stopped = True
        self.refuse = ""
        self.lock = threading.Lock()
        manager._registry._policies += (self,)
        self._wrap(manager.backend, "copy", 0)
        for binding in manager._engines:
            self._wrap_register(binding.engine)
            self._wrap_deregister(binding.engine)
            self._wrap(binding.engine, "transfer", 1)

    def check_registration(self, function: str, cluster_id: int, ranges: object) -> None:
        """As a policy."""
        if self.refuse == "policy":
            raise PermissionError("on purpose")

    def _wrap_register(self, engine: object) -> None:
        real = engine.register

        def register(regions: object) -> object:
            if self.refuse == "engine":
                raise EngineError("on purpose")
            return real(regions)

        engine.register = register

    def _wrap_deregister(self, engine: object) -> None:
        real = engine.deregister

        def deregister(registration: object) -> object:
            if self.refuse == "deregister":
                raise cc.StillReachableError("on purpose")
            return real(registration)

        engine.deregister = deregister

    def _wrap(self, owner: object, name: str, plan_at: int) -> None:
        """Stand before what moves bytes, and before the question whether it has stopped."""
        real, quiescent = getattr(owner, name), owner.quiescent

        def method(*arguments: object, **more: object) -> Outcome:
            with self.lock:
                self.fail_at -= 1
                now = self.fail_at == 0
            if not now:
                return real(*arguments, **more)
            chunks = arguments[plan_at].chunks
            if not self.gives_up:
                return Outcome.untouched_by(FailureCause.NATIVE, chunks, message="on purpose")
            return Outcome(
                OutcomeState.UNKNOWN,
                unknown=((0, chunks),),
                cause=FailureCause.DEADLINE,
                message="on purpose",
                ticket=self,
            )

        def has_stopped(ticket: object) -> bool:
            return self.stopped if ticket is self else quiescent(ticket)

        setattr(owner, name, method)
        owner.quiescent = has_stopped
