"""Files of a log: their names, damage that no crash explains, and writes that are made whole or not at all.

Laws:

* After a failed write the file is cut back at once, so that a process that dies now leaves nothing that was refused;
  if that fails too, before the next write.
* `write_file` makes a file that is durable, but its name is not before `Disk.sync_names`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from kcoord_wire.kernel.disk import Disk, DiskFile

_SEGMENT: Final = re.compile(r"\d{20}\.log")


class CorruptLogError(Exception):
    """The log is damaged in a way that no crash explains, or was written by another program.

    :ivar file: name of the file
    :ivar position: byte in it at which the bad batch or line begins
    :ivar reason: what is wrong with it
    """

    def __init__(self, file: str, position: int, reason: str) -> None:
        super().__init__(f"{file} at byte {position}: {reason}")
        self.file = file
        self.position = position
        self.reason = reason


def segment_name(offset: int) -> str:
    """Return the name of the segment that begins at `offset`."""
    return f"{offset:020}.log"


def base_offset(name: str) -> int:
    """Return the offset at which a segment begins, from its name."""
    return int(name.partition(".")[0])


def segment_names(names: Iterable[str]) -> list[str]:
    """Return those that are names of segments, in the order of their offsets."""
    return sorted(name for name in names if _SEGMENT.fullmatch(name))


class Tail:
    """The end of a file that is being written.

    :param is_dirty: whether a write has left something behind it
    :ivar size: bytes of the file without what a failed write has left
    """

    __slots__ = ("_is_dirty", "size")

    def __init__(self, size: int = 0, *, is_dirty: bool = False) -> None:
        self.size = size
        self._is_dirty = is_dirty

    def write(self, file: DiskFile, data: bytes | bytearray, *, sync: bool) -> None:
        """Append to the file. OSError: the disk fails, and the file counts as it was.

        :param sync: make its content durable
        """
        if self._is_dirty:
            file.truncate(self.size)
            self._is_dirty = False
        try:
            file.append(data)
            if sync:
                file.sync()
            self.size += len(data)
        except BaseException:
            self._is_dirty = True
            with suppress(OSError):
                file.truncate(self.size)
                self._is_dirty = False
            raise


def write_file(disk: Disk, name: str, parts: Iterable[bytes]) -> int:
    """Make a file, or replace it, sync it, and return its size. OSError: the disk fails."""
    tail = Tail()
    file = disk.open(name, new=True)
    try:
        for part in parts:
            tail.write(file, part, sync=False)
        file.sync()
    finally:
        file.close()
    return tail.size
