"""Real records through the draft: produced by confluent-kafka, served by a broker of Kafka's protocol, none lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager

import pytest
from confluent_kafka import Producer

from kcoord_wire.central.broker import CentralBroker
from kcoord_wire.central.draft.events import CentralError, Partition, StartFetchers
from kcoord_wire.central.fetcher import Inbox
from kcoord_wire.central.kafka_fetcher import KafkaFetcher
from kcoord_wire.coordinator import Coordinator
from tests.support.central_account import ConsumerProcess
from tests.support.waiting import eventually, eventually_async

TOPIC = "orders"
P0, P1 = Partition(TOPIC, "1-0"), Partition(TOPIC, "1-1")


@pytest.fixture
def kafka() -> Iterator[Coordinator]:
    with Coordinator({TOPIC: 4}) as coordinator:
        yield coordinator


def produce(kafka: Coordinator, values: range, partition: int | None = None) -> None:
    producer = Producer({"bootstrap.servers": kafka.address, "compression.type": "gzip"})
    for value in values:
        producer.produce(TOPIC, b"%d" % value, partition=value % 4 if partition is None else partition)
    assert producer.flush(60) == 0


class Fetched:
    """A fetcher's inbox, and what has come of it."""

    def __init__(self) -> None:
        self.moved: dict[Partition, int] = {}
        self.failed: list[tuple[Partition, CentralError]] = []
        self.inbox: Inbox

    async def take(self, count: int) -> list[tuple[str, int, bytes]]:
        """Return so many records, each processed before the next is taken."""
        records = []
        while len(records) < count:
            await eventually_async(lambda: any(state.waiting for state in self.inbox.partitions.values()))
            record = self.inbox.next_record()
            assert record is not None
            self.inbox.processed(record)
            records.append((record.partition.name, record.offset, record.value))
        return records


@asynccontextmanager
async def fetching(kafka: Coordinator, begins: dict[Partition, int]) -> AsyncIterator[Fetched]:
    found = Fetched()
    start = StartFetchers({"c-0": begins}, ())
    found.inbox = Inbox(start, found.moved.__setitem__, lambda *failed: found.failed.append(failed), lambda: None)
    fetcher = KafkaFetcher([kafka.address], "g")
    fetcher.start(start, found.inbox)
    try:
        yield found
    finally:
        await fetcher.close()
        assert not fetcher._tasks


def test_records_are_those_of_the_number_in_the_topic(kafka: Coordinator) -> None:
    produce(kafka, range(3_000), partition=0)
    produce(kafka, range(3_000, 3_002), partition=1)

    async def run() -> None:
        async with fetching(kafka, {P0: 5, P1: -2}) as found:
            records = await found.take(2_997)
            assert [record for record in records if record[0] == "1-0"] == [
                ("1-0", offset, b"%d" % offset) for offset in range(5, 3_000)
            ]
            assert [record for record in records if record[0] == "1-1"] == [("1-1", 0, b"3000"), ("1-1", 1, b"3001")]
            assert found.moved == {P0: 3_000, P1: 2}
            assert {each: (state.end_offset, state.lag) for each, state in found.inbox.partitions.items()} == {
                P0: (3_000, 0),
                P1: (2, 0),
            }

    asyncio.run(run())


def test_from_the_end_only_what_comes_later_is_read(kafka: Coordinator) -> None:
    produce(kafka, range(3), partition=0)

    async def run() -> None:
        async with fetching(kafka, {P0: -1}) as found:
            await eventually_async(lambda: found.moved == {P0: 3})
            await asyncio.to_thread(produce, kafka, range(7, 8), 0)
            assert await found.take(1) == [("1-0", 3, b"7")]

    asyncio.run(run())


def test_an_offset_out_of_range_ends_the_partitions_fetcher(kafka: Coordinator) -> None:
    """handlePingRequest, step 2, says what the consumer does then; the other partitions go on."""
    produce(kafka, range(1), partition=1)

    async def run() -> None:
        async with fetching(kafka, {P0: 100, P1: 0}) as found:
            await eventually_async(lambda: found.failed)
            assert found.failed == [(P0, CentralError.OFFSET_OUT_OF_RANGE)]
            assert await found.take(1) == [("1-1", 0, b"0")]

    asyncio.run(run())


def test_what_kafka_does_not_have_is_logged(kafka: Coordinator, caplog: pytest.LogCaptureFixture) -> None:
    produce(kafka, range(1), partition=0)
    twice, beyond, unnamed = Partition(TOPIC, "2-0"), Partition(TOPIC, "1-9"), Partition(TOPIC, "0")

    async def run() -> None:
        async with fetching(kafka, {P0: 0, twice: 0, beyond: 0, unnamed: 0}) as found:
            assert await found.take(1) == [("1-0", 0, b"0")]
            await eventually_async(lambda: "none with the number 9" in caplog.text)

    asyncio.run(run())
    assert "1-0 and 2-0 are one partition of Kafka, read once" in caplog.text
    assert "'0' is not of the form BROKER-NUMBER" in caplog.text


@pytest.mark.slow
def test_no_record_is_lost_with_a_consumer_that_is_killed(kafka: Coordinator) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(CentralBroker(topics={TOPIC: 4}))
        options = ("--topics", TOPIC, "--records-from", kafka.address)
        consumers = [stack.enter_context(ConsumerProcess(broker.address, "g", 3_000, *options)) for _ in range(2)]

        def delivered() -> set[int]:
            return {int(record["value"]) for consumer in consumers for record in consumer.events("record")}

        eventually(lambda: all(len(consumer.owned) == 2 for consumer in consumers))
        produce(kafka, range(2_000))
        eventually(lambda: all(len(consumer.events("record")) > 200 for consumer in consumers))
        consumers[0].kill()
        produce(kafka, range(2_000, 4_000))
        eventually(lambda: len(consumers[1].owned) == 4)
        eventually(lambda: delivered() == set(range(4_000)), lambda: sorted(set(range(4_000)) - delivered())[:20])
