"""The fetcher of brokers: what it asks, and what it makes of answers, good and bad; and its inbox."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.central.dialects import draft_frame
from kcoord_wire.central.draft.events import CentralError, Fence, Partition, StartFetchers
from kcoord_wire.central.fetcher import LARGEST_INBOX, BrokerFetcher, FetchSettings, Inbox, Record, parse_partition
from kcoord_wire.kernel.machines import BrokerAddress
from kcoord_wire.messages import central as m
from tests.support.draft_wire import listening, read_body
from tests.support.scripted_coordinator import ScriptedCoordinator, running_broker
from tests.support.virtual import on_virtual_loop
from tests.support.waiting import eventually_async

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

        await eventually_async(took)
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


def answering(answer: Callable[[bytes], bytes | None]) -> AbstractAsyncContextManager[BrokerAddress]:
    """A broker 1 that answers each frame with these bytes; with None, it closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (data := answer(await read_body(reader))) is not None:
            writer.write(data)
        writer.close()
        await writer.wait_closed()

    return listening(serve)


def test_partitions_are_named_by_broker_and_number() -> None:
    assert parse_partition("12-3") == (12, 3)
    for name in ("", "1", "1-", "-1", "a-1", "1-1-1", "1--1"):
        with pytest.raises(ValueError, match="BROKER-NUMBER"):
            parse_partition(name)


@on_virtual_loop
async def test_each_fetch_carries_the_fence() -> None:
    asked: list[m.CentralFetchRequest] = []

    def answer(body: bytes) -> bytes:
        asked.append(kw.decode_request(body, family="central")[1])
        return draft_frame(m.CentralFetchResponse())

    async with answering(answer) as broker, fetching() as client:
        client.start({P0: 5}, broker, fence=Fence(3, 2))
        await eventually_async(lambda: asked)
    fence = m.CentralFetchRequestFence(group_id="g", consumer_id="c-1", epoch=3, generation=2)
    expected = m.CentralFetchRequest(topic="orders", partition=0, offset=5, max_size=64 << 10, fence=[fence])
    assert asked[0] == expected


@on_virtual_loop
async def test_two_brokers_are_fetched_side_by_side() -> None:
    async with (
        running_broker(ScriptedCoordinator()) as one,
        answering(lambda _body: None) as failing,
        fetching() as client,
    ):
        other = Partition("orders", "2-0")
        client.start({other: 0, P0: 0}, one.broker, failing._replace(broker_id=2))
        assert {record.partition for record in await client.take(10)} == {P0}


@on_virtual_loop
async def test_a_stale_fence_ends_the_partition_and_no_other() -> None:
    async with running_broker(ScriptedCoordinator()) as broker, fetching() as client, fetching() as newer:
        newer.start({P0: 0}, broker.broker, fence=Fence(2, 1))
        await newer.take(1)
        client.start({P0: 0, P1: 0}, broker.broker, fence=Fence(1, 7))
        await eventually_async(lambda: client.failed)
        assert client.failed == [(P0, CentralError.STALE_EPOCH)]
        assert {record.partition for record in await client.take(10)} == {P1}


@on_virtual_loop
async def test_an_offset_out_of_range_is_reported_once() -> None:
    async with running_broker(ScriptedCoordinator(), kept=900) as broker, fetching() as client:
        client.start({P0: 0, P1: -2}, broker.broker)
        await client.take(20)  # of the other
        assert client.failed == [(P0, CentralError.OFFSET_OUT_OF_RANGE)]


@on_virtual_loop
async def test_a_partition_that_is_added_later_is_waited_for() -> None:
    async with running_broker(ScriptedCoordinator()) as broker, fetching() as client:
        missing = Partition("orders", "1-4")
        client.start({missing: 0}, broker.broker)
        await asyncio.sleep(0.05)
        broker.topics._partitions = {"orders": 5}
        assert (await client.take(1))[0].partition == missing


@on_virtual_loop
async def test_a_broker_that_returned_elsewhere_is_found() -> None:
    """Its partitions stay assigned while it is away, and no rebalance follows when it returns."""
    async with running_broker(ScriptedCoordinator()) as back, fetching() as client:
        brokers = [m.ClusterMetadataResponseBroker(id=1, host=back.broker.host, port=back.broker.port)]
        metadata = draft_frame(m.ClusterMetadataResponse(brokers_info=brokers))
        async with answering(lambda _body: metadata) as other:
            client.start({P0: 0}, BrokerAddress(1, "127.0.0.1", 1), other._replace(broker_id=2))
            assert len(await client.take(1)) == 1


@on_virtual_loop
async def test_records_wait_for_the_application() -> None:
    async with running_broker(ScriptedCoordinator(), rate=1e6) as broker, fetching() as client:
        client.start({P0: 0, P1: 0}, broker.broker)
        await eventually_async(lambda: all(state.waiting for state in client.inbox.partitions.values()))
        before = [state.next_fetch for state in client.inbox.partitions.values()]
        await asyncio.sleep(0.05)
        assert [state.next_fetch for state in client.inbox.partitions.values()] == before


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
@on_virtual_loop
async def test_after_a_bad_answer_the_fetcher_pauses(
    bad: bytes | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kcoord_wire.central")
    answers = [bad, bad]
    settings = FetchSettings(backoff_ms=10, poll_ms=10, timeout_ms=200 if bad == b"" else 60_000)
    async with (
        answering(lambda _body: answers.pop() if answers else records(5)) as broker,
        fetching(settings) as client,
    ):
        client.start({P0: 5}, broker)
        assert [record.offset for record in await client.take(1)] == [5]
    assert reason in caplog.text


@on_virtual_loop
async def test_a_negative_end_is_no_offset_to_begin_with(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "kcoord_wire.central")
    out = CentralError.OFFSET_OUT_OF_RANGE
    answers = [draft_frame(m.CentralFetchResponse(error_code=out, first_offset=-5, end_offset=-5))]
    good = draft_frame(m.CentralFetchResponse(error_code=out, first_offset=5, end_offset=5))
    async with answering(lambda _body: answers.pop() if answers else good) as broker, fetching() as client:
        client.start({P0: -1}, broker)
        await eventually_async(lambda: client.inbox.partitions[P0].position == 5)
    assert "offsets -5 to -5" in caplog.text


@on_virtual_loop
async def test_malformed_partition_names_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "kcoord_wire.central")
    async with running_broker(ScriptedCoordinator()) as broker, fetching() as client:
        client.start({Partition("orders", "x"): 0, P0: 0}, broker.broker)
        assert {record.partition for record in await client.take(5)} == {P0}
    assert "'x' is not of the form BROKER-NUMBER" in caplog.text


class Watched(Inbox):
    """An inbox that keeps its calls of the host."""

    def __init__(self, **offsets: int) -> None:
        named = {"p0": P0, "p1": P1}
        self.moved: list[tuple[Partition, int]] = []
        self.failed: list[tuple[Partition, CentralError]] = []
        self.arrivals = 0
        threads = {"t": {named[name]: offset for name, offset in offsets.items()}}
        super().__init__(
            StartFetchers(threads, ()),
            lambda partition, offset: self.moved.append((partition, offset)),
            lambda partition, error: self.failed.append((partition, error)),
            self.arrive,
        )

    def arrive(self) -> None:
        self.arrivals += 1

    def hand_over(self) -> Record:
        record = self.next_record()
        assert record is not None
        return record


def values(*offsets: int) -> list[tuple[int, bytes]]:
    return [(offset, b"v") for offset in offsets]


def test_records_are_handed_over_in_the_order_of_their_arrival() -> None:
    inbox = Watched(p0=5, p1=8)
    inbox.put(P0, values(5, 6), 9)
    inbox.put(P1, values(8), 9)
    taken = [inbox.hand_over() for _ in range(3)]
    assert [(record.partition, record.offset, record.thread) for record in taken] == [
        (P0, 5, "t"), (P0, 6, "t"), (P1, 8, "t"),
    ]  # fmt: skip
    assert inbox.next_record() is None
    assert inbox.arrivals == 2


def test_a_position_moves_past_what_was_processed() -> None:
    inbox = Watched(p0=5)
    inbox.put(P0, values(5, 9), 12)
    first, second = inbox.hand_over(), inbox.hand_over()
    assert inbox.moved == []
    inbox.processed(first)
    assert (inbox.partitions[P0].position, inbox.partitions[P0].lag) == (6, 6)
    inbox.processed(second)  # offsets may have gaps
    assert inbox.moved == [(P0, 6), (P0, 10)]
    assert inbox.partitions[P0].processed == 2


def test_a_closed_inbox_moves_and_hands_over_nothing() -> None:
    inbox = Watched(p0=5, p1=-1)
    inbox.put(P0, values(5, 6), 7)
    record = inbox.hand_over()
    assert inbox.close() == {P0: 5}
    inbox.processed(record)
    inbox.put(P0, values(7), 8)
    inbox.resolve(P1, 3)
    inbox.fail(P0, CentralError.STALE_EPOCH)
    assert (inbox.next_record(), inbox.moved, inbox.failed, inbox.arrivals) == (None, [], [], 1)


def test_a_partition_with_waiting_records_is_not_fetched() -> None:
    inbox = Watched(p0=5, p1=5)
    inbox.put(P0, values(5), 6)
    assert (inbox.wants(P0), inbox.wants(P1)) == (False, True)
    inbox.hand_over()
    assert inbox.wants(P0)
    assert inbox.partitions[P0].next_fetch == 6


def test_a_full_inbox_wants_nothing() -> None:
    inbox = Watched(p0=5, p1=5)
    inbox.put(P0, [(5, bytes(LARGEST_INBOX))], 6)
    assert not inbox.wants(P1)
    inbox.hand_over()
    assert inbox.wants(P1)


def test_a_partition_that_failed_is_not_fetched() -> None:
    inbox = Watched(p0=5)
    inbox.fail(P0, CentralError.OFFSET_OUT_OF_RANGE)
    assert inbox.failed == [(P0, CentralError.OFFSET_OUT_OF_RANGE)]
    assert not inbox.wants(P0)


def test_a_resolved_offset_is_a_position() -> None:
    """Without one a consumer that saw no record would begin at the end again after the next rebalance."""
    inbox = Watched(p0=-1)
    assert inbox.partitions[P0].lag is None
    inbox.resolve(P0, 40)
    assert inbox.moved == [(P0, 40)]
    assert inbox.close() == {P0: 40}


def test_room_comes_with_each_record_that_is_taken() -> None:
    async def scenario() -> Any:
        inbox = Watched(p0=5)
        inbox.put(P0, values(5), 6)
        waits = [asyncio.create_task(inbox.wait_for_room()) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(wait.done() for wait in waits)
        inbox.hand_over()
        await asyncio.wait_for(asyncio.gather(*waits), 60)

    asyncio.run(scenario())
