"""The construct grammar against the letter of the wire format, and of text messages against the codec.

tests/codec/test_golden.py has it against another encoder's bytes.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.codec.registry import make_classes
from kcoord_wire.errors import WireError
from kcoord_wire.schema import read_message
from kcoord_wire.schema.construct_model import build_with_construct, construct_model, parse_with_construct


def outcome(action: Any, *args: Any, **keys: Any) -> object:
    try:
        return repr(action(*args, **keys))
    except WireError as error:
        return error.kind, getattr(error, "offset", None), error.path


SCHEMA = """
{ "type": "data", "name": "M", "validVersions": "0-1", "flexibleVersions": "1+", "fields": [
  { "name": "A", "type": "%s", "versions": "0+", "nullableVersions": "%s"%s }
]}"""


def model(type_: str, version: int, *, nullable: str = "none", extra: str = "") -> Any:
    return construct_model(read_message(SCHEMA % (type_, nullable, extra)), version)


STRUCT = ', "fields": [{ "name": "B", "type": "int8", "versions": "0+" }]'
UNION = (
    ', "variants": [{ "name": "V", "tag": -1, "fields": [{ "name": "B", "type": "int8", "versions": "0+" }]},'
    ' { "name": "W", "tag": 2 }]'
)
TAGGED = ', "taggedVersions": "1+", "tag": 0'

# The type, more of the field, the version, bytes, then the value of the field.
READINGS = [
    ("bool", "", 0, "01", True),
    ("int8", "", 0, "ff", -1),
    ("int16", "", 0, "fffe", -2),
    ("int32", "", 1, "7fffffff00", 2**31 - 1),
    ("int64", "", 0, "8000000000000000", -(2**63)),
    ("uint16", "", 0, "ffff", 65535),
    ("uint32", "", 0, "ffffffff", 2**32 - 1),
    ("float64", "", 0, "bff8000000000000", -1.5),
    ("string", "", 0, "0002c3a9", "é"),
    ("string", "", 1, "03c3a900", "é"),
    ("string?", "", 0, "ffff", None),
    ("string?", "", 1, "0000", None),
    ("bytes", "", 0, "0000000101", b"\1"),
    ("bytes", "", 1, "020100", b"\1"),
    ("bytes?", "", 0, "ffffffff", None),
    ("records?", "", 1, "0000", None),
    ("[]int16", "", 0, "0000000200010002", [1, 2]),
    ("[]int16", "", 1, "030001000200", [1, 2]),
    ("[]int16?", "", 0, "ffffffff", None),
    ("[]int16?", "", 1, "0000", None),
    ("[]string", "", 1, "02027800", ["x"]),
]

# The type, more of the field, the version, bytes; kind, offset and path of the strict reader; the lenient one's value.
REFUSALS = [
    ("bool", "", 0, "02", ("value", 0, "M.a"), True),
    ("int32", "", 0, "000000", ("truncated", 0, "M.a"), ...),
    ("int32", ', "minimum": 1, "default": 1', 0, "00000000", ("range", 0, "M.a"), ...),
    ("string", "", 0, "00", ("truncated", 0, "M.a"), ...),
    ("string", "", 0, "000178ff", ("trailing", 3, "M"), "x"),
    ("string", "", 0, "000278", ("truncated", 0, "M.a"), ...),
    ("string", "", 0, "ffff", ("null", 0, "M.a"), ""),
    ("string", "", 0, "fffe", ("length", 0, "M.a"), ...),
    ("string?", "", 0, "fffe", ("length", 0, "M.a"), None),
    ("string", "", 0, "000261ff", ("utf8", 3, "M.a"), "a\ufffd"),
    ("string", "", 0, "0003eda080", ("utf8", 2, "M.a"), "\ufffd"),
    ("string", ', "maxLength": 1', 0, "00026161", ("range", 0, "M.a"), ...),
    ("string", "", 1, "8180020061", ("length", 0, "M.a"), ...),
    ("string", "", 1, "0200", ("truncated", 2, "M.unknown_tags"), ...),
    ("string", "", 1, "00", ("null", 0, "M.a"), ...),
    ("string", "", 1, "82006100", ("varint", 0, "M.a"), "a"),
    ("string", "", 1, "8280808080", ("varint", 0, "M.a"), ...),
    ("string", "", 1, "8280808010" + "6100", ("varint", 0, "M.a"), "a"),
    ("string", "", 1, "8280", ("truncated", 0, "M.a"), ...),
    ("bytes", "", 0, "7fffffff", ("truncated", 0, "M.a"), ...),
    ("bytes?", "", 0, "80000000", ("length", 0, "M.a"), None),
    ("[]int32", "", 0, "0000000200000000", ("truncated", 0, "M.a"), ...),
    ("[]int32", "", 0, "ffffffff", ("null", 0, "M.a"), []),
    ("[]string", "", 0, "000000010001", ("truncated", 4, "M.a[0]"), ...),
    ("S?", STRUCT, 0, "0007", ("value", 0, "M.a"), "present"),
    ("S?", STRUCT, 0, "80", ("value", 0, "M.a"), None),
    ("S", STRUCT, 0, "", ("truncated", 0, "M.a.b"), ...),
    ("union", UNION, 0, "00", ("value", 0, "M.a"), ...),
    ("union", UNION, 0, "ff", ("truncated", 1, "M.a.b"), ...),
    ("int8", "", 1, "0701", ("truncated", 1, "M.unknown_tags"), ...),
    ("int8", "", 1, "070102ff", ("truncated", 3, "M.unknown_tags"), ...),
    ("int8", "", 1, "0702" + "0200" + "0100", ("tag", 4, "M.unknown_tags"), 7),
    ("int8", "", 1, "0702" + "0200" + "0200", ("tag", 4, "M.unknown_tags"), 7),
    ("int8", TAGGED, 1, "01" + "00" + "02" + "07", ("tag", 3, "M.a"), 7),
    ("int8", TAGGED, 1, "01" + "00" + "00" + "07", ("tag", 3, "M.a"), 7),
    ("int8", TAGGED, 1, "01" + "0001", ("truncated", 3, "M.a"), ...),
]


@pytest.mark.parametrize(("type_", "extra", "version", "data", "value"), READINGS)
def test_values(type_: str, extra: str, version: int, data: str, value: object) -> None:
    grammar = model(type_.rstrip("?"), version, nullable="0+" if "?" in type_ else "none", extra=extra)
    found = grammar.parse(bytes.fromhex(data))
    assert found.a == value
    assert type(found.a) is type(value)
    assert grammar.build(found).hex() == data


@pytest.mark.parametrize(("type_", "extra", "version", "data", "error", "lenient"), REFUSALS)
def test_refusals(
    type_: str, extra: str, version: int, data: str, error: tuple[str, int, str], lenient: object
) -> None:
    nullable = "none" if "?" not in type_ else "0+"
    grammar = model(type_.rstrip("?"), version, nullable=nullable, extra=extra)
    with pytest.raises(kw.DecodeError) as caught:
        grammar.parse(bytes.fromhex(data))
    assert (caught.value.kind, caught.value.offset, caught.value.path) == error
    if lenient is ...:
        with pytest.raises(kw.DecodeError):
            grammar.parse(bytes.fromhex(data), strict=False)
    else:
        found = grammar.parse(bytes.fromhex(data), strict=False).a
        assert found == lenient or (lenient == "present" and found.b == 7)


def test_unknown_tags_are_kept() -> None:
    grammar = model("int8", 1, extra=TAGGED)
    data = bytes.fromhex("03" + "000107" + "0502aabb" + "0900")
    value = grammar.parse(data)
    assert (value.a, value.unknown_tags) == (7, ((5, b"\xaa\xbb"), (9, b"")))
    assert grammar.build(value) == data


def test_tag_of_another_version_is_refused() -> None:
    schema = SCHEMA.replace("0-1", "1-3") % ("int8", "none", ', "taggedVersions": "3+", "tag": 0')
    later = read_message(schema.replace('"versions": "0+"', '"versions": "3+"'))
    assert parse_with_construct(later, 3, bytes.fromhex("01000107")).a == 7
    with pytest.raises(kw.DecodeError) as caught:
        parse_with_construct(later, 1, bytes.fromhex("01000107"), strict=False)
    assert (caught.value.kind, caught.value.offset, caught.value.path) == ("tag", 1, "M.unknown_tags")


def test_union() -> None:
    grammar = model("union", 0, extra=UNION)
    first, second = grammar.parse(b"\xff\x07"), grammar.parse(b"\x02")
    assert (type(first.a).__name__, first.a.b, type(second.a).__name__) == ("MV", 7, "MW")
    assert [grammar.build(first), grammar.build(second)] == [b"\xff\x07", b"\x02"]
    assert grammar.body.fresh().a == first.a.__class__(b=0, unknown_tags=())


def test_tagged_nullable_struct_has_a_varint_marker() -> None:
    grammar = model("S", 1, nullable="1+", extra=TAGGED + STRUCT)
    for data, present in (("01" + "0003" + "010700", True), ("01" + "0001" + "00", False)):
        value = grammar.parse(bytes.fromhex(data))
        assert (value.a is not None) is present
        assert grammar.build(value).hex() == data
    with pytest.raises(kw.DecodeError) as caught:
        grammar.parse(bytes.fromhex("01" + "0003" + "020700"))
    assert (caught.value.kind, caught.value.offset) == ("value", 3)
    assert grammar.parse(bytes.fromhex("01" + "0003" + "020700"), strict=False).a.b == 7


def test_field_that_is_there_if_bytes_remain() -> None:
    codec = kw.registry["PingResponse"]
    grammar = construct_model(codec.schema, 0, codec.classes)
    for data, info in ((b"\0\0\0\1c", None), (b"\0\0\0\1c\0\0", [])):
        value = grammar.parse(data)
        assert value.offset_info == info
        assert grammar.build(value) == data
    with pytest.raises(kw.DecodeError) as caught:
        grammar.parse(b"\0\0\0\1c\xff\xff")
    assert (caught.value.kind, caught.value.offset, caught.value.path) == ("null", 5, "PingResponse.offset_info")


@pytest.mark.parametrize(
    ("values", "kind", "path"),
    [
        ({"a": 128}, "range", "M.a"),
        ({"a": "7"}, "type", "M.a"),
        ({"a": None}, "type", "M.a"),
        ({"unknown_tags": None}, "type", "M.unknown_tags"),
        ({"unknown_tags": (1,)}, "type", "M.unknown_tags"),
        ({"unknown_tags": ((-1, b""),)}, "type", "M.unknown_tags"),
        ({"unknown_tags": ((1, "x"),)}, "type", "M.unknown_tags"),
        ({"unknown_tags": ((2, b""), (1, b""))}, "tag", "M.unknown_tags"),
        ({"unknown_tags": ((0, b""),)}, "tag", "M.unknown_tags"),
    ],
)
def test_unsuitable_values_are_refused(values: dict[str, object], kind: str, path: str) -> None:
    grammar = model("int8", 1, extra=TAGGED)
    value = grammar.body.fresh()
    for name, held in values.items():
        setattr(value, name, held)
    with pytest.raises(kw.EncodeError) as caught:
        grammar.build(value)
    assert (caught.value.kind, caught.value.path) == (kind, path)


@pytest.mark.parametrize(
    ("type_", "held", "kind"),
    [
        ("bool", 1, "type"),
        ("float64", "1", "type"),
        pytest.param("float64", 10**400, "type", id="float64 too large"),
        ("uuid", b"0" * 16, "type"),
        ("string", b"x", "type"),
        ("string", None, "null"),
        ("string", "\ud800", "type"),
        ("string", "x" * 32768, "length"),
        ("bytes", "x", "type"),
        ("bytes", memoryview(b"abcd")[::2], "type"),
        ("[]int8", {1}, "type"),
        ("[]int8", None, "null"),
    ],
)
def test_values_of_the_wrong_kind(type_: str, held: object, kind: str) -> None:
    grammar = model(type_, 0)
    value = grammar.body.fresh()
    value.a = held
    with pytest.raises(kw.EncodeError) as caught:
        grammar.build(value)
    assert (caught.value.kind, caught.value.path) == (kind, "M.a")


def test_lost_attribute_and_lost_value() -> None:
    message = read_message(SCHEMA.replace('"0+", "nullable', '"1+", "nullable') % ("int8", "none", ""))
    value = construct_model(message, 0).body.fresh()
    classes = {"M": type(value)}
    assert build_with_construct(message, 0, value, classes) == b""
    value.a = 1
    with pytest.raises(kw.EncodeError) as caught:
        build_with_construct(message, 0, value, classes)
    assert (caught.value.kind, caught.value.path) == ("version", "M.a")
    del value.a
    with pytest.raises(kw.EncodeError) as caught:
        build_with_construct(message, 0, value, classes)
    assert (caught.value.kind, caught.value.path) == ("type", "M.a")
    with pytest.raises(kw.EncodeError) as caught:
        build_with_construct(message, 0, None, classes)
    assert (caught.value.kind, caught.value.path) == ("null", "M")


MARSHAL = "Heartbeat/1/1795224460/3879dfdf/cl-one/gr.live/test1/0/7"


@pytest.mark.parametrize(
    "text",
    [
        MARSHAL,
        MARSHAL.replace("/0/7", "/-0/+007"),
        MARSHAL.replace("/0/7", "/0"),
        MARSHAL + "/8",
        MARSHAL.lower(),
        "",
        MARSHAL.replace("/0/7", "/-1/7"),
        MARSHAL.replace("/0/7", "/0/9223372036854775808"),
        MARSHAL.replace("/0/7", "/0/" + "9" * 5000),
        MARSHAL.replace("/0/7", "/0/7\n"),
        MARSHAL.replace("/0/7", "/0/\u0663"),
        MARSHAL.replace("/0/7", "/0/"),
        MARSHAL.replace("cl-one", "x" * 32768),
        MARSHAL.replace("cl-one", "\udcff"),
    ],
)
def test_text_messages_read_as_the_codec_reads_them(text: str) -> None:
    codec = kw.registry["Heartbeat"]
    data = text.encode(errors="surrogateescape")
    ours = outcome(parse_with_construct, codec.schema, 0, data, codec.classes)
    assert ours == outcome(codec.decode, data, 0)
    if isinstance(ours, str):
        value = codec.decode(data, 0)
        assert build_with_construct(codec.schema, 0, value, codec.classes) == codec.encode(value, 0)


@pytest.mark.parametrize("held", ["a/b", None, 3, "x" * 32768, "\ud800", "é"])
def test_text_messages_are_written_as_the_codec_writes_them(held: object) -> None:
    codec = kw.registry["Heartbeat"]
    value = codec.cls(client_id=held)
    ours = outcome(build_with_construct, codec.schema, 0, value, codec.classes)
    assert ours == outcome(codec.encode, value, 0)


def test_version_that_the_message_lacks() -> None:
    with pytest.raises(ValueError, match="M has no version 2: 0-1"):
        model("int8", 2)


def test_without_construct_the_import_says_what_is_missing() -> None:
    program = "import sys; sys.modules['construct'] = None; import kcoord_wire.schema.construct_model"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "needs construct: pip install 'kcoord_wire[explain]'" in done.stderr


def test_struct_with_an_empty_slot_is_not_its_default() -> None:
    schema = SCHEMA % ("S", "none", TAGGED + STRUCT)
    message = read_message(schema)
    classes = make_classes(message)
    value = classes["M"]()
    assert build_with_construct(message, 1, value, classes) == b"\0"
    del value.a.b
    with pytest.raises(kw.EncodeError) as caught:
        build_with_construct(message, 1, value, classes)
    assert (caught.value.kind, caught.value.path) == ("type", "M.a.b")


def test_text_field_of_another_version_must_hold_its_default() -> None:
    message = read_message(
        '{ "type": "data", "name": "M", "validVersions": "0-1", "flexibleVersions": "none", "encoding": "text",'
        ' "textType": "T", "fields": [ { "name": "A", "type": "string", "versions": "0+" },'
        ' { "name": "B", "type": "int32", "versions": "1+" } ]}'
    )
    classes = make_classes(message)
    assert build_with_construct(message, 1, classes["M"](a="x", b=7), classes) == b"T/x/7"
    assert build_with_construct(message, 0, classes["M"](a="x"), classes) == b"T/x"
    with pytest.raises(kw.EncodeError) as caught:
        build_with_construct(message, 0, classes["M"](b=7), classes)
    assert (caught.value.kind, caught.value.path) == ("version", "M.b")
    assert parse_with_construct(message, 0, b"T/x", classes) == classes["M"](a="x")
