"""Consumers and a coordinator as a whole, in both ways to rebalance: every record is processed, some of them twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from kcoord_wire.central.broker import CentralBroker
from kcoord_wire.central.client import CentralConsumer
from kcoord_wire.central.draft.events import ConsumerSettings, CoordinatorSettings, Partition, RebalanceBy
from kcoord_wire.kernel.machines import BrokerAddress
from kcoord_wire.kernel.net import parse_address
from tests.support.virtual import on_virtual_loop, serving
from tests.support.waiting import eventually_async

PARTITIONS = frozenset(Partition("orders", f"1-{number}") for number in range(4))


class Member:
    """A consumer that counts what it has processed."""

    def __init__(self, address: str, name: str, processed: Counter[tuple[Partition, int]]) -> None:
        host, port = parse_address(address)
        bootstrap = (BrokerAddress(-2, host, port),)
        settings = ConsumerSettings("g", name, '{"orders": 1}', bootstrap, session_timeout_ms=3_000)
        self.owned: frozenset[Partition] = frozenset()
        self.consumer = CentralConsumer(settings, on_assigned=self.assigned)
        self.task = asyncio.create_task(self.run(processed))

    def assigned(self, partitions: frozenset[Partition]) -> None:
        self.owned = partitions

    async def run(self, processed: Counter[tuple[Partition, int]]) -> None:
        async with self.consumer:
            async for record in self.consumer:
                processed[record.partition, record.offset] += 1

    async def leave(self) -> None:
        self.consumer.shutdown()
        await self.task


@pytest.mark.parametrize("rebalance_by", RebalanceBy)
@on_virtual_loop
async def test_every_record_is_processed_while_members_come_and_go(rebalance_by: RebalanceBy) -> None:
    processed: Counter[tuple[Partition, int]] = Counter()

    async def scenario(address: str) -> None:
        def shared(*members: Member) -> Callable[[], bool]:
            return lambda: (
                all(member.owned for member in members)
                and sorted(partition for member in members for partition in member.owned) == sorted(PARTITIONS)
            )

        first = Member(address, "c-1", processed)
        await eventually_async(shared(first))
        second = Member(address, "c-2", processed)
        await eventually_async(shared(first, second))
        third = Member(address, "c-3", processed)
        await eventually_async(shared(first, second, third))
        await second.leave()
        await eventually_async(shared(first, third))
        third.consumer.shutdown()
        await third.leave()  # a second call, which waits for no ping: what came after the last is processed again
        await eventually_async(shared(first))
        seen = max(offset for _, offset in processed)
        await eventually_async(lambda: all((partition, seen + 50) in processed for partition in PARTITIONS))
        await first.leave()

    settings = CoordinatorSettings(rebalance_by=rebalance_by)
    async with serving(CentralBroker(topics={"orders": 4}, rate=200, settings=settings)) as broker:
        await scenario(broker.address)
    for partition in PARTITIONS:
        offsets = sorted(offset for where, offset in processed if where == partition)
        assert offsets == list(range(len(offsets)))  # none is missing
    assert all(times <= 5 for times in processed.values())  # one more at most for each change of owner
