"""The embeddable broker, with a ZooKeeper in memory and with a real one."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kcoord_wire.central.broker import BrokerStartError, CentralBroker
from kcoord_wire.central.draft.events import CentralError
from kcoord_wire.messages import central as m
from kcoord_wire.zookeeper.client import ZooKeeperUnreachableError
from kcoord_wire.zookeeper.ensemble import Ensemble
from tests.support.draft_wire import DraftWire
from tests.support.group_client import until
from tests.support.zookeeper import chroot_of_its_own

SESSION_MS = 4_000


@pytest.fixture
def broker() -> Iterator[CentralBroker]:
    with CentralBroker(topics={"orders": 4}, rate=1_000.0) as broker:
        until(lambda: broker.epoch is not None)
        yield broker


def registration(consumer_id: str = "c", **fields: object) -> m.RegisterConsumerRequest:
    values = {"topic_count": '{"orders":1}', "auto_commit": True, "auto_offset_rest": "smallest"} | fields
    return m.RegisterConsumerRequest(group_id="g", consumer_id=consumer_id, session_timeout_ms=SESSION_MS, **values)


def fetch(fence_epoch: int | None = None, generation: int = 1) -> m.CentralFetchRequest:
    request = m.CentralFetchRequest(topic="orders", partition=2, offset=0, max_size=1_000)
    if fence_epoch is not None:
        fence = m.CentralFetchRequestFence(group_id="g", consumer_id="c", epoch=fence_epoch, generation=generation)
        request.fence = [fence]
    return request


def test_a_consumer_finds_registers_and_is_started(broker: CentralBroker) -> None:
    with DraftWire(broker.port) as wire:
        metadata = wire.ask(m.ClusterMetadataRequest(), m.ClusterMetadataResponse)
        assert metadata.coordinator_id == 1
        assert [(each.id, each.port) for each in metadata.brokers_info] == [(1, broker.port)]
        assert wire.ask(registration(), m.RegisterConsumerResponse).error_code == 0
        assert isinstance(wire.request(), m.StopFetcherRequest)
        wire.send(m.StopFetcherResponse(consumer_id="c", offset_info=[]))
        started = wire.request()
        parts = [part.partition for thread in started.ownership_info for part in thread.assigned_parts]
        assert sorted(parts) == ["1-0", "1-1", "1-2", "1-3"]
        wire.send(m.StartFetcherResponse(consumer_id="c"))
        assert isinstance(wire.request(), m.PingRequest)


def test_records_are_served_with_and_without_a_fence(broker: CentralBroker) -> None:
    with DraftWire(broker.port) as wire:
        until(lambda: wire.ask(fetch(), m.CentralFetchResponse).records)
        for request in (fetch(), fetch(broker.epoch)):
            record = wire.ask(request, m.CentralFetchResponse).records[0]
            assert (record.offset, record.payload) == (0, b"orders-1-2@0")


def test_a_coordinator_refuses_fences_of_other_epochs(broker: CentralBroker) -> None:
    with DraftWire(broker.port) as wire:
        for epoch in (0, 2):
            assert wire.ask(fetch(epoch), m.CentralFetchResponse).error_code == CentralError.STALE_EPOCH
        assert wire.ask(fetch(1, generation=2), m.CentralFetchResponse).error_code == 0
        assert wire.ask(fetch(1, generation=1), m.CentralFetchResponse).error_code == CentralError.STALE_EPOCH


def test_it_starts_once_and_its_port_is_free_afterwards() -> None:
    with CentralBroker() as broker:
        port = broker.port
        with pytest.raises(OSError, match="in use"):
            CentralBroker(port=port).start()
    with pytest.raises(RuntimeError, match="can be started once"):
        broker.start()
    with CentralBroker(port=port) as again:
        assert again.address == f"127.0.0.1:{port}"


def test_without_zookeeper_it_does_not_start() -> None:
    broker = CentralBroker("127.0.0.1:1", connect_seconds=0.5)
    with pytest.raises(ZooKeeperUnreachableError, match=r"127\.0\.0\.1:1"):
        broker.start()


@pytest.mark.slow
def test_a_broker_that_stops_is_replaced_at_once(zookeeper: Ensemble) -> None:
    connect = zookeeper.connect + chroot_of_its_own()
    first = CentralBroker(connect, broker_id=1, topics={"orders": 2}, session_timeout_ms=SESSION_MS)
    second = CentralBroker(connect, broker_id=2, topics={"orders": 2}, session_timeout_ms=SESSION_MS)
    with second, first:
        until(lambda: second.epoch == 1)
        with DraftWire(first.port) as wire:
            assert wire.ask(m.ClusterMetadataRequest(), m.ClusterMetadataResponse).coordinator_id == 2
            until(lambda: len(wire.ask(m.ClusterMetadataRequest(), m.ClusterMetadataResponse).brokers_info) == 2)
            assert wire.ask(registration(), m.RegisterConsumerResponse).error_code == CentralError.NOT_COORDINATOR
            status = wire.ask(m.CentralStatusRequest(), m.CentralStatusResponse)
            assert status.error_code == CentralError.NOT_COORDINATOR
        began = time.monotonic()
        second.stop()
        until(lambda: first.epoch == 2)
        assert time.monotonic() - began < SESSION_MS / 1000, "its session has ended, not expired"


@pytest.mark.slow
def test_an_id_has_one_broker_at_a_time(zookeeper: Ensemble) -> None:
    connect = zookeeper.connect + chroot_of_its_own()
    with CentralBroker(connect, session_timeout_ms=SESSION_MS) as broker:
        other = CentralBroker(connect, session_timeout_ms=SESSION_MS, connect_seconds=1.0)
        with pytest.raises(BrokerStartError, match=f"broker id 1 is taken by the broker at 127.0.0.1:{broker.port}"):
            other.start()
    with CentralBroker(connect, session_timeout_ms=SESSION_MS) as broker:
        until(lambda: broker.epoch == 2)
