"""The checksum byte of an LZ4 frame header, as specified and as Kafka once computed it.

Laws:

* The specified checksum covers the descriptor: flags, block size, and the optional content size and dictionary id.
* Kafka's for magic 0 also covered the four bytes of the frame's magic number (KAFKA-3160). Kafka's reader ignores the
  byte there, because clients of that time wrote either.
* Only inputs of fewer than 16 bytes are hashed, so the short half of XXH32 is all that is needed.

Source: the LZ4 frame format and XXH32 specifications; kafka/clients `Lz4BlockOutputStream.java`.
"""

from __future__ import annotations

from typing import Final

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
