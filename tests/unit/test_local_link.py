"""One side of the local engine against descriptors that a test has made, within one process."""

import socket
import time

import msgspec
import pytest

from cachecore.engine import CancelToken, Operation, PeerIdentity, Region, RemoteRegion
from cachecore.errors import LinkFailedError
from cachecore.host import link
from cachecore.host.driver import HostDriver
from cachecore.host.engine import LocalEngine
from cachecore.host.identity import Process, decode_endpoint
from cachecore.host.sharing import SharedRange, fetch
from cachecore.outcome import FailureCause, OutcomeState
from cachecore.testing.harness import plan_bytes
from cachecore.types import Placement

SIZE = 65536
#: Behind what any process can map, so that what comes from there can only have come through a mapping. The thread
#: sanitizer has memory of its own in lower places.
FAR = 1 << 50
PEER = PeerIdentity(1, "here", 1, "0" * 32)


def soon():
    return time.monotonic() + 20.0


class World:
    """An owner of one block, and a reader."""

    def __init__(self):
        self.driver, there = HostDriver(), HostDriver()
        self.owner, self.reader = LocalEngine(there), LocalEngine(self.driver)
        self.block = there.allocate(SIZE, Placement.HOST)
        self.local = self.driver.allocate(SIZE, Placement.HOST)
        self.owner.register([Region(self.block.address, SIZE, Placement.HOST)])
        self.drivers = (self.driver, there)

    def region(self, base=FAR, nbytes=SIZE, offset=0, block_bytes=SIZE):
        """A region of the block, as if it lay at `base` in the owner."""
        return RemoteRegion(base, nbytes, Placement.HOST, msgspec.msgpack.encode(SharedRange(1, offset, block_bytes)))

    def connect(self, *regions):
        self.reader.connect(PEER, self.owner.endpoint(), regions, soon())

    def read(self, base=FAR, deadline=None, cancel=None):
        plan = plan_bytes(self.local.address, base, 8)
        return self.reader.transfer(PEER, plan, Operation.READ, deadline or soon(), cancel)

    def close(self):
        for one in (self.reader, self.owner):
            assert one.close(soon()) == []
        for driver in self.drivers:
            driver.close()


@pytest.fixture
def world():
    made = World()
    yield made
    made.close()


@pytest.fixture
def asked(monkeypatch):
    """An owner that hands out nothing: the deadlines until which it was asked for memory files."""
    found = []

    def refuse(endpoint, blocks, deadline, cancelled):
        found.append(deadline)
        raise LinkFailedError("its descriptors have run out")

    monkeypatch.setattr(link, "fetch", refuse)
    return found


@pytest.fixture
def unreadable(monkeypatch):
    monkeypatch.setattr(Process, "check_nonce", lambda self, deadline: False)


def test_memory_that_could_not_be_mapped_is_asked_for_again_until_the_deadline(world, unreadable, asked, monkeypatch):
    """Where the kernel forbids to read the owner there is no other way to it."""
    world.connect()
    world.reader.update(PEER, [world.region()], [])
    deadline = soon()
    outcome = world.read(deadline=deadline)
    assert outcome.state is OutcomeState.FAILED and "its descriptors have run out" in outcome.message
    assert asked[1:] == [deadline]
    monkeypatch.setattr(link, "fetch", fetch)
    assert world.read().state is OutcomeState.DONE


def test_an_owner_that_can_be_read_is_asked_again_briefly_and_not_each_time(world, asked, monkeypatch):
    world.connect(world.region())
    start = time.monotonic()
    assert "its descriptors have run out" in world.read().message
    assert asked[1] < start + 1.0
    world.read()
    assert len(asked) == 2
    monkeypatch.setattr(link, "fetch", fetch)
    monkeypatch.setattr(world.reader._links[PEER], "_ask_from", 0.0)
    assert world.read().state is OutcomeState.DONE


def test_a_transfer_that_waits_for_memory_files_ends_in_time(world, unreadable, asked, monkeypatch):
    """At its deadline and when it is cancelled, although the owner says nothing."""
    world.connect()
    world.reader.update(PEER, [world.region()], [])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind("")
        silent.listen()
        mute = msgspec.structs.replace(decode_endpoint(world.owner.endpoint()), socket=silent.getsockname()[1:])
        monkeypatch.setattr(link, "fetch", lambda endpoint, *rest: fetch(mute, *rest))
        assert world.read(deadline=time.monotonic() + 0.1).cause is FailureCause.DEADLINE
        token = CancelToken()
        token.cancel()
        deadline = soon()
        assert world.read(deadline=deadline, cancel=token).cause is FailureCause.CANCELLED
        assert time.monotonic() < deadline


def test_a_region_behind_the_end_of_its_block_is_not_mapped(world, caplog):
    """Of two descriptors that disagree about the size of their block only one can be true."""
    world.connect(world.region(FAR, offset=1 << 32, block_bytes=1 << 33), world.region(2 * FAR))
    assert len(world.reader._links[PEER]._view.mapped) == 3 * 8, "more than the true region is mapped"
    assert "another descriptor says that it has 65536 bytes" in caplog.text
    assert world.read(FAR).cause is FailureCause.REMOTE_FAULT
    assert world.read(2 * FAR).state is OutcomeState.DONE
