"""What every decoder of records needs: its limits, and where in a batch an error is.

Laws:

* Inner readers know the field, outer ones the batch. An inner reader counts offsets from the start of its own bytes;
  each outer reader adds the bytes before them.
* Bytes that exist only after decompression have no offset in the caller's buffer: theirs is that of their batch.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kcoord_wire.errors import DecodeError

DEFAULT_MAX_DECOMPRESSED: Final = 64 * 1024 * 1024
DEFAULT_MAX_DEPTH: Final = 1
DEFAULT_MAX_OBJECTS: Final = 1 << 20

OBJECTS_PER_BYTE: Final = 16
"""Records and headers for each byte of a batch as it is stored. One record repeated compresses without limit, to 1,700
a byte; but Kafka's brokers refuse a batch whose offset deltas do not ascend (`LogValidator`), and with these the
smallest records compress to 1.7 a byte (zstd, 100,000 records of 7 bytes)."""


class ReadLimits(NamedTuple):
    """The options of `read_records`, as every decoder takes them.

    :ivar max_decompressed: bytes that one batch, or one outer message with all that is nested in it, may decompress to
    :ivar max_depth: how many wrappers may lie around a message of magic 0 or 1; Kafka writes one
    :ivar check_crc: compare checksums before anything else is read
    :ivar strict: refuse what Kafka's writers never write, even where Kafka's readers accept it
    :ivar max_objects: records and headers together that one batch may hold. Memory follows these, at about 300 bytes
        each, not the bytes that they are decoded from. Nor may they be more than `OBJECTS_PER_BYTE` for each byte of
        the batch as it is stored, so that the work for a file grows with its size only
    """

    max_decompressed: int = DEFAULT_MAX_DECOMPRESSED
    max_depth: int = DEFAULT_MAX_DEPTH
    check_crc: bool = True
    strict: bool = True
    max_objects: int = DEFAULT_MAX_OBJECTS

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
