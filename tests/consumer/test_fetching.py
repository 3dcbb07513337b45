"""Fetch and ListOffsets: what is asked for, and what each response does to the positions.

Fetching in the background: leaders that move, brokers that are away, and how much is buffered.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer import Consumer
from kcoord_wire.consumer.brokers import Leader, Metadata
from kcoord_wire.consumer.errors import ConsumerError, CorruptRecordsError, TopicError
from kcoord_wire.consumer.fetching import (
    NEWEST_FETCH,
    Asked,
    ask_for_offsets,
    ask_for_records,
    newest_fetch,
    take_offsets,
    take_records,
)
from kcoord_wire.consumer.positions import EARLIEST, Positions
from kcoord_wire.coordinator import Coordinator, Fault
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import Record, encode_batch
from tests.support.consumers import drive, partitions, produce, settings, take
from tests.support.fixtures import StartCoordinator
from tests.support.waiting import eventually_async

A, B = sorted(partitions(0, 1))
TOPIC_ID = uuid.UUID(int=7)
SETTINGS = settings("h:1", isolation_level="read_committed", max_partition_fetch_bytes=1_000)
DATA = encode_batch([Record(value=b"a")], base_offset=5)


def cluster(*, has_ids: bool = True) -> Metadata:
    metadata = Metadata(addresses={1: ("h", 1)}, counts={"orders": 2})
    metadata._leaders.update({A: Leader(1, 3), B: Leader(1, 4)})
    if has_ids:
        metadata.topic_ids["orders"] = TOPIC_ID
    return metadata


def standing(offset: int = 5) -> Positions:
    positions = Positions("earliest")
    positions.assign([A, B])
    positions.announce([A, B])
    positions.start({A: offset, B: offset})
    return positions


def fetch(positions: Positions, version: int = NEWEST_FETCH) -> Asked:
    return ask_for_records([positions.state(A)], cluster(), SETTINGS, version, SETTINGS.fetch_max_bytes)


def fetched(error: int = 0, records: bytes | None = None, *, index: int = 0, **fields: Any) -> m.FetchResponse:
    part = m.FetchResponsePartitionData(partition_index=index, error_code=error, records=records, **fields)
    return m.FetchResponse(
        responses=[m.FetchResponseFetchableTopicResponse(topic="orders", topic_id=TOPIC_ID, partitions=[part])]
    )


def test_a_fetch_names_offset_and_epochs() -> None:
    positions = standing()
    positions.state(A).leader_epoch = 2
    request = fetch(positions).message
    assert (request.session_id, request.session_epoch, request.isolation_level) == (0, -1, 1)
    [topic] = request.topics
    [part] = topic.partitions
    assert (topic.topic, topic.topic_id) == ("orders", TOPIC_ID)
    assert (part.fetch_offset, part.current_leader_epoch, part.last_fetched_epoch) == (5, 3, 2)
    assert part.partition_max_bytes == 1_000
    assert fetch(positions, 11).message.topics[0].partitions[0].last_fetched_epoch == -1


def test_topics_without_ids_are_fetched_by_name() -> None:
    states = list(standing())
    assert (newest_fetch(states, cluster()), newest_fetch(states, cluster(has_ids=False))) == (NEWEST_FETCH, 12)


@pytest.mark.parametrize("version", [12, NEWEST_FETCH])
def test_records_wait_for_the_application(version: int) -> None:
    positions = standing()
    assert not take_records(fetch(positions, version), fetched(records=DATA), positions, SETTINGS)
    assert [record.value for record in positions.next_records(5)] == [b"a"]


STALE = [
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    999,
]


@pytest.mark.parametrize("error", STALE)
def test_errors_after_which_metadata_is_asked_for(error: int) -> None:
    positions = standing()
    assert take_records(fetch(positions), fetched(error), positions, SETTINGS)
    assert positions.failures == []
    assert positions.state(A).is_fetchable


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, TopicError),
        (ErrorCode.CORRUPT_MESSAGE, CorruptRecordsError),
    ],
)
def test_errors_that_the_application_gets(error: int, failure: type[ConsumerError]) -> None:
    positions = standing()
    assert take_records(fetch(positions), fetched(error), positions, SETTINGS)
    assert [type(each) for each in positions.failures] == [failure]


def test_an_offset_out_of_range_is_looked_up() -> None:
    positions = standing()
    assert not take_records(fetch(positions), fetched(ErrorCode.OFFSET_OUT_OF_RANGE), positions, SETTINGS)
    assert positions.state(A).reset_to == EARLIEST


def test_a_diverging_epoch_moves_the_position_back() -> None:
    positions = standing()
    diverging = m.FetchResponseEpochEndOffset(epoch=1, end_offset=4)
    assert not take_records(fetch(positions), fetched(diverging_epoch=diverging), positions, SETTINGS)
    assert (positions.state(A).offset, positions.state(A).leader_epoch) == (4, 1)


def test_a_response_for_a_past_position_changes_nothing() -> None:
    for change in (
        lambda positions: positions.state(A).move(9),
        lambda positions: positions.drop([A]),
        lambda positions: (positions.drop([A]), positions.assign([A]), positions.start({A: 5})),
    ):
        positions = standing()
        asked = fetch(positions)
        change(positions)
        for response in (fetched(records=DATA), fetched(ErrorCode.OFFSET_OUT_OF_RANGE)):
            take_records(asked, response, positions, SETTINGS)
        assert positions.next_records(5) == []
        assert all(state.reset_to is None for state in positions)


def test_partitions_that_were_not_asked_for_are_ignored() -> None:
    positions = standing()
    take_records(fetch(positions), fetched(records=DATA, index=1), positions, SETTINGS)
    strange = fetched(records=DATA)
    strange.responses[0].topic_id = uuid.UUID(int=8)
    take_records(fetch(positions), strange, positions, SETTINGS)
    assert positions.next_records(5) == []


def looked_up(*parts: m.ListOffsetsResponseListOffsetsPartitionResponse) -> m.ListOffsetsResponse:
    topic = m.ListOffsetsResponseListOffsetsTopicResponse(name="orders", partitions=list(parts))
    return m.ListOffsetsResponse(topics=[topic])


@pytest.mark.parametrize(
    ("answer", "offset", "again"),
    [
        ({"offset": 8, "leader_epoch": 2}, 8, False),
        ({"offset": -1}, None, True),
        ({"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER}, None, True),
        ({"error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}, None, True),
        ({"partition_index": 7, "offset": 8}, None, True),
    ],
)
def test_offsets_are_looked_up(answer: dict[str, int], offset: int | None, again: bool) -> None:
    positions = standing(-1)
    asked = ask_for_offsets([positions.state(A)], cluster(), SETTINGS)
    [part] = asked.message.topics[0].partitions
    assert (part.partition_index, part.timestamp, part.current_leader_epoch) == (0, EARLIEST, 3)
    response = looked_up(m.ListOffsetsResponseListOffsetsPartitionResponse(**{"partition_index": 0, **answer}))
    assert take_offsets(asked, response, positions) is again
    assert positions.state(A).offset == offset
    assert bool(positions.failures) is (answer.get("error_code") == ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def test_a_lookup_for_a_past_position_changes_nothing() -> None:
    positions = standing(-1)
    asked = ask_for_offsets([positions.state(A)], cluster(), SETTINGS)
    positions.state(A).move(3)
    response = looked_up(m.ListOffsetsResponseListOffsetsPartitionResponse(partition_index=0, offset=8))
    assert not take_offsets(asked, response, positions)
    assert positions.state(A).offset == 3


ORDERS = TopicPartition("orders", 0)
BIG = "x" * 10_000


def fetches(server: Coordinator) -> int:
    """How many Fetch requests it has answered."""
    lines = [line for line in server.metrics().splitlines() if "requests_total{" in line and '"Fetch"' in line]
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines)


def buffered(consumer: Consumer) -> int:
    """Bytes that wait for the application."""
    return sum(len(state.fetched._data) for state in consumer._positions if state.fetched is not None)


def test_what_waits_for_the_application_is_bounded(coordinator: StartCoordinator) -> None:
    """However many partitions there are: each would take 50,000 bytes."""

    async def run() -> None:
        server = coordinator(topics={"orders": 40})
        await produce(server.address, {each: [BIG] * 2 for each in sorted(partitions(*range(40)))})
        options = settings(server.address, max_partition_fetch_bytes=50_000, fetch_max_bytes=90_000)
        async with Consumer(options) as consumer:
            consumer.subscribe(["orders"])
            read = len(await take(consumer, 1))
            await eventually_async(lambda: not consumer._fetcher._work())
            before = fetches(server)
            assert 90_000 - 3 * len(BIG) < buffered(consumer)
            await asyncio.sleep(0.3)
            assert fetches(server) == before, "nothing is fetched while there is no room"
            while read < 80:
                assert buffered(consumer) < 90_000 + 3 * len(BIG), "the limit and a batch"
                read += len(await take(consumer, 1))

    asyncio.run(run())


def test_a_paused_partition_takes_no_room_of_the_others(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        address = coordinator(topics={"orders": 2}).address
        first, second = sorted(partitions(0, 1))
        await produce(address, {first: [BIG] * 9})
        async with Consumer(settings(address, fetch_max_bytes=20_000, max_poll_records=1)) as consumer:
            consumer.subscribe(["orders"])
            await take(consumer, 1)
            consumer.pause([first])
            await produce(address, {second: ["behind"]})
            assert [record.partition for record in await take(consumer, 1)] == [1]

    asyncio.run(run())


def test_a_batch_larger_than_the_limit_is_read_all_the_same(coordinator: StartCoordinator) -> None:
    """KIP-74: a broker returns the first batch whatever its size."""

    async def run() -> None:
        address = coordinator(topics={"orders": 1}).address
        await produce(address, {ORDERS: [BIG]})
        async with Consumer(settings(address, max_partition_fetch_bytes=10, fetch_max_bytes=10)) as consumer:
            consumer.subscribe(["orders"])
            [record] = await take(consumer, 1)
            assert record.value == BIG.encode()

    asyncio.run(run())


def test_one_poll_returns_no_more_than_asked(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        address = coordinator(topics={"orders": 1}).address
        await produce(address, {ORDERS: [str(number) for number in range(10)]})
        async with Consumer(settings(address, max_poll_records=4)) as consumer:
            consumer.subscribe(["orders"])
            sizes = []
            async with asyncio.timeout(60):
                while sum(sizes) < 10:
                    sizes.append(len(await consumer.poll(1_000, 3 if not sum(sizes) else 100)))
            assert [size for size in sizes if size] == [3, 4, 3]

    asyncio.run(run())


def test_fetching_goes_on_after_a_poll_that_takes_exactly_all(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        address = coordinator(topics={"orders": 1}).address
        await produce(address, {ORDERS: ["a", "b"]})
        async with Consumer(settings(address, max_poll_records=2)) as consumer:
            consumer.subscribe(["orders"])
            assert len(await take(consumer, 2)) == 2
            await produce(address, {ORDERS: ["c"]})
            assert [record.value for record in await take(consumer, 1)] == [b"c"]

    asyncio.run(run())


def test_a_position_out_of_range_is_reset(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        address = coordinator(topics={"orders": 1}).address
        await produce(address, {ORDERS: ["a", "b"]})
        async with Consumer(settings(address)) as consumer:
            consumer.subscribe(["orders"])
            await take(consumer, 2)
            consumer.seek(ORDERS, 1_000)
            assert [record.offset for record in await take(consumer, 2)] == [0, 1]

    asyncio.run(run())


def test_a_broker_that_refuses_fetches_is_asked_again(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 1})
        server.add_fault(
            Fault("error", api="Fetch", error=ErrorCode.UNKNOWN_SERVER_ERROR, count=2),
            Fault("disconnect", api="Fetch", after=2, count=2),
        )
        await produce(server.address, {ORDERS: ["a"]})
        async with Consumer(settings(server.address)) as consumer:
            consumer.subscribe(["orders"])
            assert len(await take(consumer, 1)) == 1

    asyncio.run(run())


def test_an_offset_that_cannot_be_looked_up_delays_no_other(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 2})
        async with Consumer(settings(server.address)) as consumer:
            consumer.subscribe(["orders"])
            await drive(lambda: [state.offset for state in consumer._positions] == [0, 0], consumer)
            server.add_fault(Fault("error", api="ListOffsets", error=ErrorCode.OFFSET_NOT_AVAILABLE))
            consumer.seek_to_end([TopicPartition("orders", 1)])
            await asyncio.sleep(0.5)  # what was asked for before is answered
            await produce(server.address, {ORDERS: ["a"]})
            assert [record.value for record in await take(consumer, 1)] == [b"a"]

    asyncio.run(run())
