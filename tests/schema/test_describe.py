"""What classes say of themselves: the schema's text, the versions, the tag."""

from __future__ import annotations

import json

import pytest

from kcoord_wire.schema.describe import class_doc, describe_fields, field_doc, version_notes, walk_fields
from kcoord_wire.schema.model import Message
from kcoord_wire.schema.reader import read_message

MESSAGE = read_message(
    json.dumps(
        {
            "type": "data",
            "name": "Note",
            "about": "What is noted.",
            "validVersions": "0-3",
            "flexibleVersions": "2+",
            "fields": [
                {"name": "Always", "type": "int8", "versions": "0+", "about": "A number"},
                {"name": "Later", "type": "string", "versions": "1+", "nullableVersions": "2+", "about": "A text."},
                {
                    "name": "Tagged",
                    "type": "[]Row",
                    "versions": "2+",
                    "taggedVersions": "2+",
                    "tag": 0,
                    "about": "The rows",
                    "fields": [{"name": "Cell", "type": "int8", "versions": "2+"}],
                },
            ],
        }
    )
)


def test_a_class_says_what_it_is_for_and_its_versions() -> None:
    assert class_doc(MESSAGE, MESSAGE.root).startswith("What is noted.\n\nVersions 0-3, flexible 2+.\n\nFields:\n")
    assert class_doc(MESSAGE, MESSAGE.structs["Row"]).startswith("The rows.\n\nVersions 2-3 of Note.\n\nFields:\n")


def test_a_class_says_what_its_fields_are() -> None:
    lines = class_doc(MESSAGE, MESSAGE.root).partition("Fields:\n\n")[2].splitlines()
    assert lines == [
        "- always (int8): A number.",
        "- later (string): A text. Versions 1+. Null in versions 2+.",
        "- tagged ([]Row): The rows. Versions 2+. Tagged field 0.",
    ]
    assert class_doc(MESSAGE, MESSAGE.structs["Row"]).endswith("\n- cell (int8): Versions 2+.")
    bare = about("")
    assert class_doc(bare, bare.root) == "Note\n\nVersions 0-5, flexible 3+."


def test_a_field_says_what_is_not_true_of_all_versions() -> None:
    assert [field_doc(MESSAGE, field) for field in MESSAGE.fields] == [
        "A number.",
        "A text. Versions 1+. Null in versions 2+.",
        "The rows. Versions 2+. Tagged field 0.",
    ]


def test_fields_are_walked_with_those_inside_them() -> None:
    assert [path for path, _ in walk_fields(MESSAGE)] == ["always", "later", "tagged", "tagged[].cell"]
    assert [path for path, _ in walk_fields(MESSAGE, 1)] == ["always", "later"]


def about(text: str, *fields: dict[str, object]) -> Message:
    return read_message(
        json.dumps(
            {"type": "data", "name": "Note", "about": text, "validVersions": "0-5", "flexibleVersions": "3+"}
            | {"fields": [{"type": "int8", **field} for field in fields]}
        )
    )


def test_a_clause_says_what_its_version_brings() -> None:
    notes = version_notes(
        about(
            "Keeps v0 of notes. v1 adds the time (KIP-62; v0 has none. None), v2 and v3 change two things (KIP-7, "
            "KIP-8), v4 the end. From v5 on nothing is new; Kafka 4.0 dropped v0 (KIP-896)."
        )
    )
    assert {version: (note.text, note.kips) for version, note in notes.items()} == {
        1: ("adds the time (KIP-62; v0 has none. None)", (62,)),
        2: ("change two things (KIP-7, KIP-8)", (7,)),
        3: ("change two things (KIP-7, KIP-8)", (8,)),
        4: ("the end", ()),
    }


def test_a_field_has_the_proposals_of_the_version_it_begins_in() -> None:
    message = about(
        "Keeps notes (KIP-1). The first kind (KIP-2). v1 adds the time (KIP-3), v3 is flexible (KIP-4), v4 is flexible "
        "too and has ids (KIP-482, KIP-5).",
        {"name": "First", "versions": "0+"},
        {"name": "Own", "versions": "1-2", "about": "Said of KIP-9."},
        {"name": "Time", "versions": "1+"},
        {"name": "Silent", "versions": "3+"},
        {"name": "Id", "versions": "4+", "default": "7"},
        {"name": "Gone", "versions": "6+"},
    )
    facts = {fact.path: (str(fact.versions), fact.default_text, fact.kips) for fact in describe_fields(message)}
    assert facts == {
        "first": ("0-5", "0", (1,)),
        "own": ("1-2", "0", (9,)),
        "time": ("1-5", "0", (3,)),
        "silent": ("3-5", "0", ()),
        "id": ("4-5", "7", (5,)),
        "gone": ("none", "0", ()),
    }


def test_a_field_in_a_struct_has_the_versions_of_both() -> None:
    facts = {fact.path: fact for fact in describe_fields(MESSAGE)}
    assert str(facts["tagged[].cell"].versions) == "2-3"
    assert (str(facts["tagged"].tagged), str(facts["later"].nullable)) == ("2-3", "2-3")


@pytest.mark.parametrize(
    ("kind", "default", "text"),
    [
        ("string", None, '""'),
        ("bytes", None, '""'),
        ("uuid", None, "zeros"),
        ("uuid", "AAAAAAAAAAAAAAAAAAAAAQ", '"00000000000000000000000000000001"'),
        ("[]string", None, "[]"),
        ("float64", None, "0.0"),
        ("bool", "true", "true"),
    ],
)
def test_a_default_is_shown_as_json(kind: str, default: str | None, text: str) -> None:
    given = {} if default is None else {"default": default}
    [fact] = describe_fields(about("", {"name": "Value", "versions": "0+", "type": kind, **given}))
    assert fact.default_text == text
