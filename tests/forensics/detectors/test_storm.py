"""The detector storm on a group with the problem, and on groups that only look like it."""

from __future__ import annotations

from dataclasses import replace

from kcoord_wire.forensics.model import (
    Cause,
)
from tests.support.detector_groups import group, of, rebalance


def test_storm_counts_rebalances_beyond_joins_and_leaves() -> None:
    causes = [Cause.POLL_TIMEOUT, Cause.LEADER_REJOINED]
    storm = group(rebalances=[rebalance(n, n * 3.0, causes[n % 2], f"c{n % 4}") for n in range(1, 201)])
    (found,) = of("storm", storm)
    assert (found.severity, found.value, found.rebalances[0], found.rebalances[-1]) == ("critical", 200, 1, 200)
    assert "200 rebalances in 10 min" in found.text
    few = group(rebalances=storm.rebalances[:9])
    assert of("storm", few) == []
    slow = group(rebalances=[rebalance(n, n * 120.0, Cause.POLL_TIMEOUT) for n in range(1, 101)])
    assert of("storm", slow) == []  # five in ten minutes


def test_a_rolling_bounce_is_not_a_storm() -> None:
    moves = [(Cause.MEMBER_LEFT, f"c{n}") for n in range(100)]
    bounce = [move for left in moves for move in (left, (Cause.NEW_MEMBER, left[1]))]
    rounds = []
    for cause, client in bounce:
        rounds += [(cause, client), (Cause.COOPERATIVE_FOLLOW_UP, client)]
    calm = group(rebalances=[rebalance(n, n * 1.0, *move) for n, move in enumerate(rounds, 1)])
    assert of("storm", calm) == []
    again = group(rebalances=calm.rebalances[:40] + [replace(r, number=r.number + 40) for r in calm.rebalances[:40]])
    assert of("storm", again)[0].value == 40  # the same clients a second time


def test_the_advice_fits_the_commonest_cause() -> None:
    for cause, word in ((Cause.POLL_TIMEOUT, "max.poll.records"), (Cause.SESSION_EXPIRED, "network")):
        (found,) = of("storm", group(rebalances=[rebalance(n, n * 3.0, cause) for n in range(1, 20)]))
        assert word in found.advice
    (found,) = of("storm", group(rebalances=[rebalance(n, n * 3.0, Cause.UNKNOWN) for n in range(1, 20)]))
    assert "set off most" in found.advice
