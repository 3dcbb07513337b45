"""The topics that a broker announces, on a ZooKeeper in memory."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kcoord_wire.central.served_topics import RECORDS, OwnTopics, RecordClock, check_broker, parse_record_clock
from kcoord_wire.kernel.machines import LogEvent, Tick
from kcoord_wire.zookeeper.memory import MemoryLink, MemoryZooKeeper
from kcoord_wire.zookeeper.model import Ask, Create, Node, Read, Replied, SetData


class Announcing:
    """A machine on a link of its own."""

    def __init__(self, zookeeper: MemoryZooKeeper, broker_id: int, topics: dict[str, int], clock: RecordClock) -> None:
        self.machine = OwnTopics(broker_id, topics, clock)
        self.link = MemoryLink(zookeeper, self._deliver)
        self.notes: list[LogEvent] = []
        self.now = 0

    def _deliver(self, event: Any) -> None:
        self._execute(self.machine.handle(event, self.now))

    def _execute(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, Ask):
                self.link.ask(effect)
            else:
                self.notes.append(effect)

    def run(self, ms: int) -> None:
        """Let time pass, in steps."""
        for _ in range(0, ms, 50):
            self.now += 50
            self.link.advance(self.now)
            if self.machine.deadline is not None and self.machine.deadline <= self.now:
                self._execute(self.machine.handle(Tick(), self.now))


def nodes(zookeeper: MemoryZooKeeper, *requests: Any) -> list[Any]:
    """The values of requests of another client, made when it is connected."""
    replies: list[Any] = []
    link = MemoryLink(zookeeper, replies.append)
    link.advance(0)
    for token, request in enumerate(requests, start=1):
        link.ask(Ask(token, request))
    link.advance(0)
    return [reply.value for reply in replies if isinstance(reply, Replied)]


def test_topics_are_announced_and_grow_and_never_shrink() -> None:
    zookeeper = MemoryZooKeeper()
    for partitions, announced in ((4, b"4"), (6, b"6"), (5, b"6")):
        broker = Announcing(zookeeper, 1, {"orders": partitions}, RecordClock(1_000, 2.0))
        broker.run(1_000)
        [node] = nodes(zookeeper, Read("/brokers/topics/orders/1"))
        assert node.data == announced
        assert broker.machine.announced == {"orders": int(announced)}
        assert [note.what for note in broker.notes] == (["partitions cannot be removed"] if partitions == 5 else [])


def test_brokers_have_one_clock_of_records() -> None:
    zookeeper = MemoryZooKeeper()
    for broker_id in (1, 2):
        broker = Announcing(zookeeper, broker_id, {}, RecordClock(1_000 * broker_id, 2.0))
        broker.run(1_000)
        assert broker.machine.clock == RecordClock(1_000, 2.0)


def test_what_a_cut_has_prevented_is_tried_again() -> None:
    zookeeper = MemoryZooKeeper()
    broker = Announcing(zookeeper, 1, {"orders": 4}, RecordClock(0, 1.0))
    broker.link.cut(0)
    broker.run(1_000)
    assert broker.machine.announced == {}
    broker.link.heal()
    broker.run(2_000)
    assert broker.machine.announced == {"orders": 4}


def test_a_node_that_is_no_number_is_logged_and_tried_again() -> None:
    zookeeper = MemoryZooKeeper()
    parents = ("/brokers", "/brokers/ids", "/brokers/topics", "/brokers/topics/orders")
    nodes(zookeeper, *map(Create, parents), Create("/brokers/topics/orders/1", b"many"), Create(RECORDS, b"{}"))
    broker = Announcing(zookeeper, 1, {"orders": 4}, RecordClock(0, 1.0))
    broker.run(1_000)
    assert "not a clock of records" in str(broker.notes[-1].facts)
    nodes(zookeeper, SetData(RECORDS, RecordClock(5, 1.0).encode()))
    broker.run(1_000)
    reason = "/brokers/topics/orders/1 has no number of partitions: b'many'"
    assert broker.notes[-1].facts == {"reason": reason}
    nodes(zookeeper, SetData("/brokers/topics/orders/1", b"3"))
    broker.run(1_000)
    assert nodes(zookeeper, Read("/brokers/topics/orders/1")) == [Node(b"4", 2)]


@pytest.mark.parametrize("data", [b"", b"[]", b'{"since_ms": 1}', b'{"since_ms": 1, "rate": -1}', b'{"rate": 1}'])
def test_other_data_is_no_clock(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a clock of records|Expecting value"):
        parse_record_clock(data)


@pytest.mark.parametrize(
    ("broker_id", "topics", "text"),
    [
        (1 << 31, {}, "a broker id is 0 to 2147483647"),
        (-1, {}, "a broker id is 0 to 2147483647"),
        (1, {"a/b": 1}, "not a topic: 'a/b'"),
        (1, {"..": 1}, "not a topic"),
        (1, {"a": 0}, "'a' has 1 to 10000 partitions at a broker, not 0"),
        (1, {"a": 10_001}, "'a' has 1 to 10000 partitions"),
    ],
)
def test_what_others_could_not_use_is_refused(broker_id: int, topics: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        check_broker(broker_id, topics)
    check_broker((1 << 31) - 1, {"a": 10_000})
