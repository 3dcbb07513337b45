"""Rebalances by closed connections, the older passage (section 2)."""

from __future__ import annotations

import pytest

from kcoord_wire.central.draft.events import Partition, RebalanceBy
from kcoord_wire.central.draft.subscription import format_topics
from kcoord_wire.messages import central as m
from tests.support.draft_cluster import Consumer, DraftCluster


@pytest.fixture
def cluster() -> DraftCluster:
    cluster = DraftCluster(rebalance_by=RebalanceBy.SOCKETS, offset_commit_interval_ms=60_000)
    cluster.add_topic("orders", 4)
    return cluster


def owned(consumer: Consumer) -> dict[Partition, int]:
    return consumer.owned(consumer.got(m.RegisterConsumerResponse)[-1])


def test_the_response_has_the_partitions(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a")
    assert owned(consumer) == {Partition("orders", f"1-{number}"): -2 for number in range(4)}
    assert cluster.owners() == {f"1-{number}": "a-0" for number in range(4)}


def test_a_new_consumer_closes_the_connections_of_the_others(cluster: DraftCluster) -> None:
    first, other = cluster.consumer("a"), cluster.consumer("x", group="other")
    second = cluster.consumer("b")
    assert (first.is_open, second.is_open, other.is_open) == (False, True, True)
    assert second.inbox == []


def test_the_responses_wait_until_all_have_registered_again(cluster: DraftCluster) -> None:
    cluster.consumer("a")
    second = cluster.consumer("b")
    third = cluster.consumer("c")
    cluster.run(3_000)
    assert second.inbox == third.inbox == []
    first = cluster.consumer("a")
    assert [len(owned(consumer)) for consumer in (first, second, third)] == [2, 1, 1]
    assert sorted(cluster.owners().values()) == ["a-0", "a-0", "b-0", "c-0"]


def test_a_missing_consumer_is_waited_for_a_session_timeout(cluster: DraftCluster) -> None:
    cluster.consumer("a", session_timeout_ms=9_000)
    second = cluster.consumer("b")
    cluster.run(8_999)
    assert second.inbox == []
    cluster.run(1)
    assert len(owned(second)) == 4


def test_a_failed_consumer_is_replaced_by_those_that_come_back(cluster: DraftCluster) -> None:
    cluster.consumer("a")
    second = cluster.consumer("b")
    first = cluster.consumer("a")
    second.disconnect()
    cluster.run(0)
    assert not first.is_open
    first = cluster.consumer("a")
    assert len(owned(first)) == 4
    assert set(cluster.owners().values()) == {"a-0"}


def test_a_consumer_that_leaves_while_it_waits_is_not_missed(cluster: DraftCluster) -> None:
    cluster.consumer("a")
    second = cluster.consumer("b")
    second.disconnect()
    first = cluster.consumer("a")
    assert len(owned(first)) == 4
    assert cluster.brokers[1].noted("rebalance attempt failed") == []


def test_a_group_that_does_not_come_back_keeps_its_owners(cluster: DraftCluster) -> None:
    cluster.consumer("a")
    cluster.consumer("b").disconnect()
    cluster.run(20_000)
    assert set(cluster.owners().values()) == {"a-0"}
    assert len(owned(cluster.consumer("a"))) == 4


def test_a_consumer_without_partitions_is_answered_at_once(cluster: DraftCluster) -> None:
    cluster.add_topic("single", 1)
    first = cluster.consumer("a", topics=format_topics({"single": 1}))
    second = cluster.consumer("b", topics=format_topics({"single": 1}))
    assert (first.is_open, len(owned(first)), owned(second)) == (True, 1, {})


def test_offsets_of_pings_are_where_the_next_owner_begins(cluster: DraftCluster) -> None:
    first = cluster.consumer("a")
    first.positions = {Partition("orders", f"1-{number}"): 30 + number for number in range(4)}
    cluster.run(2_000)
    second = cluster.consumer("b")
    cluster.consumer("a")
    assert owned(second) == {Partition("orders", "1-2"): 32, Partition("orders", "1-3"): 33}
    assert cluster.committed() == {"1-0": 30, "1-1": 31, "1-2": 32, "1-3": 33}


def test_pings_begin_with_the_answer(cluster: DraftCluster) -> None:
    cluster.consumer("a")
    second = cluster.consumer("b")
    cluster.run(5_000)
    assert second.inbox == []
    cluster.consumer("a")
    cluster.run(2_000)
    assert len(second.got(m.PingRequest)) == 1


def test_answers_to_requests_of_the_later_passages_are_strange(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a")
    consumer.send(m.StopFetcherResponse(consumer_id="a"))
    cluster.run(0)
    assert not consumer.is_open


def test_a_group_that_does_not_come_back_is_forgotten(cluster: DraftCluster) -> None:
    cluster.consumer("a")
    cluster.add_topic("orders", 5)
    cluster.run(70_000)
    term = cluster.brokers[1].machine.term
    assert term is not None
    assert term.groups.by_id == {}
