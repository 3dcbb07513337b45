"""The workloads of the rolling bounce: those of docs/rolling-bounce.md, and small ones that real clients go through."""

from __future__ import annotations

from kcoord_wire.simulation.group.rolling_bounce import BounceWorkload

__all__ = ["LISTENER", "STATE_STORES"]

STATE_STORES = BounceWorkload(
    members=10, topics={"events": 300}, revoke_ms=50, assign_ms=500, opens_aside=True, down_ms=15_000
)
"""Ten instances of a stateful application, 30 state stores each, that restores them beside its work."""

LISTENER = BounceWorkload(members=10, topics={"events": 300}, revoke_ms=50, assign_ms=500, down_ms=15_000)
"""The same stores, opened in the listener of the assignment."""
