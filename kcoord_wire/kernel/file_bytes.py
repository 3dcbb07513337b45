"""The bytes of a file that another process may be writing, asked for by their place.

    with path.open("rb", buffering=0) as file:
        data = FileBytes(file)
        data.read(data.size - 4, 4)

Laws:

* What the file had when it was opened is read, and nothing that is appended later.
* Where the file has become shorter, a `FileCutError` says so. A mapped file would end the process instead (SIGBUS):
  tcpdump that is started again empties its file, a follower truncates its log, logrotate copies and truncates.
* Memory holds a window of the file. Only `advance` moves it, so that a look far ahead costs a small read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from os import SEEK_END
from struct import Struct
from typing import Any, BinaryIO, Final

WINDOW: Final = 1 << 20
"""Bytes that are held, unless more are asked for."""

_MARGIN: Final = 4096  # fewer bytes than this behind a place are no window for it
_FIRST_PIECE: Final = 1024  # what is searched for is often near


class FileCutError(OSError):
    """The file has become shorter since it was opened.

    :param size: bytes that it had
    :param now: bytes that it has
    """

    def __init__(self, size: int, now: int) -> None:
        super().__init__(f"the file was cut from {size} to {now} bytes while it was read")


def cut_off(file: BinaryIO, size: int) -> FileCutError | None:
    """Return the error that a file has become shorter than it was, if it has.

    :param size: bytes that it had when the reading began; where it was read beyond them, nothing is lost
    """
    position = file.tell()
    now = file.seek(0, SEEK_END)
    file.seek(position)
    return FileCutError(size, now) if now < size and position < size else None


class FileBytes:
    """The bytes of a file.

    :param file: seekable; best unbuffered, because a window is a buffer
    :param window: bytes that are held
    :ivar size: how many it had when this was made
    :ivar held: those in the window
    :ivar base: where they begin
    """

    __slots__ = ("_file", "_window", "base", "held", "size")

    def __init__(self, file: BinaryIO, window: int = WINDOW) -> None:
        self._file, self._window = file, window
        self.size = file.seek(0, SEEK_END)
        self.held = b""
        self.base = 0

    def advance(self, position: int, ahead: int = _MARGIN) -> None:
        """Have the window hold what follows a place.

        :param ahead: bytes behind it that are held in any case, less than a window
        :raises FileCutError: the file is shorter than it was, here or elsewhere
        """
        until = self.base + len(self.held)
        if self.base <= position and (position + ahead <= until or until == self.size):
            return
        now = self._file.seek(0, SEEK_END)
        if now < self.size:
            raise FileCutError(self.size, now)
        self.held = self._load(position, min(self._window, self.size - position))
        self.base = position

    def read(self, position: int, size: int) -> bytes:
        """Return the bytes from a place on, fewer where the file ends.

        :raises FileCutError: some of them are not there any more
        """
        at = position - self.base
        if at >= 0 and at + size <= len(self.held):
            return self.held[at : at + size]
        return self._load(position, max(0, min(size, self.size - position)))

    def unpack(self, struct: Struct, position: int) -> tuple[Any, ...]:
        """Return the values at a place; they have to end before the file does.

        :raises FileCutError: they are not there any more
        """
        at = position - self.base
        if at >= 0 and at + struct.size <= len(self.held):
            return struct.unpack_from(self.held, at)
        return struct.unpack(self._load(position, struct.size))

    def places(self, pattern: re.Pattern[bytes], start: int, stop: int, width: int) -> Iterator[int]:
        """Yield where a pattern matches, in order; what is read is at most twice as far as the last place taken.

        :param pattern: matches at each place by itself, as a lookahead does
        :param width: bytes from a place that decide whether it matches there; they end before `stop`
        :raises FileCutError: some of the bytes are not there any more
        """
        size = _FIRST_PIECE
        while start + width <= stop:
            piece = self.read(start, min(size, stop - start))
            for match in pattern.finditer(piece):
                yield start + match.start()
            start += len(piece) - width + 1
            size = min(2 * size, WINDOW)

    def _load(self, position: int, size: int) -> bytes:
        self._file.seek(position)
        data = self._file.read(size)
        while 0 < len(data) < size and (more := self._file.read(size - len(data))):
            data += more
        if len(data) < size:
            raise FileCutError(self.size, position + len(data))
        return data
