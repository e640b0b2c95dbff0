"""What the vendor's API asks about memory that is registered with the hardware."""

from __future__ import annotations

from collections.abc import Sequence

from cachecore import _arguments as arguments
from cachecore.api.base import ManagerParts
from cachecore.errors import CacheValueError, NotSupportedError
from cachecore.types import MemInfo, Memtype, RegisterMemStatus

__all__ = ["MemoryMethods"]


class MemoryMethods(ManagerParts):
    """`query_register_mem_status` and `remap_registered_memory`."""

    def query_register_mem_status(self, comm_id: int) -> RegisterMemStatus:
        """Whether the memory of both sides of a link is registered.

        The vendor registers in the background after a link was made, so that callers ask until it is done. Here a cache
        is registered when the call that registers it returns, and a link is made when `link` returns: the answer is OK
        at once.

        Args:
            comm_id: The cluster id of a peer this manager linked to. (The vendor's `link` returns a number for it.)

        Returns:
            OK, or FAILED where the link is lost.

        Raises:
            MissingArgumentError, CacheTypeError, CacheValueError: No cluster id.
            NotSupportedError: The product does not offer it.
            NotLinkedError: There is no link to this cluster.
        """
        self._enter()
        cluster_id = arguments.integer("comm_id", comm_id, 0, 2**64 - 1)
        fact = self.backend.capabilities().registration_status
        if fact.value is not True:
            known = "does not offer it" if fact.known else "is not known to offer it"
            raise NotSupportedError(
                f"query_register_mem_status: {self.backend.name} {known} ({fact.source}). Registrations are complete when "
                "the call that makes them returns; `Peer.state` tells about the link",
                product=self.backend.name,
                feature="query_register_mem_status",
            )
        return RegisterMemStatus.FAILED if self._peers.get(cluster_id).state == "LOST" else RegisterMemStatus.OK

    def remap_registered_memory(self, mem_infos: MemInfo | Sequence[MemInfo]) -> None:
        """Renew the mapping of registered device memory that was repaired after a hardware fault.

        No driver offers it at present; the error of each says what its product's manual says.

        Args:
            mem_infos: One range of device memory, or a list of them.

        Raises:
            MissingArgumentError, CacheTypeError, CacheValueError: No `MemInfo`; an empty list; host memory.
            NotSupportedError: Names the product and what to do.
        """
        self._enter()
        arguments.not_none("mem_infos", mem_infos)
        infos = [mem_infos] if isinstance(mem_infos, MemInfo) else mem_infos
        if not isinstance(infos, list | tuple):
            raise arguments.wrong_type("mem_infos", mem_infos, "a MemInfo or a list of MemInfo")
        if not infos:
            raise CacheValueError("mem_infos is empty; name at least one range of memory")
        for index, info in enumerate(infos):
            arguments.instance(f"mem_infos[{index}]", info, MemInfo)
            if info.mem_type is not Memtype.MEM_TYPE_DEVICE:
                raise CacheValueError(
                    f"mem_infos[{index}] is {info}; only device memory can be remapped, host memory is registered anew"
                )
        self.backend.remap([(info.addr, info.size) for info in infos])
