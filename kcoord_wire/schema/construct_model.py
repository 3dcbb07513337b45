"""A schema as a `construct` grammar: the executable specification of the wire format.

Laws:

* It is built from the schema model, never from the plan that the codecs walk, so that each shows mistakes in the other.
* Parsing and building raise what the codecs raise: `DecodeError` and `EncodeError` with the same kind, offset and path.

`kcoord_wire.schema.constructs` has the elements of the grammar and the parameters that `parse` takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from kcoord_wire.schema.constructs import (
    Bool,
    CompactLength,
    FieldConstruct,
    Float,
    Integer,
    KafkaArray,
    KafkaBytes,
    KafkaString,
    KafkaStruct,
    NullableStruct,
    PlainLength,
    Remaining,
    TagSection,
    TextInteger,
    TextMessage,
    TextString,
    Union,
    Uuid,
    WholeMessage,
)
from kcoord_wire.schema.model import Field, Message, Struct
from kcoord_wire.schema.plan import attribute_name, class_name


def construct_model(message: Message, version: int, classes: Mapping[str, type] | None = None) -> Any:
    """The `construct.Construct` that parses and builds `message` at `version`.

    :param classes: the classes of the message and its structs, by class name, as the codecs use them; None makes
        namespaces with the same attributes, which this construct alone builds from
    :raises ValueError: the message does not have that version
    """
    if version not in message.versions:
        raise ValueError(f"{message.name} has no version {version}: {message.versions}")
    reading = _Reading(message, version, classes)
    body = reading.text() if message.encoding == "text" else reading.struct(message.root)
    return WholeMessage(message.name, body)


def parse_with_construct(
    message: Message, version: int, data: bytes, classes: Mapping[str, type] | None = None, *, strict: bool = True
) -> Any:
    """The value of `data`, all of it.

    :raises DecodeError: the bytes are not `message` at `version`
    """
    return construct_model(message, version, classes).parse(data, strict=strict)


def build_with_construct(
    message: Message, version: int, value: object, classes: Mapping[str, type] | None = None
) -> bytes:
    """The bytes of `value`.

    :raises EncodeError: `value` cannot be written as `message` at `version`
    """
    data: bytes = construct_model(message, version, classes).build(value)
    return data


class _Reading:
    """One reading of a message's schema at a version."""

    def __init__(self, message: Message, version: int, classes: Mapping[str, type] | None) -> None:
        self.message = message
        self.version = version
        self.classes = classes
        self.flexible = version in message.flexible
        self.done: dict[str, Any] = {}  # structs by name: one construct each, however many fields have it

    def class_of(self, structure: Struct) -> type:
        name = class_name(self.message, structure)
        return type(name, (SimpleNamespace,), {}) if self.classes is None else self.classes[name]

    def text(self) -> Any:
        assert self.message.text_type is not None
        fields = tuple(self.field(field) for field in self.message.fields)
        return TextMessage(self.message.text_type, self.class_of(self.message.root), fields)

    def struct(self, structure: Struct) -> Any:
        if structure.name not in self.done:
            self.done[structure.name] = self.new_struct(structure)
        return self.done[structure.name]

    def new_struct(self, structure: Struct) -> Any:
        fields = tuple(self.field(field) for field in structure.fields)
        tags = None
        if self.flexible:
            known = {field.tag for field in structure.fields if field.tag is not None}
            tags = TagSection({m.tag: m for m in fields if m.presence == "tagged"}, known)
        return KafkaStruct(structure.name, self.class_of(structure), fields, tags, bool(self.message.flexible))

    def field(self, field: Field) -> FieldConstruct:
        if self.version not in field.versions:
            presence = "absent"
        else:
            presence = "tagged" if self.version in field.tagged else "plain"
        attr = attribute_name(field.name)
        tag = -1 if field.tag is None else field.tag
        return FieldConstruct(attr, presence, self.codec(field, presence), field.default, tag, field.ignorable)

    def codec(self, field: Field, presence: str) -> Any:
        nullable = self.version in field.nullable
        if field.type.array:
            array = KafkaArray(
                self.length(self.message.array_length),
                nullable,
                self.scalar(field, False),
            )
            return Remaining(array) if field.present_if_remaining else array
        if field.type.is_struct and nullable:
            return NullableStruct(self.struct(self.message.struct_of(field)), tagged=presence == "tagged")
        return self.scalar(field, nullable)

    def scalar(self, field: Field, nullable: bool) -> Any:
        base = field.type.base
        if self.message.encoding == "text":
            return TextString(field.max_length) if base == "string" else TextInteger(base, field.minimum, field.maximum)
        flexible = self.flexible if field.flexible is None else self.version in field.flexible
        if field.type.is_struct:
            return self.struct(self.message.struct_of(field))
        if base == "union":
            return Union({variant.tag: self.struct(variant.struct) for variant in field.variants})
        if base == "string":
            return KafkaString(self.length(self.message.string_length, flexible), nullable, field.max_length)
        if base in ("bytes", "records"):
            return KafkaBytes(self.length("int32", flexible), nullable, base, field.embeds)
        if base == "bool":
            return Bool()
        if base == "uuid":
            return Uuid()
        if base == "float64":
            return Float()
        return Integer(base, field.minimum, field.maximum)

    def length(self, plain: str, flexible: bool | None = None) -> Any:
        return CompactLength() if (self.flexible if flexible is None else flexible) else PlainLength(plain)
