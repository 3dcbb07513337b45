"""What the consumer asks brokers and coordinator for: offsets, lag, commits with a text; partitions that it assigns
itself; what a producer needs of it for a transaction; and its metrics."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from kcoord_wire import messages as m
from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer import (
    Consumer,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    RebalanceListener,
)
from kcoord_wire.consumer import member_events as events
from kcoord_wire.consumer.errors import (
    CommitFailedError,
    ConsumerError,
    ConsumerTimeoutError,
    NotAssignedError,
    TopicError,
    UnsupportedVersionError,
)
from kcoord_wire.consumer.group_client import GroupClient
from kcoord_wire.consumer.settings import Sasl
from kcoord_wire.coordinator import Fault, Faults
from kcoord_wire.kernel.machines import Tick
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.consumers import (
    NotingListener,
    drive,
    member_settings,
    partitions,
    produce,
    send_offset,
    settings,
    take,
)
from tests.support.fixtures import StartCoordinator

ZERO, ONE, TWO = (TopicPartition("orders", number) for number in range(3))
SECONDS = 30
PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


# ---- what the brokers have


def test_offsets_of_any_partitions(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        address = coordinator(topics={"orders": 3, "payments": 2}).address
        producer = Producer({"bootstrap.servers": address})
        for number in range(4):
            producer.produce("payments", b"x", partition=1, timestamp=1_000 + 10 * number)
        assert producer.flush(SECONDS) == 0
        first, second = (TopicPartition("payments", number) for number in range(2))
        async with Consumer(settings(address, group_id=None)) as consumer:  # it needs neither group nor subscription
            assert await consumer.partitions_for("payments") == {first, second}
            assert await consumer.beginning_offsets([first, second, ZERO]) == {first: 0, second: 0, ZERO: 0}
            assert await consumer.end_offsets([first, second, ZERO]) == {first: 0, second: 4, ZERO: 0}
            found = await consumer.offsets_for_times({second: 1_011, first: 0})
            assert found == {second: OffsetAndTimestamp(2, 1_020, 0), first: None}
            assert await consumer.offsets_for_times({second: 1_031}) == {second: None}
            with pytest.raises(ValueError, match="at time -1"):
                await consumer.offsets_for_times({second: -1})

    asyncio.run(run())


def test_offsets_are_asked_for_again(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        faults = Faults([Fault("error", api="ListOffsets", error=ErrorCode.NOT_LEADER_OR_FOLLOWER, count=2)])
        address = coordinator(topics={"orders": 3}, faults=faults).address
        async with Consumer(settings(address)) as consumer:
            assert await consumer.end_offsets([ZERO, ONE]) == {ZERO: 0, ONE: 0}
            assert consumer.metrics()["request_total"] >= 5

    asyncio.run(run())


def test_what_cannot_be_known_is_an_error(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        faults = Faults([Fault("error", api="ListOffsets", error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)])
        server = coordinator(topics={"orders": 3}, faults=faults)
        hasty = settings(server.address, default_api_timeout_ms=300, allow_auto_create_topics=False)
        async with Consumer(hasty) as consumer:
            with pytest.raises(TopicError, match="TOPIC_AUTHORIZATION_FAILED"):
                await consumer.beginning_offsets([ZERO])
            with pytest.raises(ConsumerTimeoutError, match="'missing' is not known within 300 ms"):
                await consumer.partitions_for("missing")
            with pytest.raises(TopicError, match="INVALID_TOPIC"):
                await consumer.partitions_for("no topic")
            with pytest.raises(ConsumerTimeoutError, match="1 offsets"):
                await consumer.end_offsets([TopicPartition("orders", 9)])
            with pytest.raises(ConsumerError, match="no subscription"):
                await consumer.committed([ZERO])
        async with Consumer(settings(server.address, sasl=Sasl("PLAIN", "alice", "secret"))) as stranger:
            with pytest.raises(UnsupportedVersionError, match="SaslAuthenticate"):
                await stranger.end_offsets([ZERO])

    asyncio.run(run())


def test_lag_is_what_is_still_to_come(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        address = coordinator(topics={"orders": 1}).address
        await produce(address, {ZERO: ["a", "b", "c"]})
        async with Consumer(settings(address, max_poll_records=1)) as consumer:
            with pytest.raises(NotAssignedError):
                consumer.current_lag(ZERO)
            consumer.assign([ZERO])
            assert consumer.current_lag(ZERO) is None
            seen = []
            for _ in range(3):
                await take(consumer, 1)
                seen.append(consumer.current_lag(ZERO))
            assert seen == [2, 1, 0]
            consumer.seek_to_beginning()
            assert consumer.current_lag(ZERO) is None, "the position is not known"

    asyncio.run(run())


def test_open_transactions_are_no_lag(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        address = coordinator(topics={"orders": 1}).address
        await produce(address, {ZERO: ["a"]})
        producer = Producer({"bootstrap.servers": address, "transactional.id": "tx"})
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        producer.produce("orders", b"open", partition=0)
        assert producer.flush(SECONDS) == 0
        for isolation, end in (("read_committed", 1), ("read_uncommitted", 2)):
            async with Consumer(settings(address, isolation_level=isolation, group_id=None)) as consumer:
                assert await consumer.end_offsets([ZERO]) == {ZERO: end}
                consumer.assign([ZERO])
                await take(consumer, 1)
                assert consumer.current_lag(ZERO) == end - await consumer.position(ZERO)
        producer.abort_transaction(SECONDS)

    asyncio.run(run())


# ---- partitions that the application assigns


def test_the_application_assigns_partitions_itself(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 3})
        await produce(server.address, {each: ["a", "b", "c"] for each in (ZERO, ONE, TWO)})
        async with Consumer(settings(server.address)) as consumer:
            consumer.assign([ZERO, ONE])
            assert (consumer.assignment, consumer.subscription) == ({ZERO, ONE}, frozenset())
            assert {record.partition for record in await take(consumer, 6)} == {0, 1}
            await consumer.commit({ZERO: OffsetAndMetadata(1, "by hand", 0), ONE: 2})
            consumer.seek(ONE, 1)
            consumer.assign([ONE, TWO])
            records = await take(consumer, 5)
            assert sorted((record.partition, record.offset) for record in records) == [(1, 1), (1, 2)] + [
                (2, offset) for offset in range(3)
            ], "what stays keeps its position"
            with pytest.raises(ConsumerError, match="assigns partitions itself"):
                consumer.subscribe(["orders"])
            with pytest.raises(ConsumerError, match="no subscription"):
                consumer.enforce_rebalance()
            with pytest.raises(ValueError, match="needs a partition"):
                consumer.assign([])
        async with Consumer(settings(server.address, enable_auto_commit=False)) as again:
            again.assign([ZERO, ONE, TWO])
            assert await again.position(ZERO) == 1, "the group's offset, and not the one after the last record"
            assert [await again.position(each) for each in (ONE, TWO)] == [3, 3], "committed at the end"
            known = await again.committed([ZERO, ONE, TopicPartition("payments", 0)])
            assert known == {
                ZERO: OffsetAndMetadata(1, "by hand", 0),
                ONE: OffsetAndMetadata(3),
                TopicPartition("payments", 0): None,
            }
        assert not server.rebalances, "nothing has joined"

    asyncio.run(run())


def test_one_who_assigns_calls_no_listener(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 3})
        listener = NotingListener()
        async with Consumer(settings(server.address)) as consumer:
            consumer.subscribe(["orders"], listener)
            await drive(lambda: len(consumer.assignment) == 3, consumer)
            with pytest.raises(ConsumerError, match="there is a subscription"):
                consumer.assign([ZERO])
            await consumer.unsubscribe()
            consumer.assign([ZERO])
            await consumer.poll(50)
            await consumer.unsubscribe()
            assert consumer.assignment == frozenset()
            consumer.subscribe(["orders"])
            await drive(lambda: len(consumer.assignment) == 3, consumer)
        assert [method for method, _ in listener.calls] == ["assigned", "revoked"] * 2

    asyncio.run(run())


def test_a_group_with_members_refuses_other_commits(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        address = coordinator(topics={"orders": 3}).address
        async with Consumer(settings(address)) as inside, Consumer(settings(address)) as outside:
            inside.subscribe(["orders"])
            await drive(lambda: len(inside.assignment) == 3, inside)
            outside.assign([ZERO])
            with pytest.raises(CommitFailedError) as refused:
                await outside.commit({ZERO: 1})
            assert refused.value.error is ErrorCode.UNKNOWN_MEMBER_ID

    asyncio.run(run())


def test_one_without_a_group_reads_and_commits_nothing(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        address = coordinator(topics={"orders": 1}).address
        await produce(address, {ZERO: ["a"]})
        async with Consumer(settings(address, group_id=None)) as consumer:
            with pytest.raises(ConsumerError, match="needs a group_id"):
                consumer.subscribe(["orders"])
            assert consumer.subscription == frozenset()
            consumer.assign([ZERO])
            assert len(await take(consumer, 1)) == 1
            for using in (consumer.commit, lambda: consumer.committed([ZERO])):
                with pytest.raises(ConsumerError, match="no group_id"):
                    await using()
            with pytest.raises(ConsumerError, match="no group_id"):
                consumer.group_metadata()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


AGAIN = [
    Fault("error", api="OffsetFetch", error=ErrorCode.NOT_COORDINATOR, count=2),
    Fault("error", api="OffsetFetch", error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, count=2),
    Fault("disconnect", api="OffsetFetch", count=2),
]


@pytest.mark.parametrize("fault", AGAIN, ids=lambda fault: str(fault.error or fault.action))
def test_what_is_committed_is_asked_for_again(coordinator: StartCoordinator, fault: Fault) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 1})
        async with Consumer(settings(server.address)) as consumer:
            consumer.assign([ZERO])
            await consumer.position(ZERO)
            await consumer.commit({ZERO: OffsetAndMetadata(4, "text")})
            server.add_fault(fault)
            assert await consumer.committed([ZERO]) == {ZERO: OffsetAndMetadata(4, "text")}

    asyncio.run(run())


def test_offsets_of_what_stays_are_not_asked_for_again() -> None:
    def asked(*partitions: TopicPartition) -> list[int]:
        effects = machine.handle(events.Assign(frozenset(partitions)), 0)
        [fetch] = [effect for effect in effects if isinstance(effect, events.SendRequest)]
        assert isinstance(fetch.message, m.OffsetFetchRequest)
        [topic] = fetch.message.groups[0].topics
        parts = [m.OffsetFetchResponsePartitions(partition_index=each) for each in topic.partition_indexes]
        found = m.OffsetFetchResponseTopics(name="orders", partitions=parts)
        group = m.OffsetFetchResponseGroup(group_id="g", topics=[found])
        machine.handle(events.Arrived(fetch.request_id, m.OffsetFetchResponse(groups=[group])), 0)
        return topic.partition_indexes

    machine = GroupClient(events.MemberSettings(group_id="g"))
    [find] = machine.handle(Tick(), 0)
    assert isinstance(find, events.SendRequest)
    found = m.FindCoordinatorResponseCoordinator(host="h", port=1)
    machine.handle(events.Arrived(find.request_id, m.FindCoordinatorResponse(coordinators=[found])), 0)
    assert asked(ZERO, ONE) == [0, 1]
    assert asked(ONE, TWO) == [2]
    assert machine.has_offsets


# ---- transactions


@PROTOCOLS
def test_a_producer_commits_for_the_group(coordinator: StartCoordinator, protocol: str) -> None:
    """A real one (librdkafka): TxnOffsetCommit of the present generation is accepted, of another one refused."""

    async def run() -> None:
        address = coordinator(topics={"orders": 1}).address
        async with Consumer(member_settings(address, protocol, enable_auto_commit=False)) as consumer:
            consumer.subscribe(["orders"])
            await drive(lambda: consumer.assignment == {ZERO}, consumer)
            metadata = consumer.group_metadata()
            assert (metadata.group_id, metadata.member_id) == ("billing", consumer.member_id)
            assert metadata.generation_id == consumer.generation_id > 0
            await asyncio.to_thread(send_offset, address, metadata, ZERO, 5)
            assert await consumer.committed([ZERO]) == {ZERO: OffsetAndMetadata(5)}
            stale = ConsumerGroupMetadata("billing", metadata.generation_id + 1, metadata.member_id, None)
            with pytest.raises(KafkaException) as refused:
                await asyncio.to_thread(send_offset, address, stale, ZERO, 6)
            assert refused.value.args[0].code() in (KafkaError.ILLEGAL_GENERATION, KafkaError.STALE_MEMBER_EPOCH)

    asyncio.run(run())


# ---- metrics


def test_metrics_count_what_happens(coordinator: StartCoordinator) -> None:
    class Slow(RebalanceListener):
        async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
            await asyncio.sleep(0.05)

    async def run() -> None:
        server = coordinator(topics={"orders": 4})
        await produce(server.address, {each: ["a", "b"] for each in partitions(0, 1, 2, 3)})
        async with Consumer(settings(server.address)) as consumer:
            names = consumer.metrics().keys()
            assert set(consumer.metrics().values()) == {0}
            consumer.subscribe(["orders"], Slow())
            await take(consumer, 8)
            await consumer.commit()
            first = consumer.metrics()
            assert first.keys() == names
            assert (first["records_consumed_total"], first["assigned_partitions"], first["records_lag_max"]) == (
                8,
                4,
                0,
            )
            assert first["bytes_fetched_total"] >= 4 * 61
            assert first["rebalance_ms_max"] > 0
            assert (first["rebalance_total"], first["commit_total"], first["failed_commits_total"]) == (1, 1, 0)
            assert first["request_total"] > first["fetch_total"] > 0
            assert first["request_ms_total"] >= first["request_ms_max"] > 0
            server.add_fault(Fault("error", api="OffsetCommit", error=ErrorCode.ILLEGAL_GENERATION, count=1))
            with pytest.raises(CommitFailedError):
                await consumer.commit()
            server.add_fault(Fault("disconnect", api="Fetch", count=1))
            consumer.enforce_rebalance()
            await drive(lambda: consumer.metrics()["failed_requests_total"] > 0, consumer)
            await drive(lambda: consumer.metrics()["rebalance_total"] > 1 and consumer.generation_id > 1, consumer)
            last = consumer.metrics()
            assert (last["failed_commits_total"], last["lost_partitions_total"]) == (1, 4)
            assert last["poll_total"] > first["poll_total"]

    asyncio.run(run())
