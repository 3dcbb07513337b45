"""The fetcher of brokers: what it asks, what it makes of answers, and of brokers that answer badly."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.central.draft.events import CentralError, Fence, Partition, StartFetchers
from kcoord_wire.central.fetcher import BrokerFetcher, FetchSettings, Inbox, Record, parse_partition
from kcoord_wire.central.frames import draft_frame
from kcoord_wire.kernel.machines import BrokerAddress
from kcoord_wire.messages import central as m
from tests.support.scripted_coordinator import ScriptedCoordinator, eventually, running_broker

P0, P1 = Partition("orders", "1-0"), Partition("orders", "1-1")
QUICK = FetchSettings(backoff_ms=10, poll_ms=10)


class Fetching:
    """A fetcher with its inbox."""

    def __init__(self, settings: FetchSettings = QUICK) -> None:
        self.fetcher = BrokerFetcher("g", "c-1", settings)
        self.failed: list[tuple[Partition, CentralError]] = []
        self.inbox: Inbox

    def start(self, offsets: dict[Partition, int], *brokers: BrokerAddress, fence: Fence | None = None) -> None:
        start = StartFetchers({"t": offsets}, brokers, fence)
        self.inbox = Inbox(start, lambda *_: None, lambda *failed: self.failed.append(failed), lambda: None)
        self.fetcher.start(start, self.inbox)

    async def take(self, count: int) -> list[Record]:
        records: list[Record] = []

        def took() -> bool:
            record = self.inbox.next_record()
            if record is not None:
                records.append(record)
            return len(records) == count

        await eventually(took)
        return records


@asynccontextmanager
async def fetching(settings: FetchSettings = QUICK) -> AsyncIterator[Fetching]:
    """A fetcher that is closed; it must leave no task."""
    client = Fetching(settings)
    try:
        yield client
    finally:
        await client.fetcher.close()
    assert not client.fetcher._tasks


@asynccontextmanager
async def answering(answer: Callable[[bytes], bytes | None]) -> AsyncIterator[BrokerAddress]:
    """A broker 1 that answers each frame with these bytes; with None, it closes the connection."""
    tasks: set[Any] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                data = answer(await reader.readexactly(size))
                if data is None:
                    return
                writer.write(data)
        except (OSError, EOFError):
            pass
        finally:
            writer.transport.abort()
            tasks.discard(asyncio.current_task())

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield BrokerAddress(1, "127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        while tasks:  # until their peers have closed
            await asyncio.sleep(0.01)


def test_partitions_are_named_by_broker_and_number() -> None:
    assert parse_partition("12-3") == (12, 3)
    for name in ("", "1", "1-", "-1", "a-1", "1-1-1", "1--1"):
        with pytest.raises(ValueError, match="BROKER-NUMBER"):
            parse_partition(name)


def test_each_fetch_carries_the_fence() -> None:
    asked: list[m.CentralFetchRequest] = []

    def answer(body: bytes) -> bytes:
        asked.append(kw.decode_request(body, family="central")[1])
        return draft_frame(m.CentralFetchResponse())

    async def scenario() -> None:
        async with answering(answer) as broker, fetching() as client:
            client.start({P0: 5}, broker, fence=Fence(3, 2))
            await eventually(lambda: asked)

    asyncio.run(scenario())
    fence = m.CentralFetchRequestFence(group_id="g", consumer_id="c-1", epoch=3, generation=2)
    expected = m.CentralFetchRequest(topic="orders", partition=0, offset=5, max_size=64 << 10, fence=[fence])
    assert asked[0] == expected


def test_two_brokers_are_fetched_side_by_side() -> None:
    async def scenario() -> None:
        async with (
            running_broker(ScriptedCoordinator()) as one,
            answering(lambda _body: None) as failing,
            fetching() as client,
        ):
            other = Partition("orders", "2-0")
            client.start({other: 0, P0: 0}, one.broker, failing._replace(broker_id=2))
            assert {record.partition for record in await client.take(10)} == {P0}

    asyncio.run(scenario())


def test_a_stale_fence_ends_the_partition_and_no_other() -> None:
    async def scenario() -> None:
        async with running_broker(ScriptedCoordinator()) as broker, fetching() as client, fetching() as newer:
            newer.start({P0: 0}, broker.broker, fence=Fence(2, 1))
            await newer.take(1)
            client.start({P0: 0, P1: 0}, broker.broker, fence=Fence(1, 7))
            await eventually(lambda: client.failed)
            assert client.failed == [(P0, CentralError.STALE_EPOCH)]
            assert {record.partition for record in await client.take(10)} == {P1}

    asyncio.run(scenario())


def test_an_offset_out_of_range_is_reported_once() -> None:
    async def scenario() -> None:
        async with running_broker(ScriptedCoordinator(), kept=900) as broker, fetching() as client:
            client.start({P0: 0, P1: -2}, broker.broker)
            await client.take(20)  # of the other
            assert client.failed == [(P0, CentralError.OFFSET_OUT_OF_RANGE)]

    asyncio.run(scenario())


def test_a_partition_that_is_added_later_is_waited_for() -> None:
    async def scenario() -> None:
        async with running_broker(ScriptedCoordinator()) as broker, fetching() as client:
            missing = Partition("orders", "1-4")
            client.start({missing: 0}, broker.broker)
            await asyncio.sleep(0.05)
            broker.topics._partitions = {"orders": 5}
            assert (await client.take(1))[0].partition == missing

    asyncio.run(scenario())


def test_a_broker_that_returned_elsewhere_is_found() -> None:
    """Its partitions stay assigned while it is away, and no rebalance follows when it returns."""

    async def scenario() -> None:
        async with running_broker(ScriptedCoordinator()) as back, fetching() as client:
            brokers = [m.ClusterMetadataResponseBroker(id=1, host=back.broker.host, port=back.broker.port)]
            metadata = draft_frame(m.ClusterMetadataResponse(brokers_info=brokers))
            async with answering(lambda _body: metadata) as other:
                client.start({P0: 0}, BrokerAddress(1, "127.0.0.1", 1), other._replace(broker_id=2))
                assert len(await client.take(1)) == 1

    asyncio.run(scenario())


def test_records_wait_for_the_application() -> None:
    async def scenario() -> None:
        async with running_broker(ScriptedCoordinator(), rate=1e6) as broker, fetching() as client:
            client.start({P0: 0, P1: 0}, broker.broker)
            await eventually(lambda: all(state.waiting for state in client.inbox.partitions.values()))
            before = [state.next_fetch for state in client.inbox.partitions.values()]
            await asyncio.sleep(0.05)
            assert [state.next_fetch for state in client.inbox.partitions.values()] == before

    asyncio.run(scenario())


def records(*offsets: int) -> bytes:
    entries = [m.CentralFetchResponseRecord(offset=offset, payload=b"v") for offset in offsets]
    return draft_frame(m.CentralFetchResponse(records=entries, end_offset=9))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (bytes.fromhex("7fffffff"), "at most"),
        (bytes.fromhex("ffffffff"), "at most"),
        (bytes.fromhex("00000002") + b"\0\0", "CentralFetchResponse"),
        (records(4), "offset 4 where 5 was next"),
        (records(5, 7, 6), "offset 6 where 8 was next"),
        (None, "0 bytes read"),
        (b"", "no answer"),
        (draft_frame(m.CentralFetchResponse(error_code=77)), "error 77"),
    ],
)
def test_after_a_bad_answer_the_fetcher_pauses(
    bad: bytes | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [bad, bad]

    async def scenario() -> None:
        settings = FetchSettings(backoff_ms=10, poll_ms=10, timeout_ms=200 if bad == b"" else 60_000)
        async with (
            answering(lambda _body: answers.pop() if answers else records(5)) as broker,
            fetching(settings) as client,
        ):
            client.start({P0: 5}, broker)
            assert [record.offset for record in await client.take(1)] == [5]

    with caplog.at_level(logging.WARNING, "kcoord_wire.central"):
        asyncio.run(scenario())
    assert reason in caplog.text


def test_a_negative_end_is_no_offset_to_begin_with(caplog: pytest.LogCaptureFixture) -> None:
    out = CentralError.OFFSET_OUT_OF_RANGE
    answers = [draft_frame(m.CentralFetchResponse(error_code=out, first_offset=-5, end_offset=-5))]
    good = draft_frame(m.CentralFetchResponse(error_code=out, first_offset=5, end_offset=5))

    async def scenario() -> None:
        async with answering(lambda _body: answers.pop() if answers else good) as broker, fetching() as client:
            client.start({P0: -1}, broker)
            await eventually(lambda: client.inbox.partitions[P0].position == 5)

    with caplog.at_level(logging.WARNING, "kcoord_wire.central"):
        asyncio.run(scenario())
    assert "offsets -5 to -5" in caplog.text


def test_malformed_partition_names_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running_broker(ScriptedCoordinator()) as broker, fetching() as client:
            client.start({Partition("orders", "x"): 0, P0: 0}, broker.broker)
            assert {record.partition for record in await client.take(5)} == {P0}

    with caplog.at_level(logging.WARNING, "kcoord_wire.central"):
        asyncio.run(scenario())
    assert "'x' is not of the form BROKER-NUMBER" in caplog.text
