"""Topics that come to a group while its members stay."""

from __future__ import annotations

from dataclasses import replace

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import GroupHistory, Ownership
from tests.support.detector_groups import group, held, life, of, rebalance

BOTH = ["orders", "orders-1"]


def owns(name: str, topic: str, from_s: float, generation: int) -> Ownership:
    return replace(held(name, 0, from_s), topic=topic, generation_id=generation)


def grown(topics: list[str] = BOTH, joined_s: float = 0, cause: Cause = Cause.SUBSCRIPTION_CHANGED) -> GroupHistory:
    """c1 and c2 share a topic, and from 30 s on another one, which c1 has subscribed to since `joined_s`."""
    return group(
        90,
        members=[life("c1", joined_s, topics=BOTH), life("c2", topics=topics)],
        rebalances=[rebalance(1, 0), rebalance(2, 30, cause)],
        ownership=[owns("c2", "orders", 1, 1), owns("c1", "orders-1", 32, 2), owns("c2", "orders", 32, 2)],
    )


def test_a_topic_that_the_pattern_of_all_fits() -> None:
    (found,) = of("new_topics", grown())
    assert (found.severity, found.subject, found.rebalances) == ("info", "orders-1", [2])
    assert found.text == "all members share the new topic orders-1, as by a pattern, for which they rebalanced 1 time"


def test_the_cause_may_be_another_one() -> None:
    (found,) = of("new_topics", grown(cause=Cause.UNKNOWN))
    assert found.rebalances == [2]


def test_a_topic_of_one_member_is_its_own() -> None:
    assert of("new_topics", grown(topics=["orders"])) == []


def test_a_member_that_comes_with_a_topic_is_no_pattern() -> None:
    assert of("new_topics", grown(joined_s=30)) == []


def test_the_first_topics_are_not_new() -> None:
    first = group(members=[life("c1")], rebalances=[rebalance(1, 1)], ownership=[owns("c1", "orders", 3, 1)])
    assert of("new_topics", first) == []
    assert of("new_topics", group()) == []
