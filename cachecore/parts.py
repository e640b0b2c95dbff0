"""Parts of a plan: see `cachecore.planning`."""

from __future__ import annotations

from cachecore.planning import Part, plan_parts

__all__ = ["Part", "plan_parts"]
