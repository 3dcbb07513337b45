"""The committer: at its interval, only what changed, and only from owners."""

from __future__ import annotations

import pytest

from kcoord_wire.central.draft.events import Partition
from kcoord_wire.zookeeper.model import Ask, Delete, Multi, SetData
from tests.support.draft_cluster import Consumer, DraftCluster


@pytest.fixture
def cluster() -> DraftCluster:
    cluster = DraftCluster(offset_commit_interval_ms=500)
    cluster.add_topic("orders", 400)
    return cluster


def report(consumer: Consumer, offset: int, partitions: int = 400) -> None:
    consumer.positions = {Partition("orders", f"1-{number}"): offset for number in range(partitions)}


def commits(cluster: DraftCluster, begin: int) -> list[Multi]:
    """Return the writes of offsets since the ask with that index."""
    requests = [ask.request for ask in cluster.brokers[1].asks[begin:]]
    return [request for request in requests if isinstance(request, Multi) and len(request.writes) > 1
            and "offsets" in request.writes[-1].path]  # fmt: skip


def test_committer_writes_at_its_interval(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a")
    report(consumer, 5, partitions=1)
    cluster.run(2_400)
    assert cluster.committed() == {}
    cluster.run(100)
    assert cluster.committed() == {"1-0": 5}


def test_committer_writes_only_what_has_changed(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a")
    report(consumer, 5)
    cluster.run(3_000)
    begin = len(cluster.brokers[1].asks)
    cluster.run(20_000)
    assert commits(cluster, begin) == []
    consumer.positions = {Partition("orders", "1-7"): 6}
    cluster.run(3_000)
    (commit,) = commits(cluster, begin)
    assert commit.writes[1:] == (SetData("/consumers/g/offsets/orders/1-7", b"6"),)


def test_committer_writes_in_transactions_of_a_limited_size(cluster: DraftCluster) -> None:
    report(cluster.consumer("a"), 5)
    begin = len(cluster.brokers[1].asks)
    cluster.run(3_000)
    assert [len(commit.writes) for commit in commits(cluster, begin)] == [201, 201, 3]
    assert set(cluster.committed().values()) == {5}


def test_committer_joins_the_offsets_of_many_groups(cluster: DraftCluster) -> None:
    for number in range(50):
        report(cluster.consumer("a", group=f"g{number}"), 5, partitions=3)
    cluster.run(2_600)
    begin = len(cluster.brokers[1].asks)
    for consumer in cluster.consumers.values():
        report(consumer, 6, partitions=3)
    cluster.run(2_000)
    assert [len(commit.writes) for commit in commits(cluster, begin)] == [151]
    assert all(cluster.committed(f"g{number}") == {"1-0": 6, "1-1": 6, "1-2": 6} for number in range(50))


def test_committer_reads_again_after_a_write_that_failed(cluster: DraftCluster) -> None:
    consumer = cluster.consumer("a")
    report(consumer, 5, partitions=2)
    cluster.run(3_000)
    cluster.zookeeper.write(Delete("/consumers/g/offsets/orders/1-1"))
    report(consumer, 6, partitions=2)
    cluster.run(4_000)
    assert cluster.committed() == {"1-0": 6, "1-1": 6}
    assert len(cluster.brokers[1].noted("write failed")) == 1
    assert cluster.brokers[1].machine.describe().uncommitted == 0


def test_committer_leaves_out_a_group_whose_nodes_became_unknown(cluster: DraftCluster) -> None:
    for group in ("g", "h"):
        report(cluster.consumer("a", group=group), 5, partitions=200)
    broker = cluster.brokers[1]
    term, ask, begin = broker.machine.term, broker.link.ask, len(broker.asks)
    assert term is not None

    def forget(asked: Ask) -> None:
        if isinstance(asked.request, Multi) and "/h/offsets" in asked.request.writes[-1].path:
            term.groups.by_id["g"].store.forget()  # a write of its rebalance has failed meanwhile
        ask(asked)

    broker.link.ask = forget  # type: ignore[method-assign]  # between two batches
    cluster.run(3_000)
    assert set(cluster.committed("h").values()) == {5}
    assert all("/h/" in commit.writes[-1].path for commit in commits(cluster, begin))
