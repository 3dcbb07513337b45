"""Fetching in the background: leaders that move, brokers that are away, and how much is buffered."""

from __future__ import annotations

import asyncio

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer import Consumer
from kcoord_wire.coordinator import Coordinator, Fault
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.consumers import drive, partitions, produce, settings, take
from tests.support.fixtures import StartCoordinator

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
    async def run() -> None:
        server = coordinator(topics={"orders": 2})
        both = sorted(partitions(0, 1))
        for _ in range(10):
            await produce(server.address, {partition: [BIG] * 4 for partition in both})
        options = settings(server.address, max_partition_fetch_bytes=50_000, fetch_max_bytes=90_000)
        async with Consumer(options) as consumer:
            consumer.subscribe(["orders"])
            read = len(await take(consumer, 1))
            async with asyncio.timeout(60):
                while any(state.is_fetchable for state in consumer._positions):
                    await asyncio.sleep(0.01)
            before = fetches(server)
            assert before > 0
            assert 0 < buffered(consumer) <= 2 * 90_000
            await asyncio.sleep(0.3)
            assert fetches(server) == before, "nothing is fetched for partitions whose records wait"
            assert read + len(await take(consumer, 80 - read)) == 80

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
