"""One file of a partition's log: record batches, found by an index in memory.

Laws:

* The file has Kafka's format, and is named after the offset of its first record as Kafka names it.
* The index has 24 bytes for each batch: its last offset, its greatest timestamp, its place. Records are on the disk.
* Only batches that were written as a whole are in the index.
* When a file is read, it ends before the first bad batch, as in Kafka after a crash, or before a control batch whose
  record cannot be read: `Segment.repair` cuts the rest off. What a crash leaves of one write at the end of the log is
  gone; anything else is kept, in a file beside.
* At most so many files are open at a time: there may be more partitions than a process may have open files.

Source: kafka/storage `LogSegment.java` (recover), `LogLoader.java`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from errno import EIO
from functools import lru_cache
from itertools import count
from typing import Final

from kcoord_wire.coordinator.partitions.batch_header import Header, read_header
from kcoord_wire.errors import DecodeError
from kcoord_wire.kernel.disk import Disk, DiskFile
from kcoord_wire.log.segments import Head, SegmentScan
from kcoord_wire.log.tail import Tail, segment_name, write_file
from kcoord_wire.records import ControlRecord, decode_control_batch
from kcoord_wire.records.batch import decode_batch
from kcoord_wire.records.limits import ReadLimits
from kcoord_wire.records.model import CONTROL_BIT

_GREATEST_EPOCH: Final = (1 << 31) - 1
_MOST: Final = 256
_CHECKED: Final = ReadLimits(check_crc=False)


class OpenFiles:
    """Files that stay open until others are used more recently.

    :param most: number of files
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._files: OrderedDict[tuple[Disk, str], DiskFile] = OrderedDict()

    def get(self, folder: Disk, name: str, *, new: bool = False) -> DiskFile:
        """Return a file that is open.

        :param new: it is emptied, and made if it is missing
        :raises OSError: it cannot be opened
        """
        key = folder, name
        file = self._files.get(key)
        if file is None or new:
            self.close(folder, name)
            file = self._files[key] = folder.open(name, new=new)
            if len(self._files) > self._most:
                self._files.popitem(last=False)[1].close()
        else:
            self._files.move_to_end(key)
        return file

    def close(self, folder: Disk, name: str) -> None:
        """Close a file if it is open."""
        file = self._files.pop((folder, name), None)
        if file is not None:
            file.close()

    def close_all(self) -> None:
        """Close all files."""
        while self._files:
            self._files.popitem()[1].close()


INDEX_SIZE: Final = 24
"""Bytes of the index for each batch."""

SEGMENT_OVERHEAD: Final = 2_048
"""Bytes of memory that a segment and its partition need besides records and index."""


class Segment:
    """A file of a partition's log.

    :param folder: of the partition
    :param files: what may be open
    :param base_offset: of its first record
    :ivar max_timestamp: the greatest of its records; -1 without records
    :ivar stamp: when its last batch was appended, as the partitions of a disk count; 0 for one that was read
    :ivar torn: bytes after the last good batch when the file was read
    :ivar damage: what is wrong with these, where a torn write does not explain it; else empty
    """

    __slots__ = (
        *("_ends", "_files", "_folder", "_name", "_places", "_tail", "_times"),
        *("base_offset", "damage", "max_timestamp", "stamp", "torn"),
    )

    def __init__(self, folder: Disk, files: OpenFiles, base_offset: int) -> None:
        self._folder = folder
        self._files = files
        self._name = segment_name(base_offset)
        self._tail = Tail()
        self._ends = array("q")
        self._times = array("q")
        self._places = array("q")
        self.base_offset = base_offset
        self.stamp = self.torn = 0
        self.max_timestamp = -1
        self.damage = ""

    @property
    def size(self) -> int:
        """Bytes of its batches."""
        return self._tail.size

    # ---- writing

    def create(self) -> None:
        """Make the file, empty. OSError: the disk fails."""
        self._files.get(self._folder, self._name, new=True)

    def append(self, data: bytes | bytearray, last_offset: int, max_timestamp: int) -> None:
        """Write a batch at the end. OSError: the disk fails, and the segment is as before."""
        place = self._tail.size
        self._tail.write(self._files.get(self._folder, self._name), data, sync=False)
        self._add(last_offset, max_timestamp, place)

    def _add(self, last_offset: int, max_timestamp: int, place: int) -> None:
        self._ends.append(last_offset)
        self._times.append(max_timestamp)
        self._places.append(place)
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp

    def repair(self) -> str:
        """Cut off what follows the last good batch, and return the name of the file that keeps it, empty where a torn
        write explains it. OSError: the disk fails."""
        name = ""
        if self.torn:
            file = self._files.get(self._folder, self._name)
            if self.damage:
                name = self._free_name(self.size)
                write_file(self._folder, name, [file.read(self.size, self.torn)])
                self._folder.sync_names()
            file.truncate(self.size)
            self.torn = 0
        return name

    def _free_name(self, position: int) -> str:
        """Return a name for what was in the file from `position` on."""
        there = self._folder.sizes()
        names = (f"{self._name}.cut-{position}.{number}" for number in count(1))
        return next(name for name in names if name not in there)

    def close(self) -> None:
        """Close the file, if it is open."""
        self._files.close(self._folder, self._name)

    def set_aside(self) -> tuple[str, int]:
        """Rename the file, so that the log does not have it, and return its new name and its size in bytes. OSError:
        the disk fails."""
        self.close()
        name = self._free_name(0)
        self._folder.rename(self._name, name)
        self._folder.sync_names()
        return name, self._folder.sizes()[name]

    def remove(self) -> None:
        """Remove the file. OSError: the disk fails."""
        self.close()
        self._folder.remove(self._name)
        self._folder.sync_names()

    # ---- reading

    @property
    def held(self) -> int:
        """Bytes of its batches, and of what is needed for them in memory."""
        return self.size + len(self._ends) * INDEX_SIZE + SEGMENT_OVERHEAD

    @property
    def end_offset(self) -> int:
        """The offset after its last record."""
        return self._ends[-1] + 1 if self._ends else self.base_offset

    def read(self, offset: int, end: int, max_bytes: int, first_whole: bool) -> bytes:
        """Return whole batches from the one with `offset` on. OSError: the disk fails.

        :param end: the offset at which they end; a batch begins there, or the segment ends before
        :param first_whole: return the first batch even if it is larger than `max_bytes`
        """
        first = bisect_left(self._ends, offset)
        after = bisect_left(self._ends, end, first)  # the first batch that is left out
        if first == after:
            return b""
        begin = self._places[first]
        if self._place(after) - begin > max_bytes:
            after = max(bisect_right(self._places, begin + max_bytes, first, after) - 1, first)
            if after == first:
                if not first_whole:
                    return b""
                after += 1
        return self._bytes(begin, self._place(after) - begin)

    def bytes_between(self, first: int, end: int) -> int:
        """Return the bytes of its batches from offset `first` up to `end`, where batches begin."""
        at = bisect_left(self._ends, first)
        return self._place(max(bisect_left(self._ends, end), at)) - self._place(at)

    def first_since(self, timestamp: int, offset: int) -> bytes | None:
        """Return the first batch with a record of this time or later, from `offset` on; None if there is none.

        :raises OSError: the disk fails
        """
        if self.max_timestamp >= timestamp:
            for index in range(bisect_left(self._ends, offset), len(self._ends)):
                if self._times[index] >= timestamp:
                    return self._batch(index)
        return None

    def latest(self, offset: int) -> int:
        """Return the greatest timestamp of the batches from `offset` on; -1 if there is none."""
        return max(self._times[bisect_left(self._ends, offset) :], default=-1)

    def _batch(self, index: int) -> bytes:
        begin = self._places[index]
        return self._bytes(begin, self._place(index + 1) - begin)

    def _place(self, index: int) -> int:
        """Return where a batch begins; of the one after the last, where the segment ends."""
        return self._places[index] if index < len(self._places) else self.size

    def _bytes(self, position: int, size: int) -> bytes:
        data = self._files.get(self._folder, self._name).read(position, size)
        if len(data) != size:
            raise OSError(EIO, f"{len(data)} bytes at {position}, where {size} were written", self._name)
        return data

    # ---- reading all of it, at the start

    def recover(self, partition: str, least_epoch: int, *, last: bool) -> Iterator[tuple[Header, Head, bytes]]:
        """Read the file, make the index, and yield each batch.

        :param partition: its name, for errors
        :param least_epoch: leader epoch of the batch before
        :param last: whether it is the last file of the partition, so that a crash may have torn its last write
        :raises OSError: the disk fails
        """
        scan = _PartitionScan(self._folder, self._name, self.base_offset, epochs=(least_epoch, _GREATEST_EPOCH))
        for head, data in scan:
            header = read_header(data)
            self._add(scan.end - 1, header.max_timestamp, self.size)
            self._tail.size = scan.position
            yield header, head, data
        self.torn = len(scan.rest)
        if scan.fault and not (last and scan.is_torn(synced=False)):
            self.damage = f"{partition}/{self._name} at byte {scan.position}, offset {scan.end}: {scan.fault}"


class _PartitionScan(SegmentScan):
    """Reads batches of a partition, whose control batches have a record that says what they are for."""

    def _fault(self, data: bytes, head: Head) -> str:
        fault = super()._fault(data, head)
        if not fault and head.attributes & CONTROL_BIT:
            try:
                control_record(data)
            except DecodeError as error:
                return f"a control batch that cannot be read: {error}"
        return fault


@lru_cache(1)  # the same in each partition of a transaction, which may be thousands
def control_record(data: bytes) -> ControlRecord:
    """Return the record of a control batch; errors as `decode_control_batch`."""
    return decode_control_batch(decode_batch(memoryview(data), 0, _CHECKED))
