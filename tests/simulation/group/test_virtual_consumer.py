"""This package's consumer on the virtual loop: the real shell, sockets in memory."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaProducer

from kcoord_wire.consumer import Consumer, ConsumerSettings
from kcoord_wire.coordinator.core.events import Trigger
from kcoord_wire.simulation.group.broker import VirtualBroker
from kcoord_wire.simulation.virtual_loop import VirtualWorld


async def consume(world: VirtualWorld, broker: VirtualBroker, seen: list[tuple[str, bytes]], name: str) -> None:
    settings = ConsumerSettings(
        bootstrap_servers=broker.address,
        group_id="billing",
        auto_offset_reset="earliest",
        partition_assignment_strategy=("cooperative-sticky",),
    )
    async with Consumer(settings) as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            seen.append((name, record.value))
            world.record(name, "record", f"{record.partition}@{record.offset}")


async def produce(broker: VirtualBroker, count: int, every: float) -> None:
    """A producer with a name: aiokafka numbers those without through all runs of a process."""
    options = {"request_timeout_ms": 600_000, "retry_backoff_ms": 1_000, "client_id": "shop"}
    async with AIOKafkaProducer(bootstrap_servers=broker.address, **options) as producer:
        for number in range(count):
            await producer.send_and_wait("orders", b"%d" % number, partition=number % 4)
            await asyncio.sleep(every)


def played(seed: int, fault: str) -> tuple[VirtualWorld, VirtualBroker, list[tuple[str, bytes]]]:
    """Two consumers for ten minutes, with five minutes of trouble."""
    world = VirtualWorld(seed)
    broker = VirtualBroker(world, {"orders": 4})
    seen: list[tuple[str, bytes]] = []

    async def main() -> None:
        for name in ("app-1", "app-2"):
            world.host(name).start(consume(world, broker, seen, name))
        await world.host("shop").start(produce(broker, 60, every=10))
        await asyncio.sleep(60)

    world.host("app-1")
    if fault == "cut":
        world.at(120, world.network.cut, "app-1", "kafka", 300)
    elif fault == "pause":
        world.at(120, world.host("app-1").pause, 300)
    else:
        world.at(120, broker.down, 300)
    world.run(main())
    return world, broker, seen


@pytest.mark.parametrize("fault", ["cut", "pause", "down"])
def test_every_record_is_read_whatever_happens(fault: str) -> None:
    world, broker, seen = played(7, fault)
    assert {value for _, value in seen} == {b"%d" % number for number in range(60)}
    assert {name for name, _ in seen[-20:]} == {"app-1", "app-2"}, "both work at the end"
    if fault != "down":
        assert Trigger.SESSION_EXPIRED in {rebalance.trigger for rebalance in broker.rebalances}
        during = [line for line in world.trace if line.what == "record" and 180_000 < line.at < 420_000]
        assert {line.who for line in during} == {"app-2"}


def test_the_same_seed_gives_the_same_trace() -> None:
    first, again, other = (played(seed, "cut")[0].trace for seed in (1, 1, 2))
    assert first == again
    assert first != other
