"""The draft's coordinator: election, metadata, failover; each procedure of the document by its name."""

from __future__ import annotations

from kcoord_wire import messages as m
from tests.support.draft_cluster import DraftCluster


def test_a_group_gets_its_partitions() -> None:
    cluster = DraftCluster()
    cluster.add_topic("orders", 4)
    first = cluster.consumer("a")
    cluster.run(100)
    assert cluster.owners() == {f"1-{number}": "a-0" for number in range(4)}
    second = cluster.consumer("b")
    cluster.run(100)
    assert cluster.owners() == {"1-0": "a-0", "1-1": "a-0", "1-2": "b-0", "1-3": "b-0"}
    assert len(first.started_with) == len(second.started_with) == 2
    cluster.run(60_000)
    assert len(second.got(m.PingRequest)) == 30
