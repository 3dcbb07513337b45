"""A log segment, batch by batch, from a file or bytes.

Laws:

* Memory holds one batch at a time, and no batch larger than the limit is read.
* Magics may be mixed, as in a log that is older than an upgrade.
* A segment that ends within a batch has a torn tail, as a crash leaves it: iteration ends and
  `SegmentReader.torn_tail` has its place. Anything else that does not decode is a `DecodeError`.

Source: kafka/clients `FileLogInputStream.java`; kafka/storage `LogSegment.java` (recovery).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Final, Protocol

from kcoord_wire.errors import DecodeError
from kcoord_wire.records.decoding import DEFAULT_MAX_DECOMPRESSED, DEFAULT_MAX_DEPTH, DEFAULT_MAX_OBJECTS, ReadLimits
from kcoord_wire.records.model import Batch
from kcoord_wire.records.reader import PREFIX_SIZE, batch_size, decode_any

DEFAULT_MAX_BATCH_SIZE: Final = 100 * 1024 * 1024


class BinaryReader(Protocol):
    """The one method used of a file that is opened for reading in binary mode."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class TornTail:
    """The incomplete batch at the end of a segment.

    :ivar position: its first byte; a segment cut here is whole
    :ivar size: bytes of it that exist
    """

    position: int
    size: int


class SegmentReader:
    """Iterates over the batches of a segment, once.

    :param source: a binary file, read from its current position, or the bytes themselves
    :param position: of `source` in the segment; added to every position and offset
    :param max_batch_size: bytes, as stored; a batch that claims more is a ``length`` error
    :ivar torn_tail: set when the iteration has ended within a batch

    The other parameters are those of `read_records`.
    """

    def __init__(
        self,
        source: BinaryReader | bytes | bytearray | memoryview,
        *,
        position: int = 0,
        max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
        max_decompressed: int = DEFAULT_MAX_DECOMPRESSED,
        max_depth: int = DEFAULT_MAX_DEPTH,
        max_objects: int = DEFAULT_MAX_OBJECTS,
        check_crc: bool = True,
        strict: bool = True,
    ) -> None:
        self.torn_tail: TornTail | None = None
        self._source = BytesIO(source) if isinstance(source, bytes | bytearray | memoryview) else source
        self._position = position
        self._max_batch_size = max_batch_size
        self._limits = ReadLimits(max_decompressed, max_depth, check_crc, strict, max_objects)

    def __iter__(self) -> Iterator[Batch]:
        """The batches.

        :raises DecodeError: while iterating; offset in the segment
        """
        while prefix := self._read(PREFIX_SIZE):
            position = self._position
            entry = bytearray(prefix)
            if len(prefix) == PREFIX_SIZE:
                size = batch_size(prefix, position)
                if size > self._max_batch_size:
                    detail = f"{size} bytes are more than the limit of {self._max_batch_size}"
                    raise DecodeError("length", position + 8, "Batch.size", detail)
                entry += self._read(size - PREFIX_SIZE)
                if len(entry) == size:
                    self._position += size
                    yield decode_any(memoryview(entry), position, self._limits)
                    continue
            self.torn_tail = TornTail(position, len(entry))
            return

    def _read(self, size: int) -> bytes:
        """`size` bytes, or as many as are left; an unbuffered file may return fewer at a time."""
        data = self._source.read(size)
        while 0 < len(data) < size and (more := self._source.read(size - len(data))):
            data += more
        return data
