"""The model: types as text, the structs that fields name, and that it cannot be changed."""

from __future__ import annotations

import dataclasses

import pytest

import kcoord_wire as kw
from kcoord_wire.schema.model import INTEGERS, FieldType

SCHEMA = kw.registry["JoinGroupRequest"].schema
FIELDS = {field.name: field for field in SCHEMA.fields}


def test_a_type_knows_whether_it_is_a_struct() -> None:
    assert [str(FieldType("int32")), str(FieldType("Topic", array=True))] == ["int32", "[]Topic"]
    assert FieldType("Topic").is_struct
    assert not FieldType("string").is_struct
    assert not FieldType("union").is_struct


def test_a_field_leads_to_its_struct() -> None:
    struct = SCHEMA.struct_of(FIELDS["Protocols"])
    assert [field.name for field in struct.fields] == ["Name", "Metadata"]
    with pytest.raises(KeyError):
        SCHEMA.struct_of(FIELDS["GroupId"])


def test_a_model_cannot_be_changed() -> None:
    for part in (SCHEMA, SCHEMA.root, FIELDS["GroupId"], FIELDS["GroupId"].type):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, dataclasses.fields(part)[0].name, "other")


def test_integers_have_the_bounds_of_their_bytes() -> None:
    for name, (low, high) in INTEGERS.items():
        bits = int(name.lstrip("uint"))
        assert high - low == 2**bits - 1, name
        assert (low == 0) == name.startswith("u"), name
