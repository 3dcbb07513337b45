"""The laws of `marshal.inbox.DataTopics`, as tests that every implementation inherits with a fixture `cluster`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Self

from confluent_kafka import Producer

from kcoord_wire.marshal.inbox import DataRecord, DataTopics
from kcoord_wire.marshal.member_events import FetchFailed, FindStart, StartFailed, StartFound, Tenure, TopicPartitions

SECONDS = 20.0
TOPIC = "orders"


@dataclass
class TopicCluster:
    """Topics of a group, and what happens to them beside it.

    :ivar make: the topics of a group
    :ivar append: to a partition of the topic
    :ivar grow: give the topic so many partitions
    :ivar recreate: delete it, and create it with so many
    :ivar skip: use up an offset without a record
    """

    make: Callable[[str], DataTopics]
    append: Callable[[int, bytes], Any]
    grow: Callable[[int], None]
    recreate: Callable[[int], None]
    skip: Callable[[int], None] | None = None
    topic: str = TOPIC
    made: list[DataTopics] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for made in self.made:
            made.close()

    def open(self, group_id: str = "g") -> DataTopics:
        topics = self.make(group_id)
        self.made.append(topics)
        return topics


def producing(address: str, topic: str = TOPIC) -> Callable[[int, bytes], None]:
    """Appends to a partition of a topic."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})

    def append(partition: int, value: bytes) -> None:
        producer.produce(topic, value=value, partition=partition)
        assert producer.flush(SECONDS) == 0

    return append


def events_until(topics: DataTopics, kind: type | tuple[type, ...], count: int = 1) -> list[Any]:
    """Poll until so many events of a kind have come, and return all that have."""
    events: list[Any] = []
    until = monotonic() + SECONDS
    while sum(isinstance(event, kind) for event in events) < count:
        assert monotonic() < until, f"{count} {kind} wanted, these came: {events}"
        events += topics.poll(0.05)
    return events


def wait_for(topics: DataTopics, kind: type | tuple[type, ...], count: int = 1) -> list[Any]:
    """As `events_until`, those of the kind alone."""
    return [event for event in events_until(topics, kind, count) if isinstance(event, kind)]


def start_of(topics: DataTopics, tenure: Tenure, *, is_unknown: bool = True) -> StartFound:
    """Ask until there is an answer: the leader of a topic that was just created refuses for a moment."""
    until = monotonic() + SECONDS
    while True:
        topics.find_start(FindStart(tenure, is_unknown, request=3))
        (found,) = wait_for(topics, (StartFound, StartFailed))
        assert found.request == 3
        if isinstance(found, StartFound):
            return found
        assert monotonic() < until, found


def topics_until(topics: DataTopics, holds: Callable[[TopicPartitions], object]) -> TopicPartitions:
    """Poll until the topics are reported so."""
    while not holds(reported := wait_for(topics, TopicPartitions)[-1]):
        pass
    return reported  # type: ignore[no-any-return]


class DataTopicsContract:
    """What holds for a topic with two partitions, wherever it is."""

    def test_the_partition_counts_come_first(self, cluster: TopicCluster) -> None:
        assert wait_for(cluster.open(), TopicPartitions)[0].counts == {cluster.topic: 2}

    def test_growing_partition_counts_are_seen(self, cluster: TopicCluster) -> None:
        topics = cluster.open()
        before = topics_until(topics, lambda reported: reported.ids)
        assert "/" not in before.ids[cluster.topic]  # it ends a field of a message
        cluster.grow(5)
        assert wait_for(topics, TopicPartitions) == [TopicPartitions({cluster.topic: 5}, before.ids)]

    def test_a_topic_that_is_created_again_has_another_id(self, cluster: TopicCluster) -> None:
        for number in range(3):
            cluster.append(0, b"%d" % number)
        topics, held = cluster.open("recreated"), Tenure(cluster.topic, 0, 1)
        topics.commit(held, 3)
        topics.close()
        topics = cluster.open("recreated")
        before = start_of(topics, held)
        assert (before.end, before.committed) == (3, 3)
        assert before.topic_id
        cluster.recreate(2)
        after = topics_until(topics, lambda reported: reported.ids.get(cluster.topic, "") not in ("", before.topic_id))
        assert start_of(topics, held) == StartFound(3, 0, 0, None, after.ids[cluster.topic])

    def test_records_of_several_tenures_come_in_order(self, cluster: TopicCluster) -> None:
        for number in range(300):
            cluster.append(number % 2, b"%d" % number)
        topics = cluster.open()
        even, odd = Tenure(cluster.topic, 0, 5), Tenure(cluster.topic, 1, 6)
        topics.start(even, 0)
        topics.start(odd, 100)
        records: list[DataRecord] = wait_for(topics, DataRecord, 200)
        assert [(r.offset, r.value) for r in records if r.tenure == even] == [(n, b"%d" % (2 * n)) for n in range(150)]
        assert [r.offset for r in records if r.tenure == odd] == list(range(100, 150))
        assert [r.covers_from for r in records if r.tenure == even] == list(range(150))
        assert topics.end(even) == 150

    def test_a_stopped_tenure_gets_nothing_more(self, cluster: TopicCluster) -> None:
        topics = cluster.open()
        gone, left = Tenure(cluster.topic, 0, 5), Tenure(cluster.topic, 1, 6)
        cluster.append(0, b"a")
        topics.start(gone, 0)
        wait_for(topics, DataRecord)
        topics.stop(gone)
        cluster.append(0, b"b")
        cluster.append(1, b"c")
        topics.start(left, 0)
        assert [record.value for record in wait_for(topics, DataRecord)] == [b"c"]
        topics.start(Tenure(cluster.topic, 0, 9), 0)
        records = wait_for(topics, DataRecord, 2)
        assert [(record.tenure.token, record.value) for record in records] == [(9, b"a"), (9, b"b")]

    def test_a_paused_tenure_waits_without_loss(self, cluster: TopicCluster) -> None:
        topics = cluster.open()
        paused, other = Tenure(cluster.topic, 0, 5), Tenure(cluster.topic, 1, 6)
        for number in range(10):
            cluster.append(0, b"%d" % number)
        topics.start(paused, 0)
        topics.start(other, 0)
        seen = [record.offset for record in wait_for(topics, DataRecord)]
        topics.pause(paused)
        cluster.append(1, b"x")
        assert [record.tenure for record in wait_for(topics, DataRecord)] == [other]
        topics.resume(paused)
        rest = 10 - len(seen)
        seen += [record.offset for record in wait_for(topics, DataRecord, rest)] if rest else []
        assert seen == list(range(10))

    def test_an_offset_out_of_range_fails_the_tenure(self, cluster: TopicCluster) -> None:
        topics = cluster.open()
        tenure = Tenure(cluster.topic, 0, 5)
        topics.start(tenure, 50)
        (failed,) = wait_for(topics, FetchFailed)
        assert failed.tenure == tenure
        assert "range" in failed.reason

    def test_the_committed_offset_is_found(self, cluster: TopicCluster) -> None:
        for number in range(4):
            cluster.append(0, b"%d" % number)
        topics, held = cluster.open("committing"), Tenure(cluster.topic, 0, 1)
        assert start_of(topics, held).committed is None
        topics.commit(held, 3)
        topics.close()
        found = start_of(cluster.open("committing"), held)
        assert (found.low, found.end, found.committed) == (0, 4, 3)
        assert start_of(cluster.open("another"), held).committed is None

    def test_a_partition_that_is_not_there_has_no_start(self, cluster: TopicCluster) -> None:
        topics = cluster.open()
        topics.find_start(FindStart(Tenure(cluster.topic, 77, 1), True, request=4))
        (failed,) = wait_for(topics, StartFailed)
        assert failed.request == 4


class DataGapContract:
    """What holds where gaps can be had at will."""

    def test_a_gap_counts_to_the_record_behind_it(self, cluster: TopicCluster) -> None:
        assert cluster.skip is not None
        cluster.append(0, b"a")
        cluster.skip(0)
        topics = cluster.open()
        topics.start(Tenure(cluster.topic, 0, 5), 0)
        wait_for(topics, DataRecord)
        cluster.append(0, b"b")
        (record,) = wait_for(topics, DataRecord)
        assert record.covers_from == 1
        assert record.offset > 1
        assert record.next_offset == record.offset + 1
