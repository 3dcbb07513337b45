"""The embeddable broker of the rewrite, with a ZooKeeper in memory and with a real one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import kcoord_wire as kw
from kcoord_wire import messages as m
from kcoord_wire.central.broker import RewriteBroker
from kcoord_wire.central.connection import Limits
from kcoord_wire.central.frames import version_of
from kcoord_wire.central.rewrite.events import CoordinatorSettings, RewriteError
from kcoord_wire.records import read_records
from kcoord_wire.zookeeper.ensemble import Ensemble
from tests.support.group_client import until
from tests.support.rewrite_wire import RewriteWire
from tests.support.zookeeper import chroot_of_its_own

SESSION_MS = 6_000
SETTINGS = CoordinatorSettings(shards=4)
COMMIT = [
    m.OffsetCommitRequestTopic(
        name="orders", partitions=[m.OffsetCommitRequestPartition(partition_index=1, committed_offset=42)]
    )
]


def join(consumer_id: str = "", group: str = "g", **fields: object) -> m.rewrite.RewriteJoinGroupRequest:
    values = {"session_timeout_ms": SESSION_MS, "topics": ["orders"], "strategy": "range"} | fields
    return m.rewrite.RewriteJoinGroupRequest(group_id=group, consumer_id=consumer_id, **values)  # type: ignore[arg-type]


def beat(joined: m.rewrite.RewriteJoinGroupResponse) -> m.HeartbeatRequest:
    return m.HeartbeatRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.consumer_id)


@pytest.fixture
def broker() -> Iterator[RewriteBroker]:
    with RewriteBroker(topics={"orders": 4}, rate=1_000.0, settings=SETTINGS) as broker:
        until(lambda: len(broker.shards) == SETTINGS.shards)
        yield broker


def test_a_member_finds_joins_commits_and_fetches(broker: RewriteBroker) -> None:
    with RewriteWire(broker.address) as wire:
        found = wire.ask(m.FindCoordinatorRequest(key="g"))
        assert (found.node_id, found.host, found.port) == (1, "127.0.0.1", broker.port)
        metadata = wire.ask(m.MetadataRequest(topics=[]))
        assert [(topic.name, len(topic.partitions)) for topic in metadata.topics] == [("orders", 4)]
        joined = wire.ask(join())
        assert [(topic.topic, topic.partitions) for topic in joined.assigned_partitions] == [("orders", [0, 1, 2, 3])]
        assert wire.ask(beat(joined)).error_code == 0
        commit = m.OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=1, member_id=joined.consumer_id, topics=COMMIT
        )
        assert wire.ask(commit).topics[0].partitions[0].error_code == 0
        wanted = m.OffsetFetchRequestTopic(name="orders", partition_indexes=[0, 1])
        [topic] = wire.ask(m.OffsetFetchRequest(group_id="g", topics=[wanted])).topics
        assert [partition.committed_offset for partition in topic.partitions] == [-1, 42]
        part = m.FetchRequestFetchPartition(partition=1, fetch_offset=2, partition_max_bytes=80)
        fetch = m.FetchRequest(topics=[m.FetchRequestFetchTopic(topic="orders", partitions=[part])])
        until(lambda: wire.ask(fetch).responses[0].partitions[0].records)
        [batch] = list(read_records(wire.ask(fetch).responses[0].partitions[0].records))[:1]
        assert [record.value for record in batch.records] == [b"orders-1@2"]


def test_two_members_on_sockets_rebalance(broker: RewriteBroker) -> None:
    with RewriteWire(broker.address) as first, RewriteWire(broker.address) as second:
        one = first.ask(join())
        parked = second.send(join(), 0)
        until(lambda: first.ask(beat(one)).error_code == RewriteError.ILLEGAL_GENERATION)
        one = first.ask(join(one.consumer_id))
        two = second.answer_to(join(), parked)
        assert (one.generation_id, two.generation_id) == (2, 2)
        parts = [number for each in (one, two) for topic in each.assigned_partitions for number in topic.partitions]
        assert sorted(parts) == [0, 1, 2, 3]


def test_requests_behind_a_parked_one_wait_and_keep_their_order(broker: RewriteBroker) -> None:
    with RewriteWire(broker.address) as first, RewriteWire(broker.address) as second:
        one = first.ask(join())
        asked = [
            (request, second.send(request, version_of(type(request))))
            for request in (
                join(),
                m.FindCoordinatorRequest(key="g"),
                m.MetadataRequest(topics=[]),
                m.HeartbeatRequest(group_id="g"),
            )
        ]
        until(lambda: first.ask(beat(one)).error_code == RewriteError.ILLEGAL_GENERATION)
        first.ask(join(one.consumer_id))
        answers = [second.answer_to(*each) for each in asked]
        assert answers[0].generation_id == 2
        assert answers[3].error_code == RewriteError.UNKNOWN_CONSUMER_ID


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "looks like plain text"),
        (kw.frame(kw.encode_request(m.SyncGroupRequest(), 0)), "14 is not served"),
        (kw.frame(kw.encode_request(m.HeartbeatRequest(), 4)), "HeartbeatRequest 4 is not served"),
        (kw.frame(kw.encode_request(join(), 0)[:-3]), "truncated"),
        (kw.frame(b"\0"), "truncated"),
        (b"\x7f\xff\xff\xff", "a frame of"),
    ],
)
def test_bytes_that_are_not_a_request_close_their_connection(
    broker: RewriteBroker, data: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        RewriteWire(broker.address) as member,
        RewriteWire(broker.address) as hostile,
    ):
        joined = member.ask(join())
        hostile.send_raw(data)
        assert hostile.is_closed_by_peer()
        assert member.ask(beat(joined)).error_code == 0
    assert reason in caplog.text


def test_a_refused_request_is_logged_and_answered(broker: RewriteBroker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), RewriteWire(broker.address) as wire:
        assert wire.ask(join(group="../g")).error_code == RewriteError.INVALID_REQUEST
        assert wire.ask(join()).error_code == 0
    assert "request refused" in caplog.text
    assert "error=INVALID_REQUEST" in caplog.text


def test_a_commit_may_be_longer_than_a_first_frame_of_the_draft(broker: RewriteBroker) -> None:
    partitions = [
        m.OffsetCommitRequestPartition(partition_index=number, committed_offset=number, committed_metadata="x" * 100)
        for number in range(1_200)
    ]
    topics = [m.OffsetCommitRequestTopic(name="orders", partitions=partitions)]
    with RewriteWire(broker.address) as wire:
        joined = wire.ask(join())
        commit = m.OffsetCommitRequest(
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
        until(lambda: sorted(len(broker.shards) for broker in brokers.values()) == [2, 2])
        with RewriteWire(brokers[1].address) as wire:
            found = wire.ask(m.FindCoordinatorRequest(key="g")).node_id
        with RewriteWire(brokers[found].address) as wire:
            joined = wire.ask(join())
            assert joined.error_code == 0
        brokers[found].stop()
        other = brokers[3 - found]
        until(lambda: len(other.shards) == SETTINGS.shards)
        with RewriteWire(other.address) as wire:
            assert wire.ask(m.FindCoordinatorRequest(key="g")).node_id == 3 - found
            assert wire.ask(beat(joined)).error_code == 0, "the group and its generation were read from ZooKeeper"
