"""The segments of the coordinator's log as they are read: what is whole, what a crash has torn, what is damaged.

Laws:

* Each batch begins at the offset where the one before it ended, over all files; a file is named after its first offset.
* The last batch of the last file may have been on its way when the power failed. It alone may be damaged, and any of
  its sectors may be missing, whichever they are; whatever else is wrong is a `CorruptLogError`.
* Memory holds one batch at a time, and the end of a file from where it is damaged.

Source: kafka/clients `DefaultRecordBatch.java`; kafka/storage `LogSegment.java` (recovery).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from os import SEEK_END
from typing import NamedTuple

from kcoord_wire.disk import SECTOR, Disk
from kcoord_wire.errors import DecodeError
from kcoord_wire.records import Record, RecordBatch, SegmentReader
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

__all__ = ["LEADER_EPOCH", "MAX_OFFSET_DELTA", "CorruptLogError", "base_offset", "read_batches", "read_records"]

LEADER_EPOCH = 0
MAX_OFFSET_DELTA = (1 << 31) - 1
_MAGIC = 2


class CorruptLogError(Exception):
    """The log is damaged in a way that no crash explains, or was written by something else.

    :ivar file: name of the segment
    :ivar position: byte in it at which the batch begins that is wrong
    :ivar reason: what is wrong with it, in words
    """

    def __init__(self, file: str, position: int, reason: str) -> None:
        super().__init__(f"{file} at byte {position}: {reason}")
        self.file = file
        self.position = position
        self.reason = reason


def base_offset(name: str) -> int:
    """The offset that a segment begins at, by its name."""
    return int(name.partition(".")[0])


def read_records(disk: Disk, names: Iterable[str], end: int) -> Iterator[Record]:
    """The records of closed segments, which end at offset `end`. Errors as `read_batches`."""
    reached = 0
    for name in names:
        if base_offset(name) != reached:
            raise CorruptLogError(name, 0, f"begins at offset {base_offset(name)} where {reached} is due")
        for batch in read_batches(disk, name, reached, last=False):
            yield from batch.records
            reached = batch.last_offset + 1
    if reached != end:
        raise CorruptLogError(name, disk.sizes()[name], f"ends at offset {reached} where the next segment has {end}")


def read_batches(disk: Disk, name: str, end: int, *, last: bool) -> Iterator[RecordBatch]:
    """The batches of a file, from offset `end` on.

    :param last: the last file of the log, whose last batch a crash may have damaged; that one is left out
    :raises CorruptLogError: there is another fault
    """
    position = 0
    fault: str | None = None
    with disk.read(name) as source:
        try:
            reader = SegmentReader(source, max_batch_size=source.seek(0, SEEK_END))  # nothing is read for a wild length
            source.seek(0)
            for batch in reader:
                if not isinstance(batch, RecordBatch) or batch.attributes or batch.producer_id != -1:
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


def _out_of_place(batch: RecordBatch, end: int) -> str | None:
    """What is wrong with that of a batch which its checksum does not cover, if it is to begin at offset `end`."""
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
    """The header at `at`, if it can be one."""
    if not 0 <= at <= len(data) - HEADER_SIZE:
        return None
    base_offset, length, epoch, magic, crc = UNCHECKED.unpack_from(data, at)
    size = length + LENGTH_FROM
    return _Header(base_offset, size, epoch, crc) if magic == _MAGIC and size >= HEADER_SIZE else None


def _is_whole(data: bytes, at: int, header: _Header) -> bool:
    end = at + header.size
    return end <= len(data) and crc32c(memoryview(data)[at + AT_CHECKED : end]) == header.crc


def _is_torn(rest: bytes, position: int, end: int) -> bool:
    """Whether `rest`, the end of the last file, is what a crash leaves of one batch that was on its way.

    Of such a batch any sectors may be missing, its first included, and so its length. But nothing was ever written
    after it: neither does a whole batch of a later offset stand anywhere behind, nor does its own header say that it
    ends before the file does.

    :param position: of `rest` in the file
    :param end: offset at which the batch was to begin
    """
    header = _header(rest, 0)
    if header is not None:
        in_order = header.base_offset == end and header.leader_epoch == LEADER_EPOCH
        if in_order and header.size < len(rest):
            return False
        if _is_whole(rest, 0, header):
            # The checksum does not cover the offset. A crash takes that alone only if a sector ends just behind it.
            return not in_order and header.size == len(rest) and position % SECTOR > SECTOR - AT_CRC
    found = rest.find(NO_PRODUCER, AT_PRODUCER + 1)
    while found >= 0:
        header = _header(rest, found - AT_PRODUCER)
        if header is not None and header.base_offset >= end and _is_whole(rest, found - AT_PRODUCER, header):
            return False
        found = rest.find(NO_PRODUCER, found + 1)
    return True
