"""The draft's coordinator on a ZooKeeper in memory: election, start-up, metadata, failover, strange messages."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.central.draft.coordinator import DraftCoordinator
from kcoord_wire.central.draft.events import CentralError
from kcoord_wire.kernel.machines import BrokerAddress, Close, Received, Send
from kcoord_wire.messages import central as m
from kcoord_wire.zookeeper.layout import COORDINATOR, COORDINATOR_EPOCH
from kcoord_wire.zookeeper.model import Delete, Fired, SessionChanged, SessionState, SetData
from tests.support.draft_cluster import Consumer, DraftBroker, DraftCluster


def metadata(cluster: DraftCluster, broker_id: int) -> m.ClusterMetadataResponse:
    consumer = Consumer(cluster, cluster.brokers[broker_id], "asks")
    consumer.send(m.ClusterMetadataRequest())
    (answer,) = consumer.inbox
    assert isinstance(answer, m.ClusterMetadataResponse)
    return answer


def fetched(cluster: DraftCluster, broker_id: int) -> list[str]:
    """Return the paths that a broker has read with a watch."""
    requests = [ask.request for ask in cluster.brokers[broker_id].asks]
    return [request.path for request in requests if getattr(request, "watch", False)]


def test_coordinator_startup_watches_topics_and_partitions() -> None:
    cluster = DraftCluster()
    cluster.add_topic("orders", 2)
    cluster.add_topic("payments", 1, broker_id=2)
    broker = cluster.add_broker(2)
    assert broker.machine.term is None
    cluster.zookeeper.write(Delete(COORDINATOR))
    cluster.brokers[1].is_paused = True
    cluster.run(0)
    assert broker.machine.term is not None
    watched = fetched(cluster, 2)
    assert {f"/brokers/topics{path}" for path in ("", "/orders", "/orders/1", "/payments", "/payments/2")} <= set(
        watched
    )
    assert broker.machine.term.watches.partitions == {"orders": ("1-0", "1-1"), "payments": ("2-0",)}


def test_coordinator_startup_commits_and_pings() -> None:
    cluster = DraftCluster(offset_commit_interval_ms=500)
    cluster.add_topic("orders", 1)
    consumer = cluster.consumer("a")
    consumer.positions = dict.fromkeys(consumer.started_with, 7)
    cluster.run(2_000)
    assert cluster.committed() == {}
    cluster.run(500)
    assert (cluster.committed(), len(consumer.got(m.PingRequest))) == ({"1-0": 7}, 1)


def test_every_broker_names_the_coordinator() -> None:
    cluster = DraftCluster()
    cluster.add_broker(2)
    for broker_id in (1, 2):
        answer = metadata(cluster, broker_id)
        assert (answer.error_code, answer.coordinator_id) == (0, 1)
        assert [(broker.id, broker.host, broker.port) for broker in answer.brokers_info] == [
            (1, "host", 9_001),
            (2, "host", 9_002),
        ]


def test_a_broker_without_zookeeper_knows_no_coordinator() -> None:
    machine = DraftCoordinator(BrokerAddress(1, "host", 1))
    (sent,) = machine.handle(Received(1, m.ClusterMetadataRequest()), 0)
    assert sent == Send(1, m.ClusterMetadataResponse(coordinator_id=-1))


def test_another_broker_refuses_consumers() -> None:
    cluster = DraftCluster()
    cluster.add_broker(2)
    consumer = cluster.consumer("a", broker_id=2)
    assert consumer.inbox == [m.RegisterConsumerResponse(error_code=CentralError.NOT_COORDINATOR)]
    assert consumer.is_open


def test_the_coordinators_end_elects_another() -> None:
    cluster = DraftCluster()
    cluster.add_broker(2)
    cluster.brokers[1].is_paused = True
    cluster.run(7_000)
    assert cluster.brokers[2].machine.epoch_at(cluster.now) == 2
    node = cluster.zookeeper.node(COORDINATOR_EPOCH)
    assert node is not None
    assert node.data == b"2"
    assert metadata(cluster, 2).coordinator_id == 2
    assert [broker.id for broker in metadata(cluster, 2).brokers_info] == [2]


def test_a_paused_coordinator_sends_nothing_when_it_goes_on() -> None:
    """Before it reads its sockets, what it does is limited by its lease alone."""
    cluster = DraftCluster()
    cluster.add_topic("orders", 1)
    consumer = cluster.consumer("a")
    cluster.add_broker(2)
    cluster.brokers[1].is_paused = True
    cluster.run(7_000)
    sent = len(consumer.inbox)
    consumer.send(m.PingResponse(consumer_id="a", offset_info=[]))
    assert (len(consumer.inbox), consumer.is_open) == (sent, False)
    assert cluster.brokers[1].noted("resigned")[0]["reason"] == "lease expired"
    cluster.brokers[1].is_paused = False
    cluster.run(1_000)
    assert metadata(cluster, 1).coordinator_id == 2


def test_a_coordinator_that_was_replaced_cannot_write() -> None:
    """Its lease still lasts, but ZooKeeper compares the epoch."""
    cluster = DraftCluster(offset_commit_interval_ms=50)
    cluster.add_topic("orders", 1)
    consumer = cluster.consumer("a")
    consumer.positions = dict.fromkeys(consumer.started_with, 7)
    cluster.run(1_999)
    cluster.zookeeper.write(SetData(COORDINATOR_EPOCH, b"2"))
    cluster.run(100)
    assert (cluster.committed(), consumer.is_open) == ({}, False)
    assert cluster.brokers[1].noted("resigned")[0]["reason"] == "another coordinator has been elected"


def test_handle_new_session_resets_and_elects_again() -> None:
    cluster = DraftCluster()
    cluster.add_topic("orders", 2)
    consumer = cluster.consumer("a")
    broker = cluster.brokers[1]
    cluster.zookeeper.expire(broker.link.registry.session_id)
    cluster.run(200)
    assert not consumer.is_open
    assert [facts["epoch"] for facts in broker.noted("elected")] == [1, 2]
    assert len(broker.noted("new session")) == 1
    assert broker.machine.term is not None
    assert broker.machine.term.groups.by_id == {}
    registration = cluster.zookeeper.node("/brokers/ids/1")
    assert registration is not None
    assert registration.ephemeral_owner == broker.link.registry.session_id


def test_handle_new_session_without_a_word_of_the_old_ones_end() -> None:
    cluster = DraftCluster()
    consumer = cluster.consumer("a")
    broker = cluster.brokers[1]
    broker.take(SessionChanged(SessionState.CONNECTED, 99, 6_000))
    assert not consumer.is_open
    assert broker.machine.term is None
    assert broker.noted("resigned")[0]["reason"] == "new session"


def test_a_cut_connection_ends_the_term_at_once() -> None:
    cluster = DraftCluster()
    consumer = cluster.consumer("a")
    cluster.brokers[1].link.cut(cluster.now)
    assert (consumer.is_open, metadata(cluster, 1).coordinator_id) == (False, -1)
    cluster.brokers[1].link.heal()
    cluster.run(1_000)
    assert metadata(cluster, 1).coordinator_id == 1
    assert cluster.brokers[1].machine.leadership.epoch == 2


@pytest.mark.parametrize(
    "message",
    [m.PingResponse(consumer_id="a"), m.StopFetcherResponse(consumer_id="a"), m.PingRequest(consumer_id="a")],
    ids=lambda message: type(message).__name__,
)
@pytest.mark.parametrize("broker_id", [1, 2])
def test_a_message_before_the_registration_closes(message: Any, broker_id: int) -> None:
    cluster = DraftCluster()
    cluster.add_broker(2)
    stranger = Consumer(cluster, cluster.brokers[broker_id], "a")
    stranger.send(message)
    assert not stranger.is_open
    assert cluster.brokers[broker_id].noted("unexpected message")[0]["message"] == type(message).__name__


def test_events_of_no_interest_change_nothing() -> None:
    machine = DraftCoordinator(BrokerAddress(1, "host", 1))
    assert machine.handle(Fired("/elsewhere"), 0) == []
    assert machine.deadline is None
    assert machine.handle(Received(5, m.StartFetcherResponse()), 0)[-1] == Close(5)


def test_two_brokers_with_one_id_do_not_depose_each_other() -> None:
    cluster = DraftCluster()
    first = cluster.brokers[1]
    second = cluster.brokers[2] = DraftBroker(cluster, 1, cluster.settings)
    second.machine = DraftCoordinator(BrokerAddress(1, "elsewhere", 9_092), cluster.settings)
    cluster.run(5_000)
    epoch = first.machine.leadership.epoch
    cluster.run(20_000)
    assert (first.machine.leadership.epoch, second.machine.leadership.epoch) == (epoch, None)
    first.is_paused = True
    cluster.run(10_000)
    assert second.machine.term is not None
    first.is_paused = False
    cluster.run(5_000)
    epoch = second.machine.leadership.epoch
    cluster.run(20_000)
    assert (first.machine.leadership.epoch, second.machine.leadership.epoch) == (None, epoch)
