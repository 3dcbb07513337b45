"""For all records: what is written is read back; for all damage: it is refused by name or caught by the checksum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord_wire.errors import DECODE_KINDS, DecodeError
from kcoord_wire.records import (
    Batch,
    Compression,
    Record,
    RecordBatch,
    RecordHeader,
    encode_batch,
    encode_message_set,
    read_records,
)

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
TIMES = st.integers(-1, 1 << 45)
BLOBS = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.builds(RecordHeader, st.text(max_size=8), BLOBS), max_size=3).map(tuple)
RECORDS = st.builds(Record, BLOBS, BLOBS, TIMES, headers=HEADERS, attributes=st.integers(-128, 127))
OLD_RECORDS = st.builds(Record, BLOBS, BLOBS, TIMES)
CODECS = st.sampled_from(list(Compression))
OLD_CODECS = st.sampled_from([codec for codec in Compression if codec is not Compression.ZSTD])


def outcome(data: bytes, **options: Any) -> list[Batch] | DecodeError:
    """What reading `data` comes to."""
    try:
        return list(read_records(data, **options))
    except DecodeError as error:
        return error


def spread(records: list[Record], base: int, gaps: list[int]) -> list[Record]:
    """Assign the records offsets from `base` on, a gap after each."""
    placed = []
    for record, gap in zip(records, gaps, strict=False):
        placed.append(replace(record, offset=base))
        base += 1 + gap
    return placed


@settings(deadline=None)
@given(
    st.lists(RECORDS, max_size=6),
    st.integers(0, 1 << 62),
    st.lists(st.integers(0, 300), min_size=6, max_size=6),
    CODECS,
    st.booleans(),
    st.booleans(),
    INT32,
)
def test_batch_round_trip(
    records: list[Record],
    base: int,
    gaps: list[int],
    codec: Compression,
    transactional: bool,
    control: bool,
    epoch: int,
) -> None:
    placed = spread(records, base, gaps)
    data = encode_batch(
        placed,
        base_offset=base,
        compression=codec,
        transactional=transactional,
        control=control,
        partition_leader_epoch=epoch,
    )
    (batch,) = read_records(data)
    assert isinstance(batch, RecordBatch)
    assert list(batch.records) == placed
    assert (batch.compression, batch.is_transactional, batch.is_control) == (codec, transactional, control)
    assert (batch.base_offset, batch.partition_leader_epoch, batch.size) == (base, epoch, len(data))


@settings(deadline=None)
@given(
    st.lists(OLD_RECORDS, min_size=1, max_size=6),
    st.integers(0, 1 << 62),
    st.lists(st.integers(0, 300), min_size=6, max_size=6),
    OLD_CODECS,
    st.sampled_from([0, 1]),
)
def test_message_set_round_trip(
    records: list[Record], base: int, gaps: list[int], codec: Compression, magic: int
) -> None:
    placed = spread([record if magic else replace(record, timestamp=-1) for record in records], base, gaps)
    data = encode_message_set(placed, magic=magic, compression=codec)
    batches = list(read_records(data))
    assert [record for batch in batches for record in batch.records] == placed
    assert len(batches) == (1 if codec else len(placed))
    assert batches[-1].last_offset == placed[-1].offset


@settings(deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=4), CODECS, st.data())
def test_flipped_byte_in_batch(records: list[Record], codec: Compression, data: st.DataObject) -> None:
    """Only the base offset and the leader epoch, which no checksum covers, can change unseen."""
    good = encode_batch(records, compression=codec)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    result = outcome(bytes(bad))
    if (at < 8 or 12 <= at < 16) and isinstance(result, list):
        assert [record.value for record in result[0].records] == [record.value for record in records]
    else:
        assert isinstance(result, DecodeError)


@settings(deadline=None)
@given(st.lists(OLD_RECORDS, min_size=1, max_size=4), OLD_CODECS, st.sampled_from([0, 1]), st.data())
def test_flipped_byte_in_message(records: list[Record], codec: Compression, magic: int, data: st.DataObject) -> None:
    plain = [record if magic else replace(record, timestamp=-1) for record in records]
    good = encode_message_set(plain if codec else plain[:1], magic=magic, compression=codec)
    at = data.draw(st.integers(8, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DecodeError):
        list(read_records(bytes(bad)))


@settings(deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=4), CODECS, st.booleans(), st.data())
def test_damage_without_checksum_fails_typed_or_reads(
    records: list[Record], codec: Compression, strict: bool, data: st.DataObject
) -> None:
    bad = bytearray(encode_batch(records, compression=codec))
    for _ in range(3):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    result = outcome(bytes(bad), check_crc=False, strict=strict, max_decompressed=1 << 20)
    if isinstance(result, DecodeError):
        assert 0 <= result.offset <= len(bad)
        assert result.path.startswith(("RecordBatch.", "MessageSet.", "Batch."))
        assert result.kind in DECODE_KINDS
    else:
        assert sum(batch.size for batch in result) == len(bad)


@given(st.binary(max_size=200), st.integers(0, 4), st.booleans())
def test_noise_fails_typed_or_reads(noise: bytes, magic: int, strict: bool) -> None:
    size = len(noise).to_bytes(4, "big")
    data = b"\0" * 8 + size + noise[:4] + bytes([magic]) + noise[5:]
    result = outcome(data, check_crc=False, strict=strict)
    if isinstance(result, DecodeError):
        assert 0 <= result.offset <= len(data)
    else:
        assert sum(batch.size for batch in result) == len(data)
