"""A zigzag varint has one form, and is read back as the value; everything else is refused by kind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.records.record import read_varint, write_varint

# The examples of protocol buffers' own documentation for sint32 and sint64, and the ends of both ranges.
KNOWN = [
    (0, 32, "00"),
    (-1, 32, "01"),
    (1, 32, "02"),
    (-2, 32, "03"),
    (63, 32, "7e"),
    (-64, 32, "7f"),
    (64, 32, "8001"),
    (-65, 32, "8101"),
    (2147483647, 32, "feffffff0f"),
    (-2147483648, 32, "ffffffff0f"),
    (2147483647, 64, "feffffff0f"),
    (9223372036854775807, 64, "feffffffffffffffff01"),
    (-9223372036854775808, 64, "ffffffffffffffffff01"),
]


@pytest.mark.parametrize(("value", "bits", "text"), KNOWN)
def test_known_values(value: int, bits: int, text: str) -> None:
    out = bytearray()
    write_varint(out, value, bits)
    assert out.hex() == text
    data = b"\x55" + bytes(out) + b"\xff"
    assert read_varint(data, 1, len(data) - 1, bits) == (value, len(data) - 1)


@pytest.mark.parametrize(
    ("text", "bits", "kind"),
    [
        ("", 32, "truncated"),
        ("80", 32, "truncated"),
        ("ffffffff", 32, "truncated"),
        ("8000", 32, "varint"),
        ("fe00", 64, "varint"),
        ("ffffffffff01", 32, "varint"),
        ("ffffffff1f", 32, "varint"),
        ("ffffffffffffffffff02", 64, "varint"),
        ("ffffffffffffffffffff01", 64, "varint"),
    ],
)
def test_refused(text: str, bits: int, kind: str) -> None:
    data = b"\x00\x00" + bytes.fromhex(text)
    with pytest.raises(DecodeError) as caught:
        read_varint(data, 2, len(data), bits)
    assert (caught.value.kind, caught.value.offset) == (kind, 2)


@pytest.mark.parametrize(
    ("text", "bits", "value"),
    [("8000", 32, 0), ("828000", 32, 1), ("ffffffff1f", 32, -2147483648), ("8080808010", 32, 0)],
)
def test_lenient_reads_as_kafka_does(text: str, bits: int, value: int) -> None:
    data = bytes.fromhex(text)
    assert read_varint(data, 0, len(data), bits, False) == (value, len(data))


@pytest.mark.parametrize(("text", "bits"), [("ffffffffff01", 32), ("ffffffffffffffffffff01", 64), ("80", 32)])
def test_lenient_has_limits_too(text: str, bits: int) -> None:
    data = bytes.fromhex(text)
    with pytest.raises(DecodeError):
        read_varint(data, 0, len(data), bits, False)


@pytest.mark.parametrize(("value", "bits"), [(1 << 31, 32), (-(1 << 31) - 1, 32), (1 << 63, 64), (-(1 << 63) - 1, 64)])
def test_too_wide_to_write(value: int, bits: int) -> None:
    out = bytearray(b"kept")
    with pytest.raises(EncodeError) as caught:
        write_varint(out, value, bits)
    assert caught.value.kind == "range"
    assert out == b"kept"


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_round_trip(value: int) -> None:
    out = bytearray()
    write_varint(out, value, 64)
    assert read_varint(bytes(out), 0, len(out), 64) == (value, len(out))
    for end in range(len(out)):
        with pytest.raises(DecodeError, match="truncated"):
            read_varint(bytes(out), 0, end, 64)
