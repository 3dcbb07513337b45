"""What a broker's generated topics hold, and whom their fences refuse."""

from __future__ import annotations

import pytest

import kcoord_wire as kw
from kcoord_wire.central.draft.events import CentralError
from kcoord_wire.central.served_topics import LARGEST_FETCH, GeneratedTopics
from kcoord_wire.messages import central as m

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
