"""A member of KIP-848 on the consumer's side: what its machine does around the heartbeats, and the consumer with it on
a real coordinator. The heartbeats themselves are in test_consumer_group_member.py."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer import Consumer, ConsumerSettings
from kcoord_wire.consumer import member_events as events
from kcoord_wire.consumer.brokers import Brokers, MetadataKeeper
from kcoord_wire.consumer.connection import BrokerConnection
from kcoord_wire.consumer.errors import (
    CommitFailedError,
    GroupError,
    UnsupportedVersionError,
)
from kcoord_wire.consumer.kip848_client import ServerAssignedMember
from kcoord_wire.consumer.member_events import Assigned, Failed, Fetched, Lost, PollExpired, Revoking
from kcoord_wire.consumer.membership import Membership, machine_of
from kcoord_wire.coordinator import Coordinator, Fault, Faults, GroupConfig
from kcoord_wire.kernel.machines import Close, Disconnected, Tick
from kcoord_wire.kernel.net import parse_address
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.consumers import NotingListener, drive, heartbeat_answer, member_settings, partitions, produce, take
from tests.support.fixtures import StartCoordinator

ID = uuid.UUID(int=7)
ALL = partitions(0, 1, 2, 3)


class Host:
    """A machine with the last request of each kind that it has sent, and its other effects."""

    def __init__(self, **changes: Any) -> None:
        known = events.MemberSettings(group_id="g", client_id="c", rebalance_timeout_ms=10_000, **changes)
        self.machine = ServerAssignedMember(known, "m", "range")
        self.now = 1_000
        self.sent: dict[type, events.SendRequest] = {}

    def handle(self, event: Any) -> list[Any]:
        effects = []
        for effect in self.machine.handle(event, self.now):
            if isinstance(effect, events.SendRequest):
                self.sent[type(effect.message)] = effect
            else:
                effects.append(effect)
        return effects

    def answer(self, kind: type, response: Any) -> list[Any]:
        return self.handle(events.Arrived(self.sent.pop(kind).request_id, response))

    def wait(self, ms: int) -> list[Any]:
        self.now += ms
        return self.handle(Tick())

    def find(self) -> list[Any]:
        found = m.FindCoordinatorResponseCoordinator(host="h", port=1)
        return self.answer(m.FindCoordinatorRequest, m.FindCoordinatorResponse(coordinators=[found]))

    def beat(self, epoch: int, *given: int, error: int = 0, silent: bool = False) -> list[Any]:
        response = heartbeat_answer(ID, epoch, given, error, silent=silent)
        return self.answer(m.ConsumerGroupHeartbeatRequest, response)

    def fetched(self, *numbers: int, error: int = 0) -> list[Any]:
        parts = [m.OffsetFetchResponsePartitions(partition_index=each, committed_offset=5) for each in numbers]
        topic = m.OffsetFetchResponseTopics(name="orders", partitions=parts)
        group = m.OffsetFetchResponseGroup(group_id="g", topics=[topic] if parts else [], error_code=error)
        return self.answer(m.OffsetFetchRequest, m.OffsetFetchResponse(groups=[group]))

    @property
    def beating(self) -> m.ConsumerGroupHeartbeatRequest:
        message = self.sent[m.ConsumerGroupHeartbeatRequest].message
        assert isinstance(message, m.ConsumerGroupHeartbeatRequest)
        return message


def known(**ids: uuid.UUID) -> events.TopicsKnown:
    return events.TopicsKnown(dict.fromkeys(ids, 4), ids=ids)


def subscribed(**changes: Any) -> Host:
    host = Host(**changes)
    host.handle(events.Stalled())
    host.handle(events.Subscribe(["orders"]))
    host.find()
    return host


def joined(*given: int, **changes: Any) -> Host:
    host = subscribed(**changes)
    host.handle(known(orders=ID))
    host.handle(events.Polled())
    assert host.beat(3, *given) == [Assigned(3, partitions(*given))]
    host.beat(3, silent=True)
    if given:
        assert host.fetched(*given) == [Fetched(dict.fromkeys(partitions(*given), 5))]
    return host


def test_it_joins_when_the_application_polls() -> None:
    host = subscribed(rack="r1")
    assert not host.sent
    host.handle(events.Polled())
    assert (host.beating.member_id, host.beating.member_epoch, host.beating.rack_id) == ("m", 0, "r1")
    assert (host.beating.subscribed_topic_names, host.beating.server_assignor) == (["orders"], "range")
    assert host.beating.rebalance_timeout_ms == 10_000


def test_a_partition_without_a_name_waits_for_the_metadata() -> None:
    host = subscribed()
    host.handle(events.Polled())
    assert host.beat(3, 0) == [events.MetadataWanted(), Assigned(3, frozenset())]
    assert host.machine.owned == frozenset()
    host.beat(3, silent=True)
    assert host.handle(known(payments=uuid.UUID(int=8))) == [events.MetadataWanted(), Assigned(3, frozenset())]
    assert host.handle(known(orders=ID)) == [Assigned(3, partitions(0))]
    assert host.handle(known(orders=ID)) == []
    request = host.sent[m.OffsetFetchRequest].message
    assert isinstance(request, m.OffsetFetchRequest)
    assert (request.groups[0].member_id, request.groups[0].member_epoch) == ("m", 3)


def test_a_partition_without_a_name_is_given_up_unseen() -> None:
    host = subscribed()
    host.handle(events.Polled())
    host.beat(3, 0)
    host.beat(3, silent=True)
    host.wait(500)
    assert host.beat(4) == [Assigned(4, frozenset())]
    assert host.beating.topic_partitions == []
    assert host.handle(known(orders=ID)) == []


def test_each_reconciliation_is_announced() -> None:
    host = joined(0, 1)
    host.wait(500)
    (revoking,) = host.beat(4, 0)
    assert revoking == Revoking(1, partitions(1))
    assert host.machine.owned == partitions(0, 1)
    assert host.handle(events.Released(2, {})) == []
    assert host.handle(events.Released(1, {})) == [Assigned(4, frozenset())]
    assert host.machine.owned == partitions(0)
    assert [each.partitions for each in host.beating.topic_partitions or []] == [[0]]
    assert host.beat(4, 0, 1) == [Assigned(4, partitions(1))]
    assert host.handle(events.Released(1, {})) == []
    assert host.machine.owned == partitions(0, 1), "it was given up once"


def test_without_polls_it_leaves_and_comes_back_with_the_next() -> None:
    host = joined(0)
    host.handle(events.Stalled())
    host.wait(9_999)
    host.beat(3, silent=True)
    assert host.wait(1) == [PollExpired(), Lost(partitions(0))]
    assert host.beating.member_epoch == -1
    host.handle(events.Polled())
    assert host.beating.member_epoch == -1, "first it is out"
    host.beat(-1, silent=True)
    assert (host.beating.member_epoch, host.beating.member_id) == (0, "m")


@pytest.mark.parametrize("error", ["UNRELEASED_INSTANCE_ID", "GROUP_MAX_SIZE_REACHED", "GROUP_AUTHORIZATION_FAILED"])
def test_a_refusal_is_the_end(error: str) -> None:
    host = joined(0)
    host.wait(500)
    assert host.beat(0, error=ErrorCode[error]) == [Lost(partitions(0)), Failed(ErrorCode[error])]
    assert host.machine.deadline is None


@pytest.mark.parametrize("error", ["NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"])
def test_a_coordinator_that_is_none_any_more_is_looked_for(error: str) -> None:
    host = joined(0)
    host.wait(500)
    assert host.beat(0, error=ErrorCode[error]) == [Close()]
    host.wait(100)
    assert m.ConsumerGroupHeartbeatRequest not in host.sent
    host.find()
    host.wait(100)
    assert (host.beating.member_epoch, host.beating.subscribed_topic_names) == (3, ["orders"])
    assert host.machine.owned == partitions(0)


def test_what_cannot_be_sent_is_said_by_the_next_heartbeat() -> None:
    host = joined(0, 1)
    host.wait(500)
    host.beat(4, 0)
    host.handle(Disconnected())
    host.sent.clear()
    assert host.handle(events.Released(1, {})) == [Assigned(4, frozenset())]
    assert not host.sent
    host.wait(100)
    host.find()
    host.wait(100)
    assert [each.partitions for each in host.beating.topic_partitions or []] == [[0]]


def committed(error: int = 0) -> m.OffsetCommitResponse:
    part = m.OffsetCommitResponsePartition(partition_index=0, error_code=error)
    return m.OffsetCommitResponse(topics=[m.OffsetCommitResponseTopic(name="orders", partitions=[part])])


def test_a_commit_of_a_stale_epoch_is_sent_again() -> None:
    host = joined(0)
    offsets = {TopicPartition("orders", 0): 7}
    host.handle(events.Commit(offsets, 1))
    host.wait(500)
    host.beat(4, silent=True)
    assert host.answer(m.OffsetCommitRequest, committed(ErrorCode.STALE_MEMBER_EPOCH)) == []
    request = host.sent[m.OffsetCommitRequest].message
    assert isinstance(request, m.OffsetCommitRequest)
    assert request.generation_id_or_member_epoch == 4
    refused = host.answer(m.OffsetCommitRequest, committed(ErrorCode.STALE_MEMBER_EPOCH))
    assert refused == [events.NotCommitted(offsets, ErrorCode.STALE_MEMBER_EPOCH, 1)]
    assert subscribed().handle(events.Commit(offsets, 2)) == [
        events.NotCommitted(offsets, ErrorCode.REBALANCE_IN_PROGRESS, 2)
    ]


def test_offsets_refused_for_the_epoch_are_asked_for_again() -> None:
    host = joined(0)
    host.wait(500)
    host.beat(4, 0, 1)
    assert host.fetched(error=ErrorCode.STALE_MEMBER_EPOCH) == []
    host.wait(100)
    assert host.fetched(1) == [Fetched({TopicPartition("orders", 1): 5})]


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("i", -2)])
def test_the_farewell_comes_after_the_heartbeat_in_flight(instance: str | None, epoch: int) -> None:
    host = joined(0, group_instance_id=instance)
    host.wait(500)
    assert host.handle(events.Leave()) == []
    assert host.beat(3, silent=True) == []
    assert host.beating.member_epoch == epoch
    assert host.beat(epoch, silent=True) == [events.Left()]
    assert host.machine.state is events.MemberState.LEFT


# ---- on a coordinator

CONFIG = GroupConfig(
    consumer_heartbeat_interval_ms=100,
    consumer_assignment_interval_ms=0,
)


def options(server: Coordinator, **changes: Any) -> ConsumerSettings:
    return member_settings(server.address, "consumer", **changes)


def test_two_members_share_and_go_on(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 4}, config=CONFIG)
        await produce(server.address, {each: ["a", "b"] for each in ALL})
        one, other = NotingListener(), NotingListener()
        async with Consumer(options(server)) as first:
            first.subscribe(["orders"], one)
            assert len(await take(first, 8)) == 8
            async with Consumer(options(server)) as second:
                second.subscribe(["orders"], other)
                await drive(lambda: len(first.assignment) == len(second.assignment) == 2, first, second)
                assert first.assignment | second.assignment == ALL
                await produce(server.address, {each: ["c"] for each in ALL})
                read = await drive(lambda: first.current_lag(min(first.assignment)) == 0, first, second)
                while len(read) < 4:
                    read += await drive(lambda: True, first, second) or [*await first.poll(20), *await second.poll(20)]
                assert sorted((record.partition, record.value) for record in read) == [(p, b"c") for p in range(4)]
            await drive(lambda: first.assignment == ALL, first)
            assert {await first.position(each) for each in ALL} == {3}, "what the other one read was committed"
        assert [method for method, _ in one.calls[:4]] == ["assigned", "revoked", "assigned", "assigned"]
        assert (one.calls[-1], other.calls[-1][0]) == (("revoked", (0, 1, 2, 3)), "revoked")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


TRANSIENT = [
    *(
        Fault("error", api="ConsumerGroupHeartbeat", error=ErrorCode[name], count=2)
        for name in ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS")
    ),
    Fault("error", api="OffsetFetch", error=ErrorCode.STALE_MEMBER_EPOCH, count=2),
    Fault("error", api="OffsetFetch", error=ErrorCode.NOT_COORDINATOR, count=2),
    Fault("disconnect", api="ConsumerGroupHeartbeat", count=1),
    Fault("disconnect", on="response", api="ConsumerGroupHeartbeat", count=1),
]


@pytest.mark.parametrize("fault", TRANSIENT, ids=lambda fault: f"{fault.api}-{fault.error or fault.action}-{fault.on}")
def test_what_passes_is_not_noticed(coordinator: StartCoordinator, fault: Fault) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 4}, config=CONFIG, faults=Faults([fault]))
        listener = NotingListener()
        async with Consumer(options(server)) as consumer:
            consumer.subscribe(["orders"], listener)
            await drive(lambda: consumer.assignment == ALL, consumer)
            await produce(server.address, {each: ["a"] for each in ALL})
            assert len(await take(consumer, 4)) == 4
            for _ in range(4):  # heartbeats, and what they lead to
                await consumer.poll(50)
            await consumer.commit()
            assert listener.calls == [("assigned", (0, 1, 2, 3))]

    asyncio.run(run())


def test_a_fenced_one_loses_all_and_joins_again(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 4}, config=CONFIG)
        listener = NotingListener()
        async with Consumer(options(server)) as consumer:
            consumer.subscribe(["orders"], listener)
            await drive(lambda: consumer.assignment == ALL, consumer)
            server.add_fault(Fault("error", api="ConsumerGroupHeartbeat", error=ErrorCode.FENCED_MEMBER_EPOCH, count=1))
            await drive(lambda: [method for method, _ in listener.calls] == ["assigned", "lost", "assigned"], consumer)
            await consumer.commit({TopicPartition("orders", 0): 1})

    asyncio.run(run())


def test_one_that_is_closed_while_it_beats_says_farewell(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 4}, config=CONFIG)
        async with Consumer(options(server, enable_auto_commit=False)) as consumer:
            consumer.subscribe(["orders"])
            await drive(lambda: consumer.assignment == ALL, consumer)
            server.add_fault(Fault("delay", on="response", api="ConsumerGroupHeartbeat", delay_ms=200))
            membership = consumer._membership
            assert membership is not None
            await drive(lambda: bool(membership._waiting), consumer)
        assert membership.machine.state is events.MemberState.LEFT, "it has been answered"
        connection = await BrokerConnection.open(*parse_address(server.address))
        described = await connection.request(m.ConsumerGroupDescribeRequest(group_ids=["billing"]))
        await connection.close()
        assert [group.members for group in described.groups] == [[]]

    asyncio.run(run())


def test_a_static_one_comes_back_to_what_it_had(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 4}, config=CONFIG)
        listener = NotingListener()
        async with Consumer(options(server)) as stays:
            stays.subscribe(["orders"], listener)
            async with Consumer(options(server, group_instance_id="one")) as first:
                first.subscribe(["orders"])
                await drive(lambda: len(first.assignment) == len(stays.assignment) == 2, first, stays)
                had, calls = first.assignment, len(listener.calls)
            async with Consumer(options(server, group_instance_id="one")) as again:
                again.subscribe(["orders"])
                await drive(lambda: again.assignment == had, again, stays)
                assert len(listener.calls) == calls

    asyncio.run(run())


def test_the_second_of_an_instance_is_refused(coordinator: StartCoordinator) -> None:
    """As Kafka's coordinator does, which lets the older one stay; the classic protocol fences the older one."""

    async def run() -> None:
        server = coordinator(topics={"orders": 4}, config=CONFIG)
        static = options(server, group_instance_id="one")
        async with Consumer(static) as older, Consumer(static) as newer:
            older.subscribe(["orders"])
            await drive(lambda: older.assignment == ALL, older)
            newer.subscribe(["orders"])
            with pytest.raises(GroupError) as refused:
                await drive(lambda: False, newer)
            assert refused.value.error is ErrorCode.UNRELEASED_INSTANCE_ID
            with pytest.raises(CommitFailedError):
                await newer.commit({TopicPartition("orders", 0): 1})

    asyncio.run(run())


def test_a_broker_that_chooses_the_ids_is_an_error() -> None:
    """Version 0 of the heartbeat, of the early access in Kafka 3.7 to 3.9."""

    async def run() -> None:
        mine = member_settings("localhost:1", "consumer")
        brokers = Brokers(mine)
        keeper = MetadataKeeper(mine, brokers, list, list)
        membership = Membership(mine, machine_of(mine, is_member=True), brokers, keeper, list, list)
        broker: Any = SimpleNamespace(address="localhost:1", highest_version=lambda api, newest: 0)
        with pytest.raises(UnsupportedVersionError, match=r"Kafka 4\.0"):
            membership._take_coordinator(broker)

    asyncio.run(run())


def test_a_broker_without_the_protocol_is_an_error(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 1}, as_version="3.9")
        async with Consumer(options(server)) as consumer:
            consumer.subscribe(["orders"])
            with pytest.raises(UnsupportedVersionError, match="ConsumerGroupHeartbeat"):
                await drive(lambda: False, consumer)

    asyncio.run(run())
