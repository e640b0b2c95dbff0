"""One side of the local engine against descriptors that a test has made, within one process."""

import time

import msgspec
import pytest

from cachecore.engine import Operation, PeerIdentity, Region, RemoteRegion
from cachecore.host.driver import HostDriver
from cachecore.host.engine import LocalEngine
from cachecore.host.sharing import SharedRange
from cachecore.outcome import FailureCause, OutcomeState
from cachecore.testing.harness import plan_bytes
from cachecore.types import Placement

SIZE = 65536
#: Where nothing is, so that what comes from there can only have come through a mapping.
FAR = 1 << 40
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

    def read(self, base=FAR, seconds=20.0):
        plan = plan_bytes(self.local.address, base, 8)
        return self.reader.transfer(PEER, plan, Operation.READ, time.monotonic() + seconds)

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


def test_a_region_behind_the_end_of_its_block_is_not_mapped(world, caplog):
    """Of two descriptors that disagree about the size of their block only one can be true."""
    world.connect(world.region(FAR, offset=1 << 32, block_bytes=1 << 33), world.region(2 * FAR))
    assert len(world.reader._links[PEER]._view.mapped) == 3 * 8, "more than the true region is mapped"
    assert "another descriptor says that it has 65536 bytes" in caplog.text
    assert world.read(FAR).cause is FailureCause.REMOTE_FAULT
    assert world.read(2 * FAR).state is OutcomeState.DONE
