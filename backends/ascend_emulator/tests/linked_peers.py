"""Two peers of tests/peer.py with a link between them."""

from emulated_acl import MIB


def connected(peers, endpoint, soc="Ascend910B4", nbytes=4 * MIB, **variables):
    """A server with memory full of content 1, a client with empty memory, and a link from the client to the server."""
    server, client = peers(soc, **variables), peers(soc)
    assert server.ask("start", endpoint) == client.ask("start", "127.0.0.1") == 0
    remote, local = server.ask("malloc", nbytes), client.ask("malloc", nbytes)
    server.ask("fill", remote, nbytes, 1)
    for peer, address in ((server, remote), (client, local)):
        assert peer.ask("register", address, nbytes)[0] == 0
    assert client.ask("connect", endpoint) == 0
    return server, client, remote, local
