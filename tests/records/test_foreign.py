"""Bytes that other implementations made are read as they meant them, and plain ones are written again byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.errors import DecodeError
from kcoord_wire.records import (
    Compression,
    Record,
    RecordBatch,
    RecordHeader,
    TimestampType,
    encode_batch,
    encode_message_set,
    read_records,
)

DATA = Path(__file__).parent.parent / "data" / "records"
FOREIGN = [json.loads(line) for line in (DATA / "foreign.jsonl").read_text("utf-8").splitlines()]
BROKER = [json.loads(line) for line in (DATA / "broker.jsonl").read_text("utf-8").splitlines()]
EVERY = [
    pytest.param(case, id=f"{case['source'].split()[0]}-v{case['magic']}-{case.get('compression', 'none')}-{name}")
    for number, case in enumerate(FOREIGN + BROKER)
    for name in [case.get("name", number)]
]
PLAIN = [param for param in EVERY if param.values[0].get("compression", "none") == "none"]


def field(value: Any) -> bytes | None:
    if value is None:
        return None
    return bytes.fromhex(value[0]) * value[1] if isinstance(value, list) else bytes.fromhex(value)


def expected(case: dict[str, Any]) -> list[Record]:
    rows = [
        Record(field(key), field(value), timestamp, offset, tuple(RecordHeader(name, field(v)) for name, v in headers))
        for offset, timestamp, key, value, headers in case["records"]
    ]
    if case["magic"] == 1 and case.get("compression", "none") != "none":
        shift = -rows[-1].offset  # these wrappers have offset 0, see the data's README
        rows = [Record(row.key, row.value, row.timestamp, row.offset + shift) for row in rows]
    return rows


def test_nothing_is_missing() -> None:
    codecs = {(case["source"].split()[0], case["magic"], case["compression"]) for case in FOREIGN}
    both = [("kafka-python", 4), ("aiokafka", 4)]
    assert {(library, 2, codec) for library, _ in both for codec in ("none", "gzip", "snappy", "lz4", "zstd")} <= codecs
    assert {(library, 1, codec) for library, _ in both for codec in ("none", "gzip", "snappy", "lz4")} <= codecs
    assert ("kafka-python", 0, "lz4") in codecs
    assert len(BROKER) == 8


@pytest.mark.parametrize("case", EVERY)
def test_read(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["hex"])
    batches = list(read_records(data))
    assert [record for batch in batches for record in batch.records] == expected(case)
    assert [batch.position for batch in batches] == [sum(b.size for b in batches[:n]) for n in range(len(batches))]
    for batch in batches:
        assert batch.magic == case["magic"]
        assert batch.compression is Compression[case.get("compression", "none").upper()]
        wanted = TimestampType.NO_TIMESTAMP if case["magic"] == 0 else TimestampType.CREATE_TIME
        assert batch.timestamp_type is wanted
        assert batch.last_offset == batch.records[-1].offset
        assert batch.base_offset == batch.records[0].offset


@pytest.mark.parametrize("case", [param for param in EVERY if param.values[0]["magic"] == 2])
def test_header_fields(case: dict[str, Any]) -> None:
    (batch,) = read_records(bytes.fromhex(case["hex"]))
    assert isinstance(batch, RecordBatch)
    options = case.get("options", {})
    assert batch.producer_id == options.get("producer_id", -1)
    assert batch.producer_epoch == options.get("producer_epoch", -1)
    assert batch.base_sequence == options.get("base_sequence", -1)
    assert batch.is_transactional == bool(options.get("is_transactional", 0))
    assert batch.partition_leader_epoch == case["partition_leader_epoch"]
    assert batch.max_timestamp == max(record.timestamp for record in batch.records)
    assert not batch.is_control
    assert batch.delete_horizon_ms is None


@pytest.mark.parametrize("case", PLAIN)
def test_written_again(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["hex"])
    if case["magic"] < 2:
        assert encode_message_set(expected(case), magic=case["magic"]) == data
        return
    options = dict(case.get("options", {}))
    transactional = bool(options.pop("is_transactional", 0))
    epoch = case["partition_leader_epoch"]
    again = encode_batch(expected(case), transactional=transactional, partition_leader_epoch=epoch, **options)
    assert again == data


@pytest.mark.parametrize("case", [param for param in EVERY if len(param.values[0]["hex"]) < 3000])
def test_every_prefix_fails_typed(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["hex"])
    ends = {0} | {batch.position + batch.size for batch in read_records(data)}
    for end in range(len(data)):
        if end in ends:
            list(read_records(data[:end]))
            continue
        with pytest.raises(DecodeError) as caught:
            list(read_records(data[:end]))
        assert caught.value.kind == "truncated"
        whole = list(read_records(data[:end], allow_partial=True))
        assert sum(batch.size for batch in whole) == max(good for good in ends if good <= end)


@pytest.mark.parametrize("case", EVERY[::5])
def test_trailing_junk(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["hex"])
    with pytest.raises(DecodeError) as caught:
        list(read_records(data + b"\x00" * 12))
    assert (caught.value.kind, caught.value.offset) == ("length", len(data) + 8)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer(kind: Any) -> None:
    data = bytes.fromhex(BROKER[0]["hex"])
    assert list(read_records(kind(data))) == list(read_records(data))
