"""Whatever the bytes, reading records ends in batches or in a DecodeError; ordered ones are written and read again."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.records import (
    NO_OFFSET,
    Batch,
    RecordBatch,
    SegmentReader,
    decode_control_record,
    encode_batch,
    read_records,
)
from kcoord_wire.records.offsets import decode_offsets_record

LIMIT = 1 << 16
MAX_INT32 = (1 << 31) - 1


def check(data: bytes) -> None:
    """`data`: record batches or message sets, one behind the other."""
    batches: list[Batch] = []
    for options in ({"strict": True}, {"strict": False}, {"strict": False, "allow_partial": True}):
        batches = list(attempt(data, read_records(data, max_decompressed=LIMIT, check_crc=False, **options)))
    list(attempt(data, read_records(data, max_decompressed=LIMIT)))
    list(attempt(data, iter(SegmentReader(io.BytesIO(data), max_decompressed=LIMIT, check_crc=False))))
    for batch in batches:
        for record in batch.records:
            with suppress(DecodeError):
                decode_control_record(record)
            with suppress(DecodeError):
                decode_offsets_record(record.key, record.value)
        if isinstance(batch, RecordBatch) and batch.records:
            written_and_read(batch)


def written_and_read(batch: RecordBatch) -> None:
    offsets = [record.offset for record in batch.records]
    if NO_OFFSET in offsets:  # a lenient reader takes any offset; a writer takes this one to mean the next
        return
    try:
        data = encode_batch(batch.records, base_offset=batch.base_offset)
    except EncodeError:
        # A reader does not mind what order offsets have; a writer does.
        assert any(b <= a for a, b in pairwise([batch.base_offset - 1, *offsets])) or offsets[-1] > MAX_INT32
        return
    [read] = read_records(data, strict=False)
    assert [(r.key, r.value, r.offset, r.headers) for r in read.records] == [
        (r.key, r.value, r.offset, r.headers) for r in batch.records
    ]


def attempt(data: bytes, batches: Iterator[Any]) -> Iterator[Any]:
    """The batches up to the first DecodeError, which has to point into the data."""
    try:
        yield from batches
    except DecodeError as caught:
        error = caught
    else:
        return
    assert 0 <= error.offset <= len(data), error
    assert error.path
