import threading
import time

import pytest

from cachecore.errors import CacheValueError
from cachecore.peers import liveness
from cachecore.peers.liveness import Lease, Timing, boottime


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(liveness, "boottime", lambda: now[0])
    return now


def test_a_lease_runs_from_the_sending_of_the_ping_not_from_its_answer(clock):
    lease = Lease(15.0)
    assert not lease.holds()
    clock[0] = 1010.0
    lease.renew(1000.0)  # sent at 1000, answered at 1010
    clock[0] = 1014.9
    assert lease.holds() and 0 < lease.remaining < 0.2
    clock[0] = 1015.0
    assert not lease.holds()


def test_an_answer_to_an_older_ping_does_not_shorten_a_lease(clock):
    lease = Lease(15.0)
    lease.renew(1000.0)
    lease.renew(990.0)
    clock[0] = 1014.0
    assert lease.holds()


def test_an_ended_lease_never_holds_again(clock):
    lease = Lease(15.0)
    lease.renew(1000.0)
    lease.end()
    lease.renew(1000.0)
    assert not lease.holds()
    assert not lease.wait(time.monotonic() + 60, threading.Event())


def test_waiting_ends_with_the_renewal_the_deadline_or_the_end_of_hope():
    lease, hopeless = Lease(15.0), threading.Event()
    assert not lease.wait(time.monotonic() + 0.01, hopeless)
    answers = []
    waiters = [
        threading.Thread(target=lambda: answers.append(lease.wait(time.monotonic() + 60, hopeless))) for _ in "ab"
    ]
    for waiter in waiters:
        waiter.start()
    lease.renew(boottime())
    for waiter in waiters:
        waiter.join(30)
    assert answers == [True, True]
    other = Lease(15.0)
    late = threading.Thread(target=lambda: answers.append(other.wait(time.monotonic() + 60, hopeless)))
    late.start()
    hopeless.set()
    other.wake()
    late.join(30)
    assert answers == [True, True, False]


def test_the_clock_of_leases_counts_time_in_suspend():
    assert abs(boottime() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 5.0


def test_a_lease_that_outlasts_the_owners_patience_cannot_be_configured():
    assert Timing().lease <= Timing.safe_lease(Timing().owner_silence) < Timing().owner_silence
    with pytest.raises(CacheValueError, match="three quarters"):
        Timing(lease=19.0)
    for bad in (0, -1.0, float("nan"), float("inf"), "1"):
        with pytest.raises(CacheValueError, match="ping_interval"):
            Timing(ping_interval=bad)
