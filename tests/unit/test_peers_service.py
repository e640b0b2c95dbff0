import threading
import time

import pytest

from cachecore.errors import CacheError, CacheTimeoutError, ManagerClosedError
from cachecore.peers.service import Service


@pytest.fixture
def service():
    made = Service("test-links")
    made.start(lambda: None, time.monotonic() + 30)
    yield made
    assert made.stop(time.monotonic() + 30)


def soon(seconds=30.0):
    return time.monotonic() + seconds


def test_functions_run_in_the_thread_in_order_and_answer(service):
    order = []
    for number in range(500):
        service.submit(lambda number=number: order.append((number, threading.current_thread().name)))
    assert service.call(lambda: len(order), soon()) == 500
    assert order == [(number, "test-links") for number in range(500)]


def test_what_a_function_raises_reaches_the_caller_and_the_thread_lives_on(service):
    with pytest.raises(ZeroDivisionError):
        service.call(lambda: 1 / 0, soon())
    assert service.call(lambda: "alive", soon()) == "alive"


def test_no_wait_outlives_its_deadline(service):
    release = threading.Event()
    service.submit(lambda: release.wait(30) and None)
    with pytest.raises(CacheTimeoutError, match="did not answer before the deadline"):
        service.call(lambda: None, soon(0.05))
    release.set()


def test_an_unexpected_exception_fails_everybody_who_waits_with_its_cause(service, caplog):
    waiting = service.future()
    told = []
    service.on_failure(told.append)

    def broken():
        raise RuntimeError("nobody expected this")

    service.submit(broken)
    with pytest.raises(CacheError, match="link service failed: RuntimeError: nobody expected this") as caught:
        service.wait(waiting, soon(), "x")
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert service.stop(soon())
    with pytest.raises(CacheError, match="nobody expected this"):
        service.submit(lambda: None)
    assert len(told) == 1 and not service.alive
    assert "the link service test-links failed" in caplog.text


def test_a_timer_that_fails_is_as_loud(service, caplog):
    waiting = service.future()
    service.call(lambda: service.every(0.01, lambda: {}["x"]), soon())
    with pytest.raises(CacheError, match="KeyError"):
        service.wait(waiting, soon(), "x")


def test_stopping_fails_waiters_and_later_calls(service):
    waiting = service.future()
    assert service.stop(soon())
    with pytest.raises(ManagerClosedError):
        service.wait(waiting, soon(), "x")
    with pytest.raises(ManagerClosedError):
        service.submit(lambda: None)


def test_setup_that_fails_leaves_no_thread():
    service = Service("broken-setup")
    with pytest.raises(ZeroDivisionError):
        service.start(lambda: 1 / 0, soon())
    assert "broken-setup" not in [thread.name for thread in threading.enumerate()]
