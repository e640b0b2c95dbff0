"""Block leases: the value, and the table of the manager that grants them."""

import pickle
import threading
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecore.engine import PeerIdentity
from cachecore.errors import (
    CacheBusyError,
    CacheError,
    CacheTypeError,
    CacheValueError,
    LeaseExpiredError,
    MissingArgumentError,
)
from cachecore.lease_table import LeaseTable
from cachecore.leases import BlockLease, check_blocks, check_lease, pack_blocks

OWNER = PeerIdentity(1, "owner", 100, "0" * 32)
LEASE = BlockLease(1, "0" * 32, 7, "ab" * 16, pack_blocks([9, 3, 2**63]), 5.0)


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def table(clock):
    return LeaseTable(OWNER, clock)


def ended():
    return time.monotonic()


def claim(table, lease, holder="session", number=1, cluster_id=2):
    return table.claim(lease.lease_id, holder, number, cluster_id)


def test_a_lease_survives_pickling_and_a_connectors_channel():
    assert LEASE.block_ids == (9, 3, 2**63) and LEASE.num_blocks == 3
    for copy in (pickle.loads(pickle.dumps(LEASE)), BlockLease.from_bytes(memoryview(LEASE.to_bytes()))):
        assert copy == LEASE and hash(copy) == hash(LEASE)


@given(st.binary(max_size=80), st.booleans())
def test_bytes_that_are_no_lease_are_refused(data, headed):
    with pytest.raises(CacheValueError, match=r"lease"):
        BlockLease.from_bytes(LEASE.to_bytes()[:4] + data if headed else data)


def test_a_lease_of_another_format_or_none_at_all_is_told_apart():
    with pytest.raises(CacheValueError, match="format 02 and this release reads format 01"):
        BlockLease.from_bytes(b"CCB\x02" + LEASE.to_bytes()[4:])
    with pytest.raises(CacheValueError, match="packed 8-byte ids"):
        BlockLease.from_bytes(b"CCB\x01" + msgspec.msgpack.encode({**msgspec.structs.asdict(LEASE), "blocks": b"7"}))
    with pytest.raises(MissingArgumentError):
        BlockLease.from_bytes(None)
    with pytest.raises(CacheTypeError):
        BlockLease.from_bytes("text")


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ({"cluster_id": 2}, CacheValueError, "names cluster 2"),
        ({"cache_id": 8}, CacheValueError, "names cache 8"),
        ({"incarnation": "1" * 32}, LeaseExpiredError, "has been restarted"),
    ],
)
def test_a_lease_that_does_not_fit_the_source_is_refused(source, error, message):
    fits = {"cluster_id": 1, "incarnation": "0" * 32, "cache_id": 7}
    assert check_lease("lease", LEASE, **fits) is LEASE
    with pytest.raises(error, match=message):
        check_lease("lease", LEASE, **{**fits, **source})


def test_blocks_outside_the_lease_are_refused_by_name():
    check_blocks(LEASE, "src_blocks", [2**63, 3])
    with pytest.raises(CacheValueError, match=r"src_blocks\[1\] is block 4, which <BlockLease abababab of 3 blocks"):
        check_blocks(LEASE, "src_blocks", [3, 4])


def test_after_its_time_no_pull_starts_and_the_blocks_are_free_only_when_all_have_ended(table, clock):
    lease = table.grant(7, LEASE.blocks, 5.0)
    assert claim(table, lease, "a") == "" and claim(table, lease, "a", 2) == ""
    clock.now += 5.0
    assert "expired 0.000 s ago" in claim(table, lease, "b")
    assert table.expired() == []
    assert [(info.state, info.seconds_left, info.readers) for info in table.infos] == [("EXPIRED", 0.0, (2, 2))]
    table.release("a", [1, 99])
    table.release("b", [2])  # somebody else's number
    assert table.expired() == []
    table.release("a", [2])
    assert table.expired() == [lease] and table.expired() == [] and table.infos == ()
    assert "never granted, or has expired" in claim(table, lease)


def test_a_number_that_is_used_twice_cannot_leave_a_claim_behind(table):
    first, second = table.grant(7, LEASE.blocks, 5.0), table.grant(7, LEASE.blocks, 5.0)
    assert claim(table, first) == "" and "another pull" in claim(table, second)
    table.end("session")
    assert [info.readers for info in table.infos] == [(), ()]


def test_the_end_of_a_reader_ends_its_claims_and_nobody_elses(table, clock):
    first, second = table.grant(7, LEASE.blocks, 5.0), table.grant(7, LEASE.blocks, 5.0)
    assert not any([claim(table, first, "a"), claim(table, second, "a", 2), claim(table, second, "b", 1, 3)])
    clock.now += 5.0
    table.end("a")
    assert table.expired() == [first]
    table.end("b")
    assert table.expired() == [second]


def test_a_renewed_lease_runs_from_then_on(table, clock):
    lease = table.grant(7, LEASE.blocks, 5.0)
    clock.now += 4.0
    table.renew(lease, 10.0)
    clock.now += 9.0
    assert claim(table, lease) == "" and table.expired() == []
    clock.now += 1.0
    with pytest.raises(LeaseExpiredError, match=r"expired 0\.000 s ago"):
        table.renew(lease, 10.0)
    table.end("session")
    assert table.expired() == [lease]
    with pytest.raises(LeaseExpiredError, match="never granted"):
        table.renew(lease, 10.0)


def test_a_shortened_lease_ends_sooner(table, clock):
    lease = table.grant(7, LEASE.blocks, 50.0)
    table.renew(lease, 1.0)
    clock.now += 1.0
    assert claim(table, lease) and table.expired() == [lease]
    clock.now += 60.0
    assert table.expired() == []


def test_a_released_lease_takes_no_pull_and_waits_for_those_that_run(table):
    lease = table.grant(7, LEASE.blocks, 5.0)
    assert claim(table, lease) == "" and claim(table, lease, "b", 1, 3) == ""
    with pytest.raises(CacheBusyError, match=r"clusters \[2, 3\]") as caught:
        table.revoke(lease, ended())
    assert caught.value.peers == (2, 3)
    assert claim(table, lease, "c") == "it was released" and table.infos[0].state == "REVOKED"
    with pytest.raises(LeaseExpiredError, match="was released"):
        table.renew(lease, 5.0)
    waiting = threading.Thread(target=table.revoke, args=(lease, ended() + 60.0))
    waiting.start()
    table.end("b")
    table.release("session", [1])
    waiting.join(30)
    assert not waiting.is_alive() and table.infos == ()
    table.revoke(lease, ended())  # harmless


def test_leases_of_other_managers_and_other_lives_are_refused(table):
    foreign = LeaseTable(PeerIdentity(1, "owner", 100, "1" * 32), time.monotonic).grant(7, LEASE.blocks, 5.0)
    with pytest.raises(CacheValueError, match="another manager, or an earlier one"):
        table.revoke(foreign, ended())
    with pytest.raises(CacheValueError, match="another manager, or an earlier one"):
        table.renew(foreign, 5.0)


def test_unregistering_refuses_new_pulls_and_waits_for_running_ones(table):
    lease, other = table.grant(7, LEASE.blocks, 5.0), table.grant(8, LEASE.blocks, 5.0)
    assert claim(table, lease) == ""
    table.refuse([7])
    assert "being unregistered" in claim(table, lease, "b")
    assert "being unregistered" in claim(table, table.grant(7, LEASE.blocks, 5.0), "c")
    with pytest.raises(CacheBusyError):
        table.retire([7], ended())
    table.end("session")
    table.retire([7], ended())
    assert [info.lease for info in table.infos] == [other] and claim(table, other) == ""


def test_a_failed_link_service_ends_the_wait_for_readers(table):
    lease = table.grant(7, LEASE.blocks, 5.0)
    claim(table, lease)
    errors = []

    def wait():
        try:
            table.revoke(lease, ended() + 60.0)
        except CacheError as error:
            errors.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    table.fail(CacheError("the link service failed"))
    waiting.join(30)
    assert errors == ["the link service failed"]


def test_pulls_of_the_granting_manager_count_like_those_of_readers(table, clock):
    lease = table.grant(7, LEASE.blocks, 5.0)
    number = table.claim_here(lease.lease_id)
    with pytest.raises(CacheBusyError) as caught:
        table.revoke(lease, ended())
    assert caught.value.peers == (1,)
    with pytest.raises(LeaseExpiredError):
        table.claim_here(lease.lease_id)
    table.release_here(number)
    table.revoke(lease, ended())


def test_leases_that_were_released_or_renewed_leave_nothing_behind(table, clock):
    """A program that releases every lease in time never asks for the expired ones."""
    kept = table.grant(1, pack_blocks([0]), 1.0)
    for _ in range(1000):
        table.revoke(table.grant(1, pack_blocks([1]), 3600.0), ended())
        table.renew(kept, 2.0)
    assert len(table._due) < 200
    clock.now += 1.5
    assert table.expired() == []
    clock.now += 1.0
    assert table.expired() == [kept] and table.infos == ()
