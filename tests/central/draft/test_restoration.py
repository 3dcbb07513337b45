"""What a new coordinator does with the groups of the former one (section 2, "Co-ordinator")."""

from __future__ import annotations

import pytest

from kcoord_wire.central.draft.events import Partition
from kcoord_wire.messages import central as m
from kcoord_wire.zookeeper.layout import GroupRecord, format_group
from kcoord_wire.zookeeper.model import Create, SetData
from tests.support.draft_cluster import DraftCluster


@pytest.fixture
def cluster() -> DraftCluster:
    cluster = DraftCluster()
    cluster.add_topic("orders", 4)
    return cluster


def take_over(cluster: DraftCluster) -> None:
    """The first broker is paused until its session has ended, and the second one elected."""
    cluster.add_broker(2)
    cluster.brokers[1].is_paused = True
    while cluster.brokers[2].machine.term is None:
        cluster.run(100)


def test_takeover_waits_for_all_former_owners(cluster: DraftCluster) -> None:
    for name in ("a", "b"):
        cluster.consumer(name)
    take_over(cluster)
    third = cluster.consumer("c", broker_id=2)
    first = cluster.consumer("a", broker_id=2)
    cluster.run(1_000)
    assert third.got(m.StartFetcherRequest) == first.got(m.StartFetcherRequest) == []
    second = cluster.consumer("b", broker_id=2)
    assert [len(consumer.started_with) for consumer in (first, second, third)] == [2, 1, 1]


def test_takeover_waits_a_session_timeout_at_most(cluster: DraftCluster) -> None:
    cluster.consumer("a", session_timeout_ms=9_000)
    take_over(cluster)
    elected_at = cluster.brokers[2].machine.term.context.elected_at  # type: ignore[union-attr]  # it is elected
    second = cluster.consumer("b", broker_id=2)
    cluster.run(elected_at + 8_999 - cluster.now)
    assert second.got(m.StopFetcherRequest) == []
    cluster.run(1)
    assert len(second.started_with) == 4


def test_takeover_within_a_start_waits_the_whole_time(cluster: DraftCluster) -> None:
    """The owners in ZooKeeper do not have the consumers that were being started."""
    cluster.consumer("a")
    cluster.zookeeper.write(SetData("/consumers/g", format_group(GroupRecord(6_000, is_starting=True))))
    take_over(cluster)
    first = cluster.consumer("a", broker_id=2)
    cluster.run(5_500)
    assert first.got(m.StopFetcherRequest) == []
    cluster.run(600)
    assert len(first.started_with) == 4


def test_takeover_reads_the_topics_before_it_rebalances(cluster: DraftCluster) -> None:
    """Without them the partitions that are owned would seem to be gone."""
    cluster.consumer("a")
    take_over(cluster)
    term = cluster.brokers[2].machine.term
    assert term is not None
    term.context.has_topics = False
    consumer = cluster.consumer("a", broker_id=2)
    cluster.run(2_000)
    assert (consumer.got(m.StopFetcherRequest), len(cluster.owners())) == ([], 4)
    term.context.has_topics = True
    cluster.run(500)
    assert len(consumer.started_with) == 4


def test_takeover_reads_the_offsets(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a")
    consumer.positions = {Partition("orders", f"1-{number}"): 40 + number for number in range(4)}
    cluster.run(4_000)
    take_over(cluster)
    assert list(cluster.consumer("a", broker_id=2).started_with.values()) == [40, 41, 42, 43]


def test_takeover_counts_generations_in_a_higher_epoch(cluster: DraftCluster) -> None:
    cluster.consumer("a", fence=[])
    take_over(cluster)
    known = [m.RegisterConsumerRequestFence(epoch=1, generation=1)]
    (fence,) = cluster.consumer("a", broker_id=2, fence=known).got(m.StartFetcherRequest)[0].fence
    assert (fence.epoch, fence.generation) == (2, 1)


def test_a_group_of_0_7_without_a_record_is_not_waited_for(cluster: DraftCluster) -> None:
    for path in ("/consumers/g", "/consumers/g/owners", "/consumers/g/owners/orders"):
        cluster.zookeeper.write(Create(path))
    cluster.zookeeper.write(Create("/consumers/g/owners/orders/1-0", b"old-0"))
    consumer = cluster.consumer("a")
    assert len(consumer.started_with) == 4
    assert set(cluster.owners().values()) == {"a-0"}


def test_a_record_that_cannot_be_read_counts_as_none(cluster: DraftCluster) -> None:
    cluster.zookeeper.write(Create("/consumers/g", b"\xff{"))
    assert len(cluster.consumer("a").started_with) == 4
