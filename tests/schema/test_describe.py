"""What classes say of themselves: the schema's text, the versions, the tag."""

from __future__ import annotations

import json

from kcoord_wire.schema.describe import class_doc, field_doc, walk_fields
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
    assert class_doc(MESSAGE, MESSAGE.root) == "What is noted.\n\nVersions 0-3, flexible 2+."
    assert class_doc(MESSAGE, MESSAGE.structs["Row"]) == "The rows.\n\nVersions 2-3 of Note."


def test_a_field_says_what_is_not_true_of_all_versions() -> None:
    assert [field_doc(MESSAGE, field) for field in MESSAGE.fields] == [
        "A number.",
        "A text. Versions 1+. Null in versions 2+.",
        "The rows. Versions 2+. Tagged field 0.",
    ]


def test_fields_are_walked_with_those_inside_them() -> None:
    assert [path for path, _ in walk_fields(MESSAGE)] == ["always", "later", "tagged", "tagged[].cell"]
    assert [path for path, _ in walk_fields(MESSAGE, 1)] == ["always", "later"]
