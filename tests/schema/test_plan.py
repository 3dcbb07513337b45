"""The plan: what each version's steps are, how they print, and what they can take at least on the wire."""

from __future__ import annotations

import hashlib
import json
import keyword
from itertools import islice
from typing import Any

import pytest

from kcoord_wire.schema import Length, Message, Op, Presence, StructPlan, compile_plan, read_message
from kcoord_wire.schema.construct_model import construct_model
from kcoord_wire.schema.files import load_messages, schema_root
from kcoord_wire.schema.plan import attribute_name, class_name
from tests.support.doubling import LEVELS, doubling_schema
from tests.support.each import each

Schema = dict[str, Any]
MESSAGES = load_messages(schema_root())


def field(name: str, type_: str, versions: str = "0+", **keys: Any) -> Schema:
    return {"name": name, "type": type_, "versions": versions} | keys


def message(*fields: Schema, **keys: Any) -> Message:
    schema = {"type": "data", "name": "M", "validVersions": "0-3", "flexibleVersions": "2+", "fields": list(fields)}
    return read_message(json.dumps(schema | keys))


MIXED = message(
    field("GroupId", "string", nullableVersions="1+", ignorable=True),
    field("Old", "int8", "0-1"),
    field("Bounded", "int16", minimum=1, maximum=9, default=5),
    field("Items", "[]Item", fields=[field("Name", "string"), field("Blob", "bytes", "1+", nullableVersions="1+")]),
    field("Extra", "Extra", "1+", nullableVersions="1+", default="null", fields=[field("Id", "uuid")]),
    field("B", "float64", "2+", taggedVersions="2+", tag=1),
    field("A", "[]int32", "0+", taggedVersions="2+", tag=0),
)

V1 = """\
M v1 with unknown_tags, at least 14 bytes, tags 0 1
  group_id string length int16 nullable ignorable default ''
  old int8 default 0
  bounded int16 from 1 to 9 default 5
  items array length int32 default ()
    element struct
      MItem v1 with unknown_tags, at least 6 bytes
        name string length int16 default ''
        blob bytes length int32 nullable default b''
  extra struct length int8 nullable default None
    MExtra v1 with unknown_tags, at least 16 bytes
      id uuid default UUID('00000000-0000-0000-0000-000000000000')
  b float64 absent default 0.0
  a array length int32 default ()
    element int32"""

V2 = """\
M v2 flexible, at least 6 bytes, tags 0 1
  group_id string length compact nullable ignorable default ''
  old int8 absent default 0
  bounded int16 from 1 to 9 default 5
  items array length compact default ()
    element struct
      MItem v2 flexible, at least 3 bytes
        name string length compact default ''
        blob bytes length compact nullable default b''
  extra struct length int8 nullable default None
    MExtra v2 flexible, at least 17 bytes
      id uuid default UUID('00000000-0000-0000-0000-000000000000')
  b float64 tagged tag 1 default 0.0
  a array length compact tagged tag 0 default ()
    element int32"""


@pytest.mark.parametrize(("version", "text"), [(1, V1), (2, V2)])
def test_plan_as_text(version: int, text: str) -> None:
    assert "\n".join(compile_plan(MIXED, version).describe()) == text


def test_steps_by_presence() -> None:
    plan = compile_plan(MIXED, 2)
    assert [step.attr for step in plan.wire] == ["group_id", "bounded", "items", "extra"]
    assert [(step.attr, step.tag) for step in plan.tagged] == [("a", 0), ("b", 1)]
    assert [step.attr for step in plan.absent] == ["old"]
    assert (plan.name, plan.version, plan.flexible, plan.holds_tags) == ("M", 2, True, True)
    assert plan.known_tags == {0, 1}
    early = compile_plan(MIXED, 0)
    assert [step.attr for step in early.absent] == ["extra", "b"]
    assert (early.flexible, early.holds_tags, early.known_tags) == (False, True, {0, 1})
    assert early.tagged == ()


def test_tags_are_known_in_versions_without_them() -> None:
    assert compile_plan(MIXED, 0).known_tags == compile_plan(MIXED, 3).known_tags


def test_nullable_by_version() -> None:
    assert [compile_plan(MIXED, version).steps[0].nullable for version in range(4)] == [False, True, True, True]


def test_version_that_the_message_lacks() -> None:
    with pytest.raises(ValueError, match="M has no version 4: 0-3"):
        compile_plan(MIXED, 4)


def only(*fields: Schema, version: int = 0, **keys: Any) -> Any:
    return compile_plan(message(*fields, **keys), version).steps[0]


@pytest.mark.parametrize(
    ("type_", "op", "size"),
    [
        ("bool", Op.BOOL, 1),
        ("int8", Op.INT8, 1),
        ("int16", Op.INT16, 2),
        ("int32", Op.INT32, 4),
        ("int64", Op.INT64, 8),
        ("uint16", Op.UINT16, 2),
        ("uint32", Op.UINT32, 4),
        ("float64", Op.FLOAT64, 8),
        ("uuid", Op.UUID, 16),
    ],
)
def test_fixed_widths(type_: str, op: Op, size: int) -> None:
    for version in (0, 2):
        step = only(field("A", type_), version=version)
        assert (step.op, step.fixed_size, step.min_size, step.length) == (op, size, size, Length.NONE)


@pytest.mark.parametrize(
    ("type_", "keys", "plain", "size"),
    [
        ("string", {}, Length.INT16, 2),
        ("string", {"stringLengthType": "int32"}, Length.INT32, 4),
        ("bytes", {}, Length.INT32, 4),
        ("records", {}, Length.INT32, 4),
        ("[]string", {}, Length.INT32, 4),
        ("[]string", {"arrayLengthType": "int16"}, Length.INT16, 2),
    ],
)
def test_lengths(type_: str, keys: Schema, plain: Length, size: int) -> None:
    step = only(field("A", type_), **keys)
    assert (step.length, step.min_size, step.fixed_size) == (plain, size, 0)
    flexible = only(field("A", type_), version=2, **keys)
    assert (flexible.length, flexible.min_size) == (Length.COMPACT, 1)


def test_field_of_its_own_flexible_versions() -> None:
    assert only(field("A", "string", flexibleVersions="none"), version=2).length is Length.INT16
    assert only(field("A", "bytes", flexibleVersions="3+"), version=2).length is Length.INT32
    assert only(field("A", "bytes", flexibleVersions="3+"), version=3).length is Length.COMPACT


def test_markers_of_nullable_structs() -> None:
    inner = [field("B", "int8")]
    assert only(field("A", "S", fields=inner)).length is Length.NONE
    assert only(field("A", "S", fields=inner, nullableVersions="0+")).length is Length.INT8
    assert only(field("A", "S", fields=inner, nullableVersions="0+"), version=2).length is Length.INT8
    tagged = {"taggedVersions": "2+", "tag": 0, "nullableVersions": "0+"}
    assert only(field("A", "S", fields=inner, **tagged), version=2).length is Length.COMPACT
    assert only(field("A", "S", fields=inner, **tagged)).length is Length.INT8


def test_union() -> None:
    variants = [
        {"name": "V", "tag": 3, "fields": [field("B", "int32")]},
        {"name": "W", "tag": -1, "fields": [field("C", "int16")]},
    ]
    step = only(field("A", "union", variants=variants))
    assert [(tag, plan.name, plan.min_size) for tag, plan in step.variants] == [(3, "MV", 4), (-1, "MW", 2)]
    assert (step.op, step.min_size, step.default) == (Op.UNION, 3, ...)


def test_optional_end() -> None:
    keys = {"nullableVersions": "0+", "default": "null", "presentIfRemaining": True}
    plan = compile_plan(message(field("A", "int8"), field("B", "[]int8", **keys), flexibleVersions="none"), 0)
    assert [step.presence for step in plan.wire] == [Presence.PLAIN, Presence.REMAINING]
    assert plan.min_size == 1


def test_limits() -> None:
    assert only(field("A", "string")).high == 0x7FFF
    assert only(field("A", "string", maxLength=9)).high == 9
    assert only(field("A", "string", maxLength=99999)).high == 0x7FFF
    assert (only(field("A", "int8")).low, only(field("A", "int8")).high, only(field("A", "int8")).bounded) == (
        -128,
        127,
        False,
    )
    bounded = only(field("A", "int8", minimum=0))
    assert (bounded.low, bounded.high, bounded.bounded) == (0, 127, True)


# ---- the digest


def test_digest_is_the_same_for_the_same_schema() -> None:
    again = read_message(json.dumps({"type": "data", "name": "M", "validVersions": "0", "flexibleVersions": "none"}))
    plan = compile_plan(again, 0)
    assert plan.digest == hashlib.sha256(b"M v0, at least 0 bytes").hexdigest()
    assert compile_plan(again, 0).digest == plan.digest


def test_a_struct_of_many_fields_is_described_once() -> None:
    plan = compile_plan(read_message(doubling_schema()), 0)
    lines = list(islice(plan.describe(), 1000))
    assert len(lines) == 6 * LEVELS + 2  # without names alone, 3 * 2 ** LEVELS
    assert plan.digest == hashlib.sha256("\n".join(lines).encode()).hexdigest()


def test_digest_differs_by_version() -> None:
    assert len({compile_plan(MIXED, version).digest for version in range(4)}) == 4


@pytest.mark.parametrize(
    "other",
    [
        field("B", "int32"),
        field("A", "int64"),
        field("A", "int32", default=1),
        field("A", "int32", ignorable=True),
        field("A", "int32", maximum=9),
        field("A", "string"),
        field("A", "string", nullableVersions="0+"),
        field("A", "[]int32"),
        field("A", "int32", "2+", taggedVersions="2+", tag=0),
    ],
)
def test_digest_differs_by_field(other: Schema) -> None:
    base = message(field("A", "int32"))
    for version in (0, 2):
        assert compile_plan(message(other), version).digest != compile_plan(base, version).digest


def test_digest_differs_by_tags_of_other_versions() -> None:
    tagged = message(field("A", "int32", "3+", taggedVersions="3+", tag=0))
    plain = message(field("A", "int32", "3+"))
    assert compile_plan(tagged, 2).digest != compile_plan(plain, 2).digest
    never = message(field("A", "int32", "3+"), flexibleVersions="none")
    assert compile_plan(never, 0).digest != compile_plan(plain, 0).digest


def test_digest_leaves_out_what_does_not_reach_the_codec() -> None:
    changed = message(field("A", "int32", about="x", entityType="brokerId"), about="y", family="central")
    assert compile_plan(changed, 0).digest == compile_plan(message(field("A", "int32")), 0).digest


# ---- names


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("SessionTimeoutMs", "session_timeout_ms"),
        ("groupInstanceId", "group_instance_id"),
        ("ISRNodes", "isr_nodes"),
        ("OfflineReplicasISR", "offline_replicas_isr"),
        ("Host", "host"),
        ("A", "a"),
        ("SCRAMCredentials", "scram_credentials"),
        ("Topic1Name", "topic1_name"),
        ("V3AndBelow", "v3_and_below"),
        ("From", "from_"),
        ("Class", "class_"),
    ],
)
def test_attribute_names(name: str, attribute: str) -> None:
    assert attribute_name(name) == attribute


def test_attribute_names_can_be_written_in_source() -> None:
    for word in (*keyword.kwlist, "match", "type"):
        attribute = attribute_name(word.capitalize())
        assert attribute.isidentifier()
        assert not keyword.iskeyword(attribute)


@pytest.mark.parametrize(("struct", "name"), [("M", "M"), ("Item", "MItem"), ("MItem", "MItem"), ("Mine", "Mine")])
def test_class_names(struct: str, name: str) -> None:
    if struct == "M":
        assert class_name(MIXED, MIXED.root) == name
    else:
        held = message(field("A", struct, fields=[field("B", "int8")]))
        assert class_name(held, held.structs[struct]) == name


# The package's own messages.


@each("name", sorted(MESSAGES))
def test_every_message_at_every_version(name: str) -> None:
    schema = MESSAGES[name]
    for version in schema.versions:
        plan = compile_plan(schema, version)
        assert [step.attr for step in plan.steps] == [attribute_name(f.name) for f in schema.fields]
        grammar = construct_model(schema, version)
        if schema.encoding == "binary":
            assert plan.min_size == grammar.min_size
        assert set(classes(plan)) <= {class_name(schema, struct) for struct in (schema.root, *schema.structs.values())}


def classes(plan: StructPlan) -> list[str]:
    names = [plan.name]
    for step in plan.steps:
        held = step if step.item is None else step.item
        plans = [held.struct] if held.struct is not None else [arm for _, arm in held.variants]
        names += [name for inner in plans for name in classes(inner)]
    return names
