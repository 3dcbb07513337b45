"""Classes made at run time: fields, defaults and slots as the generated classes have them."""

from __future__ import annotations

import dataclasses

import pytest

import kcoord_wire as kw
from kcoord_wire.codec.classes import make_classes
from kcoord_wire.codec.registry import MessageCodec


@pytest.mark.parametrize("codec", list(kw.registry.values()), ids=lambda codec: codec.name)
def test_classes_have_the_fields_of_the_generated_ones(codec: MessageCodec) -> None:
    made = make_classes(codec.schema)
    assert codec.name in made
    for name, cls in made.items():
        assert cls.__slots__ == codec.classes[name].__slots__  # type: ignore[attr-defined]
        assert repr(cls()) == repr(codec.classes[name]())


def test_fields_are_keyword_only_and_lists_are_not_shared() -> None:
    cls = make_classes(kw.registry["JoinGroupRequest"].schema)["JoinGroupRequest"]
    assert all(field.kw_only for field in dataclasses.fields(cls))
    assert cls().protocols is not cls().protocols  # type: ignore[attr-defined]


def test_the_docstring_is_the_schemas_description() -> None:
    schema = kw.registry["HeartbeatRequest"].schema
    assert make_classes(schema)["HeartbeatRequest"].__doc__ == schema.about
