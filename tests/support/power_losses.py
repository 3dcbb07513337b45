"""What every loss of power leaves of the coordinator's log, the journal of topics and the partitions; and the figures.

    python -m tests.support.power_losses

Of each log a short scenario is played to every operation of the disk, with everything that a loss of power or a kill
may leave there. The next start must find what was promised, and nothing half; it is itself hit at each of its
operations, and the start after that must find the same. Then the log takes the next write.
"""

from __future__ import annotations

import copy
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, NamedTuple

from kcoord_wire.coordinator.core.events import Producer
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.coordinator.partitions.journal import Journal, KnownTopic, KnownTopics
from kcoord_wire.kernel.disk import Disk
from kcoord_wire.kernel.virtual.disk import VirtualDisk
from kcoord_wire.kernel.virtual.power import Image, Ledger, Loss, losses
from tests.support.broker import Broker, batch, values
from tests.support.logs import WRITES, State, commit, recovered, state, write


class Scenario(NamedTuple):
    """What is played, and what a start finds.

    :ivar play: what is done on an empty disk, with what it promises
    :ivar start: starts on a disk, and returns what is there
    :ivar go_on: starts, and returns what is there before and after one more write, and at the start behind that
    :ivar strides: bytes between the places at which a write is torn; and in the start after a loss
    """

    play: Callable[[VirtualDisk, Ledger], None]
    start: Callable[[Disk], Any]
    go_on: Callable[[Disk], tuple[Any, Any, Any]]
    strides: tuple[int, int] = (1, 61)


class Figures(NamedTuple):
    """How much was gone through.

    :ivar operations: of the disk
    :ivar first: contents that one loss leaves
    :ivar second: contents that a second loss leaves of the start after the first
    """

    operations: int
    first: int
    second: int


def check(scenario: Scenario, stride: int, stride_of_starts: int | None = None) -> Figures:
    """Go through all losses of a scenario, and assert what each start finds.

    :param stride: bytes between two places at which a write is torn
    :param stride_of_starts: the same in the start after a loss; None for no second loss
    """
    operations = first = second = 0
    known: set[Image] = set()
    for loss in losses(scenario.play, Image(), stride=stride):
        operations, first = max(operations, loss.operation), first + 1
        found = scenario.start(disk_of(loss))
        assert loss.ledger.allows(found), (loss.operation, found, loss.ledger)
        before, after, again = scenario.go_on(disk_of(loss))
        assert (before, after) == (found, again), (loss.operation, found, after, again)
        if stride_of_starts is not None and loss.image not in known:
            known.add(loss.image)
            starts = losses(lambda disk, _: scenario.start(disk), loss.image, stride=stride_of_starts)
            for hit in starts:
                second += 1
                found_again, after, again = scenario.go_on(disk_of(hit))
                assert (found_again, after) == (before, again), (loss.operation, hit.operation, found, found_again)
    return Figures(operations, first, second)


def disk_of(loss: Loss) -> VirtualDisk:
    disk = VirtualDisk(Random(0))
    loss.image.write_to(disk)
    return disk


# ---- the log of groups


PRODUCER = Producer(7, 0)


def play_groups(disk: VirtualDisk, ledger: Ledger) -> None:
    """Commits in several segments, and a compaction."""
    ledger.acknowledged({})
    store = Store(disk, segment_bytes=250)
    store.recover()
    written = []
    for number, records in enumerate(WRITES):
        written += records
        ledger.begins(state(written))
        write(store, records)
        ledger.acknowledged(state(written))
        if number == 2:
            store.compact()


def next_commit(disk: Disk) -> tuple[State, State, State]:
    store, before = recovered(disk)
    write(store, [commit("next", 0, 9)])
    store.close()
    return before, {**before, ("next", 0): 9}, recovered(disk)[1]


GROUPS = Scenario(play_groups, lambda disk: recovered(disk)[1], next_commit)

# ---- topics: the journal and the partitions

Topics = dict[str, tuple[str, dict[str, str], list[tuple[int, bytes]]]]
"""Name to id, configs and the records of the first partition, with their offsets."""


def opened(disk: Disk) -> Broker:
    return Broker({}, disk=disk)


def topics_of(broker: Broker) -> Topics:
    found: Topics = {}
    for topic in broker.topics.catalog:
        log = topic.logs[0]
        data = log.read(log.start_offset, 1 << 20, True, log.end_offset)
        found[topic.name] = str(topic.id), dict(topic.configs), values(data) if data else []
    return found


def next_record(disk: Disk) -> tuple[Topics, Topics, Topics]:
    broker = opened(disk)
    before = topics_of(broker)
    for name in {"t", *before}:
        if name not in before:
            broker.topics.create(name, 1)
        assert broker.produce(batch(b"next"), topic=name).error_code == 0
    after = topics_of(broker)
    broker.topics.catalog.storage.close()
    return before, after, topics_of(opened(disk))


class Promised:
    """A broker, and what it promises of its topics: changes of them with each answer, records against kills alone."""

    def __init__(self, disk: VirtualDisk, ledger: Ledger) -> None:
        ledger.acknowledged({})
        self._disk = disk
        self._ledger = ledger
        self._known: Topics = {}
        self.broker = opened(disk)

    def restart(self) -> None:
        self.broker.topics.catalog.storage.close()
        self.broker = opened(self._disk)

    def change(self, after: Topics, make: Callable[[], object], *, synced: bool = True) -> None:
        self._known = after
        self._ledger.begins(after)
        make()
        self._ledger.acknowledged(after, synced=synced)

    def create(self, name: str, created: int, configs: dict[str, str] | None = None) -> None:
        topics = self.broker.topics
        planned = topics.catalog.plan(name, 1, configs)
        self.change({**self._known, name: (str(planned.id), configs or {}, [])}, lambda: topics.catalog.add([planned]))

    def produce(self, name: str, value: bytes) -> None:
        topic_id, configs, records = self._known[name]
        end = records[-1][0] + 1 if records else 0
        after = {**self._known, name: (topic_id, configs, [*records, (end, value)])}
        self.change(after, lambda: self._done(self.broker.produce(batch(value), topic=name)), synced=False)

    def drop_before(self, name: str, offset: int) -> None:
        topic_id, configs, records = self._known[name]
        topic = self.broker.topics.catalog.named(name)
        assert topic is not None
        after = {**self._known, name: (topic_id, configs, [each for each in records if each[0] >= offset])}
        self.change(after, lambda: topic.logs[0].truncate_before(offset), synced=False)

    def delete(self, name: str) -> None:
        after = {each: topic for each, topic in self._known.items() if each != name}
        self.change(after, lambda: self.broker.topics.catalog.delete(name))

    @staticmethod
    def _done(answer: Any) -> None:
        if answer.error_code:
            raise OSError(5, "refused")


def play_topics(disk: VirtualDisk, ledger: Ledger) -> None:
    """A topic is created, gets records, loses some, and is deleted; another of its name comes in its place."""
    promised = Promised(disk, ledger)
    promised.create("t", 0, {"retention.ms": "5"})
    promised.produce("t", b"a")
    promised.produce("t", b"b" * 30)
    promised.restart()
    promised.drop_before("t", 1)
    promised.delete("t")
    promised.create("t", 1)
    promised.produce("t", b"c")


TOPICS = Scenario(play_topics, lambda disk: topics_of(opened(disk)), next_record, strides=(61, 1_000))


# ---- the journal alone, whose lines about starts and epochs are not synced


def begun(disk: Disk) -> tuple[Journal, KnownTopics]:
    journal = Journal(disk)
    known = journal.load()
    journal.begin(known)
    return journal, known


def play_journal(disk: VirtualDisk, ledger: Ledger) -> None:
    """Topics are noted, and between them many starts that are not synced."""
    ledger.acknowledged(KnownTopics())
    journal, known = begun(disk)

    def change(line: Mapping[str, Any], write: Callable[[], None], *, synced: bool) -> None:
        known.apply(line)
        after = replace(copy.deepcopy(known), deleted=set())
        ledger.begins(after)
        write()
        ledger.acknowledged(after, synced=synced)

    topic = KnownTopic(uuid.UUID(int=7), {"retention.ms": "5"}, [0, 0])
    line = {"change": "topic", "name": "orders", "id": str(topic.id), "configs": topic.configs, "epochs": topic.epochs}
    change({**line, "created": 1}, lambda: journal.changed({"orders": topic}, 1), synced=True)
    for offset in range(1, 11):
        moved = {"change": "start", "partition": "orders-1", "offset": offset}
        change(moved, partial(journal.start_moved, "orders-1", offset), synced=False)
    change({"change": "deleted", "name": "orders"}, lambda: journal.deleted(["orders"]), synced=True)


def next_line(disk: Disk) -> tuple[KnownTopics, KnownTopics, KnownTopics]:
    journal, before = begun(disk)
    journal.producer_ids_reserved(9)
    journal.close()
    kept = replace(before, deleted=set())  # which the next journal does not have
    return kept, replace(kept, producer_ids=9), Journal(disk).load()


JOURNAL = Scenario(play_journal, lambda disk: replace(begun(disk)[1], deleted=set()), next_line)

SCENARIOS = {"groups": GROUPS, "journal": JOURNAL, "topics": TOPICS}


def main() -> None:
    logging.disable()
    for name, scenario in SCENARIOS.items():
        began = time.process_time()
        figures = check(scenario, *scenario.strides)
        print(f"{name}: {figures}, {time.process_time() - began:.0f} s of the processor", flush=True)


if __name__ == "__main__":
    main()
