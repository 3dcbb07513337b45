"""The detector generation_reset on a group with the problem, and on groups that only look like it."""

from __future__ import annotations

from dataclasses import replace

from kcoord_wire.forensics.model import Cause, StateInterval
from tests.support.detector_groups import SECOND, generation, group, of, rebalance

GROWING = [generation(n, n * 10, n * 10 + 10) for n in (7, 8, 9)]


def test_growing_generations_are_normal() -> None:
    assert of("generation_reset", group(generations=GROWING)) == []


def test_a_lost_log_is_critical_where_members_came_back_from_it() -> None:
    lost = [*GROWING, generation(1, 200)]
    failover = rebalance(4, 198, Cause.COORDINATOR_FAILOVER, generation_id=1)
    (found,) = of("generation_reset", group(generations=lost, rebalances=[failover]))
    assert (found.severity, found.text) == ("critical", "generation 1 follows generation 9: the group was lost")
    assert "lost its log" in found.advice
    (found,) = of("generation_reset", group(generations=lost))
    assert found.severity == "warning"


def test_a_deleted_group_was_empty_before() -> None:
    empty = StateInterval("billing", "Empty", 110 * SECOND, 199 * SECOND, 10)
    (found,) = of("generation_reset", group(generations=[*GROWING, generation(1, 200)], states=[empty]))
    assert found.severity == "warning"
    assert "deleted when it was empty, and formed again" in found.text
    assert "auto.offset.reset" in found.advice


def test_a_group_formed_again_may_have_the_same_number() -> None:
    again = replace(generation(1, 200), leader_id="c2-id")
    empty = StateInterval("billing", "Empty", 110 * SECOND, 199 * SECOND, 2)
    (found,) = of("generation_reset", group(generations=[generation(1, 0, 100), again], states=[empty]))
    assert found.value == found.threshold
    assert of("generation_reset", group(generations=[generation(1, 0, 100), generation(1, 200)])) == []
