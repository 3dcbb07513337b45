"""One file of a partition's log: record batches, found by an index in memory.

Laws:

* The file has Kafka's format, and is named after the offset of its first record as Kafka names it.
* What compaction makes of some files is a file ``.cleaned`` until it is whole, and then ``.swap``, with the offset at
  which they end in its name: from then on it counts in their place, whatever of them a crash leaves there.
* The index has 24 bytes for each batch: its last offset, its greatest timestamp, its place. Records are on the disk.
* Only batches that were written as a whole are in the index.
* When a file is read, it ends before the first bad batch, as in Kafka after a crash, or before a control batch whose
  record cannot be read: `Segment.repair` cuts the rest off. What a crash leaves of one write at the end of the log is
  gone; anything else is kept, in a file beside.
* At most so many files are open at a time: there may be more partitions than a process may have open files.

Source: kafka/storage `LogSegment.java` (recover), `LogLoader.java`.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from errno import EIO
from functools import lru_cache
from itertools import count
from typing import Final, NamedTuple

from kcoord_wire.coordinator.partitions.batch_header import Header, read_header
from kcoord_wire.errors import DecodeError
from kcoord_wire.kernel.disk import Disk, DiskFile
from kcoord_wire.log.segments import Head, SegmentScan
from kcoord_wire.log.tail import Tail, base_offset, segment_name, segment_names, write_file
from kcoord_wire.records import ControlRecord, RecordBatch, decode_control_batch, read_records
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
    :param name: of the file, where it is not that of the segment
    :ivar max_timestamp: the greatest of its records; -1 without records
    :ivar stamp: when its last batch was appended, as the partitions of a disk count; 0 for one that was read
    :ivar torn: bytes after the last good batch when the file was read
    :ivar damage: what is wrong with these, where a torn write does not explain it; else empty
    """

    __slots__ = (
        *("_ends", "_files", "_folder", "_name", "_places", "_tail", "_times"),
        *("base_offset", "damage", "max_timestamp", "stamp", "torn"),
    )

    def __init__(self, folder: Disk, files: OpenFiles, base_offset: int, name: str = "") -> None:
        self._folder = folder
        self._files = files
        self._name = name or segment_name(base_offset)
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

    def append(
        self, data: bytes | bytearray, last_offset: int, max_timestamp: int, *, has_records: bool = True
    ) -> None:
        """Write a batch at the end. OSError: the disk fails, and the segment is as before."""
        place = self._tail.size
        self._tail.write(self._files.get(self._folder, self._name), data, sync=False)
        self._add(last_offset, max_timestamp, place, has_records)

    def _add(self, last_offset: int, max_timestamp: int, place: int, has_records: bool) -> None:
        self._ends.append(last_offset)
        self._times.append(max_timestamp if has_records else -1)  # so that no record is looked for by its time
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

    # ---- compaction

    @property
    def first_timestamp(self) -> int:
        """The greatest of its first batch; -1 without records there."""
        return self._times[0] if self._times else -1

    def seal(self, end: int) -> None:
        """Let a file that is whole count in place of those of its offsets, up to `end`. OSError: the disk fails."""
        self._files.get(self._folder, self._name).sync()
        self._rename(f"{segment_name(self.base_offset)}.{end}.swap")

    def install(self, replaced: Iterable[str]) -> None:
        """Remove the files in whose place it counts, and give it its own name. OSError: the disk fails, and what is
        left to do is done at the next start.

        :param replaced: names of files, its own may be one
        """
        name, there = segment_name(self.base_offset), self._folder.sizes()
        others = [each for each in replaced if each in there and each not in (name, self._name)]
        for each in others:
            self._files.close(self._folder, each)
            self._folder.remove(each)
        if others:
            self._folder.sync_names()
        self._files.close(self._folder, name)
        self._rename(name)

    def _rename(self, name: str) -> None:
        self.close()
        self._folder.rename(self._name, name)
        self._name = name
        self._folder.sync_names()  # also the name of the segment that follows: the last of a log has no gaps

    @property
    def name(self) -> str:
        """The name of its file."""
        return self._name

    def batches(self, offset: int = 0) -> Iterator[bytes]:
        """Yield each batch, from the one with `offset` on. OSError: the disk fails."""
        for index in range(bisect_left(self._ends, offset), len(self._ends)):
            yield self._batch(index)

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

    def recover(
        self, partition: str, least_epoch: int, *, last: bool, has_gaps: bool = False
    ) -> Iterator[tuple[Header, Head, bytes]]:
        """Read the file, make the index, and yield each batch.

        :param partition: its name, for errors
        :param least_epoch: leader epoch of the batch before
        :param has_gaps: whether compaction may have left offsets out
        :param last: whether it is the last file of the partition, so that a crash may have torn its last write
        :raises OSError: the disk fails
        """
        scan = _PartitionScan(
            self._folder, self._name, self.base_offset, epochs=(least_epoch, _GREATEST_EPOCH), has_gaps=has_gaps
        )
        for head, data in scan:
            header = read_header(data)
            self._add(scan.end - 1, header.max_timestamp, self.size, header.record_count > 0)
            self._tail.size = scan.position
            yield header, head, data
        self.torn = len(scan.rest)
        if scan.fault and not (last and scan.is_torn(synced=False)):
            self.damage = f"{partition}/{self._name} at byte {scan.position}, offset {scan.end}: {scan.fault}"


class _PartitionScan(SegmentScan):
    """Reads batches of a partition, whose control batches have a record that says what they are for."""

    def _fault(self, data: bytes, head: Head) -> str:
        fault = super()._fault(data, head)
        is_compacted = self._has_gaps and not read_header(data).record_count
        if not fault and head.attributes & CONTROL_BIT and not is_compacted:
            try:
                control_record(data)
            except DecodeError as error:
                return f"a control batch that cannot be read: {error}"
        return fault


_SWAP: Final = re.compile(r"(\d{20})\.log\.(\d{1,19})\.swap")
_CLEANED: Final = ".cleaned"


def cleaned_name(base_offset: int) -> str:
    """Return the name of a file that compaction writes."""
    return segment_name(base_offset) + _CLEANED


class Found(NamedTuple):
    """The files of a partition.

    :ivar names: of those with its batches, in their order
    :ivar replaced: those in whose place one of these counts, by its name
    :ivar unfinished: what a crash has left of compaction
    """

    names: list[str]
    replaced: dict[str, list[str]]
    unfinished: list[str]


def find_files(names: Iterable[str]) -> Found:
    """Return which of the files in a partition's folder are which."""
    names = list(names)
    segments = set(segment_names(names))
    replaced = {}
    for match in filter(None, map(_SWAP.fullmatch, sorted(names))):
        covered = range(int(match[1]), max(int(match[2]), int(match[1]) + 1))
        replaced[match[0]] = sorted(name for name in segments if base_offset(name) in covered)
        segments.difference_update(replaced[match[0]])
    unfinished = [name for name in names if name.endswith(f".log{_CLEANED}")]
    return Found(sorted({*segments, *replaced}), replaced, unfinished)


MOST_READ: Final = 50_000
"""Records of a batch that are read, in 0.15 s: a few compressed bytes may hold millions."""

_MOST_DECOMPRESSED: Final = 16 << 20


def decoded(data: bytes) -> RecordBatch | None:
    """Return a batch with its records; None if they cannot be read, or are more than `MOST_READ`."""
    if read_header(data).record_count > MOST_READ:
        return None
    try:
        (batch,) = read_records(data, check_crc=False, strict=False, max_decompressed=_MOST_DECOMPRESSED)
    except DecodeError:
        return None
    assert isinstance(batch, RecordBatch), "producers' batches have magic 2"
    return batch


@lru_cache(1)  # the same in each partition of a transaction, which may be thousands
def control_record(data: bytes) -> ControlRecord:
    """Return the record of a control batch; errors as `decode_control_batch`."""
    return decode_control_batch(decode_batch(memoryview(data), 0, _CHECKED))
