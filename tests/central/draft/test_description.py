"""describe(): a coordinator's state, and what it waits for."""

from __future__ import annotations

from kcoord_wire.central.draft.coordinator import CoordinatorDescription
from kcoord_wire.central.draft.events import Partition
from kcoord_wire.messages import central as m
from tests.support.draft_cluster import DraftCluster


def test_a_stable_group_is_described() -> None:
    cluster = DraftCluster()
    cluster.add_topic("orders", 1)
    cluster.consumer("a", fence=[])
    found = cluster.brokers[1].machine.describe()
    (group,) = found.groups
    assert (found.broker_id, found.coordinator_id, found.epoch, found.pings) == (1, 1, 1, 0)
    assert (group.phase, group.generation, group.waits_for, group.topics) == ("stable", 1, (), ("orders",))
    (member,) = group.members
    assert (member.consumer_id, member.owned, member.is_fenced) == ("a", (Partition("orders", "1-0"),), True)


def test_what_a_rebalance_waits_for_is_described() -> None:
    cluster = DraftCluster(rebalance_handlers=1)
    cluster.add_topic("orders", 1)
    consumer = cluster.consumer("a")
    consumer.answers.clear()
    cluster.consumer("0")
    cluster.consumer("x", group="h")
    cluster.run(2_000)
    found = cluster.brokers[1].machine.describe()
    phases = {group.group_id: (group.phase, group.waits_for) for group in found.groups}
    assert phases == {"g": ("stopping", ("a",)), "h": ("queued", ())}
    assert (found.queues, found.stops, found.pings) == ((("h",),), 1, 1)
    consumer.answer(m.StopFetcherRequest())


def test_a_group_that_waits_for_former_consumers_is_described() -> None:
    cluster = DraftCluster()
    cluster.add_topic("orders", 2)
    for name in ("a", "b"):
        cluster.consumer(name)
    cluster.zookeeper.expire(cluster.brokers[1].link.registry.session_id)
    cluster.run(200)
    cluster.consumer("a")
    (group,) = cluster.brokers[1].machine.describe().groups
    assert (group.phase, group.waits_for) == ("restoring", ("b",))


def test_a_broker_that_is_not_the_coordinator_is_described() -> None:
    cluster = DraftCluster()
    broker = cluster.add_broker(2)
    assert broker.machine.describe() == CoordinatorDescription(broker_id=2, coordinator_id=1)
