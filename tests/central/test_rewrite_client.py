"""A consumer of the rewrite on a broker of the rewrite, on the virtual loop: what it delivers, commits and survives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire import messages as kafka
from kcoord_wire.central.broker import RewriteBroker
from kcoord_wire.central.client import RegistrationRefusedError, RewriteConsumer
from kcoord_wire.central.dialects import kafka_frame
from kcoord_wire.central.draft.events import CentralError, Partition, StartFetchers
from kcoord_wire.central.fetcher import FetchSettings, Inbox, LeaderFetcher, Record
from kcoord_wire.central.rewrite.events import MemberSettings, RewriteError
from kcoord_wire.kernel.machines import BrokerAddress
from tests.support.virtual import on_virtual_loop, serving_rewrite
from tests.support.waiting import eventually_async

ORDERS = [Partition("orders", str(number)) for number in range(4)]


def bootstrap(*ports: int) -> tuple[BrokerAddress, ...]:
    return tuple(BrokerAddress(-2 - index, "127.0.0.1", port) for index, port in enumerate(ports))


def settings(*ports: int, **options: Any) -> MemberSettings:
    options = {"topics": ("orders",)} | options
    return MemberSettings("g", bootstrap(*ports), **options)


class Member:
    """A consumer that keeps what it has processed."""

    def __init__(self, made: MemberSettings, **options: Any) -> None:
        self.owned: list[Partition] = []
        self.records: list[Record] = []
        self.consumer = RewriteConsumer(made, on_assigned=self._assigned, **options)
        self.task = asyncio.create_task(self._run())

    def _assigned(self, partitions: frozenset[Partition]) -> None:
        self.owned = sorted(partitions)

    async def _run(self) -> None:
        async with self.consumer:
            async for record in self.consumer:
                self.records.append(record)

    async def leave(self) -> None:
        self.consumer.shutdown()
        await self.task

    def offsets(self, partition: Partition) -> list[int]:
        return [record.offset for record in self.records if record.partition == partition]


@asynccontextmanager
async def broker_of(**options: Any) -> AsyncIterator[RewriteBroker]:
    async with serving_rewrite(RewriteBroker(topics={"orders": 4}, rate=100, **options)) as broker:
        yield broker


@on_virtual_loop
async def test_a_member_goes_on_where_the_one_before_it_has_committed() -> None:
    async with broker_of() as broker:
        first = Member(settings(broker.port))
        await eventually_async(lambda: len(first.records) > 1_000)
        assert first.owned == ORDERS
        await first.leave()
        assert first.owned == []
        assert all(
            record.value == f"orders-{record.partition.name}@{record.offset}".encode() for record in first.records
        )
        second = Member(settings(broker.port))
        await eventually_async(lambda: all(second.offsets(partition) for partition in ORDERS))
        await second.leave()
    for partition in ORDERS:
        seen = first.offsets(partition) + second.offsets(partition)
        assert seen == list(range(len(seen)))  # none is missing, and none came twice: both have committed


@on_virtual_loop
async def test_nothing_is_lost_when_a_member_comes_and_goes() -> None:
    async with broker_of() as broker:
        first = Member(settings(broker.port))
        await eventually_async(lambda: first.owned == ORDERS)
        second = Member(settings(broker.port))
        await eventually_async(lambda: (first.owned, second.owned) == (ORDERS[:2], ORDERS[2:]))
        await eventually_async(lambda: second.records)
        await second.leave()  # there is no request to leave a group: its session ends
        await eventually_async(lambda: first.owned == ORDERS)
        newest = max(record.offset for record in second.records)
        await eventually_async(lambda: all(newest + 50 in first.offsets(partition) for partition in ORDERS))
        await first.leave()
    for partition in ORDERS:
        seen = sorted(first.offsets(partition) + second.offsets(partition))
        assert seen == list(range(len(seen)))


@on_virtual_loop
async def test_without_a_commit_a_largest_begins_at_the_end() -> None:
    async with broker_of() as broker:
        await asyncio.sleep(60)
        member = Member(settings(broker.port), auto_offset_reset="largest")
        await eventually_async(lambda: all(member.offsets(partition) for partition in ORDERS))
        await member.leave()
    assert min(record.offset for record in member.records) > 5_000


@on_virtual_loop
async def test_a_refused_registration_ends_the_iteration() -> None:
    async with broker_of() as broker:
        member = Member(settings(broker.port, session_timeout_ms=400_000))
        with pytest.raises(RegistrationRefusedError, match="INVALID_SESSION_TIMEOUT") as caught:
            await member.task
    assert caught.value.error is RewriteError.INVALID_SESSION_TIMEOUT


@on_virtual_loop
async def test_a_wildcard_has_the_topics_that_match() -> None:
    async with serving_rewrite(RewriteBroker(topics={"orders": 1, "payments": 1, "test": 1}, rate=100)) as broker:
        member = Member(settings(broker.port, topics=(), blacklist="test.*"))
        await eventually_async(lambda: member.owned == [Partition("orders", "0"), Partition("payments", "0")])
        await member.leave()


class Liar:
    """Answers each request with the bytes that it is given, and counts the connections."""

    def __init__(self, answer: bytes) -> None:
        self.connections = 0
        self._answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await reader.read(1 << 16):
                writer.write(self._answer)
        finally:
            writer.close()


_OTHER_ID = kafka_frame(kafka.FindCoordinatorResponse(node_id=1, host="h", port=1), 77)


@pytest.mark.parametrize("answer", [b"\xff" * 8, kw.frame(b"\0\0\0\1\xff"), _OTHER_ID, kw.frame(b"")])
@on_virtual_loop
async def test_a_broker_whose_answers_are_none_is_left(answer: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kcoord_wire.central")
    liar = Liar(answer)
    server = await asyncio.start_server(liar.serve, "127.0.0.1", 0)
    async with broker_of() as broker:
        member = Member(settings(server.sockets[0].getsockname()[1], broker.port))
        await eventually_async(lambda: member.records)
        await member.leave()
    server.close()
    await server.wait_closed()
    assert liar.connections > 0
    assert "connection closed" in caplog.text


class Fetching:
    """A fetcher on its own."""

    def __init__(self, start: dict[Partition, int], *ports: int, reset: int = -2) -> None:
        begins = StartFetchers({"": start}, bootstrap(*ports))
        self.failed: list[tuple[Partition, CentralError]] = []
        self.moved: dict[Partition, int] = {}
        self.inbox = Inbox(begins, self.moved.__setitem__, lambda *failed: self.failed.append(failed), lambda: None)
        self.fetcher = LeaderFetcher(reset, FetchSettings(max_size=1_000))
        self.fetcher.start(begins, self.inbox)

    async def take(self, count: int) -> list[int]:
        taken: list[int] = []
        while len(taken) < count:
            record = self.inbox.next_record()
            if record is None:
                await asyncio.sleep(0.01)
            else:
                taken.append(record.offset)
        await self.fetcher.close()
        return taken


@pytest.mark.parametrize(("reset", "first"), [(-2, 0), (-1, 6_000)])
@on_virtual_loop
async def test_an_offset_out_of_range_begins_again(reset: int, first: int, caplog: pytest.LogCaptureFixture) -> None:
    async with broker_of() as broker:
        await asyncio.sleep(60)
        fetching = Fetching({ORDERS[0]: 1 << 40}, broker.port, reset=reset)
        taken = await fetching.take(3)
    assert taken == list(range(taken[0], taken[0] + 3))
    assert taken[0] == first or (reset == -1 and taken[0] >= first)
    assert fetching.moved == {ORDERS[0]: taken[0]}
    assert fetching.failed == []
    assert "is out of range" in caplog.text


@on_virtual_loop
async def test_a_partition_without_leader_does_not_hold_up_the_others() -> None:
    async with broker_of() as broker:
        await asyncio.sleep(1)
        nowhere = Partition("orders", "77")
        fetching = Fetching({nowhere: 0, ORDERS[1]: 5, ORDERS[2]: 5}, 1, broker.port)
        taken = await fetching.take(100)
    assert sorted(set(taken)) == list(range(5, 5 + len(set(taken))))
    assert fetching.inbox.partitions[nowhere].next_fetch == 0


@on_virtual_loop
async def test_a_broker_that_is_away_is_found_again() -> None:
    """Its fetcher goes on at the same offset, at another port."""
    async with broker_of() as broker:
        fetching = Fetching({ORDERS[0]: 0}, broker.port)
        await eventually_async(lambda: fetching.inbox.partitions[ORDERS[0]].waiting)
        port, since = broker.port, broker._own_topics.clock
    assert since is not None
    async with broker_of(port=port) as broker:
        broker._own_topics.clock = since
        taken = await fetching.take(200)
    assert taken == list(range(200))
