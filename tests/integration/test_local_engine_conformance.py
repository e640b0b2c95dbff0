from cachecore.testing.engine_conformance import EngineConformance


class TestSharedMemory(EngineConformance):
    """Memory that the driver allocated: mapped by the reader."""

    driver = "cachecore.host.plugin:DRIVER"
    engine = "cachecore.host.plugin:ENGINE"

    def live_regions(self, engine):
        return engine.live_regions


class TestForeignMemory(TestSharedMemory):
    """Memory of the caller: read and written by system calls."""

    foreign = True
