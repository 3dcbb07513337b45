"""Hypothesis strategies for the messages of a registry: instances that a version can carry, made from the schema model.

Laws:

* Every value can be written at the version it was made for and is equal to what is read back.
* Fields that the version lacks hold their default. Tagged fields and nullable ones are drawn set, default and null
  alike; a flexible version gets unknown tags, ascending, none of them the schema's own.
* Values are small: at most `SIZE` elements, characters or bytes, unless the schema's own limit is lower.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import cache
from typing import Any

from hypothesis import strategies as st

from kcoord_wire.codec.registry import MessageCodec
from kcoord_wire.schema.model import INTEGERS, Field, Message, Struct
from kcoord_wire.schema.plan import attribute_name, class_name

SIZE = 3
BYTES_PER_CHARACTER = 4
FILLING: Mapping[str, Any] = {
    "bool": True,
    "bytes": b"bytes",
    "records": b"records",
    "float64": 0.5,
    "uuid": uuid.UUID(int=1 << 100),
}
SCALARS: Mapping[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "bytes": st.binary(max_size=SIZE),
    "records": st.binary(max_size=SIZE),
    "float64": st.floats(allow_nan=False),
    "uuid": st.builds(uuid.UUID, int=st.integers(0, 2**128 - 1)),
}


@cache
def messages(codec: MessageCodec, version: int) -> st.SearchStrategy[Any]:
    """Instances of the message of `codec` that `version` can carry."""
    return _Maker(codec.schema, codec.classes, version).struct(codec.schema.root)


def versioned_messages(codec: MessageCodec) -> st.SearchStrategy[tuple[int, Any]]:
    """Pairs of one of the codec's versions and a message that it can carry."""
    versions = st.sampled_from(codec.valid_versions)
    return versions.flatmap(lambda version: st.tuples(st.just(version), messages(codec, version)))


def filled(codec: MessageCodec, version: int) -> Any:
    """One instance in which every field of `version` holds something: two elements, a struct where null may be."""
    return _Filler(codec.schema, codec.classes, version).struct(codec.schema.root)


class _Maker:
    def __init__(self, message: Message, classes: Mapping[str, type], version: int) -> None:
        self.message = message
        self.classes = classes
        self.version = version

    def struct(self, struct: Struct) -> st.SearchStrategy[Any]:
        fields = {
            attribute_name(field.name): self.field(field) for field in struct.fields if self.version in field.versions
        }
        if self.version in self.message.flexible:
            known = {field.tag for field in struct.fields if field.tag is not None}
            numbers = st.integers(0, 9) | st.integers(0, 2**32 - 1)
            tags = st.dictionaries(numbers.filter(lambda tag: tag not in known), st.binary(max_size=SIZE), max_size=2)
            fields["unknown_tags"] = tags.map(lambda pairs: tuple(sorted(pairs.items())))
        return st.builds(self.classes[class_name(self.message, struct)], **fields)

    def field(self, field: Field) -> st.SearchStrategy[Any]:
        values = self.scalar(field)
        if field.type.array:
            values = st.lists(values, max_size=SIZE)
        if self.version in field.nullable or field.present_if_remaining:
            values = st.none() | values
        if self.version in field.tagged and field.default not in ((), ...):
            values = st.just(field.default) | values
        return values

    def scalar(self, field: Field) -> st.SearchStrategy[Any]:
        base = field.type.base
        if field.type.is_struct:
            return self.struct(self.message.struct_of(field))
        if base == "union":
            return st.one_of([self.struct(variant.struct) for variant in field.variants])
        if base == "string":
            size = SIZE if field.max_length is None else min(SIZE, field.max_length // BYTES_PER_CHARACTER)
            blocked = "/" if self.message.encoding == "text" else ""
            return st.text(st.characters(exclude_categories=["Cs"], exclude_characters=blocked), max_size=size)
        if base in INTEGERS:
            low, high = INTEGERS[base]
            return st.integers(
                low if field.minimum is None else field.minimum, high if field.maximum is None else field.maximum
            )
        return SCALARS[base]


class _Filler:
    def __init__(self, message: Message, classes: Mapping[str, type], version: int) -> None:
        self.message = message
        self.classes = classes
        self.version = version

    def struct(self, struct: Struct) -> Any:
        value = self.classes[class_name(self.message, struct)]()
        for field in struct.fields:
            if self.version in field.versions:
                made = [self.scalar(field), self.scalar(field)] if field.type.array else self.scalar(field)
                setattr(value, attribute_name(field.name), made)
        if self.version in self.message.flexible:
            value.unknown_tags = ((1000, b"unknown"), (2000, b""))
        return value

    def scalar(self, field: Field) -> Any:
        base = field.type.base
        if field.type.is_struct:
            return self.struct(self.message.struct_of(field))
        if base == "union":
            return self.struct(field.variants[-1].struct)
        if base in INTEGERS:
            return 42 if field.maximum is None else field.maximum
        if base == "string":
            return "text"[: field.max_length]
        return FILLING[base]
