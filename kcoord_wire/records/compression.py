"""Compressed bytes in, plain bytes out, never more of them than allowed.

Laws:

* The limit holds while decompressing: output goes to a place that cannot grow past it. What a header says about the
  size is believed only where it makes the answer smaller.
* Memory follows what was really decompressed, at most twice over, not the limit and not the claim.
* Input that ends early, goes on too long or does not decompress is a `DecodeError` of kind ``compression``, offset 0.
* Written so that Kafka's own reader accepts it: gzip; snappy in xerial framing; LZ4 frames of independent 64 KiB
  blocks; zstd. Read more widely: several gzip members, raw snappy, any LZ4 or zstd frames.

Source: kafka/clients `Compression` classes; xerial `SnappyOutputStream.java`; snappy's `format_description.txt`;
KIP-110.
"""

from __future__ import annotations

import mmap
import struct
import zlib

from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.extras import require
from kcoord_wire.records.lz4_header import with_kafka_checksum, with_specified_checksum
from kcoord_wire.records.model import Compression

__all__ = ["compress", "decompress"]

_GZIP_WINDOW = 31  # zlib's way to say: a gzip header and trailer around a 32 KiB window
_GZIP_STEP = 1 << 14  # what follows a member is copied once per member, so many tiny members must not cost much each

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = struct.Struct(">8sii")
_XERIAL_BLOCK = 32 * 1024  # the block size of xerial's own writer
_INT32 = struct.Struct(">i")
_SNAPPY_MAX_RATIO = 22  # a copy of 64 bytes takes three: no valid block grows by more than 64/3


def decompress(codec: Compression, data: bytes, *, limit: int, magic: int = 2) -> bytes:
    """The plain bytes of `data`.

    :param limit: greatest size of the result, in bytes
    :param magic: of the batch or message that `data` was in; LZ4 differs for magic 0
    :raises DecodeError: ``compression``
    :raises MissingLibraryError: the extra ``records`` is not installed
    """
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
    """`data`, compressed as Kafka's own reader takes it.

    :param magic: of the batch or message that the result goes into
    :raises EncodeError: ``version``: zstd needs magic 2; ``range``: a number that is no codec
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
    # Anonymous pages exist once written to, so the limit is address space and only the output is memory.
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
