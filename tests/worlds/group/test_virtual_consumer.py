"""This package's consumer on the virtual loop: the real shell, sockets in memory."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from kcoord_wire.consumer import Consumer, ConsumerSettings
from kcoord_wire.coordinator.core.events import Trigger
from kcoord_wire.kernel.virtual.loop import VirtualWorld
from kcoord_wire.worlds.group.broker import VirtualBroker

ROOT = Path(__file__).resolve().parents[3]


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


PROGRAM = """
import asyncio
from aiokafka import AIOKafkaProducer
from kcoord_wire.consumer import Consumer, ConsumerSettings
from kcoord_wire.worlds.group.broker import VirtualBroker
from kcoord_wire.kernel.virtual.loop import VirtualWorld

TOPICS = ("orders", "payments", "refunds")

async def consume(world, name):
    settings = ConsumerSettings(bootstrap_servers="kafka:9092", group_id="billing", auto_offset_reset="earliest")
    async with Consumer(settings) as consumer:
        consumer.subscribe(TOPICS)
        async for record in consumer:
            world.record(name, "record", f"{record.topic} {record.partition}@{record.offset}")

async def produce():
    async with AIOKafkaProducer(bootstrap_servers="kafka:9092", request_timeout_ms=600_000) as producer:
        for number in range(20):
            for topic in TOPICS:
                await producer.send_and_wait(topic, b"%d" % number, partition=number % 6)
            await asyncio.sleep(6)

async def main():
    for name in ("app-1", "app-2", "app-3"):
        world.host(name).start(consume(world, name))
    await world.host("shop").start(produce())

world = VirtualWorld(seed=3)
broker = VirtualBroker(world, dict.fromkeys(TOPICS, 6))
world.host("app-1")
world.at(30, world.network.cut, "app-1", "kafka", 60)
world.at(50, world.host("app-2").pause, 20)
world.run(main())
print(*world.trace, sep="\\n")
"""


def test_the_trace_is_the_same_in_every_process() -> None:
    """This consumer lists partitions in their order, so the hashes of text do not show."""
    traces = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        traces.append(done.stdout.splitlines())
    first, second = traces
    assert sum(" record " in line for line in first) >= 60
    assert first == second
