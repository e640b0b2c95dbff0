"""Runs a conformance suite without a test runner, to prove that the suite itself finds faults.

A suite that passes everything proves nothing. Whoever writes one runs it on an implementation with a planted fault
(a mutant) and demands that it fails.
"""

from __future__ import annotations

import contextlib
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
    with contextlib.suppress(pytest.skip.Exception):
        try:
            _run(suite, name)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # every failure is what is looked for
            failed[name] = error


def _names(suite: type) -> Iterator[str]:
    return (name for name in dir(suite) if name.startswith("test_") and callable(getattr(suite, name)))


def _run(suite: type, name: str) -> None:
    instance = suite()
    method = getattr(instance, name)
    instance.setup_method(method)
    try:
        method()
    finally:
        instance.teardown_method(method)
