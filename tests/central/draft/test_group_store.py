"""A group's nodes: what is read, and that the planned writes lead to what was wanted."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kcoord_wire.central.draft.events import Partition
from kcoord_wire.central.draft.groups import GroupStore, consumer_of
from kcoord_wire.zookeeper.layout import CONSUMERS, GroupRecord
from kcoord_wire.zookeeper.memory import MemoryZooKeeper
from kcoord_wire.zookeeper.model import Create, Outcome, Read, Write

PARTITIONS = [Partition(topic, f"1-{number}") for topic in ("t", "u") for number in range(3)]


def loaded(zookeeper: MemoryZooKeeper) -> GroupStore:
    """Return the store after `load`."""
    store = GroupStore("g")
    procedure = store.load()

    def value(request: Any) -> Any:
        return zookeeper.node(request.path) if isinstance(request, Read) else zookeeper.names(request.path)

    wait: Any = next(procedure)
    try:
        while True:
            wait = procedure.send([value(each) for each in wait] if isinstance(wait, list) else value(wait))
    except StopIteration:
        return store


@pytest.fixture
def zookeeper() -> MemoryZooKeeper:
    zookeeper = MemoryZooKeeper()
    zookeeper.write(Create(CONSUMERS))
    return zookeeper


@pytest.mark.parametrize("seed", range(20))
def test_planned_writes_lead_to_what_was_wanted(zookeeper: MemoryZooKeeper, seed: int) -> None:
    chooser = random.Random(seed)
    store = loaded(zookeeper)
    for step in range(12):
        owners = {partition: f"c{chooser.randrange(3)}-0" for partition in PARTITIONS if chooser.random() < 0.6}
        offsets = {partition: chooser.randrange(9) for partition in PARTITIONS if chooser.random() < 0.5}
        known = {**store.offsets, **offsets}
        writes: list[Write] = store.plan_record(GroupRecord(step, is_starting=True)) if chooser.random() < 0.5 else []
        writes += store.plan_offsets(offsets)
        writes += store.plan_owners(owners, step)
        assert zookeeper.write(*writes).outcome is Outcome.OK
        found = loaded(zookeeper)
        assert (found.owners, found.offsets, found.record) == (owners, known, GroupRecord(step))
        assert (store.owners, store.offsets, store.record) == (owners, known, GroupRecord(step))
        if chooser.random() < 0.3:
            store = found


def test_what_is_there_is_not_written_again(zookeeper: MemoryZooKeeper) -> None:
    store = loaded(zookeeper)
    owners = dict.fromkeys(PARTITIONS, "a-0")
    zookeeper.write(*store.plan_owners(owners, 6_000), *store.plan_offsets({PARTITIONS[0]: 4}))
    assert store.plan_owners(owners, 6_000) == store.plan_offsets({PARTITIONS[0]: 4}) == []


def test_the_mark_ends_with_the_last_write(zookeeper: MemoryZooKeeper) -> None:
    store = loaded(zookeeper)
    zookeeper.write(*store.plan_record(GroupRecord(6_000, is_starting=True)))
    assert store.plan_owners({PARTITIONS[0]: "a-0"}, 6_000)[-1].path == "/consumers/g"


def test_a_group_that_does_not_exist_is_empty(zookeeper: MemoryZooKeeper) -> None:
    store = loaded(zookeeper)
    assert (store.is_loaded, store.owners, store.offsets, store.record) == (True, {}, {}, GroupRecord())
    store.forget()
    assert not store.is_loaded


def test_the_consumer_of_a_thread() -> None:
    assert [consumer_of(text) for text in ("a-0", "host-1-12", "nothing")] == ["a", "host-1", ""]
