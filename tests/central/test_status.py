"""The state of a cluster: what the coordinator has in memory, and what ZooKeeper has."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

import pytest
from kazoo.client import KazooClient

from kcoord_wire.central.broker import CentralBroker
from kcoord_wire.central.draft.events import Partition
from kcoord_wire.central.status import ClusterClient, ClusterStatus
from kcoord_wire.kernel.procedures import Procedure
from kcoord_wire.messages import central as m
from kcoord_wire.zookeeper.ensemble import Ensemble
from kcoord_wire.zookeeper.requests import ReadChildren, Replied, ZooKeeperProcedures
from tests.support.draft_wire import DraftWire
from tests.support.waiting import eventually
from tests.support.zookeeper import chroot_of_its_own

REGISTER = m.RegisterConsumerRequest(
    group_id="g",
    consumer_id="c",
    topic_count='{"orders":1}',
    auto_commit=True,
    auto_offset_rest="smallest",
    session_timeout_ms=60_000,
)


def test_a_rebalance_names_the_consumers_it_waits_for() -> None:
    with CentralBroker(topics={"orders": 4}) as broker:
        eventually(lambda: broker.epoch is not None)
        with DraftWire(broker.port) as wire, DraftWire(broker.port) as other:
            wire.ask(REGISTER, m.RegisterConsumerResponse)
            wire.request()
            status = other.ask(m.CentralStatusRequest(), m.CentralStatusResponse)
            assert (status.error_code, status.epoch) == (0, 1)
            [group] = status.groups
            assert (group.group_id, group.generation, group.phase, group.waits_for) == ("g", 1, "stopping", ["c"])
            [consumer] = group.consumers
            assert (consumer.consumer_id, consumer.host, consumer.session_timeout_ms) == ("c", "127.0.0.1", 60_000)
            assert (consumer.topic_count, consumer.failed_pings, consumer.partitions) == ('{"orders":1}', 0, 0)
            start(wire)
            wire.send(m.StartFetcherResponse(consumer_id="c"))
            eventually(lambda: other.ask(m.CentralStatusRequest(), m.CentralStatusResponse).groups[0].phase == "stable")
            [group] = other.ask(m.CentralStatusRequest(), m.CentralStatusResponse).groups
            assert (group.waits_for, group.consumers[0].partitions) == ([], 4)


def start(wire: DraftWire) -> None:
    wire.send(m.StopFetcherResponse(consumer_id="c", offset_info=[]))
    assert isinstance(wire.request(), m.StartFetcherRequest)


def create(connect: str, path: str, data: bytes) -> None:
    client = KazooClient(connect)
    client.start()
    client.create(path, data)
    client.stop()
    client.close()


async def read(connect: str) -> ClusterStatus:
    async with ClusterClient(connect, session_timeout_ms=4_000) as reader:
        return await reader.read()


def test_an_error_while_it_is_read_reaches_the_caller() -> None:
    async def run() -> None:
        reader = ClusterClient("127.0.0.1:1")
        loop = asyncio.get_running_loop()
        answer = partial(loop.call_soon, reader._deliver)
        reader._procedures = ZooKeeperProcedures(lambda ask: answer(Replied(ask.token, value=())))
        async with asyncio.timeout(30):
            await reader._run(fail())

    def fail() -> Procedure:
        yield ReadChildren("/")
        raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        asyncio.run(run())


@pytest.mark.slow
def test_what_zookeeper_has_is_read(zookeeper: Ensemble) -> None:
    connect = zookeeper.connect + chroot_of_its_own()
    assert asyncio.run(read(connect)) == ClusterStatus(silence="no broker is elected")
    with CentralBroker(connect, broker_id=7, topics={"orders": 2}, session_timeout_ms=4_000) as broker:
        eventually(lambda: broker.epoch == 1)
        with DraftWire(broker.port) as wire:
            wire.ask(REGISTER, m.RegisterConsumerResponse)
            wire.request()
            offset = m.StopFetcherResponseOffset(topic="orders", partition="7-0", offset=5)
            wire.send(m.StopFetcherResponse(consumer_id="c", offset_info=[offset]))
            wire.request()
            wire.send(m.StartFetcherResponse(consumer_id="c"))
            owners = {Partition("orders", f"7-{number}"): "c-0" for number in range(2)}
            eventually(lambda: asyncio.run(read(connect)).groups["g"].owners == owners)
            create(connect, "/brokers/ids/8", b"junk")
            status = asyncio.run(read(connect))
        assert status.leader is not None
        assert (status.leader.broker_id, status.leader.epoch) == (7, 1)
        assert status.brokers[7].port == broker.port
        assert status.topics == {"orders": {7: 2}}
        assert list(status.brokers) == [7], "the node with other data is left out"
        assert status.live is not None
        assert (status.live.epoch, status.live.groups[0].group_id, status.silence) == (1, "g", "")
    assert asyncio.run(read(connect)).silence == "no broker is elected"


@pytest.mark.slow
def test_a_coordinator_that_does_not_answer_is_reported(zookeeper: Ensemble) -> None:
    connect = zookeeper.connect + chroot_of_its_own()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(0.1)
        advertise = "127.0.0.1", silent.getsockname()[1]
        with CentralBroker(connect, advertise=advertise, session_timeout_ms=4_000) as broker:
            eventually(lambda: broker.epoch == 1)
            silent.close()
            status = asyncio.run(read(connect))
            assert status.live is None
            assert f"does not answer at 127.0.0.1:{advertise[1]}" in status.silence
