"""A consumer's positions: from the assignment to the end."""

from __future__ import annotations

import pytest

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer.errors import (
    CorruptRecordsError,
    NoOffsetError,
    NotAssignedError,
    OffsetOutOfRangeError,
    TopicError,
)
from kcoord_wire.consumer.positions import EARLIEST, LATEST, FetchedRecords, Positions
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import Record, encode_batch
from tests.support.consumers import partitions

A, B = sorted(partitions(0, 1))


def assigned(reset: str = "earliest", *, announced: bool = True) -> Positions:
    positions = Positions(reset)
    positions.assign([A, B])
    if announced:
        positions.announce([A, B])
    return positions


def buffer(positions: Positions, partition: TopicPartition, *values: str) -> None:
    state = positions.state(partition)
    data = encode_batch([Record(value=value.encode()) for value in values], base_offset=state.offset)
    state.fetched = FetchedRecords(partition, state.offset, data)


@pytest.mark.parametrize(("reset", "timestamp"), [("earliest", EARLIEST), ("latest", LATEST)])
def test_a_position_is_committed_or_looked_up(reset: str, timestamp: int) -> None:
    positions = assigned(reset)
    positions.start({A: 5, B: -1})
    assert (positions.state(A).offset, positions.state(A).is_fetchable) == (5, True)
    assert (positions.state(B).reset_to, positions.state(B).is_fetchable) == (timestamp, False)


def test_a_missing_offset_is_reported_without_a_reset() -> None:
    positions = assigned("none")
    positions.start({A: -1, B: 3})
    for _ in range(2):
        with pytest.raises(NoOffsetError) as missing:
            positions.check_offsets()
        assert missing.value.partitions == {A}
    positions.state(A).move(2)
    positions.check_offsets()


def test_a_refused_offset_is_a_failure_unless_sought() -> None:
    positions = assigned()
    positions.state(A).move(9)
    positions.refuse(dict.fromkeys([A], ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    assert positions.failures == []
    positions.refuse(dict.fromkeys([A, B], ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    assert [type(each) for each in positions.failures] == [TopicError]


def test_a_failure_that_waits_is_not_repeated() -> None:
    positions = assigned()
    for topic in ("orders", "orders", "payments"):
        positions.fail(TopicError(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    positions.fail(TopicError("orders", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert len(positions.failures) == 3


def test_where_the_application_has_sought_to_stays() -> None:
    positions = assigned(announced=False)
    positions.state(A).move(9)
    positions.state(B).look_up(LATEST)
    positions.start({A: 5, B: 5})
    assert (positions.state(A).offset, positions.state(B).reset_to) == (9, LATEST)


def test_nothing_is_fetched_before_the_listener_knows() -> None:
    positions = assigned(announced=False)
    positions.start({A: 5})
    assert not positions.state(A).is_fetchable
    positions.announce([A])
    assert positions.state(A).is_fetchable
    assert positions.announced == {A}


def test_what_arrives_for_dropped_partitions_changes_nothing() -> None:
    positions = assigned()
    before = positions.state(A)
    positions.drop([A])
    positions.start({A: 5})
    positions.announce([A])
    assert A not in positions
    with pytest.raises(NotAssignedError):
        positions.state(A)
    positions.assign([A])
    assert not positions.is_current(before)


def test_a_position_moves_as_records_are_taken() -> None:
    positions = assigned()
    positions.start({A: 0, B: 4})
    buffer(positions, A, "a", "b", "c")
    buffer(positions, B, "x")
    assert [r.value for r in positions.next_records(2)] == [b"a", b"b"]
    assert positions.consumed() == {A: 2, B: 4}
    assert [r.value for r in positions.next_records(5)] == [b"x", b"c"], "the other partition's turn"
    assert positions.consumed([A]) == {A: 3}
    assert positions.next_records(5) == []
    assert positions.state(A).is_fetchable


def test_a_paused_partition_keeps_its_records() -> None:
    positions = assigned()
    positions.start({A: 0})
    buffer(positions, A, "a")
    positions.state(A).is_paused = True
    assert positions.next_records(5) == []
    positions.state(A).is_paused = False
    assert [r.value for r in positions.next_records(5)] == [b"a"]


def test_seeking_drops_what_is_buffered() -> None:
    positions = assigned()
    positions.start({A: 0})
    buffer(positions, A, "a", "b")
    positions.state(A).move(1)
    assert positions.next_records(5) == []


def test_corrupt_records_are_reported_beside_those_of_others() -> None:
    positions = assigned()
    positions.start({A: 0, B: 0})
    positions.state(A).fetched = FetchedRecords(A, 0, b"x" * 70)
    buffer(positions, B, "b")
    assert [r.value for r in positions.next_records(5)] == [b"b"]
    [failure] = positions.failures
    assert isinstance(failure, CorruptRecordsError)
    assert positions.state(A).offset == 0


def test_a_position_out_of_range() -> None:
    positions = assigned("latest")
    positions.start({A: 5})
    positions.out_of_range(positions.state(A))
    assert (positions.state(A).offset, positions.state(A).reset_to, positions.failures) == (None, LATEST, [])
    positions = assigned("none")
    positions.start({A: 5})
    positions.out_of_range(positions.state(A))
    [failure] = positions.failures
    assert isinstance(failure, OffsetOutOfRangeError)
    assert failure.offset == 5


def test_a_log_that_was_cut_back_moves_the_position_back() -> None:
    positions = assigned()
    positions.start({A: 5})
    positions.diverges(positions.state(A), 3, 1)
    assert (positions.state(A).offset, positions.state(A).leader_epoch) == (3, 1)
    positions.diverges(positions.state(A), 9, 0)
    assert (positions.state(A).offset, positions.state(A).leader_epoch) == (3, 0), "nothing is skipped"
    positions = assigned("none")
    positions.start({A: 5})
    positions.diverges(positions.state(A), 3, 1)
    assert [type(each) for each in positions.failures] == [OffsetOutOfRangeError]
