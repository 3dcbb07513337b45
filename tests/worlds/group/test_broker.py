"""The server on the virtual loop, with clients that nothing was done to: aiokafka."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError

from kcoord_wire.codec.registry import decode_request
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import Trigger
from kcoord_wire.coordinator.fault_injection import Fault, Faults
from kcoord_wire.coordinator.security.authentication import Users
from kcoord_wire.kernel.virtual.loop import VirtualWorld
from kcoord_wire.messages import ApiVersionsRequest, OffsetCommitRequest
from kcoord_wire.worlds.group.broker import VirtualBroker

ROOT = Path(__file__).resolve().parents[3]


async def consume(broker: VirtualBroker, process: Callable[[bytes], object], **options: object) -> None:
    """A consumer as in aiokafka's documentation."""
    consumer = AIOKafkaConsumer(
        "orders", bootstrap_servers=broker.address, group_id="billing", auto_offset_reset="earliest", **options
    )
    try:
        await consumer.start()
        async for record in consumer:
            process(record.value)
    finally:
        await consumer.stop()


async def produce(broker: VirtualBroker, count: int, every: float) -> None:
    """A producer that waits for each record."""
    async with AIOKafkaProducer(bootstrap_servers=broker.address, request_timeout_ms=600_000) as producer:
        for number in range(count):
            await producer.send_and_wait("orders", b"%d" % number, partition=number % 4)
            await asyncio.sleep(every)


def test_an_outage_of_five_minutes_is_not_waited_for() -> None:
    world = VirtualWorld(seed=7)
    broker = VirtualBroker(world, {"orders": 4})
    times: list[float] = []

    async def main() -> None:
        world.host("app").start(consume(broker, lambda _: times.append(world.now), request_timeout_ms=50_000))
        await world.host("shop").start(produce(broker, 60, every=10))

    world.host("app")
    world.at(100, world.network.cut, "app", "kafka", 300)
    began = time.process_time()
    world.run(main())
    assert time.process_time() - began < 60 < 600 < world.now
    assert len(times) == 60
    assert [at for at in times if 101 < at < 400] == []
    assert {rebalance.trigger for rebalance in broker.rebalances} == {Trigger.NEW_MEMBER, Trigger.SESSION_EXPIRED}


def test_a_broker_that_was_down_has_its_group_and_records() -> None:
    world = VirtualWorld(seed=7)
    broker = VirtualBroker(world, {"orders": 4})
    seen: list[bytes] = []

    async def main() -> None:
        world.host("app").start(consume(broker, seen.append, retry_backoff_ms=2_000, metadata_max_age_ms=600_000))
        await world.host("shop").start(produce(broker, 20, every=5))
        await asyncio.sleep(20)

    world.at(42, broker.down, 8)
    world.run(main())
    assert set(seen) == {b"%d" % number for number in range(20)}
    assert [line.at for line in world.trace if line.what == "serves"] == [0, 50_000]
    assert len(broker.rebalances) == 1, "the member is in the log, and goes on with its next heartbeat"


def test_a_handler_that_sleeps_too_long_loses_its_partitions() -> None:
    """``time.sleep`` blocks the event loop, and with it the heartbeat."""
    world = VirtualWorld(seed=7)
    broker = VirtualBroker(world, {"orders": 4})

    async def main() -> None:
        world.host("app").start(consume(broker, lambda _: time.sleep(15), session_timeout_ms=10_000))
        world.host("shop").start(produce(broker, 1, every=0))
        await asyncio.sleep(60)

    world.run(main())
    expired = [each for each in broker.rebalances if each.trigger is Trigger.SESSION_EXPIRED]
    assert len(expired) == 1


def test_request_faults_and_the_tap_work_as_elsewhere() -> None:
    seen: list[tuple[str, bytes]] = []
    world = VirtualWorld(seed=7)
    broker = VirtualBroker(
        world,
        {"orders": 4},
        config=GroupConfig(initial_rebalance_delay_ms=0),
        faults=Faults([Fault(api="OffsetCommit", action="error", error="NOT_COORDINATOR", count=1)]),
        tap=lambda time_ms, connection, direction, frame: seen.append((direction, frame)),
    )

    async def main() -> None:
        world.host("app").start(consume(broker, lambda _: None))
        world.host("shop").start(produce(broker, 3, every=1))
        await asyncio.sleep(30)

    world.run(main())
    requests = [decode_request(frame)[1] for direction, frame in seen if direction == "request"]
    assert isinstance(requests[0], ApiVersionsRequest)
    assert sum(isinstance(request, OffsetCommitRequest) for request in requests) >= 2
    counts = {direction: sum(each == direction for each, _ in seen) for direction in ("opened", "closed")}
    assert counts["opened"] >= counts["closed"] >= 2
    assert broker.rebalances[0].joined_at - broker.rebalances[0].started_at < 100


def test_clients_authenticate_with_scram() -> None:
    """aiokafka computes its part in an executor."""
    world = VirtualWorld(seed=7)
    broker = VirtualBroker(world, {"orders": 4}, users=Users({"alice": "secret"}))
    seen: list[bytes] = []

    def credentials(password: str) -> dict[str, str]:
        return {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": "alice",
            "sasl_plain_password": password,
        }

    async def main() -> None:
        world.host("app").start(consume(broker, seen.append, **credentials("secret")))
        async with AIOKafkaProducer(bootstrap_servers=broker.address, **credentials("secret")) as producer:
            await producer.send_and_wait("orders", b"signed")
        await asyncio.sleep(10)
        with pytest.raises(KafkaConnectionError):
            await consume(broker, seen.append, **credentials("wrong"))

    world.run(main())
    assert seen == [b"signed"]


PROGRAM = """
import asyncio, logging
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError
from kcoord_wire.worlds.group.broker import VirtualBroker
from kcoord_wire.kernel.virtual.loop import VirtualWorld

logging.disable()

async def consume(world, name):
    options = {"bootstrap_servers": "kafka:9092", "group_id": "billing", "auto_offset_reset": "earliest"}
    consumer = AIOKafkaConsumer("orders", **options)
    await consumer.start()
    async for record in consumer:
        world.record(name, "record", f"{record.partition}@{record.offset} {record.value}")

async def produce():
    async with AIOKafkaProducer(bootstrap_servers="kafka:9092", request_timeout_ms=600_000) as producer:
        for number in range(40):
            await producer.send_and_wait("orders", b"%d" % number, partition=number % 6)
            await asyncio.sleep(2)

async def main():
    for name in ("app-1", "app-2", "app-3"):
        world.host(name).start(consume(world, name))
    await world.host("shop").start(produce())

world = VirtualWorld(seed=9)
broker = VirtualBroker(world, {"orders": 6})
for name in ("app-1", "app-2", "app-3"):
    world.host(name)
world.at(20, world.host("app-1").pause, 15)
world.at(30, world.network.lose, "*", "kafka", 10, 0.1)
world.at(50, broker.down, 3)
world.run(main())
print(*world.trace, sep="\\n")
"""


def traced(hash_seed: str) -> list[str]:
    """The trace of `PROGRAM`, run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.slow
def test_aiokafka_leaves_the_same_trace_in_every_process() -> None:
    """Its fetches list partitions in the order of a set of text, so records of several come in the order of hashes."""
    first, again, other = traced("0"), traced("0"), traced("1")
    assert sum(" record " in line for line in first) >= 40
    assert len(first) > 1_000
    assert first == again
    assert [line for line in first if " record " not in line] == [line for line in other if " record " not in line]
