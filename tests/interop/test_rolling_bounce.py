"""Real clients through a rolling bounce on our coordinator: the same rebalances as in the simulation.

How near the times are is measured by `python -m tests.bench.bounce --real`, on a machine that does nothing else.
"""

from __future__ import annotations

import pytest

from kcoord_wire.worlds.consumer_groups.rolling_bounce import BounceWorkload, simulate_bounce
from tests.bench.bounce.real import real_bounce

SMALL = BounceWorkload(
    members=3,
    topics={"events": 12},
    revoke_ms=20,
    assign_ms=50,
    down_ms=3_000,  # longer than a heartbeat interval: the others have noticed, unless the machine is busy
    poll_ms=0,
    session_timeout_ms=30_000,
    heartbeat_interval_ms=1_000,
    rebalance_timeout_ms=60_000,
    client="librdkafka",
)


@pytest.mark.parametrize("protocol", ["eager", "cooperative", "static"])
def test_librdkafka_bounces_as_the_simulation_says(protocol: str) -> None:
    """Rebalances are equal, or fewer: on a busy machine an instance is back before the group has noticed that it left,
    and one rebalance does for both."""
    real, simulated = real_bounce(SMALL, protocol, "confluent-kafka"), simulate_bounce(SMALL, protocol)
    assert simulated.rebalances / 2 <= real.rebalances <= simulated.rebalances
    assert simulated.opened / 2 <= real.opened <= simulated.opened
    if protocol == "eager":
        assert real.opened == 12 * real.rebalances, "each rebalance opens every partition"
    listeners_ms = {"eager": real.rebalances * 12 * 4 * 50, "cooperative": 3 * 4 * 4 * 50, "static": 12 * 4 * 50}
    assert real.pause_partition_ms >= listeners_ms[protocol], "partitions pause at least while they are opened"
