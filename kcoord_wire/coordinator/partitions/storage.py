"""What the partitions of a coordinator share: the disk, its open files, and how many bytes are held."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from kcoord_wire.coordinator.partitions.journal import Journal
from kcoord_wire.coordinator.partitions.open_files import OpenFiles
from kcoord_wire.kernel.disk import Disk

if TYPE_CHECKING:
    from kcoord_wire.coordinator.partitions.partition_log import PartitionLog
    from kcoord_wire.coordinator.partitions.segments import Segment

SEGMENT_BYTES: Final = 64 << 20
"""Size of a segment, where retention does not need smaller ones: what is dropped is dropped by segments."""

SEGMENT_OVERHEAD: Final = 2_048
"""Bytes of memory that a segment and its partition need besides records and index."""


class Storage:
    """The disk of the topics.

    :param disk: a folder with a folder for each partition
    :param segment_bytes: a segment that would grow beyond this is followed by another
    :ivar files: the open ones
    :ivar journal: which topics there are
    :ivar held: bytes of all records with what is needed for them in memory
    :ivar grown: partitions that have begun a segment since this was cleared
    """

    def __init__(self, disk: Disk, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.disk = disk
        self.files = OpenFiles()
        self.journal = Journal(disk)
        self.segment_bytes = segment_bytes
        self.held = 0
        self.grown: list[PartitionLog] = []
        self._stamp = 0
        self._oldest: list[tuple[int, int, PartitionLog, Segment]] = []  # heap: by a stamp that may be out of date
        self._segments = 0

    def stamp(self) -> int:
        """Return a number greater than any before."""
        self._stamp += 1
        return self._stamp

    def began(self, log: PartitionLog, segment: Segment) -> None:
        """Note that a partition has a new segment."""
        self._segments += 1
        heapq.heappush(self._oldest, (segment.stamp, self._segments, log, segment))
        self.grown.append(log)

    def adopt(self, logs: Iterable[PartitionLog]) -> None:
        """Note the segments of partitions that were read, which are as old as their latest records."""
        found = [(log, segment) for log in logs for segment in log.segments]
        for log, segment in sorted(found, key=lambda pair: pair[1].max_timestamp):
            segment.stamp = self.stamp()
            self.began(log, segment)

    def close(self) -> None:
        """Close all files."""
        self.files.close_all()
        self.journal.close()

    def oldest(self) -> PartitionLog | None:
        """Return the partition whose first segment was appended to least recently; None if there is no segment."""
        while self._oldest:
            stamp, number, log, segment = self._oldest[0]
            if log.first_segment is not segment:
                heapq.heappop(self._oldest)
            elif segment.stamp != stamp:
                heapq.heapreplace(self._oldest, (segment.stamp, number, log, segment))
            else:
                return log
        return None
