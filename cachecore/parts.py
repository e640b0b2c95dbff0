"""Parts of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from cachecore.errors import NotSupportedError
from cachecore.planning import CopyPlan, Geometry, Side, plan_blocks
from cachecore.slices import BlockSlice

__all__ = ["Part", "plan_parts"]


class Part(NamedTuple):
    """Tensors of equal geometry."""

    local: Geometry
    remote: Geometry
    local_slice: BlockSlice | None = None
    remote_slice: BlockSlice | None = None


def plan_parts(
    parts: Sequence[Part],
    local_blocks: Any,
    remote_blocks: Any,
    *,
    destination: Side = "local",
    local_name: str = "dst_blocks",
    remote_name: str = "src_blocks",
    same_process: bool = False,
) -> CopyPlan:
    """One group a part."""
    if len(parts) != 1 or parts[0].local_slice or parts[0].remote_slice:
        raise NotSupportedError("slices are not there yet")
    return plan_blocks(
        parts[0].local,
        parts[0].remote,
        local_blocks,
        remote_blocks,
        destination=destination,
        local_name=local_name,
        remote_name=remote_name,
        same_process=same_process,
    )
