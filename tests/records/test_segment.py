"""A segment of any mixture of magics is read batch by batch; its end may be torn, its middle may not."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Iterator

import pytest

from kcoord_wire.errors import DecodeError
from kcoord_wire.records import (
    Compression,
    Record,
    SegmentReader,
    TornTail,
    encode_batch,
    encode_message_set,
    read_records,
)

PARTS = [
    encode_message_set([Record(b"a", b"0", offset=0)], magic=0),
    encode_message_set([Record(b"a", b"1", offset=n) for n in (1, 2)], magic=0, compression=Compression.GZIP),
    encode_message_set([Record(b"b", b"2", 5, 3)]),
    encode_message_set([Record(b"b", b"3", 5, n) for n in (4, 5)], compression=Compression.LZ4),
    encode_batch([Record(b"c", b"4", 6)], base_offset=6),
    encode_batch([], base_offset=7, last_offset=9),
    encode_batch([Record(b"c", b"5", 6)] * 3, base_offset=10, compression=Compression.ZSTD),
]
WHOLE = b"".join(PARTS)
STARTS = [sum(map(len, PARTS[:n])) for n in range(len(PARTS))]


class OneByteAtATime:
    """An unbuffered source, which returns fewer bytes than requested."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def read(self, size: int, /) -> bytes:
        return self._file.read(min(size, 1))


@pytest.mark.parametrize("source", [bytes, bytearray, memoryview, io.BytesIO, OneByteAtATime])
def test_mixture(source: type) -> None:
    segment = SegmentReader(source(WHOLE))
    batches = list(segment)
    assert segment.torn_tail is None
    assert [batch.magic for batch in batches] == [0, 0, 1, 1, 2, 2, 2]
    assert [batch.position for batch in batches] == STARTS
    assert [batch.size for batch in batches] == [len(part) for part in PARTS]
    assert [record.offset for batch in batches for record in batch.records] == [0, 1, 2, 3, 4, 5, 6, 10, 11, 12]
    assert [batch.last_offset for batch in batches] == [0, 2, 3, 5, 6, 9, 12]
    assert batches == list(read_records(WHOLE))


def test_every_cut_is_a_torn_tail_or_a_shorter_segment() -> None:
    for end in range(len(WHOLE)):
        segment = SegmentReader(io.BytesIO(WHOLE[:end]))
        read = list(segment)
        start = max(begin for begin in STARTS if begin <= end)
        assert len(read) == STARTS.index(start)
        assert segment.torn_tail == (TornTail(start, end - start) if end > start else None)


def test_file_on_disk_from_the_middle(tmp_path: object) -> None:
    path = f"{tmp_path}/00000000000000000000.log"
    with open(path, "wb") as out:
        out.write(WHOLE)
    with open(path, "rb") as file:
        file.seek(STARTS[4])
        batches = list(SegmentReader(file, position=STARTS[4]))
    assert [batch.position for batch in batches] == STARTS[4:]


def test_corruption_has_its_position() -> None:
    data = bytearray(WHOLE)
    data[STARTS[4] + 40] ^= 1
    batches: Iterator[object] = iter(SegmentReader(bytes(data)))
    assert [next(batches) for _ in range(4)] == list(read_records(WHOLE))[:4]
    with pytest.raises(DecodeError) as caught:
        next(batches)
    error = caught.value
    assert (error.kind, error.offset, error.path) == ("checksum", STARTS[4] + 17, "RecordBatch.crc")


def test_zeros_are_not_a_torn_tail() -> None:
    with pytest.raises(DecodeError) as caught:
        list(SegmentReader(WHOLE + bytes(4096)))
    assert (caught.value.kind, caught.value.offset) == ("length", len(WHOLE) + 8)


def test_limit_on_a_batch() -> None:
    size = len(PARTS[-1])
    assert len(list(SegmentReader(PARTS[-1], max_batch_size=size))) == 1
    with pytest.raises(DecodeError) as caught:
        list(SegmentReader(WHOLE, max_batch_size=size - 1))
    assert caught.value.kind == "length"


def test_claim_beyond_the_file_costs_nothing() -> None:
    claim = WHOLE + bytes(8) + (99 << 20).to_bytes(4, "big") + b"\0\0\0\0\x02"
    tracemalloc.start()
    try:
        segment = SegmentReader(claim)
        assert len(list(segment)) == len(PARTS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert segment.torn_tail == TornTail(len(WHOLE), 17)
    assert peak < 1 << 20


def test_memory_is_that_of_one_batch() -> None:
    batch = encode_batch([Record(value=bytes(100_000))])
    file = io.BytesIO(batch * 50)
    tracemalloc.start()
    try:
        assert sum(len(batch.records) for batch in SegmentReader(file)) == 50
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(batch)


def test_empty() -> None:
    segment = SegmentReader(b"")
    assert list(segment) == []
    assert segment.torn_tail is None
