"""The construct grammar: text messages as the codec has them, one construct for each struct, what its absence says.

tests/codec/test_python.py has it against the letter of the wire format, test_golden.py against another encoder's bytes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.codec.explain import explain
from kcoord_wire.codec.python import Program
from kcoord_wire.codec.registry import compile_schemas, make_classes
from kcoord_wire.errors import WireError
from kcoord_wire.schema import read_message
from kcoord_wire.schema.construct_model import build_with_construct, construct_model, parse_with_construct
from kcoord_wire.schema.constructs import KafkaArray, KafkaStruct
from tests.support.doubling import LEVELS, doubling_schema


def outcome(action: Any, *args: Any, **keys: Any) -> object:
    try:
        return repr(action(*args, **keys))
    except WireError as error:
        return error.kind, getattr(error, "offset", None), error.path


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
    with pytest.raises(ValueError, match="HeartbeatRequest has no version 5: 0-4"):
        construct_model(kw.registry["HeartbeatRequest"].schema, 5)


def test_without_construct_the_import_says_what_is_missing() -> None:
    program = "import sys; sys.modules['construct'] = None; import kcoord_wire.schema.construct_model"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "needs construct: pip install 'kcoord_wire[explain]'" in done.stderr


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


# ---- one construct for each struct, not for each use


def constructs(body: Any, seen: set[int]) -> int:
    """How many structs and arrays were made."""
    if id(body) in seen:
        return 0
    seen.add(id(body))
    if isinstance(body, KafkaArray):
        return 1 + constructs(body.item, seen)
    inner = [field.codec for field in body.fields] if isinstance(body, KafkaStruct) else []
    return 1 + sum(constructs(one, seen) for one in inner)


def test_a_struct_is_one_construct_however_often_used(tmp_path: Path) -> None:
    (tmp_path / "Doubling.json").write_text(doubling_schema())
    codec = compile_schemas(tmp_path)["Doubling"]
    for classes in (None, codec.classes):
        model = construct_model(codec.schema, 0, classes)
        assert constructs(model.body, set()) < 8 * LEVELS
        assert model.build(model.parse(b"\1\1\0")) == b"\1\1\0"
    assert [row.type for row in explain(b"\1\1\0", codec.schema, 0).rows if row.leaf] == [
        "compact count",
        "compact count",
        "uvarint count",
    ]


def test_generated_source_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "Doubling.json").write_text(doubling_schema(fields=10))
    codec = compile_schemas(tmp_path)["Doubling"]
    program = Program(codec.plan(0), codec.classes)
    for what in ("decode", "decode lenient", "encode"):
        assert program.source(what).count("\n") < 200 * LEVELS * 10
