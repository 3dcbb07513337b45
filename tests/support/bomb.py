"""Reads a batch whose records are 1 GiB of zeros, limited to 16 MiB, and prints the error and the memory taken.

Usage: bomb.py build CODEC FILE, then bomb.py read FILE: two processes, because a process has one peak.
"""

from __future__ import annotations

import json
import resource
import struct
import sys
import zlib

import cramjam
import crc32c

from kcoord_wire.errors import DecodeError
from kcoord_wire.records import Compression, Record, encode_batch, read_records

PIECES = 1024
ZEROS = bytes(1 << 20)
LIMIT = 16 << 20


def packed_zeros(codec: Compression) -> bytes:
    if codec is Compression.GZIP:
        deflate = zlib.compressobj(wbits=31)
        return b"".join(deflate.compress(ZEROS) for _ in range(PIECES)) + deflate.flush()
    if codec is Compression.SNAPPY:
        block = bytes(cramjam.snappy.compress_raw(ZEROS))
        return b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01" + (struct.pack(">i", len(block)) + block) * PIECES
    compressor = {Compression.LZ4: cramjam.lz4, Compression.ZSTD: cramjam.zstd}[codec].Compressor()
    out = []
    for _ in range(PIECES):
        compressor.compress(ZEROS)
        out.append(bytes(compressor.flush()))
    return b"".join(out) + bytes(compressor.finish())


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def build(codec: Compression, path: str) -> None:
    data = bytearray(encode_batch([], compression=codec) + packed_zeros(codec))
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">i", data, 57, 1)
    struct.pack_into(">I", data, 17, crc32c.crc32c(memoryview(data)[21:]))
    with open(path, "wb") as file:
        file.write(data)


def read(path: str) -> None:
    with open(path, "rb") as file:
        data = file.read()
    list(read_records(encode_batch([Record(value=b"warm")], compression=Compression.ZSTD)))
    before = peak_mib()
    try:
        list(read_records(data, max_decompressed=LIMIT))
    except DecodeError as error:
        # The reader copies what is compressed once; the rest of the growth is what was decompressed.
        grown = peak_mib() - before - len(data) / (1 << 20)
        print(json.dumps({"kind": error.kind, "detail": error.detail, "grown_mib": grown, "bomb_bytes": len(data)}))


if sys.argv[1] == "build":
    build(Compression[sys.argv[2]], sys.argv[3])
else:
    read(sys.argv[2])
