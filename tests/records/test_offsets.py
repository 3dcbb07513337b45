"""What the coordinator has written is read back by type and version, tombstones, strangers and broken blobs included.

The bytes are put together here field by field, from Kafka's schema files, without the codec.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.records import (
    Compression,
    ControlRecord,
    ControlType,
    OffsetsRecord,
    Record,
    SegmentReader,
    decode_offsets_record,
    encode_batch,
    encode_message_set,
    encode_offsets_record,
    end_transaction_record,
    read_offsets,
    read_records,
)
from kcoord_wire.schema.files import schema_root


def text(value: str | None) -> bytes:
    return b"\xff\xff" if value is None else struct.pack(">h", len(value)) + value.encode()


def blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def i16(value: int) -> bytes:
    return struct.pack(">h", value)


def i32(value: int) -> bytes:
    return struct.pack(">i", value)


def i64(value: int) -> bytes:
    return struct.pack(">q", value)


COMMIT_KEY = i16(1) + text("billing") + text("orders") + i32(3)
COMMITS = {
    0: i16(0) + i64(42) + text("note") + i64(1000),
    1: i16(1) + i64(42) + text("note") + i64(1000) + i64(2000),
    2: i16(2) + i64(42) + text("note") + i64(1000),
    3: i16(3) + i64(42) + i32(7) + text("note") + i64(1000),
    4: i16(4) + i64(42) + i32(7) + b"\x05note" + i64(1000) + b"\x00",
}
GROUP_KEY = i16(2) + text("billing")
SUBSCRIPTION = i16(1) + i32(1) + text("orders") + i32(-1) + i32(1) + text("orders") + i32(1) + i32(5)
ASSIGNMENT = i16(0) + i32(1) + text("orders") + i32(2) + i32(0) + i32(1) + i32(-1)


def group(version: int, protocol_type: str, *members: tuple[str, bytes, bytes]) -> bytes:
    """A GroupMetadataValue of versions 0 to 3."""
    out = i16(version) + text(protocol_type) + i32(9) + text("range") + text("m1")
    out += i64(5000) if version >= 2 else b""
    out += i32(len(members))
    for member_id, subscription, assignment in members:
        out += text(member_id) + (text("inst-1") if version >= 3 else b"") + text("client") + text("/10.0.0.1")
        out += i32(60000) if version >= 1 else b""
        out += i32(10000) + blob(subscription) + blob(assignment)
    return out


@pytest.mark.parametrize("version", COMMITS)
def test_offset_commit(version: int) -> None:
    record = decode_offsets_record(COMMIT_KEY, COMMITS[version])
    assert (record.kind, record.record_type, record.value_version) == ("OffsetCommit", 1, version)
    assert record.key == kw.OffsetCommitKey(group="billing", topic="orders", partition=3)
    assert isinstance(record.value, kw.OffsetCommitValue)
    assert (record.value.offset, record.value.metadata, record.value.commit_timestamp) == (42, "note", 1000)
    assert record.value.leader_epoch == (7 if version >= 3 else -1)
    assert record.value.expire_timestamp == (2000 if version == 1 else -1)
    assert (record.raw_key, record.raw_value, record.members) == (COMMIT_KEY, COMMITS[version], ())
    assert not record.is_tombstone


def test_legacy_offset_commit() -> None:
    record = decode_offsets_record(i16(0) + COMMIT_KEY[2:], COMMITS[0])
    assert (record.kind, record.record_type) == ("LegacyOffsetCommit", 0)
    assert record.key == kw.LegacyOffsetCommitKey(group="billing", topic="orders", partition=3)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_group_with_nested_messages(version: int) -> None:
    value = group(version, "consumer", ("m1", SUBSCRIPTION, ASSIGNMENT), ("m2", SUBSCRIPTION, b""))
    record = decode_offsets_record(GROUP_KEY, value)
    assert (record.kind, record.value_version, record.value.generation) == ("GroupMetadata", version, 9)
    first, second = record.members
    assert (first.member_id, first.error) == ("m1", None)
    assert first.subscription == kw.ConsumerProtocolSubscription(
        topics=["orders"],
        user_data=None,
        owned_partitions=[kw.ConsumerProtocolSubscriptionTopicPartition(topic="orders", partitions=[5])],
    )
    assert first.assignment == kw.ConsumerProtocolAssignment(
        assigned_partitions=[kw.ConsumerProtocolAssignmentTopicPartition(topic="orders", partitions=[0, 1])],
        user_data=None,
    )
    assert (second.member_id, second.assignment, second.error) == ("m2", None, None)


def test_blobs_of_other_protocols_are_left_alone() -> None:
    record = decode_offsets_record(GROUP_KEY, group(3, "connect", ("m1", b"\x00", b"\x01")))
    assert record.members == ()
    assert record.value.members[0].subscription == b"\x00"


@pytest.mark.parametrize("wrong", [b"\x00", SUBSCRIPTION[:-1], i16(-1) + SUBSCRIPTION[2:]])
def test_a_blob_that_does_not_decode_is_reported(wrong: bytes) -> None:
    record = decode_offsets_record(GROUP_KEY, group(3, "consumer", ("m1", wrong, ASSIGNMENT), ("m2", b"", wrong)))
    first, second = record.members
    assert first.subscription is None
    assert first.assignment is not None
    assert isinstance(first.error, DecodeError)
    assert first.error.path.startswith("ConsumerProtocolSubscription")
    assert isinstance(second.error, DecodeError)
    assert second.error.path.startswith("ConsumerProtocolAssignment")


@pytest.mark.parametrize(("key", "kind"), [(COMMIT_KEY, "OffsetCommit"), (GROUP_KEY, "GroupMetadata")])
def test_tombstone(key: bytes, kind: str) -> None:
    record = decode_offsets_record(key, None)
    assert (record.kind, record.value, record.value_version, record.is_tombstone) == (kind, None, None, True)
    assert record.key.group == "billing"


@pytest.mark.parametrize("number", [9, 99, -1, 32767])
@pytest.mark.parametrize("value", [b"anything", b"", None])
def test_unknown_type(number: int, value: bytes | None) -> None:
    key = i16(number) + b"\xff junk"
    record = decode_offsets_record(key, value)
    assert record == OffsetsRecord("Unknown", number, None, None, None, (), key, value)


def test_a_registry_of_ones_own_reads_newer_record_types(tmp_path: Path) -> None:
    field = '{ "name": "Note", "type": "string", "versions": "0+" }'
    for part, flexible in (("Key", "none"), ("Value", "0+")):
        (tmp_path / f"NewGroup{part}.json").write_text(
            f'{{ "apiKey": 99, "type": "coordinator-{part.lower()}", "name": "NewGroup{part}", "validVersions": "0",'
            f' "flexibleVersions": "{flexible}", "fields": [{field}] }}'
        )
    registry = kw.compile_schemas(tmp_path)
    new = Record(i16(99) + b"\0\1k", i16(0) + b"\3no\0")
    batch = encode_batch([new, Record(COMMIT_KEY, COMMITS[3])])
    first, second = (entry.content for entry in read_offsets(read_records(batch), registry=registry))
    assert isinstance(first, OffsetsRecord)
    assert (first.kind, first.key.note, first.value.note, first.value_version) == ("NewGroup", "k", "no", 0)
    assert second == decode_offsets_record(COMMIT_KEY, COMMITS[3]), "of the package's own registry"
    unknown = next(read_offsets(read_records(batch))).content
    assert isinstance(unknown, OffsetsRecord)
    assert unknown.kind == "Unknown"


def test_groups_of_another_registry_have_their_members() -> None:
    registry = kw.compile_schemas(schema_root() / "storage")
    value = group(3, "consumer", ("m1", SUBSCRIPTION, ASSIGNMENT))
    record = decode_offsets_record(GROUP_KEY, value, registry=registry)
    assert record.members == decode_offsets_record(GROUP_KEY, value).members
    assert type(record.value) is registry["GroupMetadataValue"].cls is not kw.GroupMetadataValue


def test_every_record_type_of_the_schemas_has_a_kind() -> None:
    types = {codec.api_key for codec in kw.registry.values() if codec.type == "coordinator-key"}
    assert types == {*range(9), *range(10, 18), *range(19, 24)}, "the types of Kafka 4.4.0"
    for number in types:
        codec = kw.registry.record_key(number)
        record = decode_offsets_record(i16(number) + codec.encode(codec.cls(), 0), None)
        assert (f"{record.kind}Key", record.key) == (codec.name, codec.cls())


@pytest.mark.parametrize(
    ("key", "value", "kind", "path"),
    [
        (None, b"", "null", "key"),
        (b"\x00", b"", "truncated", "key"),
        (COMMIT_KEY, b"", "truncated", "value"),
        (COMMIT_KEY, b"\x00", "truncated", "value"),
        (COMMIT_KEY[:-1], None, "truncated", "OffsetCommitKey.partition"),
        (COMMIT_KEY + b"\0", None, "trailing", "OffsetCommitKey"),
        (COMMIT_KEY, i16(99), "version", "OffsetCommitValue"),
        (COMMIT_KEY, i16(-1), "version", "OffsetCommitValue"),
        (COMMIT_KEY, COMMITS[3] + b"\0", "trailing", "OffsetCommitValue"),
        (
            GROUP_KEY,
            group(3, "consumer", ("m1", b"", b""))[:-1],
            "truncated",
            "GroupMetadataValue.members[0].assignment",
        ),
    ],
)
def test_refused(key: bytes | None, value: bytes | None, kind: str, path: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_offsets_record(key, value)
    assert (caught.value.kind, caught.value.path) == (kind, path)


def test_an_error_offset_counts_from_the_value() -> None:
    with pytest.raises(DecodeError) as caught:
        decode_offsets_record(COMMIT_KEY, COMMITS[0][:-3])
    assert (caught.value.offset, caught.value.path) == (16, "OffsetCommitValue.commit_timestamp")


@pytest.mark.parametrize("version", COMMITS)
def test_every_prefix_fails_typed(version: int) -> None:
    for end in range(len(COMMITS[version])):
        with pytest.raises(DecodeError):
            decode_offsets_record(COMMIT_KEY, COMMITS[version][:end])
    for end in range(len(COMMIT_KEY)):
        with pytest.raises(DecodeError):
            decode_offsets_record(COMMIT_KEY[:end], COMMITS[version])


def test_lenient_leaves_what_follows() -> None:
    record = decode_offsets_record(COMMIT_KEY + b"\0", COMMITS[3] + b"\0", strict=False)
    assert record.value.offset == 42


def test_segment_of_old_and_new() -> None:
    segment = b"".join(
        [
            encode_message_set([Record(COMMIT_KEY, COMMITS[0], offset=0)], magic=0),
            encode_message_set(
                [Record(COMMIT_KEY, COMMITS[1], 5, 1), Record(GROUP_KEY, None, 5, 2)], compression=Compression.GZIP
            ),
            encode_batch([Record(COMMIT_KEY, COMMITS[3], 6, 3)], transactional=True, producer_id=70, producer_epoch=0),
            encode_batch(
                [end_transaction_record(ControlType.COMMIT, 4)],
                base_offset=4,
                control=True,
                transactional=True,
                producer_id=70,
                producer_epoch=0,
            ),
            encode_batch([Record(COMMIT_KEY, None, 7), Record(i16(77), b"?", 7)], base_offset=5),
        ]
    )
    entries = list(read_offsets(SegmentReader(segment)))
    assert [entry.record.offset for entry in entries] == [0, 1, 2, 3, 4, 5, 6]
    seen: list[Any] = [
        (entry.content.kind, entry.content.is_tombstone) if isinstance(entry.content, OffsetsRecord) else entry.content
        for entry in entries
    ]
    assert seen == [
        ("OffsetCommit", False),
        ("OffsetCommit", False),
        ("GroupMetadata", True),
        ("OffsetCommit", False),
        ControlRecord(ControlType.COMMIT, 0, 4),
        ("OffsetCommit", True),
        ("Unknown", False),
    ]


def test_error_in_a_segment_says_which_record() -> None:
    good = encode_batch([Record(COMMIT_KEY, COMMITS[3])])
    bad = encode_batch([Record(COMMIT_KEY, COMMITS[3]), Record(COMMIT_KEY, COMMITS[3][:-1])], base_offset=1)
    entries = read_offsets(read_records(good + bad))
    assert [next(entries).record.offset for _ in range(2)] == [0, 1]
    with pytest.raises(DecodeError) as caught:
        next(entries)
    error = caught.value
    assert (error.kind, error.offset) == ("truncated", len(good))
    assert error.path == "RecordBatch.records[1].OffsetCommitValue.commit_timestamp"


@pytest.mark.parametrize("version", COMMITS)
def test_writing_an_offset_gives_the_bytes_that_were_read(version: int) -> None:
    record = decode_offsets_record(COMMIT_KEY, COMMITS[version])
    assert encode_offsets_record(record.key, record.value, value_version=version) == (COMMIT_KEY, COMMITS[version])


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_writing_a_group_gives_the_bytes_that_were_read(version: int) -> None:
    value = group(version, "consumer", ("m1", SUBSCRIPTION, ASSIGNMENT))
    record = decode_offsets_record(GROUP_KEY, value)
    assert encode_offsets_record(record.key, record.value, value_version=version) == (GROUP_KEY, value)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (kw.OffsetCommitValue(offset=42, leader_epoch=7, metadata="note", commit_timestamp=1000), 3),
        (kw.OffsetCommitValue(offset=42, metadata="note", commit_timestamp=1000, expire_timestamp=2000), 1),
    ],
)
def test_an_offset_is_written_as_kafka_does(value: kw.OffsetCommitValue, written: int) -> None:
    key = kw.OffsetCommitKey(group="billing", topic="orders", partition=3)
    assert encode_offsets_record(key, value) == (COMMIT_KEY, COMMITS[written])
    assert encode_offsets_record(key, None) == (COMMIT_KEY, None)


def test_a_group_is_written_as_kafka_does() -> None:
    value = group(3, "consumer", ("m1", SUBSCRIPTION, ASSIGNMENT))
    record = decode_offsets_record(GROUP_KEY, value)
    assert encode_offsets_record(record.key, record.value) == (GROUP_KEY, value)


def test_every_record_type_is_written_and_read() -> None:
    for codec in kw.registry.values():
        if codec.type != "coordinator-key" or codec.api_key is None:
            continue
        key, value = codec.cls(), kw.registry.record_value(codec.api_key).cls()
        record = decode_offsets_record(*encode_offsets_record(key, value))
        assert (record.record_type, record.key, record.value) == (codec.api_key, key, value)


@pytest.mark.parametrize(
    ("key", "value", "path"),
    [
        (None, None, "key"),
        (b"key", None, "key"),
        (kw.OffsetCommitValue(), kw.OffsetCommitValue(), "key"),
        (kw.OffsetCommitKey(), kw.GroupMetadataValue(), "value"),
        (kw.OffsetCommitKey(), kw.LegacyOffsetCommitValue(), "value"),
        (kw.OffsetCommitKey(), b"", "value"),
    ],
)
def test_messages_that_do_not_make_a_record(key: Any, value: Any, path: str) -> None:
    with pytest.raises(EncodeError) as caught:
        encode_offsets_record(key, value)
    assert (caught.value.kind, caught.value.path) == ("type", path)


def test_a_version_that_a_value_does_not_have() -> None:
    with pytest.raises(EncodeError) as caught:
        encode_offsets_record(kw.OffsetCommitKey(), kw.OffsetCommitValue(), value_version=5)
    assert caught.value.kind == "version"
