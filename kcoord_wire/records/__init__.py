"""Kafka's record formats: batches (magic 2), message sets (magic 0 and 1), log segments, ``__consumer_offsets``.

One shape for all of them. A reader yields batches; a batch is a `RecordBatch` or a `MessageSet`; both have
``position``, ``magic``, ``base_offset``, ``last_offset``, ``compression``, ``timestamp_type`` and ``records``, a
tuple of `Record` with absolute offsets and timestamps, already decompressed::

    for batch in read_records(fetched, allow_partial=True):
        for record in batch.records: ...

    segment = SegmentReader(open("00000000000000000000.log", "rb"))
    for batch in segment: ...
    segment.torn_tail      # None, or the place where the file ends within a batch

    data = encode_batch([Record(b"key", b"value", timestamp=now)], base_offset=42, compression=Compression.ZSTD)

- `read_records`, `SegmentReader`: bytes or a file to batches, by magic
- `encode_batch`, `encode_message_set`: records to bytes
- `decode_control_record`, `decode_control_batch`, `end_transaction_record`: the markers in control batches
- `HiddenBatches`: markers, and what belongs to aborted transactions
- `read_offsets`, `decode_offsets_record`, `encode_offsets_record`: the group coordinator's own records
- `decode_transaction_record`, `encode_transaction_record`: the transaction coordinator's

Laws:

* Every fault of the bytes is a `DecodeError`, of a value an `EncodeError`. Offsets count from the start of the input;
  bytes that exist only after decompression have the offset of their batch and a path that names the record.
* A count or length is compared with the available bytes before anything is allocated for it. Decompression and the
  number of records are limited, so that a small file costs little memory and time (`limits.ReadLimits`).
* Checksums (CRC-32C) and the codecs snappy, lz4 and zstd need the extra ``records``; without it they raise
  `MissingLibraryError`.
"""

from kcoord_wire.extras import MissingLibraryError
from kcoord_wire.records.batch import encode_batch
from kcoord_wire.records.control import (
    ControlRecord,
    ControlType,
    HiddenBatches,
    decode_control_batch,
    decode_control_record,
    decode_transaction_record,
    encode_transaction_record,
    end_transaction_record,
)
from kcoord_wire.records.message_set import encode_message_set
from kcoord_wire.records.model import (
    NO_OFFSET,
    NO_TIMESTAMP,
    Batch,
    Compression,
    MessageSet,
    Record,
    RecordBatch,
    RecordHeader,
    TimestampType,
)
from kcoord_wire.records.offsets import (
    ConsumerMember,
    OffsetsLogEntry,
    OffsetsRecord,
    decode_offsets_record,
    encode_offsets_record,
    group_of_key,
    read_offsets,
)
from kcoord_wire.records.segment import SegmentReader, TornTail, read_records

__all__ = [
    "NO_OFFSET",
    "NO_TIMESTAMP",
    "Batch",
    "Compression",
    "ConsumerMember",
    "ControlRecord",
    "ControlType",
    "HiddenBatches",
    "MessageSet",
    "MissingLibraryError",
    "OffsetsLogEntry",
    "OffsetsRecord",
    "Record",
    "RecordBatch",
    "RecordHeader",
    "SegmentReader",
    "TimestampType",
    "TornTail",
    "decode_control_batch",
    "decode_control_record",
    "decode_offsets_record",
    "decode_transaction_record",
    "encode_batch",
    "encode_message_set",
    "encode_offsets_record",
    "encode_transaction_record",
    "end_transaction_record",
    "group_of_key",
    "read_offsets",
    "read_records",
]
