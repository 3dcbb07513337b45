"""Segments: what of a file is whole, torn by a crash, or damaged.

Laws:

* Size, checksum, offsets and leader epoch of each batch are checked. The first that is not right is a fault, and
  nothing behind it is read as a batch.
* A fault is torn if a crash can have left it of the last write: no whole batch of a later offset follows. Any sectors
  may be missing, even the first, which has the length. Whatever else is wrong is damage.
* One batch is in memory at a time, and the end of a file from the fault on. Nothing is read for a wild length.

Source: kafka/clients `DefaultRecordBatch.java`; kafka/storage `LogSegment.java` (recover), `LogLoader.java`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import SEEK_END
from struct import Struct
from typing import Final, NamedTuple

from kcoord_wire.errors import DecodeError
from kcoord_wire.extras import MissingLibraryError
from kcoord_wire.kernel.disk import SECTOR, Disk
from kcoord_wire.log.tail import CorruptLogError, base_offset
from kcoord_wire.records import RecordBatch, read_records
from kcoord_wire.records.batch import (
    AT_CHECKED,
    AT_CRC,
    AT_MAGIC,
    HEADER_SIZE,
    LENGTH_FROM,
    UNCHECKED,
    crc32c,
    decode_batch,
)
from kcoord_wire.records.limits import ReadLimits
from kcoord_wire.records.model import CONTROL_BIT, TRANSACTIONAL_BIT

LEADER_EPOCH: Final = 0
"""Of the batches of logs that have no other."""

_MAGIC = 2
_FOREIGN = "a batch of a kind that this log does not have"
_KINDS = (0, TRANSACTIONAL_BIT, TRANSACTIONAL_BIT | CONTROL_BIT)  # plain, of a transaction, its marker
_CHECKED = ReadLimits(check_crc=False)
_MOST_WORK = 64  # checksums over so many times the rest: a producer's records may have a header of a batch at each byte


_HEAD = Struct(UNCHECKED.format + "hi")


class Head(NamedTuple):
    """The fields of a batch by which it is found and checked; its size counts all of its bytes."""

    base_offset: int
    size: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int


def _head(data: bytes, at: int) -> Head | None:
    """Return the head of a batch at `at`, if these bytes can be one."""
    if not 0 <= at <= len(data) - HEADER_SIZE:
        return None
    offset, length, epoch, magic, crc, attributes, delta = _HEAD.unpack_from(data, at)
    size = length + LENGTH_FROM
    return Head(offset, size, epoch, crc, attributes, delta) if magic == _MAGIC and size >= HEADER_SIZE else None


def _is_whole(data: bytes, at: int, head: Head) -> bool:
    end = at + head.size
    return end <= len(data) and crc32c(memoryview(data)[at + AT_CHECKED : end]) == head.crc


def _is_foreign(rest: bytes) -> bool:
    """Return whether a whole message set begins there, which no crash makes of a batch."""
    try:
        return next(read_records(rest, allow_partial=True), None) is not None
    except DecodeError:
        return False
    except MissingLibraryError:  # to decompress it, which comes after its checksum
        return True


class SegmentScan:
    """Reads the batches of a file one by one, up to the first fault. OSError: the disk fails.

    :param end: offset at which the first batch begins
    :param position: its first byte in the file
    :param epochs: the least and the greatest leader epoch that it may have; the next ones have none that is less
    :param has_gaps: whether offsets between batches may be left out, as after compaction
    :ivar position: byte at which the next batch begins
    :ivar end: its offset
    :ivar fault: what is wrong there; empty where the file ends
    :ivar rest: the bytes from there on
    """

    def __init__(
        self,
        disk: Disk,
        name: str,
        end: int,
        *,
        position: int = 0,
        epochs: tuple[int, int] = (LEADER_EPOCH, LEADER_EPOCH),
        has_gaps: bool = False,
    ) -> None:
        self.position = position
        self.end = end
        self.fault = ""
        self.rest = b""
        self._disk = disk
        self._name = name
        self._least_epoch, self._greatest_epoch = epochs
        self._has_gaps = has_gaps

    def __iter__(self) -> Iterator[tuple[Head, bytes]]:
        """The batches, once."""
        with self._disk.read(self._name) as source:
            total = source.seek(0, SEEK_END)
            source.seek(self.position)
            while self.position < total:
                left = total - self.position
                data = source.read(HEADER_SIZE)
                head = _head(data, 0)
                if head is None or head.size > left:
                    self.fault = f"{0 if head is None else head.size} bytes of a batch, where {left} are left"
                else:
                    data += source.read(head.size - HEADER_SIZE)
                    self.fault = self._fault(data, head)
                if self.fault or head is None:
                    source.seek(self.position)
                    self.rest = source.read(left)
                    if head is None and _is_foreign(self.rest):
                        self.fault = _FOREIGN
                    return
                self.position += head.size
                self.end = head.base_offset + head.last_offset_delta + 1
                self._least_epoch = head.leader_epoch
                yield head, data

    def _fault(self, data: bytes, head: Head) -> str:
        if not _is_whole(data, 0, head):
            return "a batch with a wrong checksum"
        if head.base_offset != self.end and not (self._has_gaps and head.base_offset > self.end):
            return f"a batch of offset {head.base_offset} where {self.end} is due"
        if head.last_offset_delta < 0:  # where there are no records, decoding does not notice
            return f"a batch with a last offset delta of {head.last_offset_delta}"
        if head.leader_epoch < self._least_epoch:
            return f"a batch of leader epoch {head.leader_epoch} after one of {self._least_epoch}"
        if head.leader_epoch > self._greatest_epoch:
            return f"a batch of leader epoch {head.leader_epoch}"
        return ""

    def is_torn(self, *, synced: bool) -> bool:
        """Return whether `rest`, in the last file of a log, can be what a crash leaves of the last write.

        :param synced: each write was synced before the next began, so that nothing was ever written after a batch that
            is not whole: a length that ends before the file does is damage. Without that a length which goes on after
            the end of the file is believed, whatever whole batches the records seem to hold; and what would take too
            long to tell counts as damage
        """
        if self.fault == _FOREIGN:
            return False
        head = _head(self.rest, 0)
        if head is not None:
            epochs = range(self._least_epoch, self._greatest_epoch + 1)
            in_order = head.base_offset == self.end and head.leader_epoch in epochs
            if in_order and (head.size < len(self.rest) if synced else head.size > len(self.rest)):
                return not synced
            if _is_whole(self.rest, 0, head):
                # The checksum does not cover the offset. A crash damages only that if a sector ends right after it.
                ends_in_offset = self.position % SECTOR > SECTOR - AT_CRC
                return not in_order and head.size == len(self.rest) and ends_in_offset
        return not self._may_hold_a_batch(None if synced else _MOST_WORK * len(self.rest))

    def _may_hold_a_batch(self, work: int | None) -> bool:
        """Return whether `rest` has a whole batch of a later offset behind its first byte.

        :param work: bytes of checksums after which it counts as one that has; None for no bound
        """
        at = self.rest.find(_MAGIC, AT_MAGIC + 1)
        while at >= 0:
            begin = at - AT_MAGIC
            head = _head(self.rest, begin)
            if head is not None and head.base_offset >= self.end and head.size <= len(self.rest) - begin:
                work = None if work is None else work - head.size
                if (work is not None and work < 0) or _is_whole(self.rest, begin, head):
                    return True
            at = self.rest.find(_MAGIC, at + 1)
        return False


def read_segments(
    disk: Disk, names: Sequence[str], end: int, *, last: bool = True, position: int = 0
) -> Iterator[tuple[str, RecordBatch]]:
    """Yield the batches of segments that follow one another, each with the name of its file, of a log whose writes are
    each synced before the next.

    :param end: offset of the first batch
    :param last: whether the log ends with them: the last batch is left out if a crash has damaged it
    :param position: byte of the first file at which the first batch begins
    :raises CorruptLogError: there is any other damage
    """
    for name in names:
        if not position and base_offset(name) != end:
            raise CorruptLogError(name, 0, f"begins at offset {base_offset(name)} where {end} is due")
        scan = SegmentScan(disk, name, end, position=position)
        for head, data in scan:
            at = scan.position - head.size
            if head.attributes not in _KINDS:  # nothing is decompressed
                raise CorruptLogError(name, at, _FOREIGN)
            try:
                batch = decode_batch(memoryview(data), at, _CHECKED)
            except DecodeError as error:
                raise CorruptLogError(name, at, str(error)) from None
            if batch.is_transactional != (batch.producer_id >= 0):  # batches of transactions alone have a producer
                raise CorruptLogError(name, at, _FOREIGN)
            yield name, batch
        if scan.fault and not (last and name == names[-1] and scan.is_torn(synced=True)):
            raise CorruptLogError(name, scan.position, scan.fault)
        end, position = scan.end, 0
