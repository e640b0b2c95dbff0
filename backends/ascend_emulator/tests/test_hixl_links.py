import signal

import pytest
from emulated_acl import ABI, MIB
from linked_peers import connected

STATUS = ABI["hixl"]
SOCS = ["Ascend910B4", "Ascend910_9392", "Ascend950PR_9599"]


@pytest.mark.parametrize("soc", SOCS)
def test_bytes_move_both_ways_between_devices_of_two_processes(peers, endpoint, soc):
    server, client, remote, local = connected(peers, endpoint, soc)
    assert client.ask("transfer", endpoint, "READ", [[local, remote, 4 * MIB]]) == 0
    assert client.ask("holds", local, 4 * MIB, 1)
    client.ask("fill", local, 4 * MIB, 2)
    pieces = [[local + MIB * index, remote + MIB * (3 - index), MIB] for index in range(4)]
    assert client.ask("transfer", endpoint, "WRITE", pieces) == 0
    assert (
        client.ask("transfer", endpoint, "READ", [[local + MIB * (3 - i), remote + MIB * i, MIB] for i in range(4)])
        == 0
    )
    assert client.ask("holds", local, 4 * MIB, 2)
    assert not server.ask("holds", remote, 4 * MIB, 2)  # the pieces went in reverse
    assert client.ask("disconnect", endpoint) == 0
    assert client.ask("disconnect", endpoint) == STATUS["NOT_CONNECTED"]


def test_a_transfer_needs_nothing_of_the_other_interpreter(peers, endpoint):
    server, client, remote, local = connected(peers, endpoint)
    server.ask("hold", 2)
    assert client.ask("transfer", endpoint, "READ", [[local, remote, 4 * MIB]], 1500) == 0
    assert client.ask("holds", local, 4 * MIB, 1)


def test_a_link_is_one_way(peers, endpoint):
    server, client, remote, local = connected(peers, endpoint)
    assert server.ask("transfer", "127.0.0.1:1", "READ", [[remote, local, MIB]]) == STATUS["NOT_CONNECTED"]
    # A client without a port has no address to connect to.
    assert server.ask("connect", "127.0.0.1") == STATUS["PARAM_INVALID"]
    assert client.ask("connect", endpoint) == STATUS["ALREADY_CONNECTED"]


def test_only_what_was_registered_at_connect_is_reachable(peers, endpoint):
    server, client, remote, local = connected(peers, endpoint)
    late_remote, late_local = server.ask("malloc", MIB), client.ask("malloc", MIB)
    server.ask("register", late_remote, MIB)
    client.ask("register", late_local, MIB)
    wrong = {
        "remote registered late": [local, late_remote, MIB],
        "local registered late": [late_local, remote, MIB],
        "remote past the end": [local, remote + 4 * MIB - 10, 11],
        "local past the end": [local + 4 * MIB - 10, remote, 11],
        "local before the start": [local - 1, remote, 10],
        "nothing": [local, remote, 0],
        "wraps around": [local, remote, 2**64 - 1],
    }
    for name, element in wrong.items():
        elements = [[local, remote, 64], element]
        assert client.ask("transfer", endpoint, "READ", elements) == STATUS["PARAM_INVALID"], name
    assert client.ask("transfer", endpoint, "READ", []) == STATUS["PARAM_INVALID"]
    # None of it broke the link or moved the sound element, and a new link reaches the new memory.
    assert not client.ask("holds", local, 64, 1)
    assert client.ask("transfer", endpoint, "READ", [[local, remote, MIB]]) == 0
    assert client.ask("disconnect", endpoint) == client.ask("connect", endpoint) == 0
    assert client.ask("transfer", endpoint, "READ", [[late_local, late_remote, MIB]]) == 0


def test_memory_cannot_be_deregistered_while_a_peer_is_connected(peers, endpoint):
    server, client = peers(), peers()
    server.ask("start", endpoint)
    client.ask("start", "127.0.0.1")
    handles = {}
    for peer in (server, client):
        address = peer.ask("malloc", MIB)
        handles[peer] = peer.ask("register", address, MIB)[1]
        assert peer.ask("register", address, MIB) == [0, handles[peer]]  # the same range, the same handle
        assert peer.ask("register", address + 10, MIB)[0] == STATUS["PARAM_INVALID"]
        assert peer.ask("register", address, MIB - 10)[0] == STATUS["PARAM_INVALID"]
    assert client.ask("connect", endpoint) == 0
    assert [peer.ask("deregister", handles[peer]) for peer in handles] == [STATUS["FAILED"]] * 2
    assert client.ask("disconnect", endpoint) == 0
    for peer, handle in handles.items():
        assert peer.ask("deregister", handle) == 0
        assert peer.ask("deregister", handle) == 0  # the manual: once more is no error
        assert peer.ask("deregister", 0) == STATUS["PARAM_INVALID"]


def test_a_peer_that_died_no_longer_holds_registrations(peers, endpoint):
    server, client, *_ = connected(peers, endpoint)
    client.signal(signal.SIGKILL)
    client.process.wait(10)
    for _ in range(200):
        if server.ask("deregister", 1) == 0:
            return
    pytest.fail("the owner still believes in its dead peer")


def test_kinds_of_memory_are_checked_at_registration(peers, endpoint):
    peer = peers()
    assert peer.ask("start", endpoint) == 0
    device, host = peer.ask("malloc", MIB), peer.ask("pinned", MIB)
    assert peer.ask("register", device, MIB, "MEM_HOST")[0] == STATUS["PARAM_INVALID"]
    assert peer.ask("register", host, MIB, "MEM_DEVICE")[0] == STATUS["PARAM_INVALID"]
    assert peer.ask("register", device, 8 * MIB)[0] == STATUS["PARAM_INVALID"]
    assert peer.ask("register", 0, MIB)[0] == STATUS["PARAM_INVALID"]
    assert peer.ask("register", device, 0)[0] == STATUS["PARAM_INVALID"]


def test_an_engine_takes_4096_registrations(peers, endpoint):
    peer = peers()
    peer.ask("start", endpoint)
    start = peer.ask("malloc", 4 * MIB)
    statuses = [peer.ask("register", start + 64 * index, 64)[0] for index in range(4097)]
    assert statuses == [0] * 4096 + [STATUS["RESOURCE_EXHAUSTED"]]


def test_more_than_50_gib_of_device_memory_is_refused_on_a2(peers, endpoint):
    peer = peers()
    peer.ask("start", endpoint)
    start = peer.ask("malloc", 51 << 30)
    assert peer.ask("register", start, (50 << 30) + 1)[0] == STATUS["RESOURCE_EXHAUSTED"]
    assert peer.ask("register", start, 50 << 30)[0] == 0


def test_nobody_listening_and_a_silent_peer_time_out(peers, endpoint):
    server, client = peers(CACHECORE_EMULATE_FAULTS="hixl_accept:1:stall"), peers()
    client.ask("start", "127.0.0.1")
    assert client.ask("connect", endpoint, 50) == STATUS["TIMEOUT"]
    assert server.ask("start", endpoint) == 0
    assert client.ask("connect", endpoint, 100) == STATUS["TIMEOUT"]
    assert client.ask("connect", endpoint) == 0
    assert client.ask("connect", "127.0.0.1:9", 0) == STATUS["PARAM_INVALID"]


def test_a_process_may_not_connect_to_itself(peers, endpoint):
    peer = peers()
    peer.ask("start", endpoint)
    assert peer.ask("connect", endpoint) == STATUS["PARAM_INVALID"]


def test_a_port_is_held_by_one_engine(peers, endpoint):
    first, second = peers(), peers()
    assert first.ask("start", endpoint) == 0
    assert first.ask("start", "127.0.0.1:1") == 0  # repeated: succeeds and changes nothing
    assert first.ask("describe") == f"<emulated Hixl {endpoint}>"
    assert second.ask("start", endpoint) == STATUS["FAILED"]
    first.ask("finalize")
    assert second.ask("start", endpoint) == 0
    assert first.ask("register", first.ask("malloc", MIB), MIB)[0] == STATUS["FAILED"]  # it is over


@pytest.mark.parametrize(
    "address", ["10.0.0.7:26000", "0.0.0.0:26000", "[::2]:26000", "::1", "localhost:1", "127.0.0.1:"]
)
def test_only_addresses_of_this_machine_are_taken(peers, address):
    peer = peers()
    assert peer.ask("start", address) == STATUS["PARAM_INVALID"]


def test_ipv6_and_a_port_of_zero(peers, endpoint):
    port = endpoint.rpartition(":")[2]
    server, client = peers(), peers()
    assert server.ask("start", f"[::1]:{port}") == 0
    assert client.ask("start", "[::1]:0") == 0
    assert client.ask("connect", f"[::1]:{port}") == 0


def test_asynchronous_transfers_tell_their_end_once(peers, endpoint):
    _, client, remote, local = connected(peers, endpoint)
    client.ask("faults", "hixl_transfer_async:2:delay=1")
    _, quick = client.ask("begin", endpoint, "READ", [[local, remote, MIB]])
    assert client.ask("end_state", quick) == [0, "COMPLETED"]
    assert client.ask("state", quick) == [STATUS["PARAM_INVALID"], "FAILED"]
    _, slow = client.ask("begin", endpoint, "READ", [[local, remote, 4 * MIB]])
    assert client.ask("state", slow) == [0, "WAITING"]
    assert client.ask("end_state", slow) == [0, "COMPLETED"]
    assert client.ask("holds", local, 4 * MIB, 1)
    # What the other side refuses is known later; the link goes on.
    _, refused = client.ask("begin", endpoint, "READ", [[local, remote + 4 * MIB, MIB]])
    assert client.ask("end_state", refused) == [0, "FAILED"]
    assert client.ask("transfer", endpoint, "READ", [[local, remote, MIB]]) == 0


def test_disconnecting_ends_every_transfer_of_the_link(peers, endpoint):
    _, client, remote, local = connected(peers, endpoint)
    client.ask("faults", "hixl_transfer_async:1:delay=600")
    requests = [client.ask("begin", endpoint, "READ", [[local, remote, MIB]])[1] for _ in range(3)]
    assert client.ask("disconnect", endpoint) == 0
    assert [client.ask("state", request) for request in requests] == [[STATUS["NOT_CONNECTED"], "FAILED"]] * 3
    assert not client.ask("holds", local, MIB, 1)


def test_notifications_arrive_in_order_and_are_limited_in_length(peers, endpoint):
    server, client, *_ = connected(peers, endpoint)
    assert client.ask("notify", endpoint, "ready", "block 7 äöü") == 0
    assert client.ask("notify", endpoint, "done", "") == 0
    assert client.ask("notify", endpoint, "ä" * 1024, "b" * 1024) == 0
    assert client.ask("notify", endpoint, "a" * 1025, "") == STATUS["PARAM_INVALID"]
    assert client.ask("notify", "127.0.0.1:1", "a", "b") == STATUS["NOT_CONNECTED"]
    assert server.ask("notifies") == [0, [["ready", "block 7 äöü"], ["done", ""], ["ä" * 1024, "b" * 1024]]]
    assert server.ask("notifies") == [0, []]
    assert client.ask("notifies") == [0, []]


def test_4096_notifications_of_a_link_wait_and_no_more(peers, endpoint):
    server, client, *_ = connected(peers, endpoint)
    assert client.ask("notify_many", endpoint, 4097) == [0] * 4096 + [STATUS["RESOURCE_EXHAUSTED"]]
    assert len(server.ask("notifies")[1]) == 4096
    assert client.ask("notify", endpoint, "again", "") == 0


def test_links_in_the_background(peers, endpoint):
    server, client = peers(), peers()
    server.ask("start", endpoint)
    client.ask("start", "127.0.0.1")
    assert client.ask("connect_later", endpoint) == [0, "CONNECTED"]
    assert client.ask("connect", endpoint) == STATUS["ALREADY_CONNECTED"]
    assert client.ask("connect_later", endpoint, "disconnect") == [0, "NOT_CONNECT"]
    assert client.ask("connect_later", "127.0.0.1:1", "connect", 10) == [0, "CONNECT_FAILED"]


def test_automatic_connection(peers, endpoint):
    server, client = peers(), peers()
    server.ask("start", endpoint)
    client.ask("start", "127.0.0.1", {"AutoConnect": "1"})
    remote, local = server.ask("malloc", MIB), client.ask("malloc", MIB)
    server.ask("fill", remote, MIB, 3)
    server.ask("register", remote, MIB)
    client.ask("register", local, MIB)
    assert client.ask("transfer", endpoint, "READ", [[local, remote, MIB]]) == 0
    assert client.ask("holds", local, MIB, 3)


def test_the_default_buffer_pool_relays_unregistered_memory_as_the_hosts(peers, endpoint):
    server, client = peers(), peers()
    assert (
        server.ask("start", endpoint, {"BufferPool": None})
        == client.ask("start", "127.0.0.1", {"BufferPool": None})
        == 0
    )
    local, device = client.ask("malloc", MIB), server.ask("malloc", MIB)
    client.ask("register", local, MIB)
    plain = server.ask("plain", MIB)
    server.ask("fill", plain, MIB, 4)
    assert client.ask("connect", endpoint) == 0
    # HCCS on the A2 reaches no host memory, relayed or not.
    assert client.ask("transfer", endpoint, "READ", [[local, plain, MIB]]) == STATUS["UNSUPPORTED"]
    assert client.ask("disconnect", endpoint) == 0
    server.ask("finalize"), client.ask("finalize")
    roce = {"BufferPool": None, "GlobalResourceConfig": '{"comm_resource_config.protocol_desc": "roce:device"}'}
    assert server.ask("start", endpoint, roce) == client.ask("start", "127.0.0.1", roce) == 0
    client.ask("register", local, MIB)
    assert client.ask("connect", endpoint) == 0
    assert client.ask("transfer", endpoint, "READ", [[local, plain, MIB]]) == 0
    assert client.ask("holds", local, MIB, 4)
    # Device memory that nobody registered is taken for the host's, where there is none.
    assert client.ask("transfer", endpoint, "READ", [[local, device, MIB]]) == STATUS["FAILED"]
