"""What a driver or engine is tested with: memory by driver, a second process, and the conformance suites.

A driver's test file subclasses the suite and says what is tested:

    from cachecore.testing.engine_conformance import EngineConformance

    class TestMyEngine(EngineConformance):
        driver = "my_plugin:DRIVER"
        engine = "my_plugin:ENGINE"

The suites are modules of their own because they need pytest and hypothesis; this one does not.
"""

from cachecore.testing.harness import MemoryHarness

__all__ = ["MemoryHarness"]
