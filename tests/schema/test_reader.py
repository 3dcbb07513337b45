"""The schema language, rule by rule: what follows a rule compiles, what breaks it is refused with place and rule."""

from __future__ import annotations

import copy
import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.errors import SchemaError
from kcoord_wire.schema import Message, compile_plan, load_message, read_message
from kcoord_wire.schema.construct_model import construct_model
from kcoord_wire.schema.model import INTEGERS, MAX_VERSION, NONE, Versions
from kcoord_wire.schema.reader import MAX_STRUCT_DEPTH, MAX_VALUES
from kcoord_wire.schema.text import line_of, parse_text

Schema = dict[str, Any]
KEYS = re.compile(r"\.(\w+)|\[(\d+)\]")  # of a JSON path


def message(*fields: Schema, **keys: Any) -> Schema:
    """A schema; a key that is ... is left out."""
    schema = {"type": "data", "name": "M", "validVersions": "0-4", "flexibleVersions": "3+", "fields": list(fields)}
    return {key: value for key, value in (schema | keys).items() if value is not ...}


def field(type_: str = "int32", **keys: Any) -> Schema:
    return {key: v for key, v in ({"name": "F", "type": type_, "versions": "0+"} | keys).items() if v is not ...}


def struct(*fields: Schema, **keys: Any) -> Schema:
    return {"name": "S", "versions": "0+", "fields": list(fields)} | keys


def variant(tag: Any = 0, name: str = "V", **keys: Any) -> Schema:
    return {"name": name, "tag": tag, "fields": [field(name="X")]} | keys


def tagged(type_: str = "int32", **keys: Any) -> Schema:
    return field(type_, **{"versions": "3+", "taggedVersions": "3+", "tag": 0} | keys)


def text(*fields: Schema, **keys: Any) -> Schema:
    return message(*fields, **{"encoding": "text", "textType": "T", "flexibleVersions": "none"} | keys)


def nested(depth: int, at: int = 0) -> Schema:
    inner = [nested(depth, at + 1)] if at < depth else [field()]
    return field(f"S{at}", fields=inner, name=f"N{at}")


def chained(chains: int) -> list[Schema]:
    """Chains of common structs, as long as they may be; each ends in the start of the one before."""
    last = MAX_STRUCT_DEPTH - 1
    return [
        struct(field(), *([field(f"[]{inner}", name="G")] if inner else []), name=f"C{chain}x{at}")
        for chain in range(chains)
        for at in range(last + 1)
        for inner in [f"C{chain}x{at + 1}" if at < last else f"C{chain - 1}x0" if chain else ""]
    ]


def tenfold(depth: int, tagged: bool = False) -> list[Schema]:
    """Structs of ten fields, each of the next struct."""
    return [
        struct(*(in_tag(kind, i) if tagged else field(kind, name=f"F{i}") for i in range(10)), name=f"S{at}")
        for at in range(depth)
        for kind in [f"S{at + 1}" if at + 1 < depth else "int8"]
    ]


def in_tag(type_: str, tag: int = 0) -> Schema:
    return {"name": f"F{tag}", "type": type_, "versions": "3+", "taggedVersions": "3+", "tag": tag}


ELEMENTS = [struct(field("[]S"), name="U"), struct(field("T")), struct(field(versions="1+"), name="T")]


def line_at(text: str, path: str) -> int:
    """The line of the value at a JSON path."""
    node = parse_text(text)[0]
    for key, index in KEYS.findall(path):
        assert isinstance(node.value, dict | list), path
        node = node.value[key] if isinstance(node.value, dict) else node.value[int(index)]
    return line_of(text, node.at)


def read(schema: Schema) -> Message:
    return read_message(json.dumps(schema, indent=1), "x.json")


def compile_everything(schema: Schema) -> Message:
    """Read, plan at every version, and round-trip the default value through the grammar."""
    read_in = read(schema)
    for version in read_in.versions if not read_in.versions.open_ended else [read_in.versions.low]:
        plan = compile_plan(read_in, version)
        grammar = construct_model(read_in, version)
        value = grammar.body.fresh() if read_in.encoding == "binary" else None
        if value is not None:
            data = grammar.build(value)
            assert grammar.parse(data) == value
            assert len(data) >= plan.min_size
    return read_in


OPTIONAL = field("[]int32", nullableVersions="0+", default="null", presentIfRemaining=True)
NEVER = {"flexibleVersions": "none"}
REFUSED = "$.fields[0].refused[0]"
EMPTY = {"empty": True, "error": "INVALID_REQUEST", "source": "Groups"}
UNLIKE = {"unlike": "a+", "error": "INVALID_REQUEST", "source": "Groups"}

# The rule, a schema that follows it, the place and value that break it (...: nothing is there), and with which words
# that is refused; the last is where, if that is not the place.
RULES: list[tuple[str, Schema, str, Any, str] | tuple[str, Schema, str, Any, str, str]] = [
    # ---- the message
    ("message-keys", message(about="x"), "$", message(abuot="x"), 'a message has no key "abuot"', "$.abuot"),
    ("message-name", message(), "$.name", ..., 'a message needs the key "name"', "$"),
    ("message-name-text", message(), "$.name", 3, "must be a string"),
    ("message-name-form", message(name="M2"), "$.name", "m2", "is not a message name"),
    ("message-type", message(), "$.type", ..., 'a message needs the key "type"', "$"),
    ("message-type-known", message(type="metadata"), "$.type", "meta", '"type" must be one of request'),
    ("valid-versions", message(), "$.validVersions", ..., 'needs the key "validVersions"', "$"),
    ("versions-form", message(validVersions="0"), "$.validVersions", "0,2", "not a version range"),
    ("versions-ascend", message(validVersions="2-4"), "$.validVersions", "4-2", "must ascend"),
    ("versions-limit", message(validVersions="0-32767"), "$.validVersions", "0-32768", "32767"),
    ("versions-text", message(validVersions=4), "$.validVersions", True, "a version range"),
    ("flexible-open", message(), "$.flexibleVersions", "3-4", "none or open-ended"),
    ("api-key", message(apiKey=7), "$.apiKey", "seven", '"apiKey" must be an integer'),
    ("api-key-bool", message(apiKey="0x7"), "$.apiKey", True, '"apiKey" must be an integer'),
    ("api-key-range", message(apiKey=32767), "$.apiKey", 32768, "between -32768 and 32767"),
    ("api-key-digits", message(apiKey="1"), "$", message(apiKey="1" * 5000), "must be an integer", "$.apiKey"),
    ("coordinator-api-key", message(type="coordinator-value", apiKey=1), "$.apiKey", ..., "needs an apiKey", "$.type"),
    (
        "coordinator-key-versions",
        message(type="coordinator-key", apiKey=1, validVersions="0", flexibleVersions="none"),
        "$.validVersions",
        "0-1",
        "validVersions 0 and flexibleVersions none",
        "$",
    ),
    (
        "coordinator-key-flexible",
        message(type="coordinator-key", apiKey=1, validVersions="0", flexibleVersions="none"),
        "$.flexibleVersions",
        "0+",
        "validVersions 0 and flexibleVersions none",
        "$",
    ),
    ("header-api-key", message(type="header"), "$.apiKey", 1, "a header has no apiKey"),
    (
        "listeners",
        message(type="request", listeners=["broker", "controller", "zkBroker"]),
        "$.listeners",
        ["broker", "client"],
        'there is no listener "client"',
        "$.listeners[1]",
    ),
    (
        "listeners-request",
        message(type="request", listeners=["broker"]),
        "$.type",
        "response",
        "only a request has listeners",
        "$.listeners[0]",
    ),
    (
        "unstable",
        message(type="request", latestVersionUnstable=True),
        "$.type",
        "response",
        "only a request",
        "$.latestVersionUnstable",
    ),
    (
        "flag",
        message(type="request", latestVersionUnstable="false"),
        "$.latestVersionUnstable",
        "no",
        "must be true or false",
    ),
    ("deprecated", message(deprecatedVersions="0-1"), "$.deprecatedVersions", "x", "range"),
    ("header-kind", message(header="typeId"), "$.header", "long", "one of kafka, typeId, none"),
    ("array-length", message(arrayLengthType="int16"), "$.arrayLengthType", "int8", "one of"),
    ("string-length", message(stringLengthType="int32"), "$.stringLengthType", "i", "one of"),
    ("encoding", message(encoding="binary"), "$.encoding", "xml", "one of binary, text"),
    ("text-type", text(), "$.textType", ..., 'needs the key "textType"', "$"),
    ("text-type-form", text(textType="Beat1"), "$.textType", "a/b", "letters and digits"),
    ("text-type-binary", message(), "$.textType", "T", 'only a message with encoding "text"'),
    ("text-flexible", text(), "$.flexibleVersions", "3+", "is never flexible"),
    (
        "text-fields",
        text(field("string")),
        "$.fields[0].type",
        "int16",
        "only plain string, int32 and int64",
        "$.fields[0]",
    ),
    (
        "text-arrays",
        text(field("int64")),
        "$.fields[0].type",
        "[]int64",
        "only plain string, int32 and int64",
        "$.fields[0]",
    ),
    (
        "text-null",
        text(field("string")),
        "$.fields[0].nullableVersions",
        "0+",
        "only plain string, int32 and int64",
        "$.fields[0]",
    ),
    # ---- structs
    (
        "common-struct-keys",
        message(commonStructs=[struct(field(), about="x")]),
        "$",
        message(commonStructs=[struct(field(), type="x")]),
        'a common struct has no key "type"',
        "$.commonStructs[0].type",
    ),
    ("common-struct-name", message(commonStructs=[struct()]), "$.commonStructs[0].name", "s", "is not a struct name"),
    (
        "common-struct-versions",
        message(commonStructs=[struct()]),
        "$.commonStructs[0].versions",
        ...,
        'needs the key "versions"',
        "$.commonStructs[0]",
    ),
    (
        "struct-once",
        message(commonStructs=[struct(field()), struct(field(), name="T")]),
        "$.commonStructs[1].name",
        "S",
        'the struct "S" is defined twice',
    ),
    (
        "struct-not-inline-too",
        message(field("S"), commonStructs=[struct(field())]),
        "$",
        message(field("S", fields=[field()]), commonStructs=[struct(field())]),
        'the struct "S" is defined twice',
        "$.fields[0].type",
    ),
    (
        "struct-defined",
        message(field("S", fields=[])),
        "$.fields[0].fields",
        ...,
        'there is no struct "S"',
        "$.fields[0].type",
    ),
    (
        "struct-itself",
        message(field("S"), commonStructs=[struct(field("T")), struct(field(), name="T")]),
        "$.commonStructs[1].fields[0].type",
        "[]S",
        'the struct "S" contains itself',
        "$.commonStructs[0]",
    ),
    (
        "struct-depth",
        message(nested(3)),
        "$",
        message(
            field("S0"),
            commonStructs=[
                *(struct(field(f"S{i + 1}"), name=f"S{i}") for i in range(MAX_STRUCT_DEPTH + 2)),
                struct(field(), name=f"S{MAX_STRUCT_DEPTH + 2}"),
            ],
        ),
        f"nested at most {MAX_STRUCT_DEPTH} deep",
    ),
    # each seen first where it is not deep
    (
        "struct-depth-along-shared-structs",
        message(*(field(f"[]C{chain}x0", name=f"F{chain}") for chain in range(1)), commonStructs=chained(1)),
        "$",
        message(*(field(f"[]C{chain}x0", name=f"F{chain}") for chain in range(2)), commonStructs=chained(2)),
        f"nested at most {MAX_STRUCT_DEPTH} deep",
    ),
    (
        "struct-values",
        message(field("S0"), commonStructs=tenfold(2)),
        "$",
        message(field("S0"), commonStructs=tenfold(20)),
        f"at most {MAX_VALUES} values",
        "$.commonStructs[17]",
    ),
    (
        "struct-values-of-tagged",
        message(in_tag("S0"), commonStructs=tenfold(2, tagged=True)),
        "$",
        message(in_tag("S0"), commonStructs=tenfold(3, tagged=True)),
        f"at most {MAX_VALUES} values",
        "$.commonStructs[0]",
    ),
    (
        "element-without-bytes",
        message(field("[]S", versions="1+"), commonStructs=[struct(field(versions="1+"))]),
        "$.fields[0].versions",
        "0+",
        'the elements of "F" take no byte',
        "$",
    ),
    (
        "element-without-bytes-of-a-struct",
        message(field("U", versions="1+"), commonStructs=ELEMENTS),
        "$.fields[0].versions",
        "0+",
        'the elements of "F" take no byte',
        "$.commonStructs[0]",
    ),
    (
        "field-once",
        message(field(), field(name="G")),
        "$.fields[1].name",
        "f",
        'the field "f" occurs twice',
        "$.fields[1]",
    ),
    (
        "field-not-the-tags",
        message(field(name="Tags")),
        "$.fields[0].name",
        "UnknownTags",
        "keeps unknown tagged fields",
        "$.fields[0]",
    ),
    (
        "struct-class-once",
        message(field("Ma", fields=[field()]), field("Mb", name="g", fields=[field()])),
        "$",
        message(field("Item", fields=[field()]), field("MItem", name="g", fields=[field()])),
        'the structs "Item" and "MItem" would become one class',
        "$.fields[1]",
    ),
    (
        "struct-not-the-message",
        message(field()) | {"commonStructs": [{"name": "Ma", "versions": "0+", "fields": []}]},
        "$.commonStructs[0].name",
        "M",
        'the struct "M" is defined twice',
    ),
    # ---- fields
    ("field-object", message(field()), "$.fields[0]", 3, "a field is a JSON object"),
    ("field-keys", message(field(about="x")), "$", message(field(abuot="x")), 'no key "abuot"', "$.fields[0].abuot"),
    ("field-name", message(field()), "$.fields[0].name", ..., 'a field needs the key "name"', "$.fields[0]"),
    ("field-name-form", message(field(name="a1")), "$.fields[0].name", "1a", "not a field name"),
    ("field-type", message(field()), "$.fields[0].type", ..., 'a field needs the key "type"', "$.fields[0]"),
    ("field-type-known", message(field("int8")), "$.fields[0].type", "int128", 'no type "int128"'),
    ("field-versions", message(field()), "$.fields[0].versions", ..., 'needs the key "versions"', "$.fields[0]"),
    ("about", message(field(about="x")), "$.fields[0].about", 3, '"about" must be a string'),
    ("array-of-arrays", message(field("[]int8")), "$.fields[0].type", "[][]int8", "array of arrays"),
    (
        "array-of-records",
        message(field("records", nullableVersions="0+")),
        "$.fields[0].type",
        "[]records",
        "an array of records",
    ),
    (
        "array-of-unions",
        message(field("union", variants=[variant()])),
        "$.fields[0].type",
        "[]union",
        "an array of union",
    ),
    (
        "inline-struct",
        message(field("[]S", fields=[field()])),
        "$.fields[0].type",
        "int32",
        "cannot define fields",
        "$.fields[0].fields",
    ),
    (
        "nullable",
        message(field("string", nullableVersions="0+")),
        "$.fields[0].type",
        "uuid",
        "a field of type uuid cannot be null",
        "$.fields[0].nullableVersions",
    ),
    (
        "nullable-meets",
        message(field("string", versions="2+", nullableVersions="0+")),
        "$.fields[0].nullableVersions",
        "0-1",
        "must overlap the field's versions",
    ),
    (
        "tag-needs-versions",
        message(tagged()),
        "$",
        message(field(tag=0)),
        "a tag needs taggedVersions",
        "$.fields[0].tag",
    ),
    ("versions-need-tag", message(tagged()), "$.fields[0].tag", ..., "taggedVersions need a tag", "$.fields[0]"),
    ("tag-range", message(tagged()), "$.fields[0].tag", -1, '"tag" must lie between 0 and'),
    ("tagged-open", message(tagged()), "$.fields[0].taggedVersions", "3-4", "must be open-ended"),
    (
        "tagged-in-versions",
        message(tagged(taggedVersions="4+")),
        "$",
        message(tagged(versions="4+")),
        "within the field's versions",
        "$.fields[0].taggedVersions",
    ),
    (
        "tagged-in-flexible",
        message(tagged()),
        "$",
        message(tagged(versions="2+", taggedVersions="2+")),
        "within the message's flexibleVersions",
        "$.fields[0].taggedVersions",
    ),
    (
        "tagged-records",
        message(tagged("bytes")),
        "$.fields[0].type",
        "records",
        "records cannot be a tagged",
        "$.fields[0]",
    ),
    (
        "tagged-union",
        message(field("union", variants=[variant()])),
        "$",
        message(tagged("union", variants=[variant()])),
        "a union cannot be a tagged field",
        "$.fields[0]",
    ),
    (
        "tagged-nullable",
        message(tagged("string", nullableVersions="3+")),
        "$.fields[0].nullableVersions",
        "4+",
        "nullable in all of its taggedVersions or in none",
        "$.fields[0]",
    ),
    (
        "tags-once",
        message(tagged(), tagged(name="G", tag=1)),
        "$.fields[1].tag",
        0,
        "the tag 0 occurs twice",
        "$.fields[1]",
    ),
    (
        "tags-without-gap",
        message(tagged(tag=1), tagged(name="G", tag=0)),
        "$.fields[0].tag",
        2,
        "1 is missing",
        "$.fields[0]",
    ),
    (
        "map-key",
        message(field(mapKey=True)),
        "$",
        message(tagged(mapKey=True)),
        "cannot be a mapKey",
        "$.fields[0].mapKey",
    ),
    (
        "entity-known",
        message(field("string", entityType="groupId")),
        "$.fields[0].entityType",
        "group",
        'there is no entity type "group"',
    ),
    (
        "entity-type",
        message(field("[]string", entityType="topicName")),
        "$.fields[0].type",
        "int32",
        "topicName is a string, the field a int32",
        "$.fields[0].entityType",
    ),
    ("zero-copy", message(field("bytes", zeroCopy=True)), "$.fields[0].type", "int32", "bytes", "$.fields[0].zeroCopy"),
    (
        "field-flexible",
        message(field("string", flexibleVersions="none")),
        "$.fields[0].type",
        "int32",
        "only a string or bytes field",
        "$.fields[0].flexibleVersions",
    ),
    (
        "field-flexible-within",
        message(field("bytes", flexibleVersions="4+")),
        "$.fields[0].flexibleVersions",
        "2+",
        "must lie within its message's",
    ),
    ("ignorable", message(field(ignorable="true")), "$.fields[0].ignorable", 1, "true or false"),
    # Extensions.
    ("embeds", message(field("bytes", embeds="N")), "$.fields[0].type", "string", "bytes", "$.fields[0].embeds"),
    *(
        (f"refused-{name}", message(field("string", refused=[EMPTY])), REFUSED, {**EMPTY, **wrong}, text, at)
        for name, wrong, text, at in (
            ("condition", {"null": True}, "a refusal has one of empty, null,", REFUSED),
            ("error", {"error": "NOPE"}, 'there is no error code "NOPE"', f"{REFUSED}.error"),
            ("each", {"each": True}, "cannot be refused of an element of a field", f"{REFUSED}.empty"),
            ("true", {"empty": False}, '"empty" can only be true', f"{REFUSED}.empty"),
            ("beside", {"beside": {"G": [0]}}, 'there is no field "G" in its struct', "$"),
            ("object", {"beside": [0]}, "is a JSON object of fields and lists of values", f"{REFUSED}.beside"),
        )
    ),
    (
        "refused-type",
        message(field("string", refused=[EMPTY])),
        "$.fields[0].type",
        "int8",
        "cannot be refused of a field of type int8",
        "$.fields[0].refused[0].empty",
    ),
    (
        "refused-pattern",
        message(field("string", refused=[UNLIKE])),
        "$.fields[0].refused[0].unlike",
        "(",
        "is no regular expression",
        "$.fields[0].refused[0].unlike",
    ),
    (
        "bounds-type",
        message(field("int8", minimum=0)),
        "$.fields[0].type",
        "float64",
        "only an integer field has a minimum",
        "$.fields[0]",
    ),
    (
        "bounds-ascend",
        message(field("int8", minimum=-1, maximum=1)),
        "$",
        message(field("int8", minimum=1, maximum=-1)),
        "ascend within int8",
        "$.fields[0]",
    ),
    ("bounds-within", message(field("int8", maximum=127)), "$.fields[0].maximum", 128, "within int8", "$.fields[0]"),
    (
        "bounds-default",
        message(field(minimum=1, default=1)),
        "$.fields[0].default",
        ...,
        "the default must lie between",
        "$.fields[0]",
    ),
    ("max-length", message(field("string", maxLength=0)), "$.fields[0].type", "bytes", "maxLength", "$.fields[0]"),
    ("max-length-sign", message(field("string", maxLength=1)), "$.fields[0].maxLength", -1, "maxLength", "$.fields[0]"),
    (
        "remaining-array",
        message(OPTIONAL, **NEVER),
        "$.fields[0].type",
        "bytes",
        "is an array, nullable in all its versions, with default null",
        "$.fields[0]",
    ),
    (
        "remaining-null",
        message(OPTIONAL, **NEVER),
        "$.fields[0].default",
        "",
        "is an array, nullable in all its versions, with default null",
        "$.fields[0]",
    ),
    (
        "remaining-last",
        message(field(name="G"), OPTIONAL, **NEVER),
        "$",
        message(OPTIONAL, field(name="G"), **NEVER),
        "only the last field of a message",
    ),
    (
        "remaining-root",
        message(OPTIONAL, **NEVER),
        "$",
        message(field("S", name="G", fields=[OPTIONAL]), **NEVER),
        "only the last field of a message",
    ),
    ("remaining-flexible", message(OPTIONAL, **NEVER), "$.flexibleVersions", "3+", "never flexible", "$.fields[0]"),
    (
        "variants-only-union",
        message(field("union", variants=[variant()])),
        "$.fields[0].type",
        "int8",
        "only a union has variants",
        "$.fields[0].variants",
    ),
    (
        "union-variants",
        message(field("union", variants=[variant()])),
        "$.fields[0].variants",
        ...,
        'needs the key "variants"',
        "$.fields[0]",
    ),
    (
        "union-not-empty",
        message(field("union", variants=[variant()])),
        "$.fields[0].variants",
        [],
        "at least one variant",
    ),
    (
        "variant-keys",
        message(field("union", variants=[variant(about="x")])),
        "$",
        message(field("union", variants=[variant(type="x")])),
        'a variant has no key "type"',
        "$.fields[0].variants[0].type",
    ),
    (
        "variant-tag",
        message(field("union", variants=[variant(-128)])),
        "$.fields[0].variants[0].tag",
        128,
        "between -128 and 127",
    ),
    (
        "variant-tags-once",
        message(field("union", variants=[variant(0), variant(1, "W")])),
        "$.fields[0].variants[1].tag",
        0,
        "the tag 0 occurs twice in its union",
    ),
    (
        "variant-names-once",
        message(field("union", variants=[variant(0), variant(1, "W")])),
        "$.fields[0].variants[1].name",
        "V",
        'the struct "V" is defined twice',
    ),
    # ---- defaults
    ("default-scalar", message(field(default="1")), "$.fields[0].default", [1], "must be a string"),
    ("default-int", message(field(default="0x7f")), "$.fields[0].default", "1.5", "not a default"),
    ("default-range", message(field("int8", default=-128)), "$.fields[0].default", -129, "not a default"),
    ("default-bool", message(field("bool", default="true")), "$.fields[0].default", "yes", "not a default"),
    ("default-nan", message(field("float64", default="inf")), "$.fields[0].default", "nan", '"nan" is not a default'),
    ("default-float", message(field("float64", default="-2.5")), "$.fields[0].default", "much", "not a default"),
    (
        "default-uuid",
        message(field("uuid", default="AAAAAAAAAAAAAAAAAAAAAQ")),
        "$.fields[0].default",
        "AAAA",
        "not a default",
    ),
    ("default-bytes", message(field("bytes", default="")), "$.fields[0].default", "00", 'is "null" or empty'),
    ("default-array", message(field("[]int8", default="")), "$.fields[0].default", "1", 'is "null" or empty'),
    (
        "default-null",
        message(field("string", nullableVersions="0+", default="null")),
        "$.fields[0].nullableVersions",
        "2+",
        "must be nullable in all its versions",
        "$.fields[0].default",
    ),
    ("family", message(family="all-members"), "$.family", 'kafka"""', "must be letters, digits and hyphens"),
]


def changed(schema: Schema, at: str, value: Any) -> Schema:
    """The schema with another value at a JSON path."""
    if at == "$":
        return dict(value)
    schema = copy.deepcopy(schema)
    *above, last = [int(index) if index else key for key, index in KEYS.findall(at)]
    holder: Any = schema
    for key in above:
        holder = holder[key]
    if value is ...:
        del holder[last]
    else:
        holder[last] = value
    return schema


@pytest.mark.parametrize("row", [pytest.param(row, id=row[0]) for row in RULES])
def test_rule(row: tuple[Any, ...]) -> None:
    _, follows, at, value, rule, *where = row
    compile_everything(follows)
    broken = changed(follows, at, value)
    with pytest.raises(SchemaError) as caught:
        read(broken)
    error = caught.value
    assert (error.file, error.where) == ("x.json", *(where or [at]))
    assert rule in error.rule
    assert error.line == line_at(json.dumps(broken, indent=1), error.where)


def test_every_rule_has_a_name_of_its_own() -> None:
    assert len({rule[0] for rule in RULES}) == len(RULES)


def test_refusal_reads_as_one_line() -> None:
    schema = (
        '// M\n{ "type": "data", "name": "M", "validVersions": "0", "flexibleVersions": "none",\n "fields": [\n  3 ]}'
    )
    with pytest.raises(SchemaError, match=r"^m\.json:4: \$\.fields\[0\]: a field is a JSON object$"):
        read_message(schema, "m.json")


# ---- every construct of the language

DEFAULTS: list[tuple[Schema, object]] = [
    (field("bool"), False),
    (field("bool", default=True), True),
    (field("bool", default="true"), True),
    (field("int8", default=-1), -1),
    (field("int16", default="-1"), -1),
    (field("int32", default="0x7fffffff"), 0x7FFFFFFF),
    (field("int64", default="-0x1"), -1),
    (field("uint16", default=65535), 65535),
    (field("uint32", default="4294967295"), 4294967295),
    (field("float64"), 0.0),
    (field("float64", default=1.5), 1.5),
    (field("float64", default="-2"), -2.0),
    (field("string"), ""),
    (field("string", default="null"), "refused"),
    (field("string", default="x"), "x"),
    (field("string", default=3), "3"),
    (field("string", default=False), "false"),
    (field("string", nullableVersions="0+", default="null"), None),
    (field("string", nullableVersions="0+", default=None), ""),
    (field("bytes"), b""),
    (field("bytes", nullableVersions="0+", default="null"), None),
    (field("records"), None),
    (field("records", nullableVersions="0+", default="null"), None),
    (field("uuid"), uuid.UUID(int=0)),
    (field("uuid", default="AAAAAAAAAAAAAAAAAAAAAQ"), uuid.UUID(int=1)),
    (field("[]int8"), ()),
    (field("[]int8", nullableVersions="0+", default="null"), None),
    (field("[]int8", nullableVersions="0+", default=None), ()),
    (field("S", fields=[field()]), ...),
    (field("S", fields=[field()], nullableVersions="0+", default="null"), None),
    (field("S", fields=[field()], nullableVersions="0+", default=None), ...),
    (field("union", variants=[variant()]), ...),
    *((field(base), 0) for base in INTEGERS),
]


@pytest.mark.parametrize(("schema", "default"), DEFAULTS)
def test_defaults(schema: Schema, default: object) -> None:
    if default == "refused":
        with pytest.raises(SchemaError):
            read(message(schema))
        return
    read_in = compile_everything(message(schema)) if schema["type"] != "records" else read(message(schema))
    (found,) = read_in.fields
    assert found.default == default
    assert type(found.default) is type(default)


def test_null_in_json_is_no_default_and_then_null_is_written() -> None:
    schema = message(tagged("[]int32", nullableVersions="3+", default=None))
    grammar = construct_model(read(schema), 3)
    assert grammar.build(grammar.body.fresh()) == b"\0"
    value = grammar.parse(b"\1\0\1\0")
    assert value.f is None
    assert grammar.build(value) == b"\1\0\1\0"


@pytest.mark.parametrize("base", [*INTEGERS, "bool", "float64", "string", "uuid", "bytes"])
def test_every_type_alone_and_in_an_array(base: str) -> None:
    (alone,) = compile_everything(message(field(base))).fields
    assert (str(alone.type), alone.type.array, alone.type.is_struct) == (base, False, False)
    (array,) = compile_everything(message(field(f"[]{base}"))).fields
    assert (str(array.type), array.type.base, array.type.array) == (f"[]{base}", base, True)


def test_struct_types() -> None:
    inner = [field("string", name="G")]
    read_in = compile_everything(
        message(
            field("S", fields=inner),
            field("[]T", name="Ts", fields=copy.deepcopy(inner)),
            field("U", name="U", fields=copy.deepcopy(inner), nullableVersions="2+"),
            field("C", name="C1"),
            field("[]C", name="C2", nullableVersions="0+", default="null"),
            tagged("V", name="V", fields=copy.deepcopy(inner), nullableVersions="3+", default="null"),
            commonStructs=[struct(field(), name="C", versions="1+", about="Shared.")],
        )
    )
    assert set(read_in.structs) == {"S", "T", "U", "V", "C"}
    assert read_in.structs["C"].versions == Versions(1, MAX_VERSION)
    assert read_in.structs["C"].about == "Shared."
    assert read_in.struct_of(read_in.fields[4]) is read_in.structs["C"]
    assert read_in.fields[5].tag == 0


def test_message_keys() -> None:
    request = compile_everything(
        message(
            field("bytes", zeroCopy=True, ignorable=True, embeds="N", about="B."),
            field("[]int32", name="G", entityType="brokerId"),
            field("[]S", name="H", fields=[field("string", mapKey=True, entityType="groupId")]),
            type="request",
            apiKey=7,
            deprecatedVersions="0-1",
            listeners=["broker", "zkBroker"],
            latestVersionUnstable=True,
            about="What it is for.",
            family="central",
            header="typeId",
            arrayLengthType="int16",
            stringLengthType="int32",
        )
    )
    assert (request.api_key, request.family, request.header) == (7, "central", "typeId")
    assert (request.array_length, request.string_length) == ("int16", "int32")
    assert request.deprecated == Versions(0, 1)
    assert request.listeners == ("broker", "zkBroker")
    assert request.latest_unstable
    assert request.about == "What it is for."
    b, g, h = request.fields
    assert (b.zero_copy, b.ignorable, b.embeds, b.about) == (True, True, "N", "B.")
    assert (g.entity_type, request.struct_of(h).fields[0].map_key) == ("brokerId", True)


@pytest.mark.parametrize("kind", ["request", "response", "header", "metadata", "data", "coordinator-value"])
def test_every_type_of_message(kind: str) -> None:
    keys = {} if kind == "header" else {"apiKey": 3}
    assert compile_everything(message(field(), type=kind, **keys)).type == kind


def test_coordinator_key() -> None:
    schema = message(field("string"), type="coordinator-key", apiKey=3, validVersions="0", flexibleVersions="none")
    assert compile_everything(schema).versions == Versions(0, 0)


def test_reserved_id() -> None:
    reserved = read({"type": "request", "apiKey": 4, "name": "M", "validVersions": "none"})
    assert (reserved.versions, reserved.flexible, reserved.fields) == (NONE, NONE, ())


def test_single_value_where_a_list_may_stand() -> None:
    read_in = compile_everything(
        message(type="request", listeners="broker", fields=field(), commonStructs=struct(field()))
    )
    assert read_in.listeners == ("broker",)
    assert [f.name for f in read_in.fields] == ["F"]
    assert set(read_in.structs) == {"S"}


def test_versions_of_a_tagged_field_may_be_left_out() -> None:
    (found,) = compile_everything(message(tagged(versions=...))).fields
    assert found.versions == found.tagged == Versions(3, MAX_VERSION)


def test_field_of_its_own_flexible_versions() -> None:
    read_in = compile_everything(message(field("string", flexibleVersions="none"), field("string", name="G")))
    grammar = construct_model(read_in, 3)
    value = grammar.body.fresh()
    value.f, value.g = "x", "y"
    assert grammar.build(value) == b"\0\1x" + b"\2y" + b"\0"


def test_flexible_versions_end_with_the_valid_ones() -> None:
    assert read(message()).flexible == Versions(3, 4)
    assert read(message(validVersions="0-2")).flexible == NONE


def test_comments_describe_the_message_unless_it_does_so_itself() -> None:
    schema = json.dumps(message())
    assert read_message(f"// Of the file.\n{schema}").about == "Of the file."
    assert read_message(f"// Of the file.\n{json.dumps(message(about='Its own.'))}").about == "Its own."


def test_text_message() -> None:
    read_in = compile_everything(text(field("string", maxLength=3), field("int64", name="G", minimum=0)))
    assert (read_in.encoding, read_in.text_type) == ("text", "T")
    assert read_in.fields[0].max_length == 3
    assert (read_in.fields[1].minimum, read_in.fields[1].maximum) == (0, None)


@pytest.mark.parametrize(
    ("written", "low", "high"),
    [("3", 3, 3), ("0-9", 0, 9), ("4+", 4, MAX_VERSION), (" 1 ", 1, 1), ("7-7", 7, 7), ("32767", 32767, 32767)],
)
def test_version_ranges(written: str, low: int, high: int) -> None:
    assert Versions.parse(written) == Versions(low, high)


@pytest.mark.parametrize("written", ["", "none ever", "-1", "1-", "+", "1+2", "5-4", "1 - 2", "99999", "x", "٣"])
def test_malformed_version_ranges_are_refused(written: str) -> None:
    with pytest.raises(ValueError, match="is not a version range"):
        Versions.parse(written)


@pytest.mark.parametrize("versions", [NONE, Versions(0, 0), Versions(2, 5), Versions(4, MAX_VERSION)])
def test_version_ranges_print_as_they_are_written(versions: Versions) -> None:
    assert Versions.parse(str(versions)) == versions


@pytest.mark.parametrize(
    "keys",
    [
        {"type": "coordinator-key", "apiKey": 4},
        {"type": "response", "apiKey": 4, "listeners": ["broker"]},
        {"type": "response", "apiKey": 4, "latestVersionUnstable": True},
    ],
    ids=lambda keys: "-".join(keys),
)
def test_other_keys_of_a_reserved_id_are_not_checked(keys: dict[str, Any]) -> None:
    assert not read({"name": "R", "validVersions": "none", **keys}).versions


def test_empty_values_mean_the_default() -> None:
    """As Kafka's generator takes them: an empty range is the default, and bools may be written in any case."""
    blank = read(message(field("string", flexibleVersions=""), validVersions="0", flexibleVersions="0+"))
    plain = read(message(field("string"), validVersions="0", flexibleVersions="0+"))
    assert compile_plan(blank, 0).digest == compile_plan(plain, 0).digest
    assert read(message(field("bool", default="True"))).fields[0].default is True
    common = {"name": "S", "versions": "0+", "deprecatedVersions": "0", "fields": [field()]}
    assert read(message(field("S"), commonStructs=[common])).structs["S"].fields


# ---- files


def test_without_flexible_versions_no_version_is_flexible() -> None:
    text = json.dumps(message(flexibleVersions=...))
    assert not read_message(text).flexible
    assert read_message(text.encode()).source == text


def test_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(b'{"name": "\xff"}')
    with pytest.raises(SchemaError, match="UTF-8") as caught:
        load_message(path)
    assert caught.value.file == str(path)
