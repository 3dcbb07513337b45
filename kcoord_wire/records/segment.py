"""Batches, whatever their magic, out of bytes and out of a log segment.

Laws:

* Every magic has an int64, an int32 size of what follows it, and its magic byte at 16; this module knows no more.
  Magics may be mixed, as in a log that is older than an upgrade.
* Batches are yielded one by one, so that those before an error are read; memory holds one batch of a segment at a time,
  and no batch larger than the limit is read.
* A last batch of bytes that is cut short, as at the end of a fetch response, is an error unless the caller allows it. A
  segment that ends within a batch has a torn tail, as a crash leaves it: iteration ends and `SegmentReader.torn_tail`
  has its place. Anything else that does not decode is a `DecodeError`.

Source: kafka/clients `ByteBufferLogInputStream.java`, `FileLogInputStream.java`, `Records.java`; kafka/storage
`LogSegment.java` (recovery); KIP-74.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Final, Protocol

from kcoord_wire.errors import DecodeError
from kcoord_wire.records.batch import decode_batch
from kcoord_wire.records.limits import DEFAULT_MAX_DECOMPRESSED, DEFAULT_MAX_DEPTH, DEFAULT_MAX_OBJECTS, ReadLimits
from kcoord_wire.records.message_set import MIN_ENTRY_SIZE, decode_message_set
from kcoord_wire.records.model import Batch

_SIZE: Final = struct.Struct(">8xi")
PREFIX_SIZE: Final = _SIZE.size
_AT_SIZE: Final = 8
_AT_MAGIC: Final = 16


def read_records(
    data: bytes | bytearray | memoryview,
    *,
    max_decompressed: int = DEFAULT_MAX_DECOMPRESSED,
    max_depth: int = DEFAULT_MAX_DEPTH,
    max_objects: int = DEFAULT_MAX_OBJECTS,
    check_crc: bool = True,
    strict: bool = True,
    allow_partial: bool = False,
) -> Iterator[Batch]:
    """Yield the batches in `data`: the records field of a fetch response or produce request, or a piece of a log.

    :param max_decompressed: bytes that one batch may decompress to
    :param max_depth: how many wrappers may lie around a message of magic 0 or 1
    :param max_objects: records and headers together that one batch may hold, see `limits.ReadLimits`
    :param check_crc: False skips all checksums
    :param strict: False accepts whatever Kafka's readers accept
    :param allow_partial: True ends without error before a last batch that is cut short
    :raises DecodeError: while iterating; offset in `data`, within compressed bytes that of the batch
    :raises MissingLibraryError: the extra ``records`` is not installed and needed
    """
    limits = ReadLimits(max_decompressed, max_depth, check_crc, strict, max_objects)
    view = memoryview(data).cast("B")
    pos = 0
    while pos < len(view):
        left = len(view) - pos
        size = batch_size(view[pos : pos + PREFIX_SIZE], pos) if left >= PREFIX_SIZE else PREFIX_SIZE
        if size > left:
            if allow_partial:
                return
            detail = f"{size} bytes or more where {left} are left"
            raise DecodeError("truncated", pos + min(_AT_SIZE, left), "Batch.size", detail)
        yield decode_any(view[pos : pos + size], pos, limits)
        pos += size


def batch_size(prefix: bytes | memoryview, position: int) -> int:
    """Return the size of a batch in bytes, from its first `PREFIX_SIZE` bytes.

    :raises DecodeError: ``length``
    """
    size: int = _SIZE.unpack(prefix)[0] + PREFIX_SIZE
    if size < MIN_ENTRY_SIZE:
        raise DecodeError("length", position + _AT_SIZE, "Batch.size", f"{size} bytes are less than any batch has")
    return size


def decode_any(entry: memoryview, position: int, limits: ReadLimits) -> Batch:
    """Return the batch that fills `entry`.

    :param entry: as many bytes as `batch_size` returns
    :param position: of `entry` in the buffer or file; offsets of errors count from the start of that
    :raises DecodeError: the batch does not decode
    """
    magic = entry[_AT_MAGIC]
    if magic == 2:
        return decode_batch(entry, position, limits)
    if magic < 2:
        return decode_message_set(entry, position, limits)
    raise DecodeError("version", position + _AT_MAGIC, "Batch.magic", f"magic {magic} is not known")


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
