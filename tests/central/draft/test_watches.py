"""TopicChangeListener and TopicPartitionChangeListener (section 6)."""

from __future__ import annotations

import pytest

from kcoord_wire.central.draft.events import Partition
from kcoord_wire.central.draft.subscription import format_topics, format_wildcard
from kcoord_wire.zookeeper.model import Ask, Create, Delete, Outcome, Read, Replied, SetData
from tests.support.draft_cluster import DraftCluster


@pytest.fixture
def cluster() -> DraftCluster:
    cluster = DraftCluster()
    cluster.add_topic("orders", 1)
    return cluster


def started(cluster: DraftCluster) -> list[str]:
    return [facts["group"] for facts in cluster.brokers[1].noted("rebalance started")]


def test_handle_topic_change_adds_it_to_wildcard_groups(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a", topics=format_wildcard("ord.*"))
    cluster.consumer("x", group="other", topics=format_wildcard("pay.*"))
    cluster.add_topic("ordinary", 2)
    assert set(consumer.started_with) == {
        Partition("orders", "1-0"),
        Partition("ordinary", "1-0"),
        Partition("ordinary", "1-1"),
    }
    assert started(cluster) == ["g", "g"]


def test_handle_topic_change_of_a_topic_that_was_awaited(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a", topics=format_topics({"later": 1}))
    cluster.add_topic("later", 1)
    assert set(consumer.started_with) == {Partition("later", "1-0")}


def test_handle_topic_change_disturbs_no_other_group(cluster: DraftCluster) -> None:
    cluster.consumer("a")
    cluster.add_topic("payments", 3)
    assert started(cluster) == ["g"]


def test_handle_topic_change_watches_again(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a", topics=format_wildcard(".*"))
    for number in range(5):
        cluster.add_topic(f"t{number}", 1)
    assert len(consumer.started_with) == 6


def test_handle_partition_change_rebalances_its_groups(cluster: DraftCluster) -> None:
    first, second = cluster.consumer("a"), cluster.consumer("b", group="h")
    cluster.consumer("x", group="other", topics=format_topics({"missing": 1}))
    for partitions in (2, 5):
        cluster.add_topic("orders", partitions)
        assert len(first.started_with) == len(second.started_with) == partitions
    assert started(cluster) == ["g", "h"] * 3


def test_handle_partition_change_at_another_broker(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a")
    cluster.add_topic("orders", 2, broker_id=12)
    assert [partition.name for partition in consumer.started_with] == ["1-0", "12-0", "12-1"]


def test_handle_partition_change_that_is_none(cluster: DraftCluster) -> None:
    cluster.consumer("a")
    cluster.zookeeper.write(SetData("/brokers/topics/orders/1", b"1"))
    cluster.run(0)
    assert started(cluster) == ["g"]


def test_a_deleted_topic_has_no_partitions(cluster: DraftCluster) -> None:
    """The draft does not expect it: topics are persistent."""
    cluster.consumer("a")
    for path in ("/brokers/topics/orders/1", "/brokers/topics/orders"):
        cluster.zookeeper.write(Delete(path))
    cluster.run(0)
    assert cluster.owners() == {}
    cluster.add_topic("orders", 2)
    assert len(cluster.owners()) == 2


@pytest.mark.parametrize("data", [b"", b"x", b"-1", b"1.5", b"10001", b"9" * 4_000, b"\xff"])
def test_a_number_of_partitions_that_is_none_counts_as_zero(cluster: DraftCluster, data: bytes) -> None:
    consumer = cluster.consumer("a")
    cluster.zookeeper.write(Create("/brokers/topics/orders/7", data))
    cluster.zookeeper.write(Create("/brokers/topics/orders/word", b"3"))
    cluster.run(0)
    assert set(consumer.started_with) == {Partition("orders", "1-0")}
    assert cluster.brokers[1].noted("not a number of partitions")[0]["broker"] == "7"


def test_a_topic_whose_name_is_none_is_left_alone(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a", topics=format_wildcard(".*"))
    cluster.add_topic("not a topic", 1)
    assert set(consumer.started_with) == {Partition("orders", "1-0")}


def test_handle_topic_change_waits_for_a_topic_that_is_refused(cluster: DraftCluster) -> None:
    broker = cluster.brokers[1]
    ask, is_refused = broker.link.ask, True

    def refuse(asked: Ask) -> None:
        if is_refused and asked.request == Read("/brokers/topics/secret/1", watch=True):
            broker.take(Replied(asked.token, Outcome.NO_AUTH))
        else:
            ask(asked)

    broker.link.ask = refuse  # type: ignore[method-assign]  # ZooKeeper in memory has no access control
    cluster.add_topic("secret", 2)
    consumer = cluster.consumer("a", topics=format_topics({"secret": 1}))
    cluster.run(2_000)
    assert broker.noted("read failed")
    is_refused = False
    cluster.run(1_000)
    assert set(consumer.started_with) == {Partition("secret", "1-0"), Partition("secret", "1-1")}
