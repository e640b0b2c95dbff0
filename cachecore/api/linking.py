"""Linking to peers."""

from __future__ import annotations

from cachecore import _arguments as arguments
from cachecore.api.base import DEFAULT_TIMEOUT, ManagerParts
from cachecore.peer import Peer
from cachecore.peers import Security

__all__ = ["LinkingMethods"]


class LinkingMethods(ManagerParts):
    """`link` and `unlink`."""

    def link(
        self,
        cluster_id: int | None,
        address: str,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        security: Security | None = None,
    ) -> Peer:
        """Link to a listening peer, so that its remotely accessible caches can be pulled from.

        Args:
            cluster_id: The peer's id; None accepts the one it declares.
            address: Its "host:port".
            timeout: Seconds for the whole handshake.
            security: Keys for this link, instead of the manager's.

        Raises:
            AlreadyLinkedError: There is a live link to this cluster id. A link that was lost is replaced.
            AuthenticationError: No common keys.
            LinkFailedError: The peer does not answer, is another cluster, or no engine reaches it.
        """
        self._enter()
        if cluster_id is not None:
            cluster_id = arguments.integer("cluster_id", cluster_id, 0, 2**64 - 1)
        arguments.instance("address", address, str)
        if security is not None:
            arguments.instance("security", security, Security)
        deadline = arguments.deadline("timeout", timeout)
        return Peer(self._peers.link(cluster_id, address, deadline=deadline, security=security))

    def unlink(self, cluster_id: int, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """End a link, after the transfers that run on it.

        Raises:
            NotLinkedError: There is no link to this cluster id.
            CacheBusyError: A transfer still runs at the deadline; the call can be repeated.
        """
        self._enter()
        number = arguments.integer("cluster_id", cluster_id, 0, 2**64 - 1)
        self._peers.unlink(number, deadline=arguments.deadline("timeout", timeout))
