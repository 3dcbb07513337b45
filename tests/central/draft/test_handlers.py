"""Rebalance handlers: a group has one, a task is queued once, so many groups rebalance at once."""

from __future__ import annotations

import pytest

from kcoord_wire.messages import central as m
from tests.support.draft_cluster import Consumer, DraftCluster


def hold(cluster: DraftCluster, groups: int) -> list[Consumer]:
    """Register a consumer in each group; none answers StopFetcher."""
    consumers = []
    for number in range(groups):
        consumer = Consumer(cluster, cluster.brokers[1], "a")
        consumer.answers.discard(m.StopFetcherRequest)
        consumer.register(f"g{number}")
        consumers.append(consumer)
    cluster.run(0)
    return consumers


@pytest.mark.parametrize("handlers", [1, 3, 8])
def test_as_many_groups_rebalance_at_once_as_there_are_handlers(handlers: int) -> None:
    cluster = DraftCluster(rebalance_handlers=handlers)
    cluster.add_topic("orders", 1)
    consumers = hold(cluster, 40)
    busy = [consumer for consumer in consumers if consumer.got(m.StopFetcherRequest)]
    assert len(busy) == handlers
    busy[0].answer(m.StopFetcherRequest())
    cluster.run(0)
    assert len([consumer for consumer in consumers if consumer.got(m.StopFetcherRequest)]) == handlers + 1


def test_every_queued_group_has_its_turn() -> None:
    cluster = DraftCluster(rebalance_handlers=2)
    cluster.add_topic("orders", 1)
    for number in range(20):
        cluster.consumer("a", group=f"g{number}")
    assert all(len(cluster.owners(f"g{number}")) == 1 for number in range(20))


def test_no_answers_delay_no_group_of_another_handler() -> None:
    cluster = DraftCluster(rebalance_handlers=4)
    cluster.add_topic("orders", 1)
    hold(cluster, 1)  # g0, at the last handler
    for number in (1, 4, 5):
        assert len(cluster.consumer("a", group=f"g{number}").started_with) == 1


def test_a_group_that_waits_is_queued_once() -> None:
    cluster = DraftCluster(rebalance_handlers=1)
    cluster.add_topic("orders", 1)
    hold(cluster, 1)
    for name in ("x", "y", "z"):
        cluster.consumer(name, group="waits")
    cluster.add_topic("orders", 5)
    assert cluster.brokers[1].machine.describe().queues == (("waits", "g0"),)


def test_a_group_has_the_same_handler_in_every_process() -> None:
    """The built-in hash of text is another one in each process."""
    cluster = DraftCluster(rebalance_handlers=4)
    cluster.add_topic("orders", 1)
    hold(cluster, 8)
    assert cluster.brokers[1].machine.describe().queues == (("g7",), ("g3",), ("g6",), ("g2",))
