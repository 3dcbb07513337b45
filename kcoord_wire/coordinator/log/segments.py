"""The segments of the coordinator's log: how records are written, and what is whole, torn by a crash, or damaged.

Laws:

* Each batch begins at the offset where the one before it ended, over all files; a file is named after its first offset.
* The last batch of the last file may have been in progress when the power failed. Only that one may be damaged, and any
  of its sectors may be missing; any other damage is a `CorruptLogError`.
* One batch is in memory at a time, and the end of a file from the damage on.

Source: kafka/clients `DefaultRecordBatch.java`; kafka/storage `LogSegment.java` (recovery); kafka
`GroupCoordinatorRecordSerde.java`, `TransactionLog.java`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from os import SEEK_END
from typing import Any, Final, NamedTuple

from kcoord_wire.coordinator.core.events import LogRecord, Producer
from kcoord_wire.errors import DecodeError
from kcoord_wire.kernel.disk import SECTOR, Disk
from kcoord_wire.records import (
    Record,
    RecordBatch,
    SegmentReader,
    decode_offsets_record,
    decode_transaction_record,
    encode_batch,
    encode_offsets_record,
    encode_transaction_record,
)
from kcoord_wire.records.batch import (
    AT_CHECKED,
    AT_CRC,
    AT_PRODUCER,
    HEADER_SIZE,
    LENGTH_FROM,
    NO_PRODUCER,
    UNCHECKED,
    crc32c,
)
from kcoord_wire.records.model import CONTROL_BIT, TRANSACTIONAL_BIT

LEADER_EPOCH = 0
MAX_OFFSET_DELTA = (1 << 31) - 1
_MAGIC = 2
_ATTRIBUTES = (0, TRANSACTIONAL_BIT, TRANSACTIONAL_BIT | CONTROL_BIT)  # plain, of a transaction, its marker
_NO_SEQUENCE = b"\xff" * 4  # in the header of every batch, which helps to find it
_AT_SEQUENCE = AT_PRODUCER + len(NO_PRODUCER) - len(_NO_SEQUENCE)


class CorruptLogError(Exception):
    """The log is damaged in a way that no crash explains, or was written by another program.

    :ivar file: name of the segment
    :ivar position: byte in it at which the bad batch begins
    :ivar reason: what is wrong with it
    """

    def __init__(self, file: str, position: int, reason: str) -> None:
        super().__init__(f"{file} at byte {position}: {reason}")
        self.file = file
        self.position = position
        self.reason = reason


def base_offset(name: str) -> int:
    """Return the offset at which a segment begins, from its name."""
    return int(name.partition(".")[0])


def read_closed(disk: Disk, names: Iterable[str], end: int) -> Iterator[RecordBatch]:
    """Yield the batches of closed segments, which end at offset `end`. Errors as `read_batches`."""
    reached = 0
    for name in names:
        if base_offset(name) != reached:
            raise CorruptLogError(name, 0, f"begins at offset {base_offset(name)} where {reached} is due")
        for batch in read_batches(disk, name, reached, last=False):
            yield batch
            reached = batch.last_offset + 1
    if reached != end:
        raise CorruptLogError(name, disk.sizes()[name], f"ends at offset {reached} where the next segment has {end}")


def read_batches(disk: Disk, name: str, end: int, *, last: bool, position: int = 0) -> Iterator[RecordBatch]:
    """Yield the batches of a file, from offset `end` on.

    :param last: whether it is the last file of the log, whose last batch is left out if a crash has damaged it
    :param position: byte of the file at which the batch of offset `end` begins
    :raises CorruptLogError: there is any other damage
    """
    fault: str | None = None
    with disk.read(name) as source:
        try:
            size = source.seek(0, SEEK_END)
            reader = SegmentReader(source, position=position, max_batch_size=size)  # nothing is read for a wild length
            source.seek(position)
            for batch in reader:
                if not isinstance(batch, RecordBatch) or not _is_ours(batch):
                    raise CorruptLogError(name, position, "a batch of a kind that this log does not have")
                fault = _out_of_place(batch, end)
                if fault is not None:
                    break
                position, end = batch.position + batch.size, batch.last_offset + 1
                yield batch
            if reader.torn_tail is not None:
                fault = f"the file ends after {reader.torn_tail.size} bytes of a batch"
        except DecodeError as error:
            fault = str(error)
        if fault is not None:
            source.seek(position)
            if not (last and _is_torn(source.read(), position, end)):
                raise CorruptLogError(name, position, fault)


def _is_ours(batch: RecordBatch) -> bool:
    """Return whether the log has batches of this kind; those of transactions alone have a producer."""
    return batch.attributes in _ATTRIBUTES and batch.is_transactional == (batch.producer_id >= 0)


def _out_of_place(batch: RecordBatch, end: int) -> str | None:
    """Return what is wrong with the fields that the checksum does not cover, if the batch should begin at `end`."""
    if batch.base_offset != end:
        return f"a batch of offset {batch.base_offset} where {end} is due"
    if batch.partition_leader_epoch != LEADER_EPOCH:
        return f"a batch of leader epoch {batch.partition_leader_epoch}"
    return None


class _Header(NamedTuple):
    base_offset: int
    size: int
    leader_epoch: int
    crc: int


def _header(data: bytes, at: int) -> _Header | None:
    """Return the header at `at`, if these bytes can be one."""
    if not 0 <= at <= len(data) - HEADER_SIZE:
        return None
    base_offset, length, epoch, magic, crc = UNCHECKED.unpack_from(data, at)
    size = length + LENGTH_FROM
    return _Header(base_offset, size, epoch, crc) if magic == _MAGIC and size >= HEADER_SIZE else None


def _is_whole(data: bytes, at: int, header: _Header) -> bool:
    end = at + header.size
    return end <= len(data) and crc32c(memoryview(data)[at + AT_CHECKED : end]) == header.crc


def _is_torn(rest: bytes, position: int, end: int) -> bool:
    """Return whether `rest`, the end of the last file, can be what a crash leaves of one batch that was being written.

    Any sectors of such a batch may be missing, even the first, which has its length. But nothing was ever written after
    it: no whole batch of a later offset follows, and its header, if it is there, does not end before the file does.

    :param position: of `rest` in the file
    :param end: offset at which the batch should begin
    """
    header = _header(rest, 0)
    if header is not None:
        in_order = header.base_offset == end and header.leader_epoch == LEADER_EPOCH
        if in_order and header.size < len(rest):
            return False
        if _is_whole(rest, 0, header):
            # The checksum does not cover the offset. A crash damages only that if a sector ends right after it.
            return not in_order and header.size == len(rest) and position % SECTOR > SECTOR - AT_CRC
    found = rest.find(_NO_SEQUENCE, _AT_SEQUENCE + 1)
    while found >= 0:
        header = _header(rest, found - _AT_SEQUENCE)
        if header is not None and header.base_offset >= end and _is_whole(rest, found - _AT_SEQUENCE, header):
            return False
        found = rest.find(_NO_SEQUENCE, found + 1)
    return True


def encode_log_batch(
    records: Sequence[Record],
    producer: Producer | None,
    *,
    control: bool = False,
    base_offset: int | None = None,
    last_offset: int | None = None,
) -> bytes:
    """Return a batch of the log.

    :param producer: of the open transaction that the records belong to; None if they belong to none
    :param control: whether the record ends that transaction
    :param base_offset: where the batch begins; None for the offset of its first record
    :param last_offset: where it ends; None for the offset of its last record
    """
    producer_id, epoch = producer or (-1, -1)
    return encode_batch(
        records,
        base_offset=base_offset,
        last_offset=last_offset,
        transactional=producer is not None,
        control=control,
        producer_id=producer_id,
        producer_epoch=epoch,
        partition_leader_epoch=LEADER_EPOCH,
    )


class RecordFormat(NamedTuple):
    """The records of one log.

    :ivar topic: the topic of Kafka that has these records
    :ivar encode: returns key and value in bytes; raises EncodeError
    :ivar decode: returns the record of key and value; None for a type that is not known; raises DecodeError
    """

    topic: str
    encode: Callable[[Any, Any | None], tuple[bytes, bytes | None]]
    decode: Callable[[bytes | None, bytes | None], LogRecord | None]


def _decode_offsets(key: bytes | None, value: bytes | None) -> LogRecord | None:
    record = decode_offsets_record(key, value)
    return None if record.key is None else LogRecord(record.key, record.value)


def _decode_transaction(key: bytes | None, value: bytes | None) -> LogRecord | None:
    return LogRecord(*decode_transaction_record(key, value))


OFFSETS: Final = RecordFormat("__consumer_offsets", encode_offsets_record, _decode_offsets)
"""Groups and committed offsets."""

TRANSACTIONS: Final = RecordFormat("__transaction_state", encode_transaction_record, _decode_transaction)
"""Transactional ids."""

OFFSETS_FOLDER: Final = "__consumer_offsets-0"
"""The folder of the groups' log in that of a coordinator."""

TRANSACTIONS_FOLDER: Final = "transactions"
"""Likewise, of the log of transactions."""
