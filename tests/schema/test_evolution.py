"""Evolution rule by rule: a change that keeps the rule is compatible, one that breaks it is named with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.schema import Message, read_message
from kcoord_wire.schema.evolution import Change, compare, compare_folders
from kcoord_wire.schema.files import load_messages, schema_root

Schema = dict[str, Any]


def schema(*fields: Schema, **keys: Any) -> Schema:
    base = {"type": "request", "apiKey": 1, "name": "M", "validVersions": "0-3", "flexibleVersions": "2+"}
    return base | {"fields": list(fields)} | keys


def field(name: str = "A", type_: str = "int32", versions: str = "0+", **keys: Any) -> Schema:
    return {"name": name, "type": type_, "versions": versions} | keys


def read(written: Schema) -> dict[str, Message]:
    message = read_message(json.dumps(written))
    return {message.name: message}


def changes(old: Schema, new: Schema) -> list[Change]:
    return compare(read(old), read(new))


OLD = schema(field())
TAG = {"taggedVersions": "2+", "tag": 0}

INCOMPATIBLE = [
    ("type", OLD, schema(field(), type="response"), "$.type", '"type" cannot change from request to response'),
    ("api-key", OLD, schema(field(), apiKey=2), "$.apiKey", '"apiKey" cannot change from 1 to 2'),
    ("family", OLD, schema(field(), family="central"), "$.family", '"family" cannot change from kafka to central'),
    ("header", OLD, schema(field(), header="none"), "$.header", '"header" cannot change'),
    ("array length", OLD, schema(field(), arrayLengthType="int16"), "$.arrayLengthType", "cannot change"),
    ("string length", OLD, schema(field(), stringLengthType="int32"), "$.stringLengthType", "cannot change"),
    ("last version", OLD, schema(field(), validVersions="0-2"), "$.validVersions", "cannot fall from 3 to 2"),
    (
        "first version",
        schema(field(), validVersions="1-3"),
        OLD,
        "$.validVersions",
        "the first valid version cannot fall from 1 to 0",
    ),
    (
        "flexible less",
        OLD,
        schema(field(), flexibleVersions="3+"),
        "$.flexibleVersions",
        "may only grow: 2 was flexible",
    ),
    ("flexible more", OLD, schema(field(), flexibleVersions="1+"), "$.flexibleVersions", "version 1 was not flexible"),
    ("removed", schema(field(), field("B")), OLD, "$.fields[1]", 'the field "B" cannot be removed from version 0'),
    ("added", OLD, schema(field(), field("B")), "$.fields[1]", "cannot be added to version 0 without a tag"),
    ("added late", OLD, schema(field(), field("B", versions="3+")), "$.fields[1]", "to version 3 without a tag"),
    (
        "renamed",
        OLD,
        schema(field("B")),
        "$.fields[0]",
        'the field "A" cannot be removed from version 0',
    ),
    (
        "reordered",
        schema(field("A"), field("B"), field("C")),
        schema(field("B"), field("A"), field("C")),
        "$.fields[1]",
        'cannot be reordered: "A" came earlier',
    ),
    ("default", OLD, schema(field(default=1)), "$.fields[0].default", 'the default of "A" cannot change'),
    (
        "default null",
        schema(field("A", "string", nullableVersions="0+")),
        schema(field("A", "string", nullableVersions="0+", default="null")),
        "$.fields[0].default",
        'the default of "A" cannot change',
    ),
    ("field type", OLD, schema(field("A", "int64")), "$.fields[0].type", "cannot change from int32 to int64"),
    (
        "array",
        OLD,
        schema(field("A", "[]int32", default="")),
        "$.fields[0].type",
        "cannot change from int32 to []int32",
    ),
    (
        "elements to more",
        schema(field("A", "[]int32"), flexibleVersions="none"),
        schema(field("A", "[]S", fields=[field("B"), field("C")]), flexibleVersions="none"),
        "$.fields[0].type",
        "cannot change from []int32 to []S",
    ),
    (
        "elements in flexible versions",
        schema(field("A", "[]int32")),
        schema(field("A", "[]S", fields=[field("B")])),
        "$.fields[0].type",
        "cannot change from []int32 to []S",
    ),
    ("versions", OLD, schema(field(versions="1+")), "$.fields[0].versions", "in versions that both states have"),
    (
        "nullable",
        schema(field("A", "string")),
        schema(field("A", "string", nullableVersions="3+")),
        "$.fields[0].nullableVersions",
        '"nullableVersions" of "A" cannot change in versions that both states have: none to 3+',
    ),
    (
        "tagged",
        schema(field(versions="2+")),
        schema(field(versions="2+", **TAG)),
        "$.fields[0].taggedVersions",
        "in versions that both states have",
    ),
    (
        "tag",
        schema(field("A", versions="2+", **TAG), field("B", versions="2+", **TAG | {"tag": 1})),
        schema(field("A", versions="2+", **TAG | {"tag": 1}), field("B", versions="2+", **TAG)),
        "$.fields[0].tag",
        'the tag of "A" cannot change from 0 to 1',
    ),
    (
        "out of reach",
        OLD,
        schema(field(), field("B", versions="4+")),
        "$.fields[1].versions",
        "versions 4+ must overlap the valid versions 0-3",
    ),
    (
        "nested",
        schema(field("A", "[]S", fields=[field("B")])),
        schema(field("A", "[]S", fields=[field("B", "int16")])),
        "$.fields[0].fields[0].type",
        "cannot change from int32 to int16",
    ),
    (
        "common struct",
        schema(field("A", "S"), commonStructs=[{"name": "S", "versions": "0+", "fields": [field("B")]}]),
        schema(field("A", "S"), commonStructs=[{"name": "S", "versions": "0+", "fields": []}]),
        "$.fields[0].fields[0]",
        'the field "B" cannot be removed',
    ),
    (
        "variant",
        schema(field("A", "union", variants=[{"name": "V", "tag": 0}, {"name": "W", "tag": 1}])),
        schema(field("A", "union", variants=[{"name": "V", "tag": 0}])),
        "$.fields[0].variants",
        "the variant 1 cannot be removed",
    ),
    (
        "variant's field",
        schema(field("A", "union", variants=[{"name": "V", "tag": 0, "fields": [field("B")]}])),
        schema(field("A", "union", variants=[{"name": "V", "tag": 0, "fields": [field("B", "int8")]}])),
        "$.fields[0].variants[0].fields[0].type",
        "cannot change from int32 to int8",
    ),
]

COMPATIBLE = [
    ("last version", OLD, schema(field(), validVersions="0-4"), "$.validVersions", "rises from 3 to 4"),
    ("first version", OLD, schema(field(), validVersions="1-3"), "$.validVersions", "rises from 0 to 1"),
    ("tagged field", OLD, schema(field(), field("B", versions="2+", **TAG)), "$.fields[1]", 'the field "B" is new'),
    (
        "versions gone with their field",
        schema(field(), field("B", versions="0-1")),
        schema(field(), validVersions="2-3"),
        "$.fields[1]",
        'the field "B" was removed with its versions',
    ),
    ("ignorable", OLD, schema(field(ignorable=True)), "$.fields[0].ignorable", "from False to True"),
    (
        "map key",
        schema(field("A", "[]S", fields=[field("B")])),
        schema(field("A", "[]S", fields=[field("B", mapKey=True)])),
        "$.fields[0].fields[0].mapKey",
        "from False to True",
    ),
    (
        "elements become structs",
        schema(field("A", "[]int32"), flexibleVersions="none"),
        schema(
            field("A", "[]S", fields=[field("B"), field("C", versions="4+")]),
            validVersions="0-4",
            flexibleVersions="none",
        ),
        "$.fields[0].type",
        "the elements of []int32 become structs that contain them",
    ),
]


@pytest.mark.parametrize(("old", "new", "where", "rule"), [pytest.param(*row[1:], id=row[0]) for row in INCOMPATIBLE])
def test_changes_that_break_a_rule_are_listed(old: Schema, new: Schema, where: str, rule: str) -> None:
    found = [change for change in changes(old, new) if change.severity == "incompatible"]
    assert any(change.where == where and rule in change.rule for change in found), [str(change) for change in found]


@pytest.mark.parametrize(("old", "new", "where", "rule"), [pytest.param(*row[1:], id=row[0]) for row in COMPATIBLE])
def test_compatible_changes_are_listed(old: Schema, new: Schema, where: str, rule: str) -> None:
    found = changes(old, new)
    assert {change.severity for change in found} == {"compatible"}, [str(change) for change in found]
    assert any(change.where == where and rule in change.rule for change in found)


def test_new_version_with_a_new_field() -> None:
    new = schema(field(), field("B", versions="4+"), validVersions="0-4")
    assert [(change.where, change.severity) for change in changes(OLD, new)] == [
        ("$.validVersions", "compatible"),
        ("$.fields[1]", "compatible"),
    ]


def test_new_and_removed_messages_are_listed() -> None:
    (gone,) = compare(read(OLD), {})
    (came,) = compare({}, read(OLD))
    assert (gone.message, gone.severity) == ("M", "incompatible")
    assert (came.message, came.severity) == ("M", "compatible")
    assert str(gone) == "incompatible: M: $: a message cannot be removed"


def test_flexible_versions_grow_with_the_valid_ones() -> None:
    old = schema(field(), validVersions="0-1", flexibleVersions="none")
    assert {change.severity for change in changes(old, OLD)} == {"compatible"}


def test_equal_schemas_have_no_changes() -> None:
    messages = load_messages(schema_root())
    assert len(messages) > 90
    assert compare(messages, messages) == []


def test_folders(tmp_path: Path) -> None:
    for name, written in (("old", OLD), ("new", schema(field(default=1)))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "M.json").write_text(json.dumps(written))
    (change,) = compare_folders(tmp_path / "old", tmp_path / "new")
    assert change.where == "$.fields[0].default"
    assert compare_folders(tmp_path / "old" / "M.json", tmp_path / "old") == []
