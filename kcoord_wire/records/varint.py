"""Zigzag varints, as records (magic 2) use them; not the unsigned ones of flexible messages.

Laws:

* A varint holds 32 bits in at most 5 bytes, a varlong (``bits=64``) 64 bits in at most 10; a longer one is an
  error.
* Strict: the shortest form only, and no bit above the width. Lenient, as Kafka reads: padding is accepted and bits
  above the width are dropped.
* Errors name the first byte of the varint.

Source: kafka/clients `ByteUtils.java`.
"""

from __future__ import annotations

from kcoord_wire.errors import DecodeError, EncodeError


def read_varint(data: bytes, pos: int, end: int, bits: int = 32, strict: bool = True) -> tuple[int, int]:
    """Return the signed integer at `pos`, and the position after it.

    :param end: position that must not be passed
    :param bits: 32 or 64
    :raises DecodeError: ``truncated`` or ``varint``
    """
    if pos < end:
        byte = data[pos]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), pos + 1
        # Two bytes hold most of the rest: a batch is read a sixth faster (tests/bench/records.py).
        if pos + 1 < end and 0 < (second := data[pos + 1]) < 0x80:
            raw = byte & 0x7F | second << 7
            return (raw >> 1) ^ -(raw & 1), pos + 2
    return _read_many(data, pos, end, bits, strict)


def _read_many(data: bytes, pos: int, end: int, bits: int, strict: bool) -> tuple[int, int]:
    raw = shift = 0
    at = pos
    while True:
        if at >= end:
            raise DecodeError("truncated", pos, "varint", "the bytes end within a varint")
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
        if shift >= bits:
            raise DecodeError("varint", pos, "varint", f"more than {at - pos} bytes for {bits} bits")
    if raw >> bits:
        if strict:
            raise DecodeError("varint", pos, "varint", f"does not fit {bits} bits")
        raw &= (1 << bits) - 1
    if strict and byte == 0:
        raise DecodeError("varint", pos, "varint", f"{at - pos} bytes where fewer hold the value")
    return (raw >> 1) ^ -(raw & 1), at


def write_varint(out: bytearray, value: int, bits: int = 32) -> None:
    """Append `value` in its shortest form.

    :param bits: 32 or 64
    :raises EncodeError: ``range``; nothing was appended
    """
    raw = value << 1 if value >= 0 else ~(value << 1)
    if raw >> bits:
        raise EncodeError("range", "varint", f"{value} does not fit {bits} bits")
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
