"""Tests of consumers of aiokafka: a rebalance, and an error that a client has to get over.

pip install 'kcoord_wire[serve]' pytest aiokafka
pytest test_orders.py
"""

import asyncio
from asyncio import to_thread
from collections import Counter

import pytest
from aiokafka import AIOKafkaConsumer

from kcoord_wire.coordinator import Coordinator, Fault

pytestmark = pytest.mark.kcoord(topics={"orders": 4})


def consumer(coordinator: Coordinator) -> AIOKafkaConsumer:
    settings = coordinator.client_settings("aiokafka")
    return AIOKafkaConsumer(
        "orders", **settings, group_id="billing", auto_offset_reset="earliest", enable_auto_commit=False
    )


def test_a_second_consumer_takes_half_of_the_partitions(kcoord_coordinator: Coordinator) -> None:
    async def run() -> None:
        async with consumer(kcoord_coordinator):
            await to_thread(kcoord_coordinator.wait_until_stable, "billing", members=1)
            async with consumer(kcoord_coordinator):
                group = await to_thread(kcoord_coordinator.wait_until_stable, "billing", members=2)
                shares = Counter(member for [member] in group.owners.values())
                assert sorted(shares.values()) == [2, 2]
            group = await to_thread(kcoord_coordinator.wait_until_stable, "billing", members=1)
            assert len(group.owners) == 4

    asyncio.run(run())


def test_a_commit_is_repeated_while_the_coordinator_loads(kcoord_coordinator: Coordinator) -> None:
    kcoord_coordinator.produce("orders", "a book", partition=3)
    loading = Fault("error", api="OffsetCommit", topic="orders", error="COORDINATOR_LOAD_IN_PROGRESS", count=2)

    async def run() -> None:
        async with consumer(kcoord_coordinator) as billing:
            with kcoord_coordinator.faults(loading) as faults:
                assert (await billing.getone()).value == b"a book"
                await billing.commit()
                assert faults.hits == 2

    asyncio.run(run())
    assert kcoord_coordinator.describe("billing").offsets["orders"][3] == 1
