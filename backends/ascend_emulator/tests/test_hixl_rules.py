import pytest
from emulated_acl import ABI, HUGE, MIB, NORMAL

STATUS = ABI["hixl"]
HCCS, ROCE, ROCE_HOST = "hccs:device", "roce:device", "roce:host"
A2, A3, P950 = "Ascend910B1", "Ascend910_9362", "Ascend950DT_9582"


def _options(protocol):
    config = f'{{"comm_resource_config.protocol_desc": ["{protocol}"]}}'
    return {} if protocol is None else {"GlobalResourceConfig": config}


def _memory(peer, kind):
    """Address, bytes and type of memory of a kind."""
    if kind == "malloc":
        return peer.ask("malloc", 4 * MIB), MIB, "MEM_DEVICE"
    if kind == "small malloc":
        peer.ask("malloc", 100, "HUGE_FIRST")
        return peer.ask("malloc", 100, "HUGE_FIRST"), 100, "MEM_DEVICE"
    if kind == "slice":
        return peer.ask("malloc", 4 * MIB) + NORMAL, MIB, "MEM_DEVICE"
    if kind == "slice of ordinary pages":
        return peer.ask("malloc", 4 * MIB, "NORMAL_ONLY") + NORMAL, MIB, "MEM_DEVICE"
    if kind == "aligned slice":
        return peer.ask("malloc", 8 * MIB) + HUGE, MIB, "MEM_DEVICE"
    if kind == "mapped":
        return peer.ask("mapped", 3) + HUGE, 2 * HUGE, "MEM_DEVICE"
    if kind == "inside mapped":
        return peer.ask("mapped", 3) + HUGE + 512, HUGE, "MEM_DEVICE"
    return peer.ask(kind, MIB), MIB, "MEM_HOST"


ROWS = [
    # product, protocol, memory, whether the link is made
    (A2, HCCS, "malloc", True),
    (A2, HCCS, "small malloc", True),
    (A2, HCCS, "slice", False),
    (A2, HCCS, "slice of ordinary pages", True),
    (A2, HCCS, "aligned slice", True),
    (A2, HCCS, "mapped", True),
    (A2, HCCS, "inside mapped", False),
    (A3, HCCS, "slice", False),
    (A3, HCCS, "inside mapped", False),
    (A2, ROCE, "slice", True),
    (A3, ROCE, "inside mapped", True),
    (A2, ROCE, "plain", False),
    (A3, ROCE, "pinned", True),
    (P950, None, "slice", True),
    (P950, None, "inside mapped", True),
    (P950, None, "plain", True),
    (P950, ROCE_HOST, "plain", True),
    (P950, ROCE_HOST, "pinned", False),
    (P950, ROCE_HOST, "malloc", False),
]


@pytest.mark.parametrize("owner", ["connecting", "listening"])
def test_the_links_that_the_rules_of_the_products_allow(peers, endpoint, owner):
    for soc in dict.fromkeys(row[0] for row in ROWS):
        server, client = peers(soc), peers(soc)
        for _, protocol, kind, made in (row for row in ROWS if row[0] == soc):
            assert server.ask("start", endpoint, _options(protocol)) == 0
            assert client.ask("start", "127.0.0.1", _options(protocol)) == 0
            peer = client if owner == "connecting" else server
            assert peer.ask("register", *_memory(peer, kind))[0] == 0
            expected = 0 if made else STATUS["FAILED"]
            assert client.ask("connect", endpoint) == expected, (soc, protocol, kind)
            client.ask("finalize")
            server.ask("finalize")


@pytest.mark.parametrize(
    ("soc", "options", "local", "remote"),
    [
        # May host memory be the local, the remote side? Over HCCS: A2 neither, A3 the local one only.
        (A2, _options(HCCS), False, False),
        (A3, _options(HCCS), True, False),
        (A3, {"EnableUseFabricMem": "1", "BufferPool": None}, True, True),
        (A2, _options(ROCE), True, True),
        (P950, _options("ub_ctp:device"), True, True),
    ],
)
def test_which_side_may_be_host_memory(peers, endpoint, soc, options, local, remote):
    server, client = peers(soc), peers(soc)
    assert server.ask("start", endpoint, options) == client.ask("start", "127.0.0.1", options) == 0
    memory = {}
    for peer in (server, client):
        memory[peer] = peer.ask("malloc", MIB), peer.ask("pinned", MIB)
        assert peer.ask("register", memory[peer][0], MIB)[0] == 0
        assert peer.ask("register", memory[peer][1], MIB, "MEM_HOST")[0] == 0
        peer.ask("fill", memory[peer][1], MIB, 5)
    assert client.ask("connect", endpoint) == 0
    to_host = [[memory[client][1], memory[server][0], MIB]]
    from_host = [[memory[client][0], memory[server][1], MIB]]
    assert client.ask("transfer", endpoint, "READ", from_host) == (0 if remote else STATUS["UNSUPPORTED"])
    assert client.ask("holds", memory[client][0], MIB, 5) is remote
    assert client.ask("transfer", endpoint, "WRITE", to_host) == (0 if local else STATUS["UNSUPPORTED"])
    assert server.ask("holds", memory[server][0], MIB, 5) is local


def test_engines_without_a_common_protocol_do_not_link(peers, endpoint):
    server, client = peers(A2), peers(A2)
    assert server.ask("start", endpoint, _options(ROCE)) == client.ask("start", "127.0.0.1", _options(HCCS)) == 0
    assert client.ask("connect", endpoint) == STATUS["FAILED"]


def test_the_environment_may_choose_roce(peers, endpoint):
    server, client = (peers(A2, HCCL_INTRA_ROCE_ENABLE="1") for _ in range(2))
    assert server.ask("start", endpoint) == client.ask("start", "127.0.0.1") == 0
    assert client.ask("register", *_memory(client, "slice"))[0] == 0
    assert client.ask("connect", endpoint) == 0


OPTIONS = [
    (A2, {"BufferPool": "4:8"}, 0),
    (A2, {"BufferPool": "0:8"}, "PARAM_INVALID"),
    (A2, {"BufferPool": "many"}, "PARAM_INVALID"),
    (A2, {"LocalCommRes": ""}, 0),
    (A2, {"LocalCommRes": None}, 0),
    (A2, {"LocalCommRes": '{"version": "9"}'}, "PARAM_INVALID"),
    (A2, {"LocalCommRes": "{"}, "PARAM_INVALID"),
    (P950, {"LocalCommRes": ""}, "PARAM_INVALID"),
    (P950, {"LocalCommRes": None}, "PARAM_INVALID"),
    (P950, {"LocalCommRes": '{"version": "1.0"}'}, "PARAM_INVALID"),
    (P950, {"LocalCommRes": '{"version": "1.3", "endpoint_list": [{"protocol": "roce", "placement": "host"}]}'}, 0),
    (P950, {"LocalCommRes": '{"version": "1.3", "endpoint_list": [{"protocol": "x"}]}'}, "PARAM_INVALID"),
    (P950, _options(HCCS), "PARAM_INVALID"),
    (A2, _options("ub_ctp:device"), "PARAM_INVALID"),
    (A2, _options("carrier pigeon"), "PARAM_INVALID"),
    (A2, {"GlobalResourceConfig": '{"comm_resource_config.protocol_desc": ["hccs:device", "roce:device"]}'}, 0),
    (A2, {"GlobalResourceConfig": '{"comm_resource_config.listen_port": "26666"}'}, 0),
    (A2, {"GlobalResourceConfig": '{"comm_resource_config.listen_port": 0}'}, "PARAM_INVALID"),
    (A2, {"GlobalResourceConfig": '{"comm_resource_config.misspelt": 1}'}, "PARAM_INVALID"),
    (A2, {"GlobalResourceConfig": "[]"}, "PARAM_INVALID"),
    (A2, {"EnableUseFabricMem": "1", "BufferPool": None}, "UNSUPPORTED"),
    (A3, {"EnableUseFabricMem": "1", "BufferPool": None}, 0),
    (A3, {"EnableUseFabricMem": "1", "BufferPool": "0:0"}, "PARAM_INVALID"),
    (A3, {"EnableUseFabricMem": "yes", "BufferPool": None}, "PARAM_INVALID"),
    (A2, {"RdmaTrafficClass": "132", "RdmaServiceLevel": "7"}, 0),
    (A2, {"RdmaTrafficClass": "133"}, "PARAM_INVALID"),
    (A2, {"RdmaTrafficClass": "256"}, "PARAM_INVALID"),
    (A2, {"RdmaServiceLevel": "8"}, "PARAM_INVALID"),
    (A2, {"AutoConnect": "true"}, "PARAM_INVALID"),
    (A2, {"Misspelt": "1"}, "PARAM_INVALID"),
]


@pytest.mark.parametrize("soc", [A2, A3, P950])
def test_options_are_checked_as_documented(peers, soc):
    peer = peers(soc)
    for _, options, expected in (row for row in OPTIONS if row[0] == soc):
        status = peer.ask("start", "127.0.0.1", options)
        assert status == (STATUS[expected] if expected else 0), options
        peer.ask("finalize")
