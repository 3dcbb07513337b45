"""A rolling bounce of a group of KIP-848: what is moved, what pauses, and that it is never more than eager members'."""

from __future__ import annotations

import pytest

from kcoord_wire.worlds.consumer_groups.rolling_bounce import LABEL, simulate_consumer_bounce
from kcoord_wire.worlds.group.rolling_bounce import BounceWorkload, simulate_bounce

SMALL = BounceWorkload(members=4, topics={"events": 16}, revoke_ms=50, assign_ms=200, down_ms=4_000)


def test_only_what_moves_is_given_up() -> None:
    """The four partitions of each instance go away and come back; no instance but its own stands still for long."""
    result = simulate_consumer_bounce(SMALL)
    assert result.label == LABEL
    assert (result.rebalances, result.moves, result.opened) == (8, 32, 32)
    assert result.down_instance_ms == 4 * (4 * 50 + 4_000)
    eager = simulate_bounce(SMALL, "eager")
    assert result.pause_partition_ms < eager.pause_partition_ms / 2
    assert result.pause_instance_ms < eager.pause_instance_ms / 2


def test_partitions_may_be_opened_beside_the_work() -> None:
    aside, listening = (
        simulate_consumer_bounce(
            BounceWorkload(members=4, topics={"events": 16}, assign_ms=400, opens_aside=opens_aside)
        )
        for opens_aside in (True, False)
    )
    assert aside.pause_instance_ms < listening.pause_instance_ms
    assert aside.opened == listening.opened


def test_the_seed_decides_everything() -> None:
    assert simulate_consumer_bounce(SMALL, 3) == simulate_consumer_bounce(SMALL, 3)
    assert simulate_consumer_bounce(SMALL, 3) != simulate_consumer_bounce(SMALL, 4)


def test_listeners_longer_than_the_poll_interval_are_an_error() -> None:
    workload = BounceWorkload(
        members=2, topics={"events": 4}, revoke_ms=20_000, rebalance_timeout_ms=1_000, session_timeout_ms=6_000
    )
    with pytest.raises(ValueError, match="does not settle"):
        simulate_consumer_bounce(workload)
