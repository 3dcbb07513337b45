"""Batches out of bytes, whatever their magic.

Laws:

* Every magic has an int64, an int32 size of what follows it, and its magic byte at 16; this module knows no more.
* Batches are yielded one by one, so that those before an error are read.
* A last batch that is cut short, as at the end of a fetch response, is an error unless the caller allows it.

Source: kafka/clients `ByteBufferLogInputStream.java`, `Records.java`; KIP-74.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from kcoord_wire.errors import DecodeError
from kcoord_wire.records.batch import decode_batch
from kcoord_wire.records.decoding import DEFAULT_MAX_DECOMPRESSED, DEFAULT_MAX_DEPTH, DEFAULT_MAX_OBJECTS, ReadLimits
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
    :param max_objects: records and headers together that one batch may hold, see `decoding.ReadLimits`
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
