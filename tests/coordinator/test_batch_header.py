"""The header of a produced batch: what other libraries make is taken, and each fault of it has its error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import ControlType, encode_batch, end_transaction_record
from tests.support.broker import GOOD, Broker, batch, changed, resealed

FOREIGN = Path(__file__).parent.parent / "data" / "records" / "foreign.jsonl"


@pytest.mark.parametrize("line", FOREIGN.read_text("utf-8").splitlines())
def test_batches_that_other_libraries_made(broker: Broker, line: str) -> None:
    case = json.loads(line)
    data = bytes.fromhex(case["hex"])
    broker.now = 4_000_000_000_000  # the times in it are of its day, or any
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
