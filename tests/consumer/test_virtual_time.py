"""The consumer on the virtual loop: long outages, the same run from the same seed, and random schedules of faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer import Consumer, ConsumerRecord, ConsumerSettings, RebalanceListener
from kcoord_wire.consumer.errors import BrokerError
from kcoord_wire.coordinator import GroupConfig
from kcoord_wire.kernel.virtual.loop import VirtualWorld
from kcoord_wire.worlds.group.broker import VirtualBroker
from tests.support.consumers import produce

TOPIC = {"orders": 6}


class Ledger(RebalanceListener):
    """Notes who holds what, from `on_assigned` to the start of `on_revoked` or `on_lost`, over all consumers."""

    held: dict[str, tuple[int, set[TopicPartition]]]

    def __init__(self, name: str, held: dict[str, tuple[int, set[TopicPartition]]]) -> None:
        self.name = name
        self.held = held
        self.consumer: Consumer

    def _holds(self) -> set[TopicPartition]:
        return self.held.get(self.name, (-1, set()))[1]

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        generation, mine = self.consumer.generation_id, self._holds() | partitions
        for name, (theirs, others) in self.held.items():
            both = mine & others
            assert name == self.name or theirs != generation or not both, f"{both} of {name} and {self.name}"
        self.held[self.name] = generation, mine

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.held[self.name] = self.consumer.generation_id, self._holds() - partitions


async def work(settings: ConsumerSettings, listener: Ledger, process: Callable[[ConsumerRecord], object]) -> None:
    async with Consumer(settings) as consumer:
        listener.consumer = consumer
        consumer.subscribe(["orders"], listener)
        while True:
            for record in await consumer.poll(10_000):
                process(record)


async def shop(address: str, rounds: int, every: float) -> None:
    """Append a record to each partition every so many seconds; again, and perhaps twice, if the broker was away."""
    for number in range(rounds):
        for index in range(6):
            while True:
                try:
                    await produce(address, {TopicPartition("orders", index): [f"{number}"]})
                except BrokerError:
                    await asyncio.sleep(1)
                else:
                    break
        await asyncio.sleep(every)


def settings(address: str, **changes: Any) -> ConsumerSettings:
    options = {"bootstrap_servers": address, "group_id": "billing", "auto_offset_reset": "earliest"}
    return ConsumerSettings(**{**options, "fetch_max_wait_ms": 5_000, **changes})


def outage(seed: int) -> list[tuple[int, str, int, int]]:
    """Five minutes without the broker; returns when which record was processed, in virtual ms."""
    world = VirtualWorld(seed=seed)
    broker = VirtualBroker(world, TOPIC)
    seen: list[tuple[int, str, int, int]] = []

    async def main() -> None:
        held: dict[str, tuple[int, set[TopicPartition]]] = {}
        for name in ("app-1", "app-2"):
            world.host(name).start(
                work(
                    settings(broker.address),
                    Ledger(name, held),
                    lambda record, name=name: seen.append(
                        (round(world.now * 1_000), name, record.partition, record.offset)
                    ),
                )
            )
        await world.host("shop").start(shop(broker.address, 60, 10))
        await asyncio.sleep(60)

    world.at(120, world.network.cut, "app-1", "kafka", 300)
    world.at(120, world.network.cut, "app-2", "kafka", 300)
    world.run(main())
    return seen


def test_an_outage_of_five_minutes_and_the_same_run_again() -> None:
    seen = outage(7)
    assert {(partition, offset) for _, _, partition, offset in seen} == {(p, o) for p in range(6) for o in range(60)}
    assert not any(121_000 < at < 420_000 for at, *_ in seen), "nothing during the outage"
    assert any(420_000 < at < 480_000 for at, *_ in seen), "and back within a minute"
    assert outage(7) == seen


SERVER_ASSIGNED = "KIP-848"


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky", SERVER_ASSIGNED])
@pytest.mark.parametrize("seed", range(5))
def test_no_schedule_makes_two_owners_or_loses_records(seed: int, assignor: str) -> None:
    """Members come, go, pause, are cut off and killed; the broker loses power."""
    world = VirtualWorld(seed=seed)
    broker = VirtualBroker(world, TOPIC, config=GroupConfig(consumer_session_timeout_ms=10_000))
    random = Random(f"{seed}/{assignor}")
    held: dict[str, tuple[int, set[TopicPartition]]] = {}
    seen: set[tuple[int, int]] = set()
    owners: list[TopicPartition] = []
    alive: set[str] = set()
    names = [f"app-{number}" for number in range(4)]

    def begin(name: str) -> None:
        classic = {"session_timeout_ms": 10_000, "partition_assignment_strategy": [assignor]}
        protocol = {"group_protocol": "consumer"} if assignor == SERVER_ASSIGNED else classic
        options = settings(broker.address, client_id=name, max_poll_interval_ms=30_000, **protocol)
        alive.add(name)
        worker = work(options, Ledger(name, held), lambda record: seen.add((record.partition, record.offset)))
        world.host(name).start(worker)

    def kill(name: str) -> None:
        if name in alive:  # else it is about to begin again
            alive.remove(name)
            held.pop(name, None)
            world.host(name).kill()
            world.at(world.now + random.uniform(0, 30), begin, name)

    async def main() -> None:
        for name in names:
            begin(name)
        await world.host("shop").start(shop(broker.address, 30, 10))
        await asyncio.sleep(120)
        owners.extend(partition for _, partitions in held.values() for partition in partitions)

    for _ in range(10):
        at, name, seconds = random.uniform(10, 250), random.choice(names), random.uniform(1, 40)
        act = random.choice([kill, world.host(name).pause, world.network.cut, world.network.reset, broker.down])
        arguments = {
            kill: (name,),
            world.network.cut: (name, "kafka", seconds),
            world.network.reset: (name, "kafka"),
            broker.down: (seconds / 4,),
        }.get(act, (seconds,))
        world.at(at, act, *arguments)
    world.run(main())
    for partition in range(6):
        offsets = {offset for index, offset in seen if index == partition}
        assert offsets == set(range(len(offsets))), "none is left out"
        assert len(offsets) >= 30
    assert sorted(partition.partition for partition in owners) == list(range(6)), "each has one owner in the end"
