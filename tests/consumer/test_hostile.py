"""Brokers whose responses have the form and make no sense: typed errors, and a consumer that can be closed."""

from __future__ import annotations

import asyncio
from dataclasses import fields, is_dataclass
from random import Random
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire import messages as m
from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer import Consumer, ConsumerSettings
from kcoord_wire.consumer.errors import BrokerError, ConsumerError
from kcoord_wire.kernel.virtual.loop import VirtualWorld
from kcoord_wire.worlds.group.broker import VirtualBroker
from tests.support.consumers import produce

NUMBERS = (-1, 0, 1, 2, 3, 14, 25, 27, 999, (1 << 31) - 1, -(1 << 31))
OFFSETS = (*NUMBERS, (1 << 63) - 1)
DECODE = kw.decode_response


def changed(message: Any, random: Random) -> None:
    """Change one field somewhere in a message, to a value of its type."""
    names = [field.name for field in fields(message) if field.name != "unknown_tags"]
    if not names:
        return
    name = random.choice(names)
    value = getattr(message, name)
    if isinstance(value, list):
        change_list(value, random)
    elif is_dataclass(value):
        changed(value, random)
    elif isinstance(value, bool):
        setattr(message, name, not value)
    elif isinstance(value, int):
        setattr(message, name, random.choice(OFFSETS if name.endswith("offset") else NUMBERS))
    elif isinstance(value, str):
        setattr(message, name, random.choice(["", value * 2, "orders", "nowhere"]))
    elif isinstance(value, bytes) and value:
        at = random.randrange(len(value))
        setattr(message, name, random.choice([b"", value[:at], value[:at] + b"\xff" + value[at + 1 :]]))


def change_list(values: list[Any], random: Random) -> None:
    if values and is_dataclass(values[0]) and random.random() < 0.7:
        changed(random.choice(values), random)
    elif values and random.random() < 0.5:
        values.append(random.choice(values))
    else:
        del values[random.randrange(len(values) + 1) :]


@pytest.mark.parametrize("seed", range(12))
def test_responses_that_make_no_sense(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    lying = False

    def decode(body: Any, api: Any, version: int, **options: Any) -> tuple[Any, Any]:
        header, message = DECODE(body, api, version, **options)
        if lying and not isinstance(message, m.ApiVersionsResponse) and random.random() < 0.3:
            changed(message, random)
        return header, message

    async def poll(consumer: Consumer) -> None:
        try:
            await consumer.poll(5_000)
        except (ConsumerError, BrokerError) as error:
            errors.append(error)
            await asyncio.sleep(1)

    async def main() -> None:
        nonlocal lying
        asyncio.get_running_loop().set_exception_handler(lambda _, context: crashes.append(context))
        values = {TopicPartition("orders", index): ["a", "b"] for index in range(3)}
        await produce(broker.address, values)
        lying = True
        for strategy in ("range", "cooperative-sticky"):
            settings = ConsumerSettings(
                bootstrap_servers=broker.address,
                group_id="billing",
                auto_offset_reset="earliest",
                session_timeout_ms=10_000,
                partition_assignment_strategy=[strategy],
            )
            async with Consumer(settings) as consumer:
                consumer.subscribe(["orders"])
                for _ in range(20):
                    await poll(consumer)
        lying = False

        async with Consumer(settings) as consumer:
            consumer.subscribe(["orders"])
            while len(consumer.assignment) < 3:
                await consumer.poll(10_000)

    monkeypatch.setattr(kw, "decode_response", decode)
    world = VirtualWorld(seed=seed)
    broker = VirtualBroker(world, {"orders": 3})
    errors: list[Exception] = []
    crashes: list[Any] = []
    world.run(main())
    assert crashes == []
