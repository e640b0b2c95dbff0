"""What strangers can do to a listener, and what holders of a key can do to each other: nothing."""

import os
import socket
import time

import pytest
import zmq
import zmq.auth

from cachecore.peers.messages import MAX_READER_FRAME, Hello, IdentityRecord, encode


def until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def pair():
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


@pytest.fixture
def dealer():
    """Makes raw sockets of a stranger or of somebody who holds the key."""
    context = zmq.Context()
    made = []

    def make(address, key_dir=None, curve=None):
        raw = context.socket(zmq.DEALER)
        raw.linger, raw.sndtimeo, raw.rcvtimeo = 0, 10_000, 10_000
        if key_dir is not None:
            public, secret = zmq.auth.load_certificate(key_dir / "loopback.key")
            raw.curve_serverkey = raw.curve_publickey = public
            raw.curve_secretkey = secret
        if curve is not None:
            raw.curve_publickey, raw.curve_secretkey, raw.curve_serverkey = (key.encode() for key in curve)
        raw.connect(f"tcp://{address}")
        made.append(raw)
        return raw

    yield make
    context.destroy(linger=0)


def test_a_user_with_other_keys_is_turned_away_and_told_why(linked, spawn, tmp_path):
    pair = linked()
    stranger = spawn(3, environment={"CACHECORE_KEY_DIR": str(tmp_path / "others")})
    with pytest.raises(Exception, match=r"AuthenticationError: .*others/loopback\.key.*same key file"):
        stranger.ask("link", 1, pair.owner.address)
    assert pair.reader.ask("lookup", 1, 1) == 1


def test_a_key_that_knows_the_server_is_still_denied_when_it_is_not_the_users(linked, dealer, key_dir):
    link = linked()
    server, _ = zmq.auth.load_certificate(key_dir / "loopback.key")
    raw = dealer(link.owner.address, curve=(*pair(), server.decode()))
    raw.send(b"let me in")
    until(lambda: link.owner.ask("counters")["strangers_denied"] >= 1)
    assert link.owner.ask("counters")["malformed_messages"] == 0
    assert link.reader.ask("lookup", 1, 1) == 1


def test_explicit_keys_admit_those_they_name(spawn):
    server, friend, stranger = pair(), pair(), pair()
    keys = {"public_key": server[0], "secret_key": server[1], "allowed_keys": [friend[0]]}
    owner = spawn(1, listen="127.0.0.1:0", security=keys)
    for number, mine, expected in ((2, friend, None), (3, stranger, "AuthenticationError: .*does not admit this key")):
        reader = spawn(number, security={"public_key": mine[0], "secret_key": mine[1], "server_key": server[0]})
        if expected:
            with pytest.raises(Exception, match=expected):
                reader.ask("link", 1, owner.address)
        else:
            assert reader.ask("link", 1, owner.address)["cluster"] == 1
    misled = spawn(4, security={"public_key": friend[0], "secret_key": friend[1], "server_key": stranger[0]})
    with pytest.raises(Exception, match=r"AuthenticationError: .*either it has another key than this side expects"):
        misled.ask("link", 1, owner.address)


def test_leaving_the_machine_needs_keys_before_anything_is_sent(spawn):
    process = spawn(2)
    with pytest.raises(Exception, match=r"AuthenticationError: address is '192\.0\.2\.1:5'.*security="):
        process.ask("link", 1, "192.0.2.1:5")
    with pytest.raises(Exception, match=r"AuthenticationError: listen is '0\.0\.0\.0:0'"):
        spawn(3, listen="0.0.0.0:0")


def test_insecure_links_work_warn_and_do_not_mix_with_secure_ones(spawn):
    with pytest.raises(Exception, match=r"InsecureLinkWarning: .*without encryption"):
        spawn(1, listen="127.0.0.1:0", insecure=True)  # the process makes errors of warnings
    plain = spawn(1, listen="0.0.0.0:0", insecure=True, warnings="ignore")
    address = f"127.0.0.1:{plain.address.rpartition(':')[2]}"
    assert spawn(2, insecure=True, warnings="ignore").ask("link", 1, address)["cluster"] == 1
    with pytest.raises(
        Exception, match=r"AuthenticationError: .*(one side uses keys and the other does|this side expects .* or none)"
    ):
        spawn(3).ask("link", 1, address)
    secure = spawn(4, listen="127.0.0.1:0")
    with pytest.raises(Exception, match=r"AuthenticationError: .*this side uses insecure=True"):
        spawn(5, insecure=True, warnings="ignore").ask("link", 4, secure.address)


def test_one_endless_message_of_a_stranger_does_not_grow_the_process(linked, dealer):
    link = linked()
    before = resident_bytes(link.owner.pid)
    raw = dealer(link.owner.address)
    try:
        for _ in range(64):
            raw.send(bytes(1 << 20), zmq.SNDMORE | zmq.NOBLOCK)
    except zmq.Again:
        pass
    time.sleep(0.5)
    assert resident_bytes(link.owner.pid) - before < 32 << 20
    assert link.reader.ask("lookup", 1, 1) == 1


@pytest.mark.parametrize(
    "parts",
    [
        [b"rubbish"],
        [b""],
        [b"x"] * 50,
        [b"CCL\x01" + b"\x91" * 50_000],
        [bytes(2 * MAX_READER_FRAME)],
    ],
)
def test_a_holder_of_the_key_who_misbehaves_hurts_only_himself(linked, dealer, key_dir, parts):
    link = linked()
    raw = dealer(link.owner.address, key_dir)
    identity = IdentityRecord(66, "hostile", 1, "c" * 32)
    raw.send(encode(Hello(identity, "f" * 32, ())))
    assert b"welcome" in raw.recv()
    until(lambda: len(link.owner.ask("sessions")) == 2)
    raw.send_multipart(parts)
    until(lambda: link.owner.ask("sessions") == [[2, "LINKED", "fake/1"]])
    for _ in range(200):
        raw.send(b"and again")
    assert link.reader.ask("lookup", 1, 1) == 1
    link.owner.ask("publish", 3)
    assert link.reader.ask("lookup", 1, 3) == 3
    assert link.reader.ask("state", 1)["state"] == "LINKED"


def test_a_taken_over_routing_id_does_not_take_over_the_session(linked, dealer, key_dir):
    link = linked()
    link.reader.ask("begin", 1, 1)
    raw = dealer(link.owner.address, key_dir)
    from cachecore.peers.messages import Goodbye, Retired

    raw.send(encode(Retired("a" * 32, (1,))))
    raw.send(encode(Goodbye("a" * 32)))
    assert b"gone" in raw.recv()
    with pytest.raises(Exception, match="CacheBusyError"):
        link.owner.ask("retire", 1, seconds=0.3)


@pytest.fixture
def crowd():
    """Opens idle connections and keeps them."""
    opened = []

    def make(address, count):
        host, _, port = address.rpartition(":")
        for _ in range(count):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex((host, int(port)))
            opened.append(one)

    yield make
    for one in opened:
        one.close()


def test_idle_strangers_cannot_use_up_what_a_link_needs(linked, spawn, crowd):
    link = linked()
    other = spawn(5, listen="127.0.0.1:0")
    link.owner.ask("limit_files", 40)
    crowd(link.owner.address, 100)
    until(lambda: link.owner.ask("counters")["listener_pauses"] >= 1)
    # A link of the owner's own, at the worst moment:
    assert link.owner.ask("link", 5, other.address, seconds=5.0)["seconds"] < 5
    # Links that exist do not notice; newcomers get their turn when the strangers are dropped.
    assert link.reader.ask("lookup", 1, 1) == 1
    newcomer = spawn(6)
    assert newcomer.ask("link", 1, link.owner.address, seconds=40.0)["cluster"] == 1
    assert link.reader.ask("state", 1)["state"] == "LINKED"


def test_too_few_descriptors_to_start_are_an_error_and_not_the_end_of_the_process(spawn):
    process = spawn()
    for spare in range(2, 32, 3):
        assert "raise the limit of open files" in process.ask("start_with", spare)
    assert process.ask("start_with", 60) is None


def test_the_number_of_strangers_let_in_is_bounded(linked, crowd):
    link = linked()
    before = len(os.listdir(f"/proc/{link.owner.pid}/fd"))
    crowd(link.owner.address, 400)
    until(lambda: link.owner.ask("counters")["listener_pauses"] >= 1)
    assert len(os.listdir(f"/proc/{link.owner.pid}/fd")) - before < 250
    assert link.reader.ask("lookup", 1, 1) == 1
