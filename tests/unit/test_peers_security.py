import pytest
import zmq
import zmq.auth

from cachecore.errors import AuthenticationError, CacheTypeError, CacheValueError
from cachecore.peers.addresses import ResolvedAddress
from cachecore.peers.security import InsecureLinkWarning, Keyring, Security

HERE = [ResolvedAddress("127.0.0.1", 5)]
BOTH = [ResolvedAddress("127.0.0.1", 5), ResolvedAddress("192.0.2.1", 5)]
NETWORK = [ResolvedAddress("0.0.0.0", 5)]


def pair():
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


@pytest.fixture(autouse=True)
def key_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("CACHECORE_KEY_DIR", str(tmp_path))


def test_loopback_uses_the_users_pair_on_both_sides_and_admits_nobody_else():
    server, client = Keyring(None, False).listening("a", HERE), Keyring(None, False).dialing("a", HERE)
    assert server.allowed == {client.public} and client.server == server.public
    assert server.secret not in repr(server)


@pytest.mark.parametrize("decide", [Keyring.listening, Keyring.dialing])
@pytest.mark.parametrize("addresses", [NETWORK, BOTH])
def test_any_address_outside_this_machine_needs_explicit_keys(decide, addresses):
    with pytest.raises(AuthenticationError, match=r"Security.*insecure=True"):
        decide(Keyring(None, False), "a", addresses)


def test_insecure_warns_every_time_and_uses_no_keys():
    plain, mine = Keyring(None, True), pair()
    for decide in (plain.listening, plain.dialing, plain.listening):
        with pytest.warns(InsecureLinkWarning, match="insecure=True|neither"):
            assert decide("a", NETWORK) is None
    with pytest.raises(CacheValueError, match="choose one"):
        Keyring(Security(*mine), True)
    # Explicit keys for one link are used all the same.
    assert plain.dialing("a", NETWORK, Security(*mine, server_key=mine[0])).server == mine[0]


def test_explicit_keys_must_say_whom_to_admit_and_whom_to_expect():
    mine, theirs = pair(), pair()
    with pytest.raises(AuthenticationError, match="allowed_keys is empty"):
        Keyring(Security(*mine, server_key=theirs[0]), False).listening("a", NETWORK)
    with pytest.raises(AuthenticationError, match="server_key is None"):
        Keyring(Security(*mine, allowed_keys={theirs[0]}), False).dialing("a", NETWORK)
    complete = Keyring(Security(*mine, server_key=theirs[0], allowed_keys={theirs[0]}), False)
    assert complete.listening("a", NETWORK).allowed == {theirs[0]}
    assert complete.dialing("a", HERE).server == theirs[0]


def test_a_security_of_unrelated_or_broken_keys_is_refused():
    mine, theirs = pair(), pair()
    with pytest.raises(CacheValueError, match="does not belong"):
        Security(mine[0], theirs[1])
    with pytest.raises(CacheValueError, match="server_key"):
        Security(*mine, server_key="short")
    with pytest.raises(CacheValueError, match="allowed_keys"):
        Security(*mine, allowed_keys={'"' * 40})
    with pytest.raises(CacheTypeError, match="allowed_keys"):
        Security(*mine, allowed_keys=theirs[0])
    with pytest.raises(CacheTypeError, match="secret_key"):
        Security(mine[0], 5)
    with pytest.raises(CacheValueError) as caught:
        Security(mine[0], mine[1][:-1])
    assert mine[1][:-1] not in str(caught.value)
    assert mine[1] not in repr(Security(*mine))


def test_keys_come_from_certificate_files(tmp_path):
    public_file, secret_file = zmq.auth.create_certificates(tmp_path, "server")
    with pytest.raises(AuthenticationError, match="mode is"):
        Security.from_files(secret_file)
    (tmp_path / "server.key_secret").chmod(0o600)
    security = Security.from_files(secret_file, server_key_file=public_file, allowed_key_files=[public_file])
    assert security.server_key == security.public_key and security.allowed_keys == {security.public_key}
    with pytest.raises(AuthenticationError, match=r"absent.*cannot be read"):
        Security.from_files(tmp_path / "absent")
