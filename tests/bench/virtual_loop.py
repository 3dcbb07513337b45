"""What outages of aiokafka consumers cost on the virtual loop: ``python -m tests.bench.virtual_loop``.

Each run is ten virtual minutes of one consumer and one producer, five of which go wrong. The time is CPU time, the
least of three runs; docs/virtual-loop.md has the numbers.
"""

from __future__ import annotations

import asyncio
import logging
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from kcoord_wire.kernel.virtual.loop import VirtualWorld
from kcoord_wire.worlds.group.broker import VirtualBroker

MINUTE = 60


async def consume(broker: VirtualBroker) -> None:
    """A consumer with aiokafka's defaults."""
    consumer = AIOKafkaConsumer(
        "orders", bootstrap_servers=broker.address, group_id="billing", auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        async for _ in consumer:
            pass
    finally:
        await consumer.stop()


async def produce(broker: VirtualBroker) -> None:
    """A producer that asks again once a second."""
    settings = {"request_timeout_ms": 600_000, "retry_backoff_ms": 1_000}
    async with AIOKafkaProducer(bootstrap_servers=broker.address, **settings) as producer:
        for number in range(MINUTE):
            await producer.send_and_wait("orders", b"%d" % number, partition=number % 4)
            await asyncio.sleep(10)


def play(fault: str) -> VirtualWorld:
    """Run ten minutes with five minutes of a fault."""
    world = VirtualWorld(seed=7)
    broker = VirtualBroker(world, {"orders": 4})
    world.host("app")

    async def main() -> None:
        world.host("app").start(consume(broker))
        await world.host("shop").start(produce(broker))

    if fault == "cut":
        world.at(2 * MINUTE, world.network.cut, "app", "kafka", 5 * MINUTE)
    elif fault == "down":
        world.at(2 * MINUTE, broker.down, 5 * MINUTE)
    world.run(main())
    return world


def main() -> None:
    """Print a line for each fault."""
    logging.disable(logging.CRITICAL)
    for fault in ("none", "cut", "down"):
        least, world = None, None
        for _ in range(3):
            began = time.process_time()
            world = play(fault)
            took = time.process_time() - began
            least = took if least is None else min(least, took)
        assert world is not None
        connects = sum(line.what == "connects" for line in world.trace)
        print(f"{fault:>5}: {least:.2f} s of CPU time, {world.loop.steps} callbacks, {connects} attempts to connect")


if __name__ == "__main__":
    main()
