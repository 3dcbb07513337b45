"""The target assignment: who gets what, when it may be computed, and which topics it depends on."""

from __future__ import annotations

import uuid

import pytest

from kcoord_wire.assignors import server
from kcoord_wire.coordinator.consumer_groups.group import ConsumerGroup, Member
from kcoord_wire.coordinator.consumer_groups.progress import hash_topics, may_assign, preferred_assignor
from kcoord_wire.coordinator.core import config
from kcoord_wire.coordinator.core.config import GroupConfig
from tests.support.consumer_script import ORDERS, PAYMENTS, ConsumerScript
from tests.support.scripted import Topics


def test_the_settings_know_the_assignors_that_there_are() -> None:
    assert tuple(server.SERVER_ASSIGNORS) == config.SERVER_ASSIGNORS


def test_the_hash_is_of_the_topics_that_exist() -> None:
    topics = Topics()
    both = hash_topics(topics, ["orders", "payments"])
    assert hash_topics(topics, ["payments", "orders", "missing"]) == both != hash_topics(topics, ["orders"])
    assert hash_topics(topics, ["missing"]) == hash_topics(topics, []) == 0
    topics.set("orders", 13)
    assert hash_topics(topics, ["orders", "payments"]) != both
    assert -(1 << 63) <= both < 1 << 63


def test_assignments_have_an_interval() -> None:
    group = ConsumerGroup("g", 0)
    assert may_assign(group, 1_000, 10)
    group.set_assignment_epoch(2, 10)
    assert [may_assign(group, 1_000, now) for now in (10, 1_009, 1_010)] == [False, False, True]
    assert may_assign(group, 0, 10)


def test_most_votes_choose_the_assignor() -> None:
    group = ConsumerGroup("g", 0)
    assert preferred_assignor(group, "uniform") == "uniform"
    for member_id, assignor in (("a", "range"), ("b", "uniform"), ("c", "uniform")):
        group.put(Member(member_id=member_id, assignor=assignor))
        assert preferred_assignor(group, "x") == ("uniform" if member_id == "c" else "range")


def test_a_member_that_joins_soon_after_waits_for_its_target() -> None:
    script = ConsumerScript(GroupConfig())
    script.enter("a")
    answer = script.enter("b")
    assert (answer.member_epoch, script.group.epoch, script.group.assignment_epoch) == (2, 3, 2)
    assert script.group.state == "Assigning"
    script.wait(1_000)
    script.follow("a", "b")
    assert script.counts() == {"a": 6, "b": 6}


def test_targets_follow_subscriptions_topics_and_members() -> None:
    script = ConsumerScript()
    script.enter("a", "orders", "payments", "later")
    script.enter("b", "orders", "payments")
    script.follow("a", "b")
    assert script.counts() == {"a": 10, "b": 10}
    before = script.holds("a")
    script.topics.set("orders", 14)
    script.follow("a", "b")
    assert script.counts() == {"a": 11, "b": 11}
    assert all(set(before[topic]) <= set(script.holds("a")[topic]) for topic in (ORDERS, PAYMENTS))  # nothing moves
    script.topics.set("later", 2)
    script.follow("a", "b")
    assert script.counts() == {"a": 12, "b": 12}
    epoch = script.group.epoch
    script.topics.set("unrelated", 2)
    script.follow("a", "b")
    assert script.group.epoch == epoch
    del script.topics.known["orders"]
    script.topics.changes += 1
    script.follow("a", "b")
    assert sum(script.counts().values()) == 10


@pytest.mark.parametrize(
    ("topic_id", "metadata_hash"),
    [
        ("91b39818-d1a6-4926-8f5a-ff482c3a02be", -3660960966340111460),
        ("2425cd50-b5f7-4f9e-acc0-36d6b7750680", 2241680044773259608),
    ],
)
def test_the_hash_is_what_kafka_has_written(topic_id: str, metadata_hash: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the topic orders with three partitions, in logs of Kafka 4.4."""
    topics = Topics()
    topics.known = {"orders": 3}
    monkeypatch.setattr(topics, "id_of", {"orders": uuid.UUID(topic_id)}.get)
    assert hash_topics(topics, ["orders", "absent"]) == metadata_hash
