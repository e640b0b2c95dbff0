"""The base class of the drivers, as the smallest product there can be, against the suite of the core."""

from __future__ import annotations

from typing import ClassVar

import pytest
from cachecore_ascend_runtime import AscendDriver, MallocPolicy, Runtime

from cachecore.driver import Capabilities, Capability
from cachecore.testing.driver_conformance import DriverConformance

HERE = "a product made for tests"


class SmallestDriver(AscendDriver):
    name = "smallest"

    def capabilities(self) -> Capabilities:
        return Capabilities(
            address_budget=Capability(240, HERE),
            max_registered_device_bytes=Capability(None, HERE),
            max_registered_host_bytes=Capability(None, HERE),
            host_alignment=self.host_alignment(),
            device_alignment=self.device_alignment(),
            remote_access_optional=Capability(True, HERE),
            allocate_caches=Capability(True, HERE),
            copy_and_swap_blocks=Capability(True, HERE),
            copy_failure_knowledge=self.copy_knowledge(),
        )

    def check_registration(self, request, infos):
        """Nothing is refused."""


class OrdinaryHostDriver(SmallestDriver):
    """As the 950: host memory is ordinary, and device memory has huge pages."""

    ordinary_host_memory = True

    def malloc_policy(self, nbytes):
        return MallocPolicy.HUGE_ONLY


@pytest.mark.usefixtures("runtime")
class TestAscendDriver(DriverConformance):
    make: ClassVar[type[AscendDriver]] = SmallestDriver
    device = 0

    def make_driver(self):
        return self.make(self.device)

    def live_allocations(self, driver):
        return driver.live_allocations


class TestOnTheSecondDevice(TestAscendDriver):
    device = 1


class TestWithOrdinaryHostMemory(TestAscendDriver):
    make = OrdinaryHostDriver


def test_the_driver_says_that_it_is_emulated(runtime: Runtime) -> None:
    driver = SmallestDriver(1)
    assert driver.emulated
    assert repr(driver) == "<SmallestDriver device 1 of emulated Ascend910B4, 0 allocations>"
