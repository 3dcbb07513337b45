"""Records of a Fetch response: order, what is left out, and bytes that are no records."""

from __future__ import annotations

import pytest

from kcoord_wire import messages as m
from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer.errors import CorruptRecordsError
from kcoord_wire.consumer.positions import FetchedRecords
from kcoord_wire.records import ControlType, Record, encode_batch, end_transaction_record

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
