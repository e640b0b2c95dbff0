"""Runs a conformance suite without a test runner, to prove that the suite itself finds faults.

A suite that passes everything proves nothing. Whoever writes one runs it on an implementation with a planted fault
(a mutant) and demands that it fails.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

__all__ = ["failures"]


def failures(suite: type, only: str = "") -> dict[str, BaseException]:
    """Run the tests of `suite` and return those that failed, by name.

    Args:
        suite: A class with `test_*` methods, xunit-style set-up and no fixtures.
        only: Run just the tests whose name contains this.
    """
    failed: dict[str, BaseException] = {}
    try:
        for name in _names(suite):
            if only in name:
                _record(suite, name, failed)
    finally:
        getattr(suite, "teardown_class", lambda: None)()
    return failed


def _record(suite: type, name: str, failed: dict[str, BaseException]) -> None:
    instance = suite()
    method = getattr(instance, name)
    for step in (lambda: instance.setup_method(method), method, lambda: instance.teardown_method(method)):
        try:
            step()
        except pytest.skip.Exception:
            if step is not method:
                return  # a skip in the set-up; there is nothing to tear down
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # every failure is what is looked for
            # The first one: a tear-down often fails only because the test did.
            failed.setdefault(name, error)


def _names(suite: type) -> Iterator[str]:
    return (name for name in dir(suite) if name.startswith("test_") and callable(getattr(suite, name)))
