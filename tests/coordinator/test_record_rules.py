"""What a topic demands of records: keys where it is compacted, times within bounds; and the answers to others."""

from __future__ import annotations

import time

import pytest

import kcoord_wire as kw
from kcoord_wire import messages as m
from kcoord_wire.coordinator.partitions.batch_header import BATCH_HEADER_SIZE
from kcoord_wire.coordinator.partitions.record_rules import MOST_DECOMPRESSED, MOST_LISTED, MOST_RECORDS
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import Compression, Record, encode_batch
from tests.support.broker import Broker, batch, changed, resealed, values, versions
from tests.support.fixtures import StartCoordinator
from tests.support.wire import Wire

HOUR = 3_600_000
NOW = 1_000 * HOUR
AT_COUNT = 57


def with_configs(**configs: str) -> Broker:
    broker = Broker({"orders": 1})
    broker.topics.catalog.configure({"orders": {name.replace("_", "."): text for name, text in configs.items()}})
    broker.now = NOW
    return broker


@versions(ApiKey.PRODUCE)
def test_a_compacted_topic_refuses_null_keys(version: int) -> None:
    broker = with_configs(cleanup_policy="compact")
    assert broker.produce(batch(b"v", key=b""), version).base_offset == 0
    outcome = broker.produce(batch(b"v"), version)
    assert (outcome.error_code, outcome.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    text = "Compacted topic cannot accept message without key in topic partition orders-0"
    found = [(each.batch_index, each.batch_index_error_message) for each in outcome.record_errors]
    assert found == ([(0, text)] if version >= 8 else [])
    assert values(broker.fetch(0).records) == [(0, b"v")]


@pytest.mark.parametrize("codec", Compression)
def test_each_record_without_a_key_is_listed(codec: Compression) -> None:
    broker = with_configs(cleanup_policy="compact,delete")
    keys = (b"k", None, b"", None, None, None)
    outcome = broker.produce(encode_batch([Record(key, b"v" * 100) for key in keys], compression=codec))
    assert [each.batch_index for each in outcome.record_errors] == [1, 3, 4, 5]
    assert (outcome.error_message or "").startswith("One or more records have been rejected due to 4 record errors in")
    assert (outcome.error_message or "").count("RecordError(") == 3


def test_the_policy_of_all_brokers_counts_too() -> None:
    broker = Broker({"orders": 1}, broker_configs={"log.cleanup.policy": "compact"})
    assert broker.produce(batch(b"v")).error_code == ErrorCode.INVALID_RECORD
    broker.topics.catalog.configure({}, {(4, ""): {"log.cleanup.policy": "delete"}})
    assert broker.produce(batch(b"v")).error_code == 0


@pytest.mark.parametrize(
    ("configs", "at", "error"),
    [
        ({}, NOW + HOUR, 0),
        ({}, NOW + HOUR + 1, ErrorCode.INVALID_TIMESTAMP),
        ({}, 0, 0),
        ({"message_timestamp_after_max_ms": "0"}, NOW + 1, ErrorCode.INVALID_TIMESTAMP),
        ({"message_timestamp_before_max_ms": "5"}, NOW - 5, 0),
        ({"message_timestamp_before_max_ms": "5"}, NOW - 6, ErrorCode.INVALID_TIMESTAMP),
        ({"message_timestamp_before_max_ms": "5"}, -1, 0),
        ({"message_timestamp_before_max_ms": "5", "message_timestamp_type": "LogAppendTime"}, 9 * NOW, 0),
    ],
)
def test_a_time_has_bounds(configs: dict[str, str], at: int, error: int) -> None:
    broker = with_configs(**configs)
    outcome = broker.produce(encode_batch([Record(b"k", b"v", timestamp=NOW), Record(b"k", b"v", timestamp=at)]))
    assert outcome.error_code == error
    assert [each.batch_index for each in outcome.record_errors] == ([1] if error else [])


def test_the_clock_of_the_machine_may_be_set(coordinator: StartCoordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on while a laptop sleeps, the broker's own does not."""
    later = time.time() + 5 * 3_600
    monkeypatch.setattr("kcoord_wire.coordinator.requests.time.time", lambda: later)
    errors = []
    with Wire(coordinator(topics={"orders": 1}).address) as wire:
        for ahead_ms in (0, 2 * HOUR):
            records = encode_batch([Record(b"k", b"v", timestamp=int(later * 1_000) + ahead_ms)])
            part = kw.ProduceRequestPartitionProduceData(index=0, records=records)
            topic = kw.ProduceRequestTopicProduceData(name="orders", partition_data=[part])
            answer = wire.call(kw.ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[topic]), 9)
            errors.append(answer.responses[0].partition_responses[0].error_code)
    assert errors == [0, ErrorCode.INVALID_TIMESTAMP]


def test_a_wrong_time_names_the_batch_before_a_key() -> None:
    broker = with_configs(cleanup_policy="compact")
    both = [Record(None, b"v", timestamp=NOW), Record(b"k", b"v", timestamp=9 * NOW)]
    outcome = broker.produce(encode_batch(both))
    assert outcome.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [each.batch_index for each in outcome.record_errors] == [0, 1]


def test_of_many_wrong_records_the_first_are_listed() -> None:
    broker = with_configs(cleanup_policy="compact")
    outcome = broker.produce(encode_batch([Record(None, b"")] * (MOST_LISTED + 1)))
    assert len(outcome.record_errors) == MOST_LISTED
    assert f"due to {MOST_LISTED + 1} record errors" in (outcome.error_message or "")


GOOD = batch(b"a", b"b", key=b"k")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (resealed(GOOD, BATCH_HEADER_SIZE, b"\x7e"), ErrorCode.INVALID_RECORD),  # a record longer than the batch
        (resealed(GOOD, BATCH_HEADER_SIZE, b"\x02"), ErrorCode.INVALID_RECORD),  # one that is too short
        (
            resealed(changed(GOOD, 23, (0).to_bytes(4, "big")), AT_COUNT, (1).to_bytes(4, "big")),
            ErrorCode.INVALID_RECORD,
        ),
        (
            resealed(
                changed(batch(b"a", compression=Compression.GZIP), 23, MOST_RECORDS.to_bytes(4, "big")),
                AT_COUNT,
                (MOST_RECORDS + 1).to_bytes(4, "big"),
            ),
            ErrorCode.MESSAGE_TOO_LARGE,
        ),
        (resealed(batch(b"a", compression=Compression.ZSTD), BATCH_HEADER_SIZE, b"\xff"), ErrorCode.INVALID_RECORD),
    ],
    ids=["long", "short", "more than its count", "millions", "no zstd"],
)
def test_records_that_cannot_be_read_are_refused(data: bytes, error: ErrorCode) -> None:
    broker = with_configs(cleanup_policy="compact")
    assert broker.produce(data).error_code == error
    assert broker.produce(GOOD).base_offset == 0


def test_what_a_request_may_have_read_is_bounded() -> None:
    """Of many batches that decompress to much the first are read; the others are to be sent again."""
    broker = with_configs(cleanup_policy="compact")
    large = encode_batch([Record(b"k", bytes(MOST_DECOMPRESSED * 2 // 3))], compression=Compression.ZSTD)
    too_large = encode_batch([Record(b"k", bytes(MOST_DECOMPRESSED))], compression=Compression.ZSTD)
    request = broker.produce_request(large, 9)
    request.topic_data[0].partition_data *= 4
    outcomes = broker.ask(request, 9, m.ProduceResponse).responses[0].partition_responses
    assert [each.error_code for each in outcomes] == [0, 0, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT]
    assert broker.produce(too_large).error_code == ErrorCode.INVALID_RECORD
    assert broker.produce(large).base_offset == 2


def test_records_of_other_topics_are_not_read() -> None:
    broker = with_configs()
    assert broker.produce(resealed(GOOD, BATCH_HEADER_SIZE, b"\x7e")).error_code == 0
