"""A consumer's positions: from the assignment to the end.

Records of a Fetch response: order, what is left out, and bytes that are no records.
"""

from __future__ import annotations

import pytest

from kcoord_wire import messages as m
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
from kcoord_wire.records import ControlType, Record, encode_batch, end_transaction_record
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


PARTITION = TopicPartition("orders", 3)


def batch(offset: int, *values: str, **fields: object) -> bytes:
    return encode_batch([Record(value=value.encode()) for value in values], base_offset=offset, **fields)


def values(fetched: FetchedRecords, count: int = 100) -> list[str]:
    return [(record.value or b"").decode() for record in fetched.next_records(count)]


def test_records_come_in_order_from_the_position_on() -> None:
    fetched = FetchedRecords(PARTITION, 6, batch(5, "a", "b") + batch(7, "c", partition_leader_epoch=4))
    first = fetched.next_records(1)[0]
    assert (first.topic, first.partition, first.offset, first.value) == ("orders", 3, 6, b"b")
    assert fetched.next_offset == 7
    assert values(fetched) == ["c"]
    assert (fetched.next_offset, fetched.leader_epoch) == (8, 4)
    assert values(fetched) == []


def test_a_batch_that_is_cut_short_is_left_for_the_next_response() -> None:
    fetched = FetchedRecords(PARTITION, 0, batch(0, "a") + batch(1, "b")[:-1])
    assert values(fetched) == ["a"]
    assert values(fetched) == []
    assert fetched.next_offset == 1


def test_offsets_that_compaction_has_removed_are_passed() -> None:
    data = encode_batch([Record(value=b"a", offset=5), Record(value=b"b", offset=9)], base_offset=5)
    fetched = FetchedRecords(PARTITION, 0, data)
    assert [record.offset for record in fetched.next_records(9)] == [5, 9]
    assert fetched.next_offset == 10


@pytest.mark.parametrize(
    "data",
    [
        batch(0, "a")[:-1],
        batch(0, "a")[:-1] + b"?",
        b"no records at all, whatever the size says",
        batch(3, "a"),  # offsets before the position, and none after it
    ],
)
def test_bytes_that_lead_nowhere_are_an_error(data: bytes) -> None:
    fetched = FetchedRecords(PARTITION, 7, data)
    for _ in range(2):
        with pytest.raises(CorruptRecordsError) as raised:
            fetched.next_records(5)
        assert (raised.value.partition, raised.value.offset) == (PARTITION, 7)


def test_records_before_a_corrupt_batch_are_returned_first() -> None:
    fetched = FetchedRecords(PARTITION, 0, batch(0, "a", "b") + batch(2, "c")[:-1] + b"?")
    assert values(fetched, 2) == ["a", "b"]
    with pytest.raises(CorruptRecordsError, match="checksum") as raised:
        fetched.next_records(2)
    assert raised.value.offset == 2


def test_checksums_can_be_skipped() -> None:
    data = bytearray(batch(0, "a"))
    data[17] ^= 1  # the checksum itself
    assert values(FetchedRecords(PARTITION, 0, bytes(data), check_crcs=False)) == ["a"]


def marker(offset: int, producer: int, kind: ControlType) -> bytes:
    record = end_transaction_record(kind, 0)
    return encode_batch(
        [record], base_offset=offset, producer_id=producer, producer_epoch=0, transactional=True, control=True
    )


def transaction(offset: int, producer: int, value: str) -> bytes:
    return batch(offset, value, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)


def test_aborted_transactions_are_left_out_if_asked_for() -> None:
    data = transaction(0, 7, "aborted") + transaction(1, 8, "committed") + marker(2, 7, ControlType.ABORT)
    data += marker(3, 8, ControlType.COMMIT) + transaction(4, 7, "again") + batch(5, "plain")
    aborted = [m.FetchResponseAbortedTransaction(producer_id=7, first_offset=0)]
    assert values(FetchedRecords(PARTITION, 0, data, aborted=aborted)) == ["committed", "again", "plain"]
    fetched = FetchedRecords(PARTITION, 0, data)
    assert values(fetched) == ["aborted", "committed", "again", "plain"], "control batches are never records"
    assert fetched.next_offset == 6


def test_a_marker_alone_moves_the_position() -> None:
    fetched = FetchedRecords(PARTITION, 2, marker(2, 7, ControlType.COMMIT))
    assert fetched.next_records(5) == []
    assert fetched.next_offset == 3
