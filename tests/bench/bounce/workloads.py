"""The workloads of the rolling bounce: those of docs/rolling-bounce.md, and small ones that real clients go through."""

from __future__ import annotations

from dataclasses import replace

from kcoord_wire.worlds.consumer_groups.rolling_bounce import BounceWorkload

STATE_STORES = BounceWorkload(
    members=10,
    topics={"events": 300},
    revoke_ms=50,
    assign_ms=500,
    opens_aside=True,
    down_ms=15_000,
    rate_per_s=50.0,
    capacity_per_s=3_000.0,  # twice the share of an instance
)
"""Ten instances of a stateful application, 30 state stores each, that restores them beside its work."""

LISTENER = replace(STATE_STORES, opens_aside=False)
"""The same stores, opened in the listener of the assignment."""

RESTORED = replace(STATE_STORES, restore_ms=2_000)
"""The same stores, where one without a copy takes 2 s to restore, besides the 500 ms to open it."""

REAL = BounceWorkload(
    members=5,
    topics={"events": 40},
    revoke_ms=20,
    assign_ms=100,
    down_ms=2_000,
    poll_ms=0,
    session_timeout_ms=20_000,
    heartbeat_interval_ms=1_000,
    rebalance_timeout_ms=60_000,
    rate_per_s=20.0,
    capacity_per_s=320.0,
    client="librdkafka",
)
"""Small enough for five processes on two cores: 0.16 s to close the partitions of an instance, 0.8 s to open them."""

TEN = replace(REAL, members=10, topics={"events": 100}, revoke_ms=10, capacity_per_s=400.0)
"""Ten processes, ten partitions each: 0.1 s to close those of an instance, 1 s to open them."""
