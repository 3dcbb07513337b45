"""Control records: the markers that end transactions, and the ones this package does not know."""

from __future__ import annotations

import pytest

from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.records import (
    ControlRecord,
    ControlType,
    Record,
    RecordBatch,
    decode_control_batch,
    decode_control_record,
    encode_batch,
    end_transaction_record,
    read_records,
)


@pytest.mark.parametrize("control", [ControlType.ABORT, ControlType.COMMIT])
def test_end_of_a_transaction(control: ControlType) -> None:
    marker = end_transaction_record(control, 7, timestamp=5)
    assert marker.key == b"\0\0\0" + bytes([control])
    assert marker.value == b"\0\0\0\0\0\x07"
    data = encode_batch([marker], base_offset=3, transactional=True, control=True, producer_id=9, producer_epoch=1)
    (batch,) = read_records(data)
    assert isinstance(batch, RecordBatch)
    assert batch.is_control
    assert batch.is_transactional
    assert decode_control_batch(batch) == ControlRecord(control, 0, 7)


@pytest.mark.parametrize(
    ("key", "value", "meaning"),
    [
        ("00000002", "", ControlRecord(ControlType.LEADER_CHANGE, 0)),
        ("00000006", "", ControlRecord(ControlType.KRAFT_VOTERS, 0)),
        ("00000063", "", ControlRecord(99, 0)),
        ("0000ffff", "", ControlRecord(-1, 0)),
        ("0005000101", "0003000000080102", ControlRecord(ControlType.COMMIT, 5, 8)),
    ],
)
def test_meaning(key: str, value: str, meaning: ControlRecord) -> None:
    assert decode_control_record(Record(bytes.fromhex(key), bytes.fromhex(value))) == meaning


@pytest.mark.parametrize(
    ("record", "kind", "path"),
    [
        (Record(None, b""), "null", "key"),
        (Record(b"\0\0\0", b""), "truncated", "key"),
        (Record(b"\xff\xff\0\0", b""), "version", "key"),
        (Record(b"\0\0\0\0", None), "null", "value"),
        (Record(b"\0\0\0\0", b"\0\0\0\0\0"), "truncated", "value"),
        (Record(b"\0\0\0\x01", b"\xff\xff\0\0\0\0"), "version", "value"),
    ],
)
def test_refused(record: Record, kind: str, path: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_control_record(record)
    assert (caught.value.kind, caught.value.path) == (kind, f"ControlRecord.{path}")


def test_a_control_batch_without_a_record() -> None:
    (batch,) = read_records(encode_batch([], transactional=True, control=True, producer_id=1, producer_epoch=0))
    with pytest.raises(DecodeError, match="a control batch without a record"):
        decode_control_batch(batch)


def test_epoch_out_of_range() -> None:
    with pytest.raises(EncodeError):
        end_transaction_record(ControlType.COMMIT, 1 << 31)
