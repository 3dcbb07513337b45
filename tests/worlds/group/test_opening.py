"""Partitions that are opened beside the application's work."""

from __future__ import annotations

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.worlds.group.members import Opening


def partitions(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition("orders", number) for number in numbers]


def opening(ms: int = 100) -> tuple[VirtualClock, Opening, list[tuple[int, int]]]:
    clock = VirtualClock()
    opened: list[tuple[int, int]] = []
    return clock, Opening(clock, ms, lambda each: opened.append((clock.now, each.partition))), opened


def test_partitions_are_opened_one_after_the_other_in_order() -> None:
    clock, stores, opened = opening()
    stores.add(partitions(2, 0))
    clock.run(150)
    stores.add(partitions(1))
    assert stores
    clock.run(1_000)
    assert opened == [(100, 0), (200, 2), (300, 1)]
    assert not stores


def test_a_dropped_partition_takes_no_time_from_then_on() -> None:
    clock, stores, opened = opening()
    stores.add(partitions(0, 1, 2))
    clock.run(50)
    stores.drop(partitions(0, 2))
    clock.run(1_000)
    assert opened == [(150, 1)]


def test_a_partition_that_comes_back_is_opened_afresh() -> None:
    clock, stores, opened = opening()
    stores.add(partitions(0))
    clock.run(50)
    stores.drop(partitions(0))
    assert not stores
    stores.add(partitions(0))
    clock.run(1_000)
    assert opened == [(150, 0)]
