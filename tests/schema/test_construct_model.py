"""The construct model of schemas that use one struct in many places: a construct for each struct, not for each use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kcoord_wire.codec.explain import explain
from kcoord_wire.codec.python import Program
from kcoord_wire.codec.registry import compile_schemas
from kcoord_wire.schema.construct_model import construct_model
from kcoord_wire.schema.constructs import KafkaArray, KafkaStruct
from tests.support.doubling import LEVELS, doubling_schema


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
