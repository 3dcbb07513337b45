"""Compression and decompression, the latter never beyond a limit.

Laws:

* The limit holds while decompressing: output goes to a buffer that cannot grow past it. The size in a header is trusted
  only to refuse earlier.
* What an `Allowance` has left is a limit as well. Output takes from it; what fails takes as much as the limit, because
  how far a library came is not known.
* Memory is at most twice the bytes really decompressed, whatever the limit and the claimed size are.
* Input that ends early, has trailing bytes or does not decompress is a `DecodeError` of kind ``compression``, offset 0.
* Output that Kafka's own reader accepts: gzip; snappy in xerial framing; LZ4 frames of independent 64 KiB
  blocks; zstd. Input may be more: several gzip members, raw snappy, any LZ4 or zstd frames.
* The checksum of an LZ4 frame's header is written as Kafka computed it for magic 0, over the frame's magic number too
  (KAFKA-3160), and read either way: Kafka's reader ignores it there. Only inputs of fewer than 16 bytes are hashed, so
  the short half of XXH32 is all that is needed.

Source: kafka/clients `Compression` classes, `Lz4BlockOutputStream.java`; xerial `SnappyOutputStream.java`; snappy's
`format_description.txt`; the LZ4 frame format and XXH32 specifications; KIP-110.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from typing import Final

from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.extras import require
from kcoord_wire.records.limits import Allowance
from kcoord_wire.records.model import Compression

_MAGIC_SIZE: Final = 4
_CONTENT_SIZE_FLAG: Final = 0x08
_DICTIONARY_ID_FLAG: Final = 0x01

_MASK: Final = 0xFFFFFFFF
_PRIME_1: Final = 0x9E3779B1
_PRIME_2: Final = 0x85EBCA77
_PRIME_3: Final = 0xC2B2AE3D
_PRIME_4: Final = 0x27D4EB2F
_PRIME_5: Final = 0x165667B1


def with_specified_checksum(frame: bytes) -> bytes:
    """`frame` with the header checksum that any LZ4 library accepts; one too short to have it is returned as it is."""
    return _replaced(frame, _MAGIC_SIZE)


def with_kafka_checksum(frame: bytes) -> bytes:
    """`frame`, whose header has no optional fields, with the checksum that Kafka expects in magic 0."""
    return _replaced(frame, 0)


def _replaced(frame: bytes, hashed_from: int) -> bytes:
    if len(frame) <= _MAGIC_SIZE:
        return frame
    flags = frame[_MAGIC_SIZE]
    at = _MAGIC_SIZE + 2 + (8 if flags & _CONTENT_SIZE_FLAG else 0) + (4 if flags & _DICTIONARY_ID_FLAG else 0)
    if len(frame) <= at:
        return frame
    checksum = _xxh32_short(frame[hashed_from:at]) >> 8 & 0xFF
    return frame[:at] + bytes((checksum,)) + frame[at + 1 :]


def _xxh32_short(data: bytes) -> int:
    """XXH32 with seed 0 of fewer than 16 bytes."""
    words = len(data) // 4 * 4
    value = _PRIME_5 + len(data)
    for at in range(0, words, 4):
        value = value + int.from_bytes(data[at : at + 4], "little") * _PRIME_3 & _MASK
        value = (value << 17 | value >> 15) * _PRIME_4 & _MASK
    for byte in data[words:]:
        value = value + byte * _PRIME_5 & _MASK
        value = (value << 11 | value >> 21) * _PRIME_1 & _MASK
    value = (value ^ value >> 15) * _PRIME_2 & _MASK
    value = (value ^ value >> 13) * _PRIME_3 & _MASK
    return value ^ value >> 16


_GZIP_WINDOW: Final = 31  # for zlib: a gzip header and trailer, a 32 KiB window
_GZIP_STEP: Final = 1 << 14  # the bytes behind a member are copied once per member, so they must be few

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = struct.Struct(">8sii")
_XERIAL_BLOCK: Final = 32 * 1024  # the block size of xerial's own writer
_INT32: Final = struct.Struct(">i")
_SNAPPY_MAX_RATIO: Final = 22  # a copy of 64 bytes takes three: no valid block grows by more than 64/3


def decompress(
    codec: Compression, data: bytes, *, limit: int, magic: int = 2, allowance: Allowance | None = None
) -> bytes:
    """Return the decompressed bytes of `data`.

    :param limit: greatest size of the result, in bytes
    :param magic: of the batch or message that `data` was in; LZ4 differs for magic 0
    :param allowance: what is left for all that is decompressed of a file
    :raises DecodeError: ``compression``
    :raises MissingLibraryError: the extra ``records`` is not installed
    """
    if allowance is None or codec is Compression.NONE:
        return _decompressed(codec, data, limit, magic)
    most = min(limit, allowance.left)
    if most <= 0:
        raise _used_up(allowance)
    allowance.left -= most
    try:
        plain = _decompressed(codec, data, most, magic)
    except DecodeError as error:
        raise (_used_up(allowance) if most < limit and error.detail == _too_large(most).detail else error) from None
    allowance.left += most - len(plain)
    return plain


def _decompressed(codec: Compression, data: bytes, limit: int, magic: int) -> bytes:
    if codec is Compression.GZIP:
        return _gunzip(data, limit)
    if codec is Compression.SNAPPY:
        return _unsnappy(data, limit)
    if codec is Compression.LZ4:
        return _into_bounded("lz4", with_specified_checksum(data) if magic == 0 else data, limit)
    if codec is Compression.ZSTD:
        return _into_bounded("zstd", data, limit)
    return data


def compress(codec: Compression, data: bytes, *, magic: int = 2) -> bytes:
    """Return `data` compressed, as Kafka's own reader accepts it.

    :param magic: of the batch or message that the result goes into
    :raises EncodeError: ``version``: zstd needs magic 2; ``range``: a number that is not a codec
    :raises MissingLibraryError: the extra ``records`` is not installed
    """
    if codec not in list(Compression):
        raise EncodeError("range", "compression", f"no codec has number {codec}")
    codec = Compression(codec)
    if codec is Compression.GZIP:
        deflate = zlib.compressobj(wbits=_GZIP_WINDOW)
        return deflate.compress(data) + deflate.flush()
    if codec is Compression.SNAPPY:
        return _snappy(data)
    if codec is Compression.LZ4:
        compressor = require("cramjam", "records", "lz4").lz4.Compressor(content_checksum=False, block_linked=False)
        compressor.compress(data)
        frame = bytes(compressor.finish())
        return with_kafka_checksum(frame) if magic == 0 else frame
    if codec is Compression.ZSTD:
        if magic < 2:
            raise EncodeError("version", "compression", f"zstd needs magic 2, not {magic}")
        return bytes(require("cramjam", "records", "zstd").zstd.compress(data))
    return data


def _failed(detail: str) -> DecodeError:
    return DecodeError("compression", 0, "compressed", detail)


def _too_large(limit: int) -> DecodeError:
    return _failed(f"decompresses to more than {limit} bytes")


def _used_up(allowance: Allowance) -> DecodeError:
    return _failed(f"would decompress to more than is left of the {allowance.total} bytes for the whole file")


def _gunzip(data: bytes, limit: int) -> bytes:
    out = bytearray()
    view = memoryview(data)
    inflate = zlib.decompressobj(_GZIP_WINDOW)
    pos = 0
    while pos < len(view):
        if inflate.eof:
            inflate = zlib.decompressobj(_GZIP_WINDOW)
        step = view[pos : pos + _GZIP_STEP]
        try:
            out += inflate.decompress(step, limit - len(out) + 1)
        except zlib.error as error:
            raise _failed(f"gzip: {error}") from None
        if len(out) > limit:
            raise _too_large(limit)
        pos += len(step) - len(inflate.unused_data)
    if not inflate.eof:
        raise _failed("gzip: truncated")
    return bytes(out)


def _into_bounded(name: str, data: bytes, limit: int) -> bytes:
    library = require("cramjam", "records", name)
    # Anonymous pages use memory only once written, so the limit costs address space, and only the output memory.
    with mmap.mmap(-1, limit + 1) as out:
        try:
            size: int = getattr(library, name).decompress_into(data, out)
        except library.DecompressionError as error:
            if "whole buffer" in str(error):
                raise _too_large(limit) from None
            raise _failed(f"{name}: {error}") from None
        if size > limit:
            raise _too_large(limit)
        return out[:size]


def _unsnappy(data: bytes, limit: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _unsnappy_block(data, limit, 0)
    if len(data) < _XERIAL_HEADER.size:
        raise _failed("snappy: truncated header")
    out = bytearray()
    pos = _XERIAL_HEADER.size
    while pos < len(data):
        if len(data) - pos < 4:
            raise _failed("snappy: truncated block length")
        (size,) = _INT32.unpack_from(data, pos)
        pos += 4
        if not 0 <= size <= len(data) - pos:
            raise _failed(f"snappy: a block of {size} bytes where {len(data) - pos} are left")
        out += _unsnappy_block(data[pos : pos + size], limit, len(out))
        pos += size
    return bytes(out)


def _unsnappy_block(block: bytes, limit: int, before: int) -> bytes:
    library = require("cramjam", "records", "snappy")
    try:
        size: int = library.snappy.decompress_raw_len(block)
        if before + size > limit:
            raise _too_large(limit)
        if size > _SNAPPY_MAX_RATIO * len(block):
            raise _failed(f"snappy: {len(block)} bytes cannot hold {size}")
        out = bytearray(size)
        written: int = library.snappy.decompress_raw_into(block, out)
    except library.DecompressionError as error:
        raise _failed(f"snappy: {error}") from None
    return bytes(out[:written])


def _snappy(data: bytes) -> bytes:
    library = require("cramjam", "records", "snappy")
    out = bytearray(_XERIAL_HEADER.pack(_XERIAL_MAGIC, 1, 1))
    for at in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(library.snappy.compress_raw(data[at : at + _XERIAL_BLOCK]))
        out += _INT32.pack(len(block)) + block
    return bytes(out)
