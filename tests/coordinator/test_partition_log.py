"""One partition's records: what is refused, what producers send twice, and what is found by its time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcoord_wire.error_codes import ErrorCode
from kcoord_wire.records import (
    Compression,
    ControlType,
    encode_batch,
    end_transaction_record,
)
from kcoord_wire.records.batch import crc32c
from tests.support.broker import GOOD, Broker, batch

FOREIGN = Path(__file__).parent.parent / "data" / "records" / "foreign.jsonl"


@pytest.mark.parametrize("line", FOREIGN.read_text("utf-8").splitlines())
def test_batches_that_other_libraries_made(broker: Broker, line: str) -> None:
    case = json.loads(line)
    data = bytes.fromhex(case["hex"])
    outcome = broker.produce(data)
    if case["magic"] != 2 or case["name"] == "gaps":  # offsets are the broker's to give, so none may be left out
        assert outcome.error_code == ErrorCode.INVALID_RECORD
    elif data[22] & 0x10:
        assert outcome.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    else:
        assert outcome.error_code == 0, outcome.error_message
        broker.produce(data, partition=1)
        stored = broker.fetch(0).records or b""
        assert (stored[8:12], stored[16:]) == (data[8:12], data[16:])


def changed(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def resealed(data: bytes, at: int, new: bytes) -> bytes:
    """`data` changed, with the checksum that belongs to it."""
    data = changed(data, at, new)
    return changed(data, 17, crc32c(data[21:]).to_bytes(4, "big"))


BAD = {
    "null": (None, ErrorCode.INVALID_RECORD),
    "empty": (b"", ErrorCode.INVALID_RECORD),
    "cut": (GOOD[:-1], ErrorCode.CORRUPT_MESSAGE),
    "a few bytes": (GOOD[:5], ErrorCode.CORRUPT_MESSAGE),
    "half a header": (GOOD[:40], ErrorCode.CORRUPT_MESSAGE),
    "negative length": (changed(GOOD, 8, b"\xff\xff\xff\xff"), ErrorCode.CORRUPT_MESSAGE),
    "short length": (changed(GOOD[:20], 8, b"\0\0\0\x08"), ErrorCode.CORRUPT_MESSAGE),
    "checksum": (changed(GOOD, len(GOOD) - 1, b"\1"), ErrorCode.CORRUPT_MESSAGE),
    "magic": (changed(GOOD, 16, b"\1"), ErrorCode.INVALID_RECORD),
    "two batches": (GOOD + GOOD, ErrorCode.INVALID_RECORD),
    "trailing": (GOOD + b"\0", ErrorCode.INVALID_RECORD),
    "no records": (encode_batch([]), ErrorCode.INVALID_RECORD),
    "count": (resealed(GOOD, 57, b"\0\0\0\1"), ErrorCode.INVALID_RECORD),
    "negative count": (resealed(GOOD, 57, b"\xff\xff\xff\xff"), ErrorCode.INVALID_RECORD),
    "too many": (resealed(resealed(GOOD, 57, b"\0\0\0\3"), 23, b"\0\0\0\2"), ErrorCode.INVALID_RECORD),
    "last offset": (resealed(GOOD, 23, b"\0\0\0\7"), ErrorCode.INVALID_RECORD),
    "no codec": (resealed(GOOD, 22, b"\7"), ErrorCode.INVALID_RECORD),
    "large": (batch(bytes(1 << 20)), ErrorCode.MESSAGE_TOO_LARGE),
    "sequence": (batch(b"a", producer_id=1, producer_epoch=0, base_sequence=-1), ErrorCode.INVALID_RECORD),
    "transaction": (
        batch(b"a", transactional=True, producer_id=1, producer_epoch=0, base_sequence=0),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "control": (encode_batch([end_transaction_record(ControlType.COMMIT, 0)], control=True), ErrorCode.INVALID_RECORD),
}


@pytest.mark.parametrize("name", BAD)
def test_records_that_are_refused(broker: Broker, name: str) -> None:
    data, error = BAD[name]
    outcome = broker.produce(data)
    assert ErrorCode(outcome.error_code) is error
    assert (outcome.base_offset, outcome.log_start_offset) == (-1, -1)
    assert outcome.error_message
    assert broker.fetch(0).high_watermark == 0


def sequenced(sequence: int, epoch: int = 0, count: int = 2, producer_id: int = 5) -> bytes:
    return batch(*[b"v"] * count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def test_a_batch_that_is_sent_twice_is_stored_once(broker: Broker) -> None:
    offsets = [broker.produce(sequenced(sequence)).base_offset for sequence in (0, 2, 4, 6, 8, 10)]
    assert offsets == [0, 2, 4, 6, 8, 10]
    again = [broker.produce(sequenced(sequence)) for sequence in (2, 4, 6, 8, 10)]
    assert [(outcome.error_code, outcome.base_offset) for outcome in again] == [(0, n) for n in (2, 4, 6, 8, 10)]
    forgotten = broker.produce(sequenced(0))
    assert forgotten.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert broker.produce(sequenced(12)).base_offset == 12
    assert broker.produce(sequenced(0), partition=1).base_offset == 0  # each partition counts for itself


def test_sequences_and_epochs(broker: Broker) -> None:
    assert broker.produce(sequenced(7)).error_code == 0  # nothing is known of the producer: any sequence will do
    for gap in (8, 10):
        assert broker.produce(sequenced(gap)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert broker.produce(sequenced(9, epoch=1)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert broker.produce(sequenced(0, epoch=1)).error_code == 0
    assert broker.produce(sequenced(9)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert broker.produce(sequenced(0, epoch=1, count=1)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert broker.produce(sequenced(2, epoch=1)).base_offset == 4


def test_sequences_go_round(broker: Broker) -> None:
    last = 2**31 - 1
    assert broker.produce(sequenced(last - 3)).error_code == 0
    assert broker.produce(sequenced(last - 1)).error_code == 0
    assert broker.produce(sequenced(0)).base_offset == 4
    assert broker.produce(sequenced(last, producer_id=6)).error_code == 0  # from the last to 0 within a batch
    assert broker.produce(sequenced(last, producer_id=6)).base_offset == 6
    assert broker.produce(sequenced(1, producer_id=6)).base_offset == 8


def test_only_so_many_producers_are_remembered(broker: Broker) -> None:
    for producer_id in range(1, 258):
        broker.produce(sequenced(0, producer_id=producer_id))
    end = broker.fetch(0).high_watermark
    assert broker.produce(sequenced(0, producer_id=257)).base_offset == end - 2
    assert broker.produce(sequenced(0, producer_id=1)).base_offset == end  # forgotten


@pytest.mark.parametrize(
    "data",
    [
        resealed(GOOD, 22, b"\2"),  # not compressed, as it says
        resealed(GOOD, 61, b"\x7f"),
        resealed(GOOD, 35, (1_000).to_bytes(8, "big")),  # no record is as late as the header says
        batch(bytes(1 << 25), compression=Compression.ZSTD, at=1_000),  # more than is decompressed
        resealed(
            resealed(batch(b"a", compression=Compression.GZIP), 57, b"\0\1\0\0"), 23, b"\0\0\xff\xff"
        ),  # more records than are read
    ],
    ids=["codec", "record", "time", "bomb", "many"],
)
def test_a_batch_with_unreadable_records_is_found_whole(broker: Broker, data: bytes) -> None:
    latest = int.from_bytes(data[35:43], "big")
    assert broker.produce(data).error_code == 0
    for timestamp in (-3, latest):
        answer = broker.list_offset(timestamp)
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, 0, latest)
