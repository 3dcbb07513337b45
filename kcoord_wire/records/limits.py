"""What the decoders and encoders of records share: limits, the place of an error, assigned offsets, checked widths.

Laws:

* Inner readers know the field, outer ones the batch. An inner reader counts offsets from the start of its own bytes;
  each outer reader adds the bytes before them.
* Bytes that exist only after decompression have no offset in the caller's buffer: theirs is that of their batch.
* A writer keeps a given offset; -1 becomes the one after its predecessor's, or the base offset for the first record.
  Offsets ascend, and none is below the base offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.records.model import NO_OFFSET, Record

DEFAULT_MAX_DECOMPRESSED: Final = 64 * 1024 * 1024
DEFAULT_MAX_DEPTH: Final = 1
DEFAULT_MAX_OBJECTS: Final = 1 << 20

OBJECTS_PER_BYTE: Final = 16
"""Records and headers for each byte of a batch as it is stored. One record repeated compresses without limit, to 1,700
a byte; but Kafka's brokers refuse a batch whose offset deltas do not ascend (`LogValidator`), and with these the
smallest records compress to 1.7 a byte (zstd, 100,000 records of 7 bytes)."""


class Allowance:
    """Bytes that the batches of a file may decompress to together: with `max_decompressed` alone, 2 KB can be 64 MiB.

    :ivar total: how many there were at first
    :ivar left: how many there are
    """

    __slots__ = ("left", "total")

    def __init__(self, total: int) -> None:
        self.left = self.total = total


class ReadLimits(NamedTuple):
    """The options of `read_records`, as every decoder takes them.

    :ivar max_decompressed: bytes that one batch, or one outer message with all that is nested in it, may decompress to
    :ivar max_depth: how many wrappers may lie around a message of magic 0 or 1; Kafka writes one
    :ivar check_crc: compare checksums before anything else is read
    :ivar strict: refuse what Kafka's writers never write, even where Kafka's readers accept it
    :ivar max_objects: records and headers together that one batch may hold. Memory follows these, at about 300 bytes
        each, not the bytes that they are decoded from. Nor may they be more than `OBJECTS_PER_BYTE` for each byte of
        the batch as it is stored, so that the work for a file grows with its size only
    :ivar allowance: what batches may decompress to together, from which they take; None for no bound
    """

    max_decompressed: int = DEFAULT_MAX_DECOMPRESSED
    max_depth: int = DEFAULT_MAX_DEPTH
    check_crc: bool = True
    strict: bool = True
    max_objects: int = DEFAULT_MAX_OBJECTS
    allowance: Allowance | None = None

    def objects_in(self, size: int) -> int:
        """Records and headers that a batch of `size` stored bytes may hold."""
        return min(self.max_objects, OBJECTS_PER_BYTE * size)


def below(parent: str, error: DecodeError) -> DecodeError:
    """`error` with `parent` in front of its path."""
    return DecodeError(error.kind, error.offset, f"{parent}.{error.path}", error.detail)


def moved(error: DecodeError, start: int) -> DecodeError:
    """`error` with its offset counted from a buffer in which its own bytes begin at `start`."""
    return DecodeError(error.kind, start + error.offset, error.path, error.detail)


def pinned(error: DecodeError, offset: int) -> DecodeError:
    """`error`, which is in decompressed bytes, at the `offset` of their batch."""
    return DecodeError(error.kind, offset, error.path, error.detail)


def with_offsets(records: Iterable[Record], base_offset: int | None) -> tuple[list[Record], int]:
    """The records, every offset assigned, and the base offset: the one given, else the first record's, else 0.

    :raises EncodeError: ``range``
    """
    placed: list[Record] = []
    following = base_offset
    for index, record in enumerate(records):
        if record.offset == NO_OFFSET:
            record = replace(record, offset=0 if following is None else following)
        elif following is not None and record.offset < following:
            raise EncodeError("range", f"records[{index}].offset", f"{record.offset} where {following} is the least")
        following = record.offset + 1
        placed.append(record)
    if base_offset is None:
        base_offset = placed[0].offset if placed else 0
    return placed, base_offset


def check_width(path: str, value: int, bits: int) -> None:
    """Refuse an integer that a signed field of `bits` bits cannot hold.

    :raises EncodeError: ``range`` or ``type``
    """
    if not isinstance(value, int):
        raise EncodeError("type", path, f"must be int, not {type(value).__name__}")
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise EncodeError("range", path, f"{value} does not fit {bits} bits")


def encoding_below(parent: str, error: EncodeError) -> EncodeError:
    """`error` with `parent` in front of its path."""
    return EncodeError(error.kind, f"{parent}.{error.path}", error.detail)
