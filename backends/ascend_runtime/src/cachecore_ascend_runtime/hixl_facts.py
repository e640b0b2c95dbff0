"""What HIXL can do, as data with sources."""

from __future__ import annotations

from cachecore.driver import Capability, Knowledge
from cachecore.engine import EngineCapabilities
from cachecore_ascend_runtime.hixl_profile import HixlProfile
from cachecore_ascend_runtime.hixl_transfer import BATCH_CHUNKS

__all__ = ["capabilities"]

_MANUAL = "CANN 9.x manual, HIXL"
_HERE = "cachecore HIXL engine"


def capabilities(profile: HixlProfile) -> EngineCapabilities:
    """The capabilities of the engine on a product."""
    return EngineCapabilities(
        placement_pairs=profile.placement_pairs,
        max_chunks_per_call=Capability(None, f"{_HERE}: it takes plans and makes batches of {BATCH_CHUNKS} chunks"),
        register_while_linked=Capability(
            False, f"{_MANUAL}, connect: memory registered after a link is made cannot be reached over it"
        ),
        deregister_while_linked=Capability(False, f"{_MANUAL}, deregister_mem: all links must be disconnected before"),
        deregistration_is_fence=Capability(
            True,
            f"{_MANUAL}: deregister_mem works without links only, and a disconnect ends every transfer of its link",
        ),
        can_cancel=Capability(
            True, f"{_MANUAL}, get_transfer_status: whoever gives up disconnects, which ends the transfer"
        ),
        failure_knowledge=Capability(
            Knowledge.PREFIX, f"{_HERE}: batch after batch; nothing is known about the one that failed"
        ),
        local_registration_required=Capability(
            True, f"{_MANUAL}, register_mem: local addresses of a transfer must be registered too"
        ),
    )
