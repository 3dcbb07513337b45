"""Known bugs: named only where shape and version agree."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.model import Cause, Finding, GroupHistory
from tests.support.detector_groups import group, life, of, rebalance


def loop(software: str | None, *, assignor: str = "cooperative-sticky", leader: str = "c1-id") -> GroupHistory:
    causes = [Cause.NEW_MEMBER, *[Cause.COOPERATIVE_FOLLOW_UP] * 5]
    return group(
        members=[life("c1", software=software), life("c2", software="librdkafka 2.6.1", topics=["refunds"])],
        rebalances=[
            rebalance(n, n, cause, assignor=assignor, leader_id=leader) for n, cause in enumerate(causes, start=1)
        ],
    )


def named(history: GroupHistory) -> Finding:
    (finding,) = of("cooperative_loop", history)
    return finding


@pytest.mark.parametrize(
    ("software", "bugs"),
    [
        ("librdkafka 1.6.1", ["librdkafka#3306"]),
        ("librdkafka 1.7.0", []),
        ("apache-kafka-java 3.5.1", ["KAFKA-15106"]),
        ("apache-kafka-java 3.6.0", []),
        ("kafka-python 3.0.0", []),
        (None, []),
    ],
)
def test_the_version_of_the_leader_decides(software: str | None, bugs: list[str]) -> None:
    finding = named(loop(software))
    assert finding.known_bugs == bugs
    assert ("known bug" in finding.text) is bool(bugs)
    if bugs:
        assert finding.advice.startswith(f"Update {software} (https://")


def test_another_member_or_assignor_is_not_blamed() -> None:
    assert named(loop("librdkafka 1.6.1", leader="c2-id")).known_bugs == []
    assert named(loop("librdkafka 1.6.1", assignor="mine")).known_bugs == []


def test_a_condition_of_the_bug_must_hold() -> None:
    history = loop("apache-kafka-java 3.5.1")
    for member in history.members:
        member.topics = ["orders"]
    assert named(history).known_bugs == [], "KAFKA-15106 needs unequal subscriptions"


def test_a_version_without_the_damage_names_nothing() -> None:
    quiet = group(members=[life("c1", software="librdkafka 1.6.1")], rebalances=[rebalance(1, 1)])
    assert of("cooperative_loop", quiet) == []
