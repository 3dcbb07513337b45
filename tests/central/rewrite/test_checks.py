"""Requests to the rewrite's coordinator that no correct client sends: an error, and a log line."""

from __future__ import annotations

import pytest

from kcoord_wire import messages as m
from kcoord_wire.central.rewrite.coordinator import MOST_NAMES
from kcoord_wire.central.rewrite.events import RewriteError
from tests.support.rewrite_brokers import (
    GROUP,
    ORDERS,
    Consumer,
    World,
    stable_group,
)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"group_id": "a/b"}, RewriteError.INVALID_REQUEST),
        ({"group_id": ""}, RewriteError.INVALID_REQUEST),
        ({"topics": ["a/../b"]}, RewriteError.INVALID_REQUEST),
        ({"session_timeout_ms": 10}, RewriteError.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1 << 30}, RewriteError.INVALID_SESSION_TIMEOUT),
        ({"strategy": "mine"}, RewriteError.UNKNOWN_STRATEGY),
    ],
)
def test_a_joingroup_with_wrong_values_is_refused_and_noted(request_: dict[str, object], error: RewriteError) -> None:
    world = World(1, topics=ORDERS)
    (member,) = stable_group(world, 1)
    right = {"group_id": GROUP, "session_timeout_ms": 6_000, "topics": ["orders"], "strategy": "range"}
    hostile = Consumer(world)
    assert hostile.ask(m.rewrite.RewriteJoinGroupRequest(**(right | request_))).error_code == error  # type: ignore[arg-type]
    assert world.coordinator.noted("request refused")[-1]["error"] == error.name
    assert member.heartbeat() == 0


def test_another_strategy_than_the_groups_is_refused() -> None:
    world = World(1, topics=ORDERS)
    (member,) = stable_group(world, 1)
    assert Consumer(world).join(strategy="roundrobin").error_code == RewriteError.INCONSISTENT_STRATEGY
    assert member.heartbeat() == 0


def test_unknown_consumers_are_refused() -> None:
    world = World(1, topics=ORDERS)
    (member,) = stable_group(world, 1)
    stranger = Consumer(world)
    stranger.consumer_id, stranger.generation = "stranger", 1
    unknown = RewriteError.UNKNOWN_CONSUMER_ID
    assert (stranger.heartbeat(), stranger.commit(1), stranger.join().error_code) == (unknown, unknown, unknown)
    assert member.heartbeat() == 0


@pytest.mark.parametrize(("partition", "offset"), [(("orders", -1), 1), (("orders", 0), -2), (("or/ders", 0), 1)])
def test_invalid_commits_are_refused(partition: tuple[str, int], offset: int) -> None:
    world = World(1, topics=ORDERS)
    (member,) = stable_group(world, 1)
    answer = member.ask(member.commit_request({partition: offset}))
    assert answer.topics[0].partitions[0].error_code == RewriteError.INVALID_REQUEST


def test_requests_of_too_many_names_are_refused() -> None:
    world = World(1, topics=ORDERS)
    consumer = Consumer(world)
    many = [f"t{number}" for number in range(MOST_NAMES + 1)]
    metadata = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name) for name in many])
    assert {topic.error_code for topic in consumer.ask(metadata).topics} == {RewriteError.INVALID_REQUEST}
    assert consumer.join(*many).error_code == RewriteError.INVALID_REQUEST
    indexes = list(range(2 * MOST_NAMES + 1))
    wanted = m.OffsetFetchRequest(
        group_id=GROUP, topics=[m.OffsetFetchRequestTopic(name="orders", partition_indexes=indexes)]
    )
    [topic] = consumer.ask(wanted).topics
    assert {partition.error_code for partition in topic.partitions} == {RewriteError.INVALID_REQUEST}
