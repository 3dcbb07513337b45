"""Every construct of the schema language, and every rule by which bytes or values are refused, by codecs and construct.

The schemas stand here as text. A case of a refusal says the whole of what a caller can see: kind, offset and path.
"""

from __future__ import annotations

import math
import struct
import traceback
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import pytest

from kcoord_wire.codec.backend import Program, ProgramClass
from kcoord_wire.codec.python import Program as PurePython
from kcoord_wire.codec.registry import make_classes
from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.schema.construct_model import construct_model
from kcoord_wire.schema.plan import compile_plan
from kcoord_wire.schema.reader import read_message
from tests.support.backends import BACKENDS
from tests.support.each import each

SCALARS = """{ "type": "data", "name": "Scalars", "validVersions": "0", "flexibleVersions": "none", "fields": [
    { "name": "Flag", "type": "bool", "versions": "0+" },
    { "name": "Tiny", "type": "int8", "versions": "0+" },
    { "name": "Small", "type": "int16", "versions": "0+" },
    { "name": "Medium", "type": "int32", "versions": "0+" },
    { "name": "Big", "type": "int64", "versions": "0+" },
    { "name": "Port", "type": "uint16", "versions": "0+" },
    { "name": "Count", "type": "uint32", "versions": "0+" },
    { "name": "Ratio", "type": "float64", "versions": "0+" },
    { "name": "Id", "type": "uuid", "versions": "0+" },
    { "name": "Share", "type": "int32", "versions": "0+", "minimum": 0, "maximum": 100 }
] }"""

# Version 0 in the old encoding, version 1 flexible.
SIZED = """{ "type": "data", "name": "Sized", "validVersions": "0-1", "flexibleVersions": "1+", "fields": [
    { "name": "Text", "type": "string", "versions": "0+" },
    { "name": "MaybeText", "type": "string", "versions": "0+", "nullableVersions": "0+" },
    { "name": "Blob", "type": "bytes", "versions": "0+" },
    { "name": "MaybeBlob", "type": "bytes", "versions": "0+", "nullableVersions": "0+" },
    { "name": "Batch", "type": "records", "versions": "0+", "nullableVersions": "0+" },
    { "name": "Numbers", "type": "[]int32", "versions": "0+" },
    { "name": "MaybeNumbers", "type": "[]int64", "versions": "0+", "nullableVersions": "0+" },
    { "name": "Flags", "type": "[]bool", "versions": "0+" },
    { "name": "Ids", "type": "[]uuid", "versions": "0+" },
    { "name": "Names", "type": "[]string", "versions": "0+" },
    { "name": "Blobs", "type": "[]bytes", "versions": "0+" }
] }"""

NESTED = """{ "type": "data", "name": "Nested", "validVersions": "0-1", "flexibleVersions": "1+",
  "commonStructs": [ { "name": "Point", "versions": "0+", "fields": [
    { "name": "X", "type": "int16", "versions": "0+" }, { "name": "Label", "type": "string", "versions": "0+" } ] } ],
  "fields": [
    { "name": "Origin", "type": "Point", "versions": "0+" },
    { "name": "Target", "type": "Point", "versions": "0+", "nullableVersions": "0+" },
    { "name": "Rows", "type": "[]Row", "versions": "0+", "fields": [
      { "name": "Points", "type": "[]Point", "versions": "0+", "nullableVersions": "0+" } ] }
] }"""

TAGGED = """{ "type": "data", "name": "Tagged", "validVersions": "0-1", "flexibleVersions": "0+", "fields": [
    { "name": "Plain", "type": "int8", "versions": "0+" },
    { "name": "Number", "type": "int32", "versions": "0+", "taggedVersions": "0+", "tag": 0, "default": "-1" },
    { "name": "Name", "type": "string", "versions": "0+", "nullableVersions": "0+", "taggedVersions": "0+", "tag": 1,
      "default": "null" },
    { "name": "Inner", "type": "Inner", "versions": "0+", "nullableVersions": "0+", "taggedVersions": "0+", "tag": 2,
      "default": "null", "fields": [ { "name": "Value", "type": "int8", "versions": "0+" } ] },
    { "name": "Always", "type": "Other", "versions": "0+", "taggedVersions": "0+", "tag": 3,
      "fields": [ { "name": "Value", "type": "int8", "versions": "0+", "default": "7" } ] },
    { "name": "Late", "type": "[]int8", "versions": "1+", "taggedVersions": "1+", "tag": 4, "ignorable": true }
] }"""

VERSIONED = """{ "type": "data", "name": "Versioned", "validVersions": "0-3", "flexibleVersions": "2+", "fields": [
    { "name": "Old", "type": "int32", "versions": "0", "default": "-1" },
    { "name": "New", "type": "string", "versions": "1+", "default": "x", "ignorable": true },
    { "name": "Null", "type": "string", "versions": "1+", "nullableVersions": "1+", "default": null },
    { "name": "Items", "type": "[]int8", "versions": "1+" },
    { "name": "Pair", "type": "Pair", "versions": "1+", "fields": [
      { "name": "Left", "type": "int8", "versions": "1+", "default": "3" } ] },
    { "name": "Kept", "type": "string", "versions": "0+", "flexibleVersions": "none" }
] }"""

DRAFT = """{ "type": "data", "name": "Draft", "validVersions": "0", "flexibleVersions": "none",
  "arrayLengthType": "int16", "stringLengthType": "int32", "fields": [
    { "name": "Name", "type": "string", "versions": "0+", "maxLength": 4 },
    { "name": "Choice", "type": "union", "versions": "0+", "variants": [
      { "name": "Number", "tag": 1, "fields": [ { "name": "Value", "type": "int32", "versions": "0+" } ] },
      { "name": "Word", "tag": -2, "fields": [ { "name": "Value", "type": "string", "versions": "0+" } ] } ] },
    { "name": "Hosts", "type": "[]int8", "versions": "0+" },
    { "name": "Extra", "type": "[]string", "versions": "0+", "nullableVersions": "0+", "default": "null",
      "presentIfRemaining": true }
] }"""


def _deep(depth: int) -> str:
    fields = '[ { "name": "Leaf", "type": "string", "versions": "0+" } ]'
    for level in range(depth, 0, -1):
        kind = "[]" if level % 2 else ""
        fields = f'[ {{ "name": "Next", "type": "{kind}Level{level}", "versions": "0+", "fields": {fields} }} ]'
    return (
        '{ "type": "data", "name": "Deep", "validVersions": "0-1", "flexibleVersions": "1+", "fields": ' + fields + " }"
    )


TEXTS = (SCALARS, SIZED, NESTED, TAGGED, VERSIONED, DRAFT, _deep(20))
SCHEMAS = {message.name: message for message in map(read_message, TEXTS)}
CLASSES: Mapping[str, Mapping[str, type]] = {name: make_classes(message) for name, message in SCHEMAS.items()}


class Make:
    """`make.SizedRow(...)`: an instance of the class of that name."""

    def __getattr__(self, name: str) -> type:
        return next(classes[name] for classes in CLASSES.values() if name in classes)


make: Any = Make()


def _program(program_class: ProgramClass, name: str, version: int = 0) -> Program:
    return program_class(compile_plan(SCHEMAS[name], version), CLASSES[name])


class Grammar:
    """The construct grammar, with the methods of a program."""

    def __init__(self, name: str, version: int) -> None:
        self.model = construct_model(SCHEMAS[name], version, CLASSES[name])
        self.encode = self.model.build

    def decode(self, data: bytes | bytearray | memoryview, strict: bool = True) -> Any:
        return self.model.parse(bytes(data), strict=strict)


Program3 = Callable[..., Any]  # of name and version


@pytest.fixture(params=[*BACKENDS, "construct"])
def program(request: pytest.FixtureRequest) -> Program3:
    """What makes a reader and writer of a message at a version: each codec, and the grammar."""
    if request.param == "construct":
        return lambda name, version=0: Grammar(name, version)
    module = {"python": "kcoord_wire.codec.python", "native": "kcoord_wire._native"}[request.param]
    return partial(_program, import_module(module).Program)


def _h(text: str) -> bytes:
    return bytes.fromhex(text)


ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
SCALARS_HEX = (
    "01 80 8000 80000000 8000000000000000 ffff ffffffff 3ff8000000000000 00112233445566778899aabbccddeeff 00000064"
)
SCALAR_VALUES = {
    "flag": True,
    "tiny": -128,
    "small": -(2**15),
    "medium": -(2**31),
    "big": -(2**63),
    "port": 65535,
    "count": 2**32 - 1,
    "ratio": 1.5,
    "id": ID,
    "share": 100,
}
SIZED_VALUES = {
    "text": "grüße",
    "maybe_text": None,
    "blob": b"ab",
    "maybe_blob": None,
    "batch": b"r",
    "numbers": [1, -1],
    "maybe_numbers": None,
    "flags": [True, False],
    "ids": [ID],
    "names": ["", "a"],
    "blobs": [b"", b"z"],
}
DEEP: Any = make.DeepLevel20(leaf="end")
for _level in range(19, 0, -1):
    DEEP = getattr(make, f"DeepLevel{_level}")(next=DEEP if _level % 2 else [DEEP])
DEEP = make.Deep(next=[DEEP])

VALUES = [
    ("Scalars", 0, make.Scalars(**SCALAR_VALUES), SCALARS_HEX),
    ("Scalars", 0, make.Scalars(ratio=-math.inf), "00" * 22 + "fff0000000000000" + "00" * 20),
    (
        "Sized",
        0,
        make.Sized(**SIZED_VALUES),
        "0007 6772c3bcc39f65 ffff 00000002 6162 ffffffff 00000001 72 00000002 00000001 ffffffff ffffffff"
        " 00000002 01 00 00000001 00112233445566778899aabbccddeeff 00000002 0000 0001 61 00000002 00000000 00000001 7a",
    ),
    (
        "Sized",
        1,
        make.Sized(**SIZED_VALUES, unknown_tags=((0, b""), (200, b"xyz"))),
        "08 6772c3bcc39f65 00 03 6162 00 02 72 03 00000001 ffffffff 00 03 01 00 02 00112233445566778899aabbccddeeff"
        " 03 01 02 61 03 01 02 7a 02 00 00 c801 03 78797a",
    ),
    ("Sized", 1, make.Sized(text="x" * 200, batch=None), "c901" + "78" * 200 + "01 01 01 00 01 01 01 01 01 01 00"),
    (
        "Nested",
        0,
        make.Nested(
            origin=make.NestedPoint(x=1, label="a"),
            target=None,
            rows=[make.NestedRow(points=None), make.NestedRow(points=[make.NestedPoint(x=2)])],
        ),
        "0001 0001 61 ff 00000002 ffffffff 00000001 0002 0000",
    ),
    (
        "Nested",
        1,
        make.Nested(target=make.NestedPoint(x=3, unknown_tags=((9, b"t"),)), rows=[make.NestedRow(points=None)]),
        "0000 01 00 01 0003 01 01 09 01 74 02 00 00 00",
    ),
    ("Tagged", 0, make.Tagged(), "00 00"),
    (
        "Tagged",
        1,
        make.Tagged(
            plain=1,
            number=5,
            name="n",
            inner=make.TaggedInner(value=2),
            always=make.TaggedOther(value=1, unknown_tags=((0, b"q"),)),
            late=[1, 2],
            unknown_tags=((5, b"u"), (2**31 - 1, b"")),
        ),
        "01 07 00 04 00000005 01 02 02 6e 02 03 01 02 00 03 05 01 01 00 01 71 04 03 03 01 02 05 01 75 ffffffff07 00",
    ),
    ("Versioned", 0, make.Versioned(old=4, kept="k"), "00000004 0001 6b"),
    (
        "Versioned",
        1,
        make.Versioned(new="y", null="", items=[1], pair=make.VersionedPair(left=9)),
        "0001 79 0000 00000001 01 09 0000",
    ),
    ("Versioned", 2, make.Versioned(new="y", null="n", kept="k"), "02 79 02 6e 01 03 00 0001 6b 00"),
    ("Draft", 0, make.Draft(choice=make.DraftNumber(value=5)), "00000000 01 00000005 0000"),
    (
        "Draft",
        0,
        make.Draft(name="grö", choice=make.DraftWord(value="w"), hosts=[1], extra=[]),
        "00000004 6772c3b6 fe 00000001 77 0001 01 0000",
    ),
    ("Draft", 0, make.Draft(choice=make.DraftWord(), extra=["e"]), "00000000 fe 00000000 0000 0001 00000001 65"),
    ("Deep", 0, DEEP, "00000001" * 10 + "0003 656e64"),
    ("Deep", 1, DEEP, "02" * 10 + "04 656e64" + "00" * 21),
]
VALUE_IDS = [f"{name}-v{version}-{i}" for i, (name, version, _, _) in enumerate(VALUES)]


@pytest.mark.parametrize(("name", "version", "value", "hexed"), VALUES, ids=VALUE_IDS)
def test_value_and_bytes(program: Program3, name: str, version: int, value: Any, hexed: str) -> None:
    reader, raw = program(name, version), _h(hexed)
    assert reader.encode(value) == raw
    for data in (raw, bytearray(raw), memoryview(raw), memoryview(b"-" + raw)[1:]):
        assert reader.decode(data) == value
        assert reader.decode(data, strict=False) == value
    if not isinstance(reader, Grammar):
        assert reader.decode_prefix(b"--" + raw, 2, True) == (value, len(raw) + 2)


@pytest.mark.parametrize(("name", "version", "value", "hexed"), VALUES, ids=VALUE_IDS)
def test_prefixes_fail(program: Program3, name: str, version: int, value: Any, hexed: str) -> None:
    reader, raw = program(name, version), _h(hexed)
    for size in range(len(raw)):
        for data in (raw[:size], memoryview(raw)[:size]):
            if name == "Draft" and size == len(raw) - {"None": 0, "[]": 2}.get(str(value.extra), 7):
                reader.decode(data)  # without its optional list the draft is whole
                continue
            with pytest.raises(DecodeError) as caught:
                reader.decode(data)
            assert caught.value.kind == "truncated"
            assert caught.value.offset <= size


def test_decoded_values_share_nothing(program: Program3) -> None:
    reader = program("Versioned", 0)
    data = bytearray(_h("00000004 0001 6b"))
    first, second = reader.decode(data), reader.decode(data)
    data.clear()
    assert first.new == "x"
    assert first.null == ""
    assert first.items == []
    assert first.items is not second.items
    assert first.pair == make.VersionedPair()
    assert first.pair is not second.pair


class Wrong(NamedTuple):
    """Bytes and how they are refused; `lenient` is the same error, None for none, or another one."""

    name: str
    version: int
    hexed: str
    kind: str
    offset: int
    path: str
    lenient: str | None = "same"


SIZED0_TAIL = " ffff 00000000 ffffffff ffffffff 00000000 ffffffff 00000000 00000000 00000000 00000000"
SIZED1_TAIL = " 00 01 00 00 01 00 01 01 01 01 00"
WRONG = [
    # Fixed width: the first field of a run that does not fit, and the first that is wrong, in the order of the wire.
    Wrong("Scalars", 0, "", "truncated", 0, "Scalars.flag"),
    Wrong("Scalars", 0, "01 80 80", "truncated", 2, "Scalars.small"),
    Wrong("Scalars", 0, SCALARS_HEX[:-2], "truncated", 46, "Scalars.share"),
    Wrong("Scalars", 0, "02" + SCALARS_HEX[2:], "value", 0, "Scalars.flag", None),
    Wrong("Scalars", 0, "02 80 80", "value", 0, "Scalars.flag", "truncated"),
    Wrong("Scalars", 0, SCALARS_HEX[:-8] + "00000065", "range", 46, "Scalars.share"),
    Wrong("Scalars", 0, SCALARS_HEX[:-8] + "ffffffff", "range", 46, "Scalars.share"),
    Wrong("Scalars", 0, SCALARS_HEX + "00", "trailing", 50, "Scalars", None),
    # Strings, old encoding.
    Wrong("Sized", 0, "00", "truncated", 0, "Sized.text"),
    Wrong("Sized", 0, "0003 6161", "truncated", 0, "Sized.text"),
    Wrong("Sized", 0, "ffff", "null", 0, "Sized.text", "truncated"),
    Wrong("Sized", 0, "8000", "length", 0, "Sized.text"),
    Wrong("Sized", 0, "0003 61ff61", "utf8", 3, "Sized.text", "truncated"),
    Wrong("Sized", 0, "0003 eda080", "utf8", 2, "Sized.text", "truncated"),
    Wrong("Sized", 0, "0000 fffe" + SIZED0_TAIL[5:], "length", 2, "Sized.maybe_text", None),
    Wrong("Sized", 0, "0000 ffff ffffffff", "null", 4, "Sized.blob", "truncated"),
    Wrong("Sized", 0, "0000 ffff 80000000", "length", 4, "Sized.blob"),
    Wrong("Sized", 0, "0000 ffff 7fffffff", "truncated", 4, "Sized.blob"),
    Wrong("Sized", 0, "0000 ffff 00000000 fffffffe" + SIZED0_TAIL[23:], "length", 8, "Sized.maybe_blob", None),
    # Arrays: a count is held against the bytes that are left before anything else.
    Wrong("Sized", 0, "0000 ffff 00000000 ffffffff ffffffff ffffffff", "null", 16, "Sized.numbers", "truncated"),
    Wrong("Sized", 0, "0000 ffff 00000000 ffffffff ffffffff 00000002 00000001 ffff", "truncated", 16, "Sized.numbers"),
    Wrong("Sized", 0, "0000 ffff 00000000 ffffffff ffffffff 00000000 7fffffff", "truncated", 20, "Sized.maybe_numbers"),
    Wrong(
        "Sized",
        0,
        "0000 ffff 00000000 ffffffff ffffffff 00000000 ffffffff 00000002 01 05 00000000 00000000 00000000",
        "value",
        29,
        "Sized.flags[1]",
        None,
    ),
    Wrong(
        "Sized",
        0,
        "0000 ffff 00000000 ffffffff ffffffff 00000000 ffffffff 00000000 00000000 00000002 0000 0001",
        "truncated",
        38,
        "Sized.names[1]",
    ),
    # Strings, compact encoding, and varints.
    Wrong("Sized", 1, "", "truncated", 0, "Sized.text"),
    Wrong("Sized", 1, "00", "null", 0, "Sized.text", "truncated"),
    Wrong("Sized", 1, "80", "truncated", 0, "Sized.text"),
    Wrong("Sized", 1, "8100" + SIZED1_TAIL, "varint", 0, "Sized.text", None),
    Wrong("Sized", 1, "ffffffffff", "varint", 0, "Sized.text"),
    Wrong("Sized", 1, "8180808010" + SIZED1_TAIL, "varint", 0, "Sized.text", None),
    Wrong("Sized", 1, "ffffffff0f", "length", 0, "Sized.text"),
    Wrong("Sized", 1, "818002", "length", 0, "Sized.text"),
    Wrong("Sized", 1, "808002", "truncated", 0, "Sized.text"),
    Wrong("Sized", 1, "03 c3", "truncated", 0, "Sized.text"),
    Wrong("Sized", 1, "02 c3" + SIZED1_TAIL, "utf8", 1, "Sized.text", None),
    Wrong("Sized", 1, "01 00 ffffffff0f", "truncated", 2, "Sized.blob", "length"),
    Wrong("Sized", 1, "01 00 01 00 00 ffffffff0f", "truncated", 5, "Sized.numbers", "length"),
    # Structs, their markers, and elements.
    Wrong("Nested", 0, "0001 0000 00 00000000", "value", 4, "Nested.target", "truncated"),
    Wrong("Nested", 0, "0001 0000 02 0000 0000 00000000", "value", 4, "Nested.target", None),
    Wrong("Nested", 0, "0001 0000 fe 00000000", "value", 4, "Nested.target", None),
    Wrong("Nested", 0, "0001 0000", "truncated", 4, "Nested.target"),
    Wrong("Nested", 0, "0001 0000 ff 00000002 ffffffff 00", "truncated", 5, "Nested.rows"),
    Wrong(
        "Nested",
        0,
        "00000000 ff 00000001 00000002 00000000 0000ffff",
        "null",
        19,
        "Nested.rows[0].points[1].label",
        None,
    ),
    Wrong("Nested", 0, "0001 0000 ff 00000001 fffffffe", "length", 9, "Nested.rows[0].points", None),
    # Tag sections.
    Wrong("Tagged", 0, "00", "truncated", 1, "Tagged.unknown_tags"),
    Wrong("Tagged", 0, "00 02 05 00", "truncated", 1, "Tagged.unknown_tags"),
    Wrong("Tagged", 0, "00 02 05 00 05 00", "tag", 4, "Tagged.unknown_tags", None),
    Wrong("Tagged", 0, "00 02 06 00 05 00", "tag", 4, "Tagged.unknown_tags", None),
    Wrong("Tagged", 0, "00 01 05 02 00", "truncated", 3, "Tagged.unknown_tags"),
    Wrong("Tagged", 0, "00 01 80 00", "varint", 2, "Tagged.unknown_tags", "truncated"),
    Wrong("Tagged", 0, "00 01 04 01 00", "tag", 2, "Tagged.unknown_tags"),
    Wrong("Tagged", 0, "00 01 00 05 00000001 00", "tag", 4, "Tagged.number", None),
    Wrong("Tagged", 0, "00 01 00 03 00000001", "tag", 4, "Tagged.number", None),
    Wrong("Tagged", 0, "00 01 00 04 0000", "truncated", 4, "Tagged.number"),
    Wrong("Tagged", 0, "00 01 02 01 02 00 00", "value", 4, "Tagged.inner", None),
    Wrong("Tagged", 0, "00 01 03 02 01 01", "truncated", 5, "Tagged.always.unknown_tags"),
    Wrong("Tagged", 0, "00 01 03 02 01 00 00", "trailing", 6, "Tagged", None),
    # The draft's: bounded strings, unions, int16 counts, a list that may be missing.
    Wrong("Draft", 0, "00000005 6162636465", "range", 0, "Draft.name"),
    Wrong("Draft", 0, "00000005 61626364", "truncated", 0, "Draft.name"),
    Wrong("Draft", 0, "00008000", "length", 0, "Draft.name"),
    Wrong("Draft", 0, "00000000 02", "value", 4, "Draft.choice"),
    Wrong("Draft", 0, "00000000", "truncated", 4, "Draft.choice"),
    Wrong("Draft", 0, "00000000 01 000000", "truncated", 5, "Draft.choice.value"),
    Wrong("Draft", 0, "00000000 fe ffffffff", "null", 5, "Draft.choice.value", "truncated"),
    Wrong("Draft", 0, "00000000 01 00000005 ffff", "null", 9, "Draft.hosts", None),
    Wrong("Draft", 0, "00000000 01 00000005 8000", "length", 9, "Draft.hosts"),
    Wrong("Draft", 0, "00000000 01 00000005 0000 ffff", "null", 11, "Draft.extra", None),
    Wrong("Draft", 0, "00000000 01 00000005 0000 00", "truncated", 11, "Draft.extra"),
    Wrong("Draft", 0, "00000000 01 00000005 0000 0000 00", "trailing", 13, "Draft", None),
    Wrong("Deep", 0, "00000001" * 10 + "ffff", "null", 40, "Deep" + ".next[0].next" * 10 + ".leaf", None),
]


@pytest.mark.parametrize("as_type", [bytes, bytearray], ids=["bytes", "view"])
@each("wrong", WRONG)
def test_refused_bytes(program: Program3, wrong: Wrong, as_type: type) -> None:
    reader, data = program(wrong.name, wrong.version), as_type(_h(wrong.hexed))
    with pytest.raises(DecodeError) as caught:
        reader.decode(data)
    error = caught.value
    assert (error.kind, error.offset, error.path) == (wrong.kind, wrong.offset, wrong.path)
    if wrong.lenient is None:
        reader.decode(data, strict=False)
        return
    with pytest.raises(DecodeError) as caught:
        reader.decode(data, strict=False)
    expected = wrong.kind if wrong.lenient == "same" else wrong.lenient
    assert caught.value.kind == expected
    if wrong.lenient == "same":
        assert (caught.value.offset, caught.value.path) == (wrong.offset, wrong.path)


@pytest.mark.parametrize(
    ("name", "version", "hexed", "value"),
    [
        ("Scalars", 0, "07" + SCALARS_HEX[2:], make.Scalars(**SCALAR_VALUES)),
        ("Nested", 0, "0000 0000 05 0001 0000 00000000", make.Nested(target=make.NestedPoint(x=1))),
        ("Nested", 0, "0000 0000 80 00000000", make.Nested(target=None)),
        ("Tagged", 0, "00 02 00 04 00000001 00 04 00000002", make.Tagged(number=2)),
        ("Tagged", 0, "00 01 00 09 00000001", make.Tagged(number=1)),
        ("Tagged", 0, "00 02 06 00 05 01 61", make.Tagged(unknown_tags=((6, b""), (5, b"a")))),
        ("Tagged", 0, "00 01 02 03 09 02 00", make.Tagged(inner=make.TaggedInner(value=2))),
        ("Tagged", 0, "00 00 ff", make.Tagged()),
        # Every kind of null where none may be, which lenient reading takes for empty.
        (
            "Sized",
            0,
            "ffff" + "ffff" + "ffffffff" * 9,
            make.Sized(maybe_text=None, maybe_blob=None, maybe_numbers=None),
        ),
        ("Sized", 1, "00" * 12, make.Sized(maybe_text=None, maybe_blob=None, maybe_numbers=None)),
    ],
)
def test_lenient_values(program: Program3, name: str, version: int, hexed: str, value: Any) -> None:
    assert program(name, version).decode(_h(hexed), strict=False) == value


def test_a_default_that_is_on_the_wire_is_read(program: Program3) -> None:
    reader = program("Tagged")
    assert reader.decode(_h("00 02 00 04 ffffffff 01 01 00")) == make.Tagged()


def test_offsets_count_from_the_start_of_the_buffer(program_class: ProgramClass) -> None:
    with pytest.raises(DecodeError) as caught:
        _program(program_class, "Sized").decode_prefix(b"----" + _h("0003 6161"), 4, True)
    assert caught.value.offset == 4
    with pytest.raises(DecodeError) as caught:
        _program(program_class, "Sized").decode_prefix(b"ab", 3, True)
    assert (caught.value.kind, caught.value.offset) == ("truncated", 2)
    with pytest.raises(ValueError, match="offset") as negative:
        _program(program_class, "Sized").decode_prefix(b"ab", -1, True)
    assert not isinstance(negative.value, DecodeError)


HUGE = 2**70
BAD_VALUES = [
    ("Scalars", 0, {"flag": 1}, "type", "Scalars.flag"),
    ("Scalars", 0, {"flag": None}, "type", "Scalars.flag"),
    ("Scalars", 0, {"tiny": 128}, "range", "Scalars.tiny"),
    ("Scalars", 0, {"small": -(2**15) - 1}, "range", "Scalars.small"),
    ("Scalars", 0, {"medium": 2**31}, "range", "Scalars.medium"),
    ("Scalars", 0, {"big": HUGE}, "range", "Scalars.big"),
    ("Scalars", 0, {"port": -1}, "range", "Scalars.port"),
    ("Scalars", 0, {"count": 2**32}, "range", "Scalars.count"),
    ("Scalars", 0, {"big": 1.0}, "type", "Scalars.big"),
    ("Scalars", 0, {"medium": "1"}, "type", "Scalars.medium"),
    ("Scalars", 0, {"medium": None}, "type", "Scalars.medium"),
    ("Scalars", 0, {"ratio": "1"}, "type", "Scalars.ratio"),
    ("Scalars", 0, {"ratio": 10**400}, "range", "Scalars.ratio"),
    ("Scalars", 0, {"id": b"0" * 16}, "type", "Scalars.id"),
    ("Scalars", 0, {"share": 101}, "range", "Scalars.share"),
    ("Scalars", 0, {"share": -1}, "range", "Scalars.share"),
    ("Scalars", 0, {"share": "5"}, "type", "Scalars.share"),
    ("Scalars", 0, {"share": 101, "tiny": 128}, "range", "Scalars.tiny"),
    ("Sized", 0, {"text": None}, "null", "Sized.text"),
    ("Sized", 0, {"text": b"x"}, "type", "Sized.text"),
    ("Sized", 0, {"text": "\ud800"}, "type", "Sized.text"),
    ("Sized", 0, {"text": "x" * 0x8000}, "length", "Sized.text"),
    ("Sized", 1, {"text": "é" * 0x4000}, "length", "Sized.text"),
    ("Sized", 0, {"maybe_text": 5}, "type", "Sized.maybe_text"),
    ("Sized", 0, {"blob": "text"}, "type", "Sized.blob"),
    ("Sized", 1, {"blob": None}, "null", "Sized.blob"),
    ("Sized", 1, {"blob": memoryview(b"abcd")[::2]}, "type", "Sized.blob"),
    ("Sized", 0, {"numbers": None}, "null", "Sized.numbers"),
    ("Sized", 0, {"numbers": {1, 2}}, "type", "Sized.numbers"),
    ("Sized", 0, {"numbers": [0, 2**31]}, "range", "Sized.numbers[1]"),
    ("Sized", 1, {"numbers": [0, 1, "2"]}, "type", "Sized.numbers[2]"),
    ("Sized", 0, {"flags": [True, 0]}, "type", "Sized.flags[1]"),
    ("Sized", 0, {"ids": [None]}, "type", "Sized.ids[0]"),
    ("Sized", 0, {"names": ["", None]}, "null", "Sized.names[1]"),
    ("Sized", 1, {"blobs": [b"", "x"]}, "type", "Sized.blobs[1]"),
    ("Sized", 0, {"unknown_tags": ((5, b""),)}, "tag", "Sized.unknown_tags"),
    ("Sized", 0, {"unknown_tags": None}, "type", "Sized.unknown_tags"),
    ("Sized", 1, {"unknown_tags": ((5, b""), (5, b""))}, "tag", "Sized.unknown_tags"),
    ("Sized", 1, {"unknown_tags": ((5, b""), (4, b""))}, "tag", "Sized.unknown_tags"),
    ("Sized", 1, {"unknown_tags": ((-1, b""),)}, "type", "Sized.unknown_tags"),
    ("Sized", 1, {"unknown_tags": ((2**32, b""),)}, "type", "Sized.unknown_tags"),
    ("Sized", 1, {"unknown_tags": (("5", b""),)}, "type", "Sized.unknown_tags"),
    ("Sized", 1, {"unknown_tags": ((5, "x"),)}, "type", "Sized.unknown_tags"),
    ("Sized", 1, {"unknown_tags": (5,)}, "type", "Sized.unknown_tags"),
    ("Sized", 1, {"unknown_tags": {5: b""}}, "type", "Sized.unknown_tags"),
    ("Nested", 0, {"origin": None}, "null", "Nested.origin"),
    ("Nested", 0, {"origin": make.NestedRow()}, "type", "Nested.origin"),
    ("Nested", 0, {"target": 5}, "type", "Nested.target"),
    ("Nested", 0, {"rows": [None]}, "null", "Nested.rows[0]"),
    ("Nested", 1, {"rows": [make.NestedPoint()]}, "type", "Nested.rows[0]"),
    (
        "Nested",
        1,
        {"rows": [make.NestedRow(), make.NestedRow(points=[make.NestedPoint(x=HUGE)])]},
        "range",
        "Nested.rows[1].points[0].x",
    ),
    ("Tagged", 0, {"number": "5"}, "type", "Tagged.number"),
    ("Tagged", 0, {"name": b"5"}, "type", "Tagged.name"),
    ("Tagged", 0, {"always": None}, "null", "Tagged.always"),
    ("Tagged", 0, {"always": make.TaggedOther(value=HUGE)}, "range", "Tagged.always.value"),
    ("Tagged", 0, {"unknown_tags": ((0, b""),)}, "tag", "Tagged.unknown_tags"),
    ("Tagged", 0, {"unknown_tags": ((4, b""),)}, "tag", "Tagged.unknown_tags"),
    ("Versioned", 1, {"old": 0}, "version", "Versioned.old"),
    ("Versioned", 1, {"old": "x"}, "version", "Versioned.old"),
    ("Versioned", 0, {"null": None}, "version", "Versioned.null"),
    ("Versioned", 0, {"items": [1]}, "version", "Versioned.items"),
    ("Versioned", 0, {"items": None}, "version", "Versioned.items"),
    ("Versioned", 0, {"pair": make.VersionedPair(left=4)}, "version", "Versioned.pair"),
    ("Versioned", 0, {"kept": None, "items": [1]}, "version", "Versioned.items"),
    ("Versioned", 0, {"old": HUGE, "items": [1]}, "range", "Versioned.old"),
    ("Draft", 0, {"name": "abcde"}, "range", "Draft.name"),
    ("Draft", 0, {"name": "é" * 3}, "range", "Draft.name"),
    ("Draft", 0, {"name": "x" * 0x8000}, "length", "Draft.name"),
    ("Draft", 0, {"choice": None}, "type", "Draft.choice"),
    ("Draft", 0, {"choice": make.Draft()}, "type", "Draft.choice"),
    ("Draft", 0, {"choice": make.DraftWord(value=5)}, "type", "Draft.choice.value"),
    ("Draft", 0, {"hosts": [0] * 0x8000}, "length", "Draft.hosts"),
    ("Draft", 0, {"extra": [5]}, "type", "Draft.extra[0]"),
]


@each("name, version, values, kind, path", BAD_VALUES)
def test_refused_values(
    program: Program3, name: str, version: int, values: dict[str, Any], kind: str, path: str
) -> None:
    message = getattr(make, name)(**values)
    with pytest.raises(EncodeError) as caught:
        program(name, version).encode(message)
    assert (caught.value.kind, caught.value.path) == (kind, path)


def test_refused_roots_and_empty_slots(program: Program3) -> None:
    reader = program("Nested", 1)
    for root, kind in ((None, "null"), (make.NestedRow(), "type"), (make.Nested, "type")):
        with pytest.raises(EncodeError) as caught:
            reader.encode(root)
        assert (caught.value.kind, caught.value.path) == (kind, "Nested")
    message = make.Nested(rows=[make.NestedRow(points=[make.NestedPoint()])])
    del message.rows[0].points[0].label
    with pytest.raises(EncodeError) as caught:
        reader.encode(message)
    assert (caught.value.kind, caught.value.path) == ("type", "Nested.rows[0].points[0].label")
    message = make.Nested()
    del message.unknown_tags
    with pytest.raises(EncodeError) as caught:
        reader.encode(message)
    assert (caught.value.kind, caught.value.path) == ("type", "Nested.unknown_tags")
    message = make.Tagged()
    del message.always.value
    with pytest.raises(EncodeError) as caught:
        program("Tagged", 1).encode(message)
    assert (caught.value.kind, caught.value.path) == ("type", "Tagged.always.value")


class Index:
    def __index__(self) -> int:
        return 100


def test_values_of_similar_types_are_accepted(program: Program3) -> None:
    scalars = make.Scalars(share=Index(), medium=Index(), tiny=True, ratio=2)
    decoded = program("Scalars").decode(program("Scalars").encode(scalars))
    assert (decoded.share, decoded.medium, decoded.tiny, decoded.ratio) == (100, 100, 1, 2.0)
    wide = memoryview(struct.pack("=2i", 1, 2)).cast("i")
    sized = make.Sized(blob=bytearray(b"ab"), maybe_blob=wide, batch=memoryview(b"r"), numbers=(1, 2))
    for version in (0, 1):
        reader = program("Sized", version)
        decoded = reader.decode(reader.encode(sized))
        assert (decoded.blob, decoded.maybe_blob, decoded.batch) == (b"ab", bytes(wide), b"r")
        assert decoded.numbers == [1, 2]


def test_a_subclass_of_a_message_is_written(program: Program3) -> None:
    row = type("Row", (make.NestedRow,), {})
    reader = program("Nested", 1)
    assert reader.encode(make.Nested(rows=[row()])) == reader.encode(make.Nested(rows=[make.NestedRow()]))


def test_ignorable_values_are_left_out(program: Program3) -> None:
    reader = program("Versioned", 0)
    assert reader.encode(make.Versioned(old=1, new="lost")) == reader.encode(make.Versioned(old=1))
    assert program("Tagged", 0).encode(make.Tagged(late=[1])) == b"\0\0"


def test_source_is_visible_to_tracebacks() -> None:
    class Odd:
        def __index__(self) -> int:
            raise ZeroDivisionError

    program = PurePython(compile_plan(SCHEMAS["Scalars"], 0), CLASSES["Scalars"])
    with pytest.raises(ZeroDivisionError) as caught:
        program.encode(make.Scalars(share=Odd()))
    text = "".join(traceback.format_exception(caught.value))
    assert program.source("encode").startswith("def encode(m):\n")
    assert program.source("decode").startswith("def decode(data, pos, end):\n")
    assert "share" in text
