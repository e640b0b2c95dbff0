from cachecore.testing.driver_conformance import DriverConformance


class TestHostDriver(DriverConformance):
    driver = "cachecore.host.plugin:DRIVER"

    def live_allocations(self, driver):
        return driver.live_allocations


class TestWithoutPrefault(TestHostDriver):
    options = {"prefault": False, "threads": 1}
