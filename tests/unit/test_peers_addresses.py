import socket
import time

import pytest

from cachecore.errors import CacheTimeoutError, CacheTypeError, CacheValueError, LinkFailedError, MissingArgumentError
from cachecore.peers import addresses
from cachecore.peers.addresses import resolve


def soon():
    return time.monotonic() + 10.0


@pytest.mark.parametrize(
    ("text", "shown", "loopback"),
    [
        ("127.0.0.1:26000", "127.0.0.1:26000", True),
        ("127.8.9.1:1", "127.8.9.1:1", True),
        ("[::1]:26000", "[::1]:26000", True),
        ("[::ffff:127.0.0.1]:5", "[::ffff:127.0.0.1]:5", True),
        ("0.0.0.0:26000", "0.0.0.0:26000", False),
        ("[::]:26000", "[::]:26000", False),
        ("10.0.0.7:65535", "10.0.0.7:65535", False),
    ],
)
def test_numeric_addresses_are_taken_as_they_are(text, shown, loopback):
    (address,) = resolve("address", text, soon(), lowest_port=1)
    assert (str(address), address.is_loopback) == (shown, loopback)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        ":26000",
        "host:",
        "host:x",
        "host:70000",
        "host:-1",
        "host:0",
        "::1:26000",
        "[1.2.3.4]:5",
        "*:5",
        "a b:5",
        "tcp://10.0.0.7:26000",
    ],
)
def test_text_that_is_no_address_is_refused_with_an_example(text):
    with pytest.raises(CacheValueError, match=r"address is .*write \"host:port\""):
        resolve("address", text, soon(), lowest_port=1)


def test_port_zero_is_for_listening_only():
    assert resolve("listen", "127.0.0.1:0", soon(), lowest_port=0)[0].port == 0


def test_other_types_are_refused():
    with pytest.raises(CacheTypeError, match="address"):
        resolve("address", ("127.0.0.1", 5), soon(), lowest_port=1)
    with pytest.raises(MissingArgumentError, match="address"):
        resolve("address", None, soon(), lowest_port=1)


def test_a_name_resolves_to_every_address_it_has(monkeypatch):
    # A name may have a loopback and a network address; the keys are decided on all of them.
    def fake(host, port, *, type, flags=0):
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "not numeric")
        return [
            (socket.AF_INET, type, 6, "", ("127.0.1.1", port)),
            (socket.AF_INET, type, 6, "", ("192.0.2.4", port)),
            (socket.AF_INET, type, 6, "", ("192.0.2.4", port)),
        ]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", fake)
    found = resolve("address", "me:7", soon(), lowest_port=1)
    assert [(str(one), one.is_loopback) for one in found] == [("127.0.1.1:7", True), ("192.0.2.4:7", False)]


def test_an_unknown_name_says_so():
    with pytest.raises(LinkFailedError, match=r"no-such-host\.invalid"):
        resolve("address", "no-such-host.invalid:7", time.monotonic() + 60, lowest_port=1)


def test_a_resolver_that_hangs_does_not_outlive_the_deadline(monkeypatch):
    def fake(host, port, *, type, flags=0):
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "not numeric")
        time.sleep(2.0)
        return []

    monkeypatch.setattr(addresses.socket, "getaddrinfo", fake)
    with pytest.raises(CacheTimeoutError, match="slow"):
        resolve("address", "slow:7", time.monotonic() + 0.05, lowest_port=1)
