"""The topics that a broker announces, their generated records, and whom the draft's fences refuse."""

from __future__ import annotations

import re

import pytest

import kcoord_wire as kw
from kcoord_wire import messages as kafka
from kcoord_wire.central.draft.events import CentralError
from kcoord_wire.central.rewrite.events import RewriteError
from kcoord_wire.central.rewrite.layout import parse_topic
from kcoord_wire.central.served_topics import (
    LARGEST_FETCH,
    LARGEST_REWRITE_FETCH,
    RECORDS,
    GeneratedTopics,
    OwnTopics,
    RecordClock,
    RewriteTopics,
    check_broker,
    parse_record_clock,
)
from kcoord_wire.messages import central as m
from kcoord_wire.records import read_records
from kcoord_wire.zookeeper.layout import topic_path
from kcoord_wire.zookeeper.requests import Create, SetData
from tests.support.memory_brokers import Broker, MemoryWorld


def announcing(
    world: MemoryWorld[OwnTopics], topics: dict[str, int], clock: RecordClock, broker_id: int = 1
) -> Broker[OwnTopics]:
    """Return a broker's machine on a session of its own."""
    broker = world.brokers[broker_id] = Broker(world, OwnTopics(broker_id, topics, clock), 6_000)
    return broker


def test_topics_are_announced_and_grow_and_never_shrink() -> None:
    world: MemoryWorld[OwnTopics] = MemoryWorld()
    for partitions, announced in ((4, b"4"), (6, b"6"), (5, b"6")):
        broker = announcing(world, {"orders": partitions}, RecordClock(1_000, 2.0))
        world.run(1_000)
        assert world.data("/brokers/topics/orders/1") == announced
        assert broker.machine.announced == {"orders": int(announced)}
        assert [note.what for note in broker.notes] == (["partitions cannot be removed"] if partitions == 5 else [])


def test_a_broker_serves_what_it_has_announced_before() -> None:
    world: MemoryWorld[OwnTopics] = MemoryWorld()
    for broker_id, given in ((1, {"orders": 4, "old": 2}), (2, {"other": 1})):
        announcing(world, given, RecordClock(1_000, 2.0), broker_id)
        world.run(1_000)
    broker = announcing(world, {"orders": 4}, RecordClock(1_000, 2.0))
    world.run(1_000)
    assert broker.machine.announced == {"orders": 4, "old": 2}


def test_brokers_have_one_clock_of_records() -> None:
    world: MemoryWorld[OwnTopics] = MemoryWorld()
    for broker_id in (1, 2):
        broker = announcing(world, {}, RecordClock(1_000 * broker_id, 2.0), broker_id)
        world.run(1_000)
        assert broker.machine.clock == RecordClock(1_000, 2.0)


def test_what_a_cut_has_prevented_is_tried_again() -> None:
    world: MemoryWorld[OwnTopics] = MemoryWorld()
    broker = announcing(world, {"orders": 4}, RecordClock(0, 1.0))
    broker.link.cut(world.now)
    world.run(1_000)
    assert broker.machine.announced == {}
    broker.link.heal()
    world.run(2_000)
    assert broker.machine.announced == {"orders": 4}


def test_a_node_that_is_no_number_is_logged_and_tried_again() -> None:
    world: MemoryWorld[OwnTopics] = MemoryWorld()
    for path in ("/brokers", "/brokers/ids", "/brokers/topics", "/brokers/topics/orders"):
        world.zookeeper.write(Create(path))
    world.zookeeper.write(Create("/brokers/topics/orders/1", b"many"), Create(RECORDS, b"{}"))
    broker = announcing(world, {"orders": 4}, RecordClock(0, 1.0))
    world.run(1_000)
    assert "not a clock of records" in str(broker.notes[-1].facts)
    world.zookeeper.write(SetData(RECORDS, RecordClock(5, 1.0).encode()))
    world.run(1_000)
    reason = "/brokers/topics/orders/1 has no number of partitions: b'many'"
    assert broker.notes[-1].facts == {"reason": reason}
    world.zookeeper.write(SetData("/brokers/topics/orders/1", b"3"))
    world.run(1_000)
    assert world.data("/brokers/topics/orders/1") == b"4"


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


SINCE = 1_000_000


def topics(*, rate: float = 10, kept: int | None = None, partitions: int = 2) -> GeneratedTopics:
    return GeneratedTopics(1, {"orders": partitions}, SINCE, rate, kept=kept)


def ask(offset: int = 0, *, topic: str = "orders", partition: int = 0, max_size: int = 1000) -> m.CentralFetchRequest:
    return m.CentralFetchRequest(topic=topic, partition=partition, offset=offset, max_size=max_size)


def fenced(epoch: int, generation: int, consumer: str = "c-1", *, group: str = "g") -> m.CentralFetchRequest:
    request = ask()
    request.fence = [
        m.CentralFetchRequestFence(group_id=group, consumer_id=consumer, epoch=epoch, generation=generation)
    ]
    return request


def test_records_are_texts_with_their_offset() -> None:
    answer = topics().fetch(ask(3, partition=1), SINCE + 500)
    assert (answer.error_code, answer.first_offset, answer.end_offset) == (0, 0, 5)
    assert [(each.offset, each.payload) for each in answer.records] == [(3, b"orders-1-1@3"), (4, b"orders-1-1@4")]


def test_two_objects_serve_the_same_records() -> None:
    assert topics().fetch(ask(), SINCE + 900) == topics().fetch(ask(), SINCE + 900)


def test_the_end_does_not_follow_the_clock_back() -> None:
    served = topics()
    served.fetch(ask(), SINCE + 1000)
    assert served.fetch(ask(), SINCE - 5000).end_offset == 10


def test_at_the_end_there_are_no_records_and_no_error() -> None:
    answer = topics().fetch(ask(5), SINCE + 500)
    assert (answer.error_code, answer.records) == (0, [])


def test_out_of_range_comes_with_both_ends() -> None:
    served = topics(kept=3)
    for offset in (-2, -1, 6, 11):
        answer = served.fetch(ask(offset), SINCE + 1000)
        assert answer == m.CentralFetchResponse(
            error_code=CentralError.OFFSET_OUT_OF_RANGE, first_offset=7, end_offset=10
        )


def test_old_records_go_in_segments() -> None:
    """If they went one by one, the offset that a consumer has just asked for would be gone when it fetches."""
    served = topics(kept=100)
    firsts = [served.fetch(ask(), SINCE + 100 * end).first_offset for end in (100, 109, 110, 119, 120)]
    assert firsts == [0, 0, 10, 10, 20]


def test_the_size_limits_the_records() -> None:
    size = len(b"orders-1-0@0") + 12
    assert len(topics().fetch(ask(max_size=2 * size), SINCE + 1000).records) == 2
    assert topics().fetch(ask(max_size=-1), SINCE + 1000).records == []


def test_no_answer_is_larger_than_the_limit() -> None:
    answer = topics(rate=1e6).fetch(ask(max_size=2**31 - 1), SINCE + 1000)
    assert LARGEST_FETCH - 100 < len(kw.encode(answer, 0)) < LARGEST_FETCH + 1000


def test_a_partition_that_is_not_there() -> None:
    for request in (ask(partition=2), ask(partition=-1), ask(topic="payments")):
        assert topics().fetch(request, SINCE).error_code == CentralError.UNKNOWN_TOPIC_OR_PARTITION


def test_a_partition_that_was_added() -> None:
    counts = {"orders": 1}
    served = GeneratedTopics(1, counts, SINCE, 10)
    counts["orders"] = 2
    assert served.fetch(ask(partition=1), SINCE).error_code == 0


def test_a_lower_fence_is_refused_once_a_higher_one_came() -> None:
    served = topics()
    for epoch, generation, consumer, error in [
        (2, 1, "c-1", 0),
        (2, 1, "c-1", 0),
        (2, 3, "c-2", 0),
        (2, 2, "c-1", CentralError.STALE_EPOCH),
        (1, 9, "c-1", CentralError.STALE_EPOCH),
        (3, 1, "c-1", 0),
        (2, 3, "c-2", CentralError.STALE_EPOCH),
    ]:
        assert served.fetch(fenced(epoch, generation, consumer), SINCE).error_code == error


def test_one_assignment_has_one_owner() -> None:
    served = topics()
    assert served.fetch(fenced(1, 1, "c-1"), SINCE).error_code == 0
    assert served.fetch(fenced(1, 1, "c-2"), SINCE).error_code == CentralError.STALE_EPOCH


def test_fences_are_of_one_group_and_partition() -> None:
    served = topics()
    served.fetch(fenced(5, 5), SINCE)
    assert served.fetch(fenced(1, 1, group="other"), SINCE).error_code == 0
    other = fenced(1, 1)
    other.partition = 1
    assert served.fetch(other, SINCE).error_code == 0


def test_a_fetch_without_a_fence_is_served() -> None:
    served = topics()
    served.fetch(fenced(5, 5), SINCE)
    assert served.fetch(ask(), SINCE).error_code == 0


def test_invented_groups_do_not_displace_one_that_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcoord_wire.central.served_topics._MOST_FENCES", 100)
    served = topics()
    for number in range(150):
        if number % 50 == 0:
            assert served.fetch(fenced(2, 2), SINCE).error_code == 0
        served.fetch(fenced(1, 1, group=f"invented-{number}"), SINCE)
    assert len(served._owners) == 100
    assert served.fetch(fenced(1, 1), SINCE).error_code == CentralError.STALE_EPOCH


CLOCK = RecordClock(1_000, 10.0)


def announced(world: MemoryWorld[RewriteTopics], broker_id: int, topics: dict[str, int]) -> RewriteTopics:
    """Return the topics of a broker, after it has announced them."""
    machine = RewriteTopics(broker_id, topics, CLOCK)
    world.brokers[broker_id] = Broker(world, machine, 6_000)
    world.run(0)
    return machine


def replicas(world: MemoryWorld[RewriteTopics]) -> list[list[int]]:
    return parse_topic(world.data(topic_path("orders")))


def fetch(
    topics: RewriteTopics, offset: int, now_ms: int, most: int = 1 << 20, number: int = 0
) -> tuple[int, list[str]]:
    """Return the error and the records of orders."""
    wanted = kafka.FetchRequestFetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=most)
    request = kafka.FetchRequest(topics=[kafka.FetchRequestFetchTopic(topic="orders", partitions=[wanted])])
    [[answer]] = [topic.partitions for topic in topics.fetch(request, now_ms).responses]
    batches = list(read_records(answer.records)) if answer.records else []
    return answer.error_code, [(record.value or b"").decode() for batch in batches for record in batch.records]


def test_every_broker_adds_itself_to_the_replicas() -> None:
    world: MemoryWorld[RewriteTopics] = MemoryWorld()
    assert announced(world, 1, {"orders": 2}).announced == {"orders": 2}
    assert replicas(world) == [[1], [1]]
    announced(world, 2, {"orders": 2})
    announced(world, 2, {"orders": 2})
    assert replicas(world) == [[1, 2], [1, 2]]


def test_replicas_of_earlier_starts_are_served() -> None:
    world: MemoryWorld[RewriteTopics] = MemoryWorld()
    announced(world, 1, {"orders": 2})
    announced(world, 2, {"other": 1})
    world.zookeeper.write(Create("/brokers/topics/foreign", b"7"))
    assert announced(world, 1, {}).announced == {"orders": 2}


def test_partitions_are_added_and_never_removed() -> None:
    world: MemoryWorld[RewriteTopics] = MemoryWorld()
    announced(world, 1, {"orders": 1})
    announced(world, 1, {"orders": 3})
    assert announced(world, 1, {"orders": 2}).announced == {"orders": 3}
    assert replicas(world) == [[1]] * 3


def test_records_are_the_same_at_every_broker() -> None:
    world: MemoryWorld[RewriteTopics] = MemoryWorld()
    brokers = [announced(world, number, {"orders": 2}) for number in (1, 2)]
    expected = (0, ["orders-1@3", "orders-1@4"])
    assert [fetch(broker, 3, 1_500, number=1) for broker in brokers] == [expected, expected]
    assert fetch(brokers[0], 5, 1_500) == (0, [])


@pytest.mark.parametrize(
    ("offset", "number", "error"),
    [
        (-1, 0, RewriteError.OFFSET_OUT_OF_RANGE),
        (6, 0, RewriteError.OFFSET_OUT_OF_RANGE),
        (0, 2, RewriteError.UNKNOWN_TOPIC_OR_PARTITION),
        (0, -1, RewriteError.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_what_is_not_there_is_an_error(offset: int, number: int, error: RewriteError) -> None:
    topics = announced(MemoryWorld(), 1, {"orders": 2})
    assert fetch(topics, offset, 1_500, number=number) == (error, [])


def test_an_answer_is_bounded_whatever_is_asked_for() -> None:
    topics = announced(MemoryWorld(), 1, {"orders": 1})
    wanted = kafka.FetchRequestFetchPartition(partition=0, partition_max_bytes=1 << 30)
    request = kafka.FetchRequest(topics=[kafka.FetchRequestFetchTopic(topic="orders", partitions=[wanted] * 3)])
    response = topics.fetch(request, 100_000_000)
    sizes = [len(answer.records or b"") for topic in response.responses for answer in topic.partitions]
    assert LARGEST_REWRITE_FETCH - 200 < sum(sizes) <= LARGEST_REWRITE_FETCH
    assert fetch(topics, 0, 1_500, most=40) == (0, ["orders-0@0"])
