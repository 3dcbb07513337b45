"""The records of ``__transaction_state``: bytes as Kafka's broker writes them, and what is refused."""

from __future__ import annotations

import pytest

import kcoord_wire as kw
from kcoord_wire.records import decode_transaction_record, encode_transaction_record

KEY = kw.TransactionLogKey(transactional_id="ab")
VALUE = kw.TransactionLogValue(
    producer_id=7,
    producer_epoch=3,
    transaction_timeout_ms=60_000,
    transaction_status=1,
    transaction_partitions=[kw.TransactionLogValuePartitionsSchema(topic="t", partition_ids=[5])],
    transaction_last_update_timestamp_ms=2,
    transaction_start_timestamp_ms=1,
    client_transaction_version=2,
)


def test_a_record_goes_there_and_back() -> None:
    raw = encode_transaction_record(KEY, VALUE)
    assert decode_transaction_record(*raw) == (KEY, VALUE)
    assert decode_transaction_record(raw[0], None) == (KEY, None)
    assert encode_transaction_record(KEY, None) == (raw[0], None)


def test_the_bytes_are_laid_out_as_kafka_has_them() -> None:
    key, value = encode_transaction_record(KEY, VALUE)
    assert key == bytes.fromhex("0000 0002 6162")
    assert value == bytes.fromhex(
        "0001 0000000000000007 0003 0000ea60 01 02 02 74 02 00000005 000000000000000002 0000000000000001 01 02 02 0002"
    )


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        (None, None, "null"),
        (b"\0\1\0\1a", None, "version"),
        (b"\0\0\0\1a", b"\0\2" + bytes(40), "version"),
        (b"\0\0\0\1a", b"\0\0" + bytes(14) + b"\x09" + bytes(20), "range"),
    ],
)
def test_what_kafka_does_not_write_is_refused(key: bytes | None, value: bytes | None, kind: str) -> None:
    with pytest.raises(kw.DecodeError) as error:
        decode_transaction_record(key, value)
    assert error.value.kind == kind
