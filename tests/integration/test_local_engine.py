"""The local engine where it differs from others: who may read whom, mapped memory, and who is alive."""

import contextlib
import mmap
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cachecore.engine import Operation, Region
from cachecore.errors import CacheTypeError, CacheValueError, LinkFailedError
from cachecore.host.engine import LocalEngine, create_engine
from cachecore.host.identity import decode_endpoint
from cachecore.host.plugin import DRIVER
from cachecore.host.sharing import SharedRange, fetch
from cachecore.outcome import FailureCause, OutcomeState
from cachecore.planning import Geometry, plan_blocks
from cachecore.testing.harness import plan_bytes
from cachecore.testing.side import EngineSide, PeerProcess, SideSpec
from cachecore.types import Placement

PAGE = mmap.PAGESIZE
SPEC = SideSpec("cachecore.host.plugin:DRIVER", "cachecore.host.plugin:ENGINE")
#: A process that the kernel lets nobody inspect but administrators: prctl(PR_SET_DUMPABLE, 0).
FORBID = "import ctypes; assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0"
#: CAP_SYS_PTRACE. Administrators read everything; the same tests run without it from test_unprivileged.py.
ADMINISTRATOR = bool(int(Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0], 16) & 1 << 19)
needs_restriction = pytest.mark.skipif(ADMINISTRATOR, reason="this process may read every other (CAP_SYS_PTRACE)")


def soon():
    return time.monotonic() + 30.0


@pytest.fixture
def side():
    with contextlib.closing(EngineSide(SPEC, 2)) as made:
        yield made


@pytest.fixture
def peers():
    """Starts peer processes and ends them."""
    with contextlib.ExitStack() as stack:
        yield lambda spec=SPEC, **more: stack.enter_context(PeerProcess(spec, 1, **more))


@pytest.fixture(scope="module")
def one_peer():
    with PeerProcess(SPEC, 1) as made:
        yield made


@pytest.fixture
def peer(one_peer):
    """A peer process that the tests share; none of them ends it."""
    yield one_peer
    one_peer.call("reset")


def shared(peer, nbytes=3 * PAGE, content=b"shared"):
    """A region of memory that the peer's driver allocated."""
    address = peer.allocate(nbytes)
    peer.write(address, content)
    return peer.register([(address, nbytes)])[0]


def foreign(peer, nbytes=3 * PAGE, content=b"foreign"):
    """A region of memory of the peer's caller."""
    address = peer.call("memory.map", nbytes)
    peer.write(address, content)
    return peer.register([(address, nbytes)])[0]


def pull(side, peer, region, nbytes, cancel=None):
    """Read the start of a region; returns what came and the outcome."""
    local = side.memory.map(PAGE)
    plan = plan_bytes(local, region.base, nbytes)
    outcome = side.engine.transfer(peer.identity, plan, Operation.READ, soon(), cancel)
    return side.memory.read(local, nbytes), outcome


def mapped_files():
    return sum("memfd:cachecore" in line for line in Path("/proc/self/maps").read_text().splitlines())


# --- where the kernel forbids to read ------------------------------------------------------------------------------


@needs_restriction
def test_shared_memory_moves_where_reading_is_forbidden(side, peers):
    """Both ways, also when it is registered after the link."""
    peer = peers(setup=FORBID)
    first = shared(peer, content=b"before")
    side.engine.connect(peer.identity, peer.endpoint, [first], soon())
    later = shared(peer, content=b"after!")
    side.engine.update(peer.identity, [later], [])
    for region, content in ((first, b"before"), (later, b"after!")):
        found, outcome = pull(side, peer, region, 6)
        assert (found, outcome.state) == (content, OutcomeState.DONE)
    local = side.allocate(PAGE)
    side.memory.write(local, b"pushed")
    plan = plan_bytes(local, first.base, 6)
    assert side.engine.transfer(peer.identity, plan, Operation.WRITE, soon()).state is OutcomeState.DONE
    assert peer.read(first.base, 6) == b"pushed"


@needs_restriction
def test_a_link_where_reading_is_forbidden_says_what_to_change(side, peers):
    """Every check of the kernel is named, and the option that the owner has."""
    peer = peers(setup=FORBID)
    with pytest.raises(LinkFailedError) as caught:
        side.engine.connect(peer.identity, peer.endpoint, [shared(peer), foreign(peer)], soon())
    for word in ("ptrace_scope", "user ids", "seccomp", "PR_SET_DUMPABLE", "local.allow_reader", str(peer.pid)):
        assert word in str(caught.value)
    assert side.engine.peer_alive(peer.identity) is None, "the link was made all the same"


@needs_restriction
def test_foreign_memory_that_comes_later_is_refused_and_the_rest_still_moves(side, peers):
    peer = peers(setup=FORBID)
    good, bad = shared(peer), foreign(peer)
    side.engine.connect(peer.identity, peer.endpoint, [good], soon())
    side.engine.update(peer.identity, [bad], [])
    found, outcome = pull(side, peer, bad, 7)
    assert (outcome.state, outcome.cause, found) == (OutcomeState.FAILED, FailureCause.NOT_PERMITTED, bytes(7))
    assert "ptrace_scope" in outcome.message
    assert pull(side, peer, good, 6)[0] == b"shared"


@needs_restriction
def test_a_peer_that_cannot_be_read_proves_itself_without_memory(side, peers):
    """A side that offers nothing yet is linked too, and its end is seen."""
    peer = peers(setup=FORBID)
    side.engine.connect(peer.identity, peer.endpoint, [], soon())
    assert side.engine.peer_alive(peer.identity) is True
    peer.kill(reap=False)
    assert side.engine.peer_alive(peer.identity) is False


# --- mapped memory -------------------------------------------------------------------------------------------------


def test_mappings_come_once_and_go_with_the_last_region(peer, side):
    """Two regions of one block are one mapping; nothing is left after the link."""
    block = peer.allocate(8 * PAGE)
    regions = peer.register([(block, 4 * PAGE), (block + 4 * PAGE, 4 * PAGE)])
    other = shared(peer)
    before = mapped_files()
    side.engine.connect(peer.identity, peer.endpoint, [regions[0]], soon())
    side.engine.update(peer.identity, [regions[1], other], [])
    assert mapped_files() == before + 2
    side.engine.update(peer.identity, [], [regions[0]])
    assert mapped_files() == before + 2
    side.engine.update(peer.identity, [], [regions[1]])
    assert mapped_files() == before + 1
    assert pull(side, peer, other, 6)[0] == b"shared"
    assert side.engine.disconnect(peer.identity, soon())
    assert mapped_files() == before


def test_more_blocks_than_one_message_carries(peer, side):
    """A model's cache is one block a tensor; descriptors are not kept."""
    blocks = [peer.allocate(PAGE) for _ in range(150)]
    for number, block in enumerate(blocks):
        peer.write(block, number.to_bytes(8, "little"))
    before = mapped_files(), len(os.listdir("/proc/self/fd"))
    regions = peer.register([(block, PAGE) for block in blocks])
    side.engine.connect(peer.identity, peer.endpoint, regions, soon())
    assert mapped_files() == before[0] + len(blocks)
    assert len(os.listdir("/proc/self/fd")) == before[1] + 1, "more than the pidfd was kept"
    local = side.memory.map(8 * len(blocks))
    plan = plan_blocks(
        Geometry([local + 8 * i for i in range(len(blocks))], blocks=1, block_bytes=8),
        Geometry(blocks, blocks=1, block_bytes=8),
        [0],
        [0],
    )
    assert side.engine.transfer(peer.identity, plan, Operation.READ, soon()).state is OutcomeState.DONE
    assert side.memory.read(local, 8 * len(blocks)) == b"".join(i.to_bytes(8, "little") for i in range(len(blocks)))


def test_a_running_transfer_keeps_its_mapping(peer, side):
    """A region that is taken out meanwhile is unmapped when the transfer has ended, not under it."""
    region = shared(peer)
    side.engine.connect(peer.identity, peer.endpoint, [region], soon())
    link, before = side.engine._links[peer.identity], mapped_files()
    number, view = link.begin(plan_bytes(side.memory.map(PAGE), region.base, 1))
    side.engine.update(peer.identity, [], [region])
    assert mapped_files() == before
    link.end(number)
    del view
    assert mapped_files() == before - 1


def test_a_bad_local_address_is_an_outcome_with_mapped_memory_too(peer, side):
    """The caller's addresses are checked by the kernel, whichever way the peer's memory is reached."""
    remote = peer.allocate(4 * PAGE)
    peer.call("fill", remote, 4 * PAGE, 1)
    side.engine.connect(peer.identity, peer.endpoint, peer.register([(remote, 4 * PAGE)]), soon())
    local = side.memory.map(4 * PAGE)
    side.memory.hide(local + 2 * PAGE, PAGE)
    for op, destination in ((Operation.READ, "local"), (Operation.WRITE, "remote")):
        here, there = (Geometry([base], blocks=4, block_bytes=PAGE) for base in (local, remote))
        plan = plan_blocks(here, there, [0, 2, 1, 3], [0, 2, 1, 3], destination=destination)
        outcome = side.engine.transfer(peer.identity, plan, op, soon())
        assert (outcome.state, outcome.cause) == (OutcomeState.FAILED, FailureCause.LOCAL_FAULT)
        assert (outcome.landed, outcome.untouched) == (((0, 1),), ((1, 4),))
        assert f"{local + 2 * PAGE:#x} on this side" in outcome.message


def test_one_plan_over_mapped_and_other_memory(peer, side):
    """Tensors of both kinds in one transfer."""
    regions = [shared(peer, PAGE, b"s" * PAGE), foreign(peer, PAGE, b"f" * PAGE)]
    side.engine.connect(peer.identity, peer.endpoint, regions, soon())
    local = side.memory.map(2 * PAGE)
    plan = plan_blocks(
        Geometry([local, local + PAGE], blocks=1, block_bytes=PAGE),
        Geometry([region.base for region in regions], blocks=1, block_bytes=PAGE),
        [0],
        [0],
    )
    assert side.engine.transfer(peer.identity, plan, Operation.READ, soon()).state is OutcomeState.DONE
    assert side.memory.read(local, 2 * PAGE) == b"s" * PAGE + b"f" * PAGE


@pytest.mark.parametrize("wrong", ["garbage", "beyond the block", "beyond the file", "another block"])
def test_a_descriptor_that_lies_is_not_followed(peer, side, wrong):
    """Nothing is mapped, the true bytes still come by a system call."""
    region = shared(peer)
    true = msgspec.msgpack.decode(region.descriptor, type=SharedRange)
    lies = {
        "beyond the block": SharedRange(true.block, 1, true.block_bytes),
        "beyond the file": SharedRange(true.block, 0, 1 << 40),
        "another block": SharedRange(999, 0, true.block_bytes),
    }
    descriptor = msgspec.msgpack.encode(lies[wrong]) if wrong in lies else b"\xff garbage"
    before = mapped_files()
    side.engine.connect(peer.identity, peer.endpoint, [replace(region, descriptor=descriptor)], soon())
    assert mapped_files() == before
    assert pull(side, peer, region, 6)[0] == b"shared"


# --- who gets memory files -----------------------------------------------------------------------------------------


def test_memory_that_is_not_registered_any_more_is_not_handed_out(peer):
    region = shared(peer)
    block = msgspec.msgpack.decode(region.descriptor, type=SharedRange).block
    files = fetch(decode_endpoint(peer.endpoint), [block], soon())
    assert list(files) == [block]
    os.close(files[block])
    peer.call("deregister", region.base)
    assert fetch(decode_endpoint(peer.endpoint), [block], soon()) == {}


def test_who_does_not_know_the_nonce_gets_nothing(peer):
    region = shared(peer)
    block = msgspec.msgpack.decode(region.descriptor, type=SharedRange).block
    endpoint = decode_endpoint(peer.endpoint)
    stranger = msgspec.structs.replace(endpoint, nonce=bytes(16))
    with pytest.raises(LinkFailedError, match="closed the connection"):
        fetch(stranger, [block], soon())
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(30.0)
        connection.connect(b"\0" + endpoint.socket)
        connection.send(b"\xff" * 100)
        assert connection.recv(100) == b""
    os.close(fetch(endpoint, [block], soon())[block])


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_another_user_gets_nothing(peer):
    """Not even with the right nonce."""
    endpoint = decode_endpoint(peer.endpoint)
    request = msgspec.msgpack.encode([endpoint.nonce, []])
    program = f"""
import os, socket
os.setuid(65534)
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.settimeout(30.0)
connection.connect(b"\\0" + {endpoint.socket!r})
try:
    connection.send({request!r})
    assert connection.recv(100) == b""
except (BrokenPipeError, ConnectionResetError):
    pass  # it may have hung up before it read anything
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd="/")
    assert fetch(endpoint, [], soon()) == {}


def test_a_fork_of_the_owner_answers_for_nobody():
    """The child has neither the parent's engine nor its socket, and leaves both to the parent."""
    program = f"""
import os, time
from cachecore.errors import ForkedProcessError, LinkFailedError
from cachecore.host.identity import decode_endpoint
from cachecore.host.sharing import fetch
from cachecore.testing.side import EngineSide, SideSpec
import cachecore.host.sharing as sharing

side = EngineSide({SPEC!r}, 1)
endpoint = side.engine.endpoint()
child = os.fork()
if child == 0:
    code = 0
    assert all(server._socket.fileno() < 0 for server in sharing._servers)
    for call in (side.engine.endpoint, lambda: side.engine.register([])):
        try:
            call()
        except ForkedProcessError:
            code += 1
    assert side.engine.close(0.0) == []
    os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
assert fetch(decode_endpoint(endpoint), [], time.monotonic() + 30.0) == {{}}
other = EngineSide({SPEC!r}, 2)
other.engine.connect(side.identity, endpoint, [], time.monotonic() + 30.0)
other.close()
side.close()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd="/")


# --- who is alive --------------------------------------------------------------------------------------------------


def test_death_is_proven_and_never_guessed(side, peers):
    """For a peer that is connected, one that is watched, and one that nobody knows."""
    connected, watched, stranger = peers(), peers(), peers()
    side.engine.connect(connected.identity, connected.endpoint, [], soon())
    side.engine.watch(watched.identity, watched.endpoint)
    alive = [side.engine.peer_alive(peer.identity) for peer in (connected, watched, stranger)]
    assert alive == [True, True, None]
    connected.stop()
    assert side.engine.peer_alive(connected.identity) is True, "a stopped process is not dead"
    for peer in (connected, watched, stranger):
        peer.kill(reap=False)
    alive = [side.engine.peer_alive(peer.identity) for peer in (connected, watched, stranger)]
    assert alive == [False, False, None]
    side.engine.unwatch(watched.identity)
    assert side.engine.peer_alive(watched.identity) is None
    with pytest.raises(LinkFailedError):
        side.engine.watch(stranger.identity, stranger.endpoint)


def test_the_nonce_and_not_the_process_id_is_the_proof(side, peers):
    """An endpoint with the id of another living process is refused."""
    peer, other = peers(), peers()
    forged = msgspec.structs.replace(decode_endpoint(peer.endpoint), pid=other.pid)
    for use in (
        lambda: side.engine.connect(peer.identity, msgspec.msgpack.encode(forged), [], soon()),
        lambda: side.engine.watch(peer.identity, msgspec.msgpack.encode(forged)),
    ):
        with pytest.raises(LinkFailedError, match=f"process {other.pid} is not a process of this machine that made"):
            use()
    elsewhere = msgspec.structs.replace(decode_endpoint(peer.endpoint), boot="another boot of another machine")
    with pytest.raises(LinkFailedError, match="another machine"):
        side.engine.connect(peer.identity, msgspec.msgpack.encode(elsewhere), [], soon())


def test_a_closed_engine_is_not_read_any_more(side, peers):
    """close() takes the nonce away, so that a reader who was not told learns it from its next transfer."""
    peer = peers()
    region = foreign(peer)
    side.engine.connect(peer.identity, peer.endpoint, [region], soon())
    assert pull(side, peer, region, 7)[0] == b"foreign"
    peer.call("engine.close", soon())
    _, outcome = pull(side, peer, region, 7)
    assert (outcome.state, outcome.cause) == (OutcomeState.FAILED, FailureCause.PEER_GONE)
    assert "has closed its engine" in outcome.message


# --- end and options -----------------------------------------------------------------------------------------------


def test_close_names_memory_that_is_still_written(peer, side):
    """Until the transfer has ended; the call can be repeated."""
    region = shared(peer)
    side.engine.connect(peer.identity, peer.endpoint, [region], soon())
    link, local = side.engine._links[peer.identity], side.memory.map(PAGE)
    number, _ = link.begin(plan_bytes(local + 100, region.base, 50))
    assert [(left.base, left.nbytes) for left in side.engine.close(time.monotonic())] == [(local + 100, 50)]
    link.end(number)
    assert side.engine.close(time.monotonic()) == []


def test_it_moves_only_host_memory_of_other_drivers(side):
    """What the processor must not touch is refused before it is registered."""

    class Accelerator:
        name = "accelerator"

    engine, address = LocalEngine(Accelerator()), side.memory.map(PAGE)
    try:
        assert engine.capabilities().placement_pairs.value == {(Placement.HOST, Placement.HOST)}
        with pytest.raises(RuntimeError, match="DEVICE memory"):
            engine.register([Region(address, PAGE, Placement.DEVICE)])
        (made,) = engine.register([Region(address, PAGE, Placement.HOST)])
        assert made.descriptor == b""
        engine.deregister(made)
    finally:
        engine.close(soon())


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"allow_reader": "all"}, CacheTypeError),
        ({"allow_reader": 0}, CacheValueError),
        ({"allow_reader": True}, CacheTypeError),
        ({"threads": 65}, CacheValueError),
    ],
)
def test_options_out_of_range_are_named(options, error):
    driver = DRIVER.factory(None, {})
    with pytest.raises(error, match=f"local.{next(iter(options))}"):
        create_engine(driver, options)


@pytest.mark.parametrize("reader", ["any", os.getpid()], ids=["any", "this process"])
def test_a_reader_that_was_named_may_read(peers, side, reader):
    """The option is taken by every kernel, with or without the module that restricts reading."""
    peer = peers(replace(SPEC, engine_options={"allow_reader": reader}))
    region = foreign(peer)
    side.engine.connect(peer.identity, peer.endpoint, [region], soon())
    assert pull(side, peer, region, 7)[0] == b"foreign"
