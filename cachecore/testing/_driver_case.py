"""Set-up that the parts of the driver suite share."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import ClassVar

from cachecore.driver import BackendDriver, DriverSpec
from cachecore.testing.harness import MemoryHarness
from cachecore.testing.side import load


def soon() -> float:
    """A deadline that only something stuck reaches."""
    return time.monotonic() + 60.0


class DriverCase:
    """Set-up of one test of a driver.

    Attributes:
        driver: `package.module:name` of the `DriverSpec`.
        device: Given to its factory.
        options: The same.
    """

    driver: ClassVar[str]
    device: ClassVar[int | None] = None
    options: ClassVar[Mapping[str, object]] = {}

    def make_driver(self) -> BackendDriver:
        """The driver under test; called once for each test."""
        spec: DriverSpec = load(self.driver)
        return spec.factory(self.device, self.options)

    def live_allocations(self, driver: BackendDriver) -> int | None:
        """Allocations the driver still holds, also after close(); None where it cannot tell."""
        return None

    def setup_method(self, method: Callable[..., None]) -> None:
        """Make driver and memory."""
        self.subject = self.make_driver()
        self.subject.bind_thread()
        self.memory = MemoryHarness(self.subject)
        self.random = random.Random(method.__name__)

    def teardown_method(self, method: Callable[..., None]) -> None:
        """Give everything back."""
        self.memory.close()
        self.subject.close()
