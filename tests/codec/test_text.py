"""Text-encoded messages: Marshal's own examples, and everything its decoder refuses.

The examples are bytes that the Go library writes, or that its tests read (marshal/message_test.go).
"""

from __future__ import annotations

import gc
import time
from importlib import import_module
from typing import Any

import pytest

from kcoord_wire.codec.registry import make_classes, registry
from kcoord_wire.codec.text import TextProgram, decode_text
from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.schema.plan import compile_plan
from kcoord_wire.schema.reader import read_message
from tests.support.backends import BACKENDS

NAMES = ("Heartbeat", "ClaimingPartition", "ReleasingPartition", "ClaimingMessages", "ReleaseGroup")
EXTENSIONS = ("ClaimingRange", "HandingOver", "IdentifyingTopic", "Presence", "RangeHeartbeat", "ReleasingRange")
BY_TYPE = {codec.schema.text_type: codec for codec in registry.values() if codec.family == "marshal"}

BASE: dict[str, Any] = {"time": 2, "instance_id": "ii", "client_id": "cl", "group_id": "gr", "topic": "t"}
RANGE = {"version": 1, "partition": 3, "topic_id": "Kq-_", "first_offset": 5}
EXAMPLES = [
    ("Heartbeat/4/2/ii/cl/gr/t/3/5", {"version": 4, "partition": 3}, 5),
    ("ClaimingPartition/4/2/ii/cl/gr/t/3", {"version": 4, "partition": 3}, None),
    ("ReleasingPartition/4/2/ii/cl/gr/t/3/7", {"version": 4, "partition": 3}, 7),
    ("ClaimingMessages/4/2/ii/cl/gr/t/3/9", {"version": 4, "partition": 3}, 9),
    ("ReleaseGroup/4/2/ii/cl/gr//0/12", {"version": 4, "partition": 0, "topic": ""}, 12),
    ("Presence/1/2/ii/cl/gr/t/0/8", {"version": 1, "partition": 0}, 8),
    ("HandingOver/1/2/ii/cl/gr/t/3/jj/12", {"version": 1, "partition": 3, "to_instance_id": "jj"}, 12),
    ("IdentifyingTopic/1/2/ii/cl/gr/t/3/Kq-_/0", {"version": 1, "partition": 3, "topic_id": "Kq-_"}, 0),
    (
        "ClaimingRange/1/2/ii/cl/gr/t/3/Kq-_/5/9",
        RANGE,
        9,
    ),
    (
        "RangeHeartbeat/1/2/ii/cl/gr/t/3/Kq-_/5/7",
        RANGE,
        7,
    ),
    (
        "ReleasingRange/1/2/ii/cl/gr/t/3/Kq-_/5/7",
        RANGE,
        7,
    ),
    (
        "ReleasingPartition/1/1795224460/3879dfdf/cl-one/gr.live/test1/0/3",
        {
            "version": 1,
            "time": 1795224460,
            "instance_id": "3879dfdf",
            "client_id": "cl-one",
            "group_id": "gr.live",
            "topic": "test1",
            "partition": 0,
        },
        3,
    ),
]


def test_all_types_are_known() -> None:
    assert sorted(filter(None, BY_TYPE)) == sorted(NAMES + EXTENSIONS)


@pytest.mark.parametrize(("text", "fields", "tail"), EXAMPLES, ids=lambda v: v if isinstance(v, str) else "")
def test_examples(text: str, fields: dict[str, Any], tail: int | None) -> None:
    raw = text.encode()
    codec = BY_TYPE[text.partition("/")[0]]
    for data in (raw, bytearray(raw), memoryview(raw)):
        message = codec.decode(data, 0)
        assert decode_text(data, {codec.schema.text_type or "": _program(codec.name)}) == message
    for name, value in (BASE | fields).items():
        assert getattr(message, name) == value
    if tail is not None:
        assert getattr(message, type(message).__slots__[-1]) == tail
    assert codec.encode(message, 0) == raw
    assert codec.decode_prefix(b"--" + raw, 0, offset=2) == (message, len(raw) + 2)
    assert codec.decode(raw, 0, strict=False) == message


@pytest.mark.parametrize("text", [text for text, _, _ in EXAMPLES])
def test_no_prefix_is_another_message(text: str) -> None:
    codec = BY_TYPE[text.partition("/")[0]]
    digits = len(text) - len(text.rstrip("0123456789"))
    for size in range(len(text) - digits + 1):
        with pytest.raises(DecodeError) as caught:
            codec.decode(text[:size].encode(), 0)
        assert caught.value.kind == "text"


def _program(name: str) -> TextProgram:
    codec = registry[name]
    return TextProgram(codec.schema, codec.plan(0), codec.classes)


@pytest.mark.parametrize(
    ("number", "value"),
    [
        ("+5", 5),
        ("-5", -5),
        ("-0", 0),
        ("007", 7),
        ("0" * 5000 + "9", 9),
        (str(2**63 - 1), 2**63 - 1),
        (str(-(2**63)), -(2**63)),
    ],
    ids=["plus", "minus", "minus zero", "zeros", "5000 zeros", "highest", "lowest"],
)
def test_integers(number: str, value: int) -> None:
    message = registry["Heartbeat"].decode(f"Heartbeat/1/{number}/i/c/g/t/0/0".encode(), 0)
    assert message.time == value


@pytest.mark.skipif("native" not in BACKENDS, reason="the native codec is switched off")
def test_the_plain_form_is_read_natively_and_nothing_else() -> None:
    codec = registry["Heartbeat"]
    native = import_module("kcoord_wire._native").Program(codec.plan(0), codec.classes)
    plain = b"--Heartbeat/1/-7/ii/c\xc3\xa9//t/3/999999999999999999"
    message = native.decode_plain_text(plain, 12)
    assert message == TextProgram(codec.schema, codec.plan(0), codec.classes).decode(plain[2:])
    assert gc.is_tracked(message)
    for other in (
        b"1/+7/i/c/g/t/3/9",
        b"1/7/i/c/g/t/3/1000000000000000000",
        b"1/7/i/c/g/t/3",
        b"1/7/i/c/g/t/3/9/9",
        b"1/7/i/\xff/g/t/3/9",
        b"1/7/i/c/g/t/-1/9",
        b"1/7/i/c/g/t//9",
        b"1/7/i/c/g/t/-/9",
        b"1/7/" + b"i" * 32_768 + b"/c/g/t/3/9",
        b"",
    ):
        assert native.decode_plain_text(other, 0) is None
    for offset in (-1, 6):
        with pytest.raises(ValueError, match="outside"):
            native.decode_plain_text(b"1/2/3", offset)
    with pytest.raises(TypeError):
        native.decode_plain_text("1/2/3", 0)


NO_NUMBERS = ["", " 5", "5 ", "5\n", "1_0", "0x5", "5.0", "1e3", "+", "-", "+-5", "--5", "five", "\0"]
NO_NUMBERS += ["\u0663", "\uff15", "0" * 9999 + "x"]


@pytest.mark.parametrize("number", NO_NUMBERS, ids=[repr(number)[:12] for number in NO_NUMBERS])
def test_malformed_numbers_are_refused(number: str) -> None:
    with pytest.raises(DecodeError) as caught:
        registry["Heartbeat"].decode(f"Heartbeat/1/{number}/i/c/g/t/0/0".encode(), 0)
    assert (caught.value.kind, caught.value.offset, caught.value.path) == ("text", 12, "Heartbeat.time")


@pytest.mark.parametrize(
    ("raw", "kind", "offset", "path"),
    [
        (b"", "text", 0, "Heartbeat"),
        (b"heartbeat/1/2/i/c/g/t/0/0", "text", 0, "Heartbeat"),
        (b"Heartbeats/1/2/i/c/g/t/0/0", "text", 0, "Heartbeat"),
        (b"Heartbeat", "text", 0, "Heartbeat"),
        (b"Heartbeat/1/2/i/c/g/t/0", "text", 0, "Heartbeat"),
        (b"Heartbeat/1/2/i/c/g/t/0/0/", "text", 0, "Heartbeat"),
        (b"Heartbeat/1/2/i/c/g/t/0/0/0", "text", 0, "Heartbeat"),
        (b"Heartbeat/1/2/i/c/g/t/-1/0", "range", 22, "Heartbeat.partition"),
        (b"Heartbeat/1/2/i/c/g/t/100000/0", "range", 22, "Heartbeat.partition"),
        (b"Heartbeat/1/2/i/c/g/t/0/9223372036854775808", "range", 24, "Heartbeat.current_offset"),
        (b"Heartbeat/1/2/i/c/g/t/0/-9223372036854775809", "range", 24, "Heartbeat.current_offset"),
        (b"Heartbeat/" + b"9" * 100_000 + b"/2/i/c/g/t/0/0", "range", 10, "Heartbeat.version"),
        (b"Heartbeat/1/2/i/c\xff/g/t/0/0", "utf8", 17, "Heartbeat.client_id"),
        (b"Heartbeat/1/2/" + b"i" * 0x8000 + b"/c/g/t/0/0", "length", 14, "Heartbeat.instance_id"),
    ],
)
def test_refused_texts(raw: bytes, kind: str, offset: int, path: str) -> None:
    for data, shift in ((raw, 0), (b"---" + raw, 3)):
        with pytest.raises(DecodeError) as caught:
            registry["Heartbeat"].decode_prefix(data, 0, offset=shift)
        assert (caught.value.kind, caught.value.offset, caught.value.path) == (kind, offset + shift, path)


@pytest.mark.parametrize(
    ("fields", "kind", "attr"),
    [
        ({"client_id": "a/b"}, "range", "client_id"),
        ({"client_id": None}, "null", "client_id"),
        ({"client_id": b"x"}, "type", "client_id"),
        ({"client_id": "\ud800"}, "type", "client_id"),
        ({"client_id": "x" * 0x8000}, "length", "client_id"),
        ({"time": 2**63}, "range", "time"),
        ({"time": 1.0}, "type", "time"),
        ({"time": None}, "type", "time"),
        ({"partition": -1}, "range", "partition"),
        ({"partition": 100_000}, "range", "partition"),
    ],
)
def test_refused_values(fields: dict[str, Any], kind: str, attr: str) -> None:
    codec = registry["Heartbeat"]
    with pytest.raises(EncodeError) as caught:
        codec.encode(codec.cls(**fields), 0)
    assert (caught.value.kind, caught.value.path) == (kind, f"Heartbeat.{attr}")


def test_refused_root_and_empty_slot() -> None:
    program = _program("Heartbeat")
    with pytest.raises(EncodeError) as caught:
        program.encode(registry["ClaimingPartition"].cls())
    assert (caught.value.kind, caught.value.path) == ("type", "Heartbeat")
    message = registry["Heartbeat"].cls()
    del message.topic
    with pytest.raises(EncodeError) as caught:
        program.encode(message)
    assert (caught.value.kind, caught.value.path) == ("type", "Heartbeat.topic")


def test_versions_and_bounded_strings() -> None:
    message = read_message("""{ "type": "data", "name": "Note", "validVersions": "0-1", "flexibleVersions": "none",
        "encoding": "text", "textType": "N", "fields": [
          { "name": "Word", "type": "string", "versions": "0+", "maxLength": 3 },
          { "name": "Since", "type": "int32", "versions": "1+", "default": "-1" } ] }""")
    classes = make_classes(message)
    note: Any = classes["Note"]
    old, new = (TextProgram(message, compile_plan(message, version), classes) for version in (0, 1))
    assert old.decode(b"N/abc") == note(word="abc")
    assert new.decode(b"N/abc/7") == note(word="abc", since=7)
    assert old.encode(note(word="abc")) == b"N/abc"
    assert new.encode(note(word="abc")) == b"N/abc/-1"
    for refused, kind in ((note(since=5), "version"), (note(word="abcd"), "range")):
        with pytest.raises(EncodeError) as failed:
            old.encode(refused)
        assert failed.value.kind == kind
    for raw, kind in ((b"N/abcd", "range"), (b"N/abc/7", "text")):
        with pytest.raises(DecodeError) as caught:
            old.decode(raw)
        assert caught.value.kind == kind
    with pytest.raises(DecodeError) as caught:
        new.decode(b"N//2147483648")
    assert (caught.value.kind, caught.value.offset) == ("range", 3)
    with pytest.raises(ValueError, match="negative"):
        old.decode_prefix(b"N/a", -1, True)


@pytest.mark.parametrize("raw", [b"", b"/", b"Unknown/1", b"Heartbeats/1/2", b"Heart", b"\xff\xfe", b"x" * 100_000])
def test_unknown_types(raw: bytes) -> None:
    programs = {name: _program(name) for name in NAMES}
    with pytest.raises(DecodeError) as caught:
        decode_text(raw, programs)
    assert (caught.value.kind, caught.value.offset, caught.value.path) == ("text", 0, "type")
    with pytest.raises(DecodeError):
        decode_text(b"Heartbeat/1", {})


def test_work_is_linear() -> None:
    started = time.process_time()
    for number in (b"0" * 5_000_000 + b"x", b"9" * 5_000_000, b"0" * 5_000_000 + b"9" * 5_000_000, b"/" * 5_000_000):
        with pytest.raises(DecodeError):
            registry["Heartbeat"].decode(b"Heartbeat/1/" + number + b"/i/c/g/t/0/0", 0)
    assert time.process_time() - started < 5  # a quadratic reader takes hours
