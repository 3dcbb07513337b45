"""Batches out of bytes, whatever their magic.

Laws:

* Every magic has an int64, an int32 size of what follows it, and its magic byte at 16; that is all this module knows.
* Batches come one by one: what was read before an error was read.
* A last batch that is cut short, as at the end of a fetch response, is an error unless the caller says it may be there.

Source: kafka/clients `ByteBufferLogInputStream.java`, `Records.java`; KIP-74.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from kcoord_wire.errors import DecodeError
from kcoord_wire.records.batch import decode_batch
from kcoord_wire.records.decoding import (
    DEFAULT_MAX_DECOMPRESSED,
    DEFAULT_MAX_DEPTH,
    DEFAULT_MAX_OBJECTS,
    ReadLimits,
)
from kcoord_wire.records.message_set import MIN_ENTRY_SIZE, decode_message_set
from kcoord_wire.records.model import Batch

__all__ = ["PREFIX_SIZE", "batch_size", "decode_any", "read_records"]

_SIZE = struct.Struct(">8xi")
PREFIX_SIZE = _SIZE.size
_AT_SIZE = 8
_AT_MAGIC = 16


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
    """The batches in `data`: the records field of a fetch response or produce request, or a piece of a log.

    :param max_decompressed: bytes that one batch may decompress to
    :param max_depth: how many wrappers may lie around a message of magic 0 or 1
    :param max_objects: records and headers together that one batch may hold, see `decoding.ReadLimits`
    :param check_crc: False skips all checksums
    :param strict: False accepts what Kafka's readers accept
    :param allow_partial: True ends quietly before a last batch that is cut short
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
    """How many bytes the batch has, itself included, whose first `PREFIX_SIZE` bytes are given.

    :raises DecodeError: ``length``
    """
    size: int = _SIZE.unpack(prefix)[0] + PREFIX_SIZE
    if size < MIN_ENTRY_SIZE:
        raise DecodeError("length", position + _AT_SIZE, "Batch.size", f"{size} bytes are less than any batch has")
    return size


def decode_any(entry: memoryview, position: int, limits: ReadLimits) -> Batch:
    """The batch that fills `entry`, which `batch_size` has measured.

    :raises DecodeError: offset counted from the start of what has `entry` at `position`
    """
    magic = entry[_AT_MAGIC]
    if magic == 2:
        return decode_batch(entry, position, limits)
    if magic < 2:
        return decode_message_set(entry, position, limits)
    raise DecodeError("version", position + _AT_MAGIC, "Batch.magic", f"magic {magic} is not known")
