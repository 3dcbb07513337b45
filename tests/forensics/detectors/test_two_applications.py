"""Two applications in one group: members without a common topic, side by side."""

from __future__ import annotations

from kcoord_wire.forensics.model import Cause
from tests.support.detector_groups import group, life, of, rebalance


def test_two_applications_are_named_with_their_topics() -> None:
    lives = [life("billing-1"), life("billing-2", 5), life("audit-1", 10, 14, topics=["bills"])]
    (found,) = of("two_applications", group(60, members=lives))
    assert found.severity == "warning"
    assert found.text == (
        "two applications share the group id: billing-1, billing-2 subscribe to orders, audit-1 to bills, no topic in "
        "common, side by side for 4.0 s"
    )


def test_consumers_of_one_application_are_told_after_a_minute() -> None:
    lives = [life("app-1"), life("app-2", topics=["bills"])]
    (found,) = of("two_applications", group(70, members=lives))
    assert found.severity == "info"
    assert of("two_applications", group(50, members=lives)) == []


def test_a_chain_of_common_topics_is_one_application() -> None:
    lives = [life("a", topics=["x"]), life("b", topics=["y"]), life("c", topics=["x", "y"])]
    assert of("two_applications", group(3600, members=lives)) == []


def test_one_after_the_other_is_normal() -> None:
    lives = [life("a", 0, 20, topics=["x"]), life("b", 20, topics=["y"])]
    assert of("two_applications", group(3600, members=lives)) == []


def test_a_member_that_changes_its_subscription_counts_later() -> None:
    lives = [life("a", topics=["x"]), life("b", topics=["y"])]
    changed = rebalance(2, 10, Cause.SUBSCRIPTION_CHANGED, client="b")
    assert of("two_applications", group(20, members=lives, rebalances=[changed])) == []
    (found,) = of("two_applications", group(22, members=lives, rebalances=[changed]))
    assert found.value == 2
