"""The embeddable brokers of both designs on sockets, with a ZooKeeper in memory and with a real one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire import messages as kafka
from kcoord_wire.central.broker import BrokerStartError, CentralBroker, HostedBroker, LoopMemory, RewriteBroker
from kcoord_wire.central.dialects import version_of
from kcoord_wire.central.draft.events import CentralError
from kcoord_wire.central.peer import Limits
from kcoord_wire.central.rewrite.events import CoordinatorSettings, RewriteError
from kcoord_wire.messages import central as m
from kcoord_wire.records import read_records
from kcoord_wire.zookeeper.ensemble import Ensemble
from kcoord_wire.zookeeper.registry import ZooKeeperUnreachableError
from kcoord_wire.zookeeper.requests import Ask, Create, Node, Outcome, Read, Replied, SessionChanged, SessionState
from tests.support.draft_wire import DraftWire
from tests.support.rewrite_wire import RewriteWire
from tests.support.virtual import on_virtual_loop
from tests.support.waiting import eventually, eventually_async
from tests.support.zookeeper import chroot_of_its_own

SESSION_MS = 4_000


@pytest.fixture
def broker() -> Iterator[CentralBroker]:
    with CentralBroker(topics={"orders": 4}, rate=1_000.0) as broker:
        eventually(lambda: broker.epoch is not None)
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
        eventually(lambda: wire.ask(fetch(), m.CentralFetchResponse).records)
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
    session_ms = 30_000  # far more than an election takes, on a busy machine too
    first = CentralBroker(connect, broker_id=1, topics={"orders": 2}, session_timeout_ms=session_ms)
    second = CentralBroker(connect, broker_id=2, topics={"orders": 2}, session_timeout_ms=session_ms)
    with second, first:
        eventually(lambda: second.epoch == 1)
        with DraftWire(first.port) as wire:
            assert wire.ask(m.ClusterMetadataRequest(), m.ClusterMetadataResponse).coordinator_id == 2
            eventually(lambda: len(wire.ask(m.ClusterMetadataRequest(), m.ClusterMetadataResponse).brokers_info) == 2)
            assert wire.ask(registration(), m.RegisterConsumerResponse).error_code == CentralError.NOT_COORDINATOR
            status = wire.ask(m.CentralStatusRequest(), m.CentralStatusResponse)
            assert status.error_code == CentralError.NOT_COORDINATOR
        began = time.monotonic()
        second.stop()
        eventually(lambda: first.epoch == 2)
        assert time.monotonic() - began < session_ms / 1000, "its session has ended, not expired"


@pytest.mark.slow
def test_an_id_has_one_broker_at_a_time(zookeeper: Ensemble) -> None:
    connect = zookeeper.connect + chroot_of_its_own()
    with CentralBroker(connect, session_timeout_ms=SESSION_MS) as broker:
        other = CentralBroker(connect, session_timeout_ms=SESSION_MS, connect_seconds=1.0)
        with pytest.raises(BrokerStartError, match=f"broker id 1 is taken by the broker at 127.0.0.1:{broker.port}"):
            other.start()
    with CentralBroker(connect, session_timeout_ms=SESSION_MS) as broker:
        eventually(lambda: broker.epoch == 2)


@pytest.mark.parametrize(
    ("first", "has_begun", "second"),
    [(CentralBroker, "epoch", RewriteBroker), (RewriteBroker, "shards", CentralBroker)],
    ids=["rewrite", "draft"],
)
def test_the_other_design_needs_another_chroot(
    zookeeper: Ensemble, first: type[HostedBroker[Any]], has_begun: str, second: type[HostedBroker[Any]]
) -> None:
    connect = zookeeper.connect + chroot_of_its_own()
    with first(connect, session_timeout_ms=SESSION_MS) as broker:
        eventually(lambda: getattr(broker, has_begun))
    design, marker = second.other_design
    with pytest.raises(BrokerStartError, match=f"is in use by the {design}, as {marker} shows"):
        second(connect, broker_id=2, session_timeout_ms=SESSION_MS).start()


@on_virtual_loop
async def test_it_connects_answers_in_order_and_ends() -> None:
    events: list[Any] = []
    registry = LoopMemory(events.append, timeout_ms=600)
    await registry.start()
    await eventually_async(lambda: events)
    registry.ask(Ask(1, Create("/a", b"x")))
    registry.ask(Ask(2, Read("/a")))
    assert len(events) == 1, "never within the call"
    await eventually_async(lambda: len(events) >= 3)
    await asyncio.sleep(1.0)  # more than the session timeout: it pings by itself
    registry.ask(Ask(3, Read("/b")))
    await eventually_async(lambda: len(events) >= 4)
    await registry.close()
    registry.ask(Ask(4, Read("/a")))
    await asyncio.sleep(0.05)
    connected, *replies = events
    assert isinstance(connected, SessionChanged)
    assert (connected.state, connected.timeout_ms) == (SessionState.CONNECTED, 600)
    assert replies == [Replied(1), Replied(2, Outcome.OK, Node(b"x", 0)), Replied(3)]


MEMBER_SESSION_MS = 6_000
SETTINGS = CoordinatorSettings(shards=4)
COMMIT = [
    kafka.OffsetCommitRequestTopic(
        name="orders", partitions=[kafka.OffsetCommitRequestPartition(partition_index=1, committed_offset=42)]
    )
]


def join(consumer_id: str = "", group: str = "g", **fields: object) -> kafka.rewrite.RewriteJoinGroupRequest:
    values = {"session_timeout_ms": MEMBER_SESSION_MS, "topics": ["orders"], "strategy": "range"} | fields
    return kafka.rewrite.RewriteJoinGroupRequest(group_id=group, consumer_id=consumer_id, **values)  # type: ignore[arg-type]


def beat(joined: kafka.rewrite.RewriteJoinGroupResponse) -> kafka.HeartbeatRequest:
    return kafka.HeartbeatRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.consumer_id)


@pytest.fixture
def rewrite() -> Iterator[RewriteBroker]:
    with RewriteBroker(topics={"orders": 4}, rate=1_000.0, settings=SETTINGS) as rewrite:
        eventually(lambda: len(rewrite.shards) == SETTINGS.shards)
        yield rewrite


def test_a_member_finds_joins_commits_and_fetches(rewrite: RewriteBroker) -> None:
    with RewriteWire(rewrite.address) as wire:
        found = wire.ask(kafka.FindCoordinatorRequest(key="g"))
        assert (found.node_id, found.host, found.port) == (1, "127.0.0.1", rewrite.port)
        metadata = wire.ask(kafka.MetadataRequest(topics=[]))
        assert [(topic.name, len(topic.partitions)) for topic in metadata.topics] == [("orders", 4)]
        joined = wire.ask(join())
        assert [(topic.topic, topic.partitions) for topic in joined.assigned_partitions] == [("orders", [0, 1, 2, 3])]
        assert wire.ask(beat(joined)).error_code == 0
        commit = kafka.OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=1, member_id=joined.consumer_id, topics=COMMIT
        )
        assert wire.ask(commit).topics[0].partitions[0].error_code == 0
        wanted = kafka.OffsetFetchRequestTopic(name="orders", partition_indexes=[0, 1])
        [topic] = wire.ask(kafka.OffsetFetchRequest(group_id="g", topics=[wanted])).topics
        assert [partition.committed_offset for partition in topic.partitions] == [-1, 42]
        part = kafka.FetchRequestFetchPartition(partition=1, fetch_offset=2, partition_max_bytes=80)
        fetch = kafka.FetchRequest(topics=[kafka.FetchRequestFetchTopic(topic="orders", partitions=[part])])
        eventually(lambda: wire.ask(fetch).responses[0].partitions[0].records)
        [batch] = list(read_records(wire.ask(fetch).responses[0].partitions[0].records))[:1]
        assert [record.value for record in batch.records] == [b"orders-1@2"]


def test_two_members_on_sockets_rebalance(rewrite: RewriteBroker) -> None:
    with RewriteWire(rewrite.address) as first, RewriteWire(rewrite.address) as second:
        one = first.ask(join())
        parked = second.send(join(), 0)
        eventually(lambda: first.ask(beat(one)).error_code == RewriteError.ILLEGAL_GENERATION)
        one = first.ask(join(one.consumer_id))
        two = second.answer_to(join(), parked)
        assert (one.generation_id, two.generation_id) == (2, 2)
        parts = [number for each in (one, two) for topic in each.assigned_partitions for number in topic.partitions]
        assert sorted(parts) == [0, 1, 2, 3]


def test_requests_behind_a_parked_one_wait_and_keep_their_order(rewrite: RewriteBroker) -> None:
    with RewriteWire(rewrite.address) as first, RewriteWire(rewrite.address) as second:
        one = first.ask(join())
        asked = [
            (request, second.send(request, version_of(type(request))))
            for request in (
                join(),
                kafka.FindCoordinatorRequest(key="g"),
                kafka.MetadataRequest(topics=[]),
                kafka.HeartbeatRequest(group_id="g"),
            )
        ]
        eventually(lambda: first.ask(beat(one)).error_code == RewriteError.ILLEGAL_GENERATION)
        first.ask(join(one.consumer_id))
        answers = [second.answer_to(*each) for each in asked]
        assert answers[0].generation_id == 2
        assert answers[3].error_code == RewriteError.UNKNOWN_CONSUMER_ID


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "looks like plain text"),
        (kw.frame(kw.encode_request(kafka.SyncGroupRequest(), 0)), "14 is not served"),
        (kw.frame(kw.encode_request(kafka.HeartbeatRequest(), 4)), "HeartbeatRequest 4 is not served"),
        (kw.frame(kw.encode_request(join(), 0)[:-3]), "truncated"),
        (kw.frame(b"\0"), "truncated"),
        (b"\x7f\xff\xff\xff", "a frame of"),
    ],
)
def test_bytes_that_are_not_a_request_close_their_connection(
    rewrite: RewriteBroker, data: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        RewriteWire(rewrite.address) as member,
        RewriteWire(rewrite.address) as hostile,
    ):
        joined = member.ask(join())
        hostile.send_raw(data)
        assert hostile.is_closed_by_peer()
        assert member.ask(beat(joined)).error_code == 0
    assert reason in caplog.text


def test_a_refused_request_is_logged_and_answered(rewrite: RewriteBroker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), RewriteWire(rewrite.address) as wire:
        assert wire.ask(join(group="../g")).error_code == RewriteError.INVALID_REQUEST
        assert wire.ask(join()).error_code == 0
    assert "request refused" in caplog.text
    assert "error=INVALID_REQUEST" in caplog.text


def test_a_commit_may_be_longer_than_a_first_frame_of_the_draft(rewrite: RewriteBroker) -> None:
    partitions = [
        kafka.OffsetCommitRequestPartition(
            partition_index=number, committed_offset=number, committed_metadata="x" * 100
        )
        for number in range(1_200)
    ]
    topics = [kafka.OffsetCommitRequestTopic(name="orders", partitions=partitions)]
    with RewriteWire(rewrite.address) as wire:
        joined = wire.ask(join())
        commit = kafka.OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=1, member_id=joined.consumer_id, topics=topics
        )
        assert len(kw.encode(commit, 1)) > Limits().max_unregistered_frame_size
        [answer] = wire.ask(commit).topics
        assert {partition.error_code for partition in answer.partitions} == {0}


@pytest.mark.slow
def test_a_stopped_broker_is_replaced_on_a_real_zookeeper(zookeeper: Ensemble) -> None:
    connect = zookeeper.connect + chroot_of_its_own()
    options = {"topics": {"orders": 4}, "settings": SETTINGS, "session_timeout_ms": 4_000}
    with ExitStack() as stack:
        brokers = {}
        for number in (1, 2):
            brokers[number] = RewriteBroker(connect, broker_id=number, **options)  # type: ignore[arg-type]
            stack.enter_context(brokers[number])
        eventually(lambda: sorted(len(broker.shards) for broker in brokers.values()) == [2, 2])
        with RewriteWire(brokers[1].address) as wire:
            found = wire.ask(kafka.FindCoordinatorRequest(key="g")).node_id
        with RewriteWire(brokers[found].address) as wire:
            joined = wire.ask(join())
            assert joined.error_code == 0
        brokers[found].stop()
        other = brokers[3 - found]
        eventually(lambda: len(other.shards) == SETTINGS.shards)
        with RewriteWire(other.address) as wire:
            assert wire.ask(kafka.FindCoordinatorRequest(key="g")).node_id == 3 - found
            assert wire.ask(beat(joined)).error_code == 0, "the group and its generation were read from ZooKeeper"
