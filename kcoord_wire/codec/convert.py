"""Messages to plain dicts and back, with the keys of the schema file.

For programs: values stay as they are (bytes, uuid.UUID). With ``json=True`` bytes become hex text and uuids their 32
hex digits, so that `json.dumps` takes the result; `from_dict` reads both forms. Unknown tagged fields are
[tag, bytes] pairs under ``_unknownTags``, which is left out where there are none. A union is a dict of one key, its
variant's name.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from kcoord_wire.codec.registry import MessageCodec, Registry, registry
from kcoord_wire.errors import EncodeError
from kcoord_wire.schema.model import Field, Message, Struct
from kcoord_wire.schema.plan import attribute_name, class_name

M = TypeVar("M")
UNKNOWN_TAGS: Final = "_unknownTags"


def to_dict(
    message: object, version: int | None = None, *, json: bool = False, registry: Registry = registry
) -> dict[str, Any]:
    """The message as a dict, keys as in its schema file.

    :param version: leave out the fields that this version does not have; None keeps all
    :param json: bytes and uuids as hex text
    :raises EncodeError: the message has no such version
    :raises TypeError: `message` is not a message of the registry
    """
    codec = registry.by_class(type(message))
    if version is not None:
        codec.program(version, reading=False)
    return _struct_to_dict(codec.schema, codec.schema.root, message, version, json)


def from_dict(cls: type[M], values: Mapping[str, Any], *, registry: Registry = registry) -> M:
    """The message of class `cls` with these values; a key that is missing leaves its field at the default.

    :param values: as `to_dict` makes it, with either form of bytes and uuids
    :raises EncodeError: a key is not in the schema, or a value does not have the shape of its field (a list, a dict,
        bytes, a uuid); numbers and strings are looked at when they are written
    :raises TypeError: `cls` is not a message class of the registry
    """
    codec = registry.by_class(cls)
    message: M = _struct_from_dict(codec, codec.schema.root, values, codec.name)
    return message


def _struct_to_dict(message: Message, struct: Struct, value: object, version: int | None, json: bool) -> dict[str, Any]:
    fields = (f for f in struct.fields if version is None or version in f.versions)
    result = {f.name: _to_plain(message, f, getattr(value, attribute_name(f.name)), version, json) for f in fields}
    tags = getattr(value, "unknown_tags", ())
    if tags:
        result[UNKNOWN_TAGS] = [[tag, bytes(data).hex() if json else data] for tag, data in tags]
    return result


def _to_plain(message: Message, field: Field, value: Any, version: int | None, json: bool) -> Any:
    if value is None:
        return None
    if field.type.array:
        return [_item_to_plain(message, field, item, version, json) for item in value]
    return _item_to_plain(message, field, value, version, json)


def _item_to_plain(message: Message, field: Field, value: Any, version: int | None, json: bool) -> Any:
    if field.type.is_struct:
        return _struct_to_dict(message, message.struct_of(field), value, version, json)
    for variant in field.variants:
        if type(value).__name__ == class_name(message, variant.struct):
            return {variant.struct.name: _struct_to_dict(message, variant.struct, value, version, json)}
    if json and isinstance(value, bytes | bytearray | memoryview):
        return value.hex()
    if json and isinstance(value, uuid.UUID):
        return value.hex
    return value


def _struct_from_dict(codec: MessageCodec, struct: Struct, values: object, path: str) -> Any:
    if not isinstance(values, Mapping):
        raise EncodeError("type", path, f"a dict is needed, not {type(values).__name__}")
    fields = {f.name: f for f in struct.fields}
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        if key == UNKNOWN_TAGS and codec.schema.flexible:
            arguments["unknown_tags"] = _tags(value, f"{path}.unknown_tags")
            continue
        field = fields.get(key)
        if field is None:
            raise EncodeError("type", path, f"there is no field {key!r}")
        attr = attribute_name(key)
        arguments[attr] = _from_plain(codec, field, value, f"{path}.{attr}")
    name = class_name(codec.schema, struct)
    return (codec.cls if name == codec.name else codec.classes[name])(**arguments)


def _from_plain(codec: MessageCodec, field: Field, value: Any, path: str) -> Any:
    if value is None:
        return None
    if not field.type.array:
        return _item_from_plain(codec, field, value, path)
    if not isinstance(value, list | tuple):
        raise EncodeError("type", path, f"a list is needed, not {type(value).__name__}")
    return [_item_from_plain(codec, field, item, f"{path}[{i}]") for i, item in enumerate(value)]


def _item_from_plain(codec: MessageCodec, field: Field, value: Any, path: str) -> Any:
    base = field.type.base
    if field.type.is_struct:
        return _struct_from_dict(codec, codec.schema.struct_of(field), value, path)
    if base == "union":
        arms = {variant.struct.name: variant.struct for variant in field.variants}
        if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in arms:
            raise EncodeError("type", path, f"a dict of one key is needed, one of {', '.join(arms)}")
        name, inner = next(iter(value.items()))
        return _struct_from_dict(codec, arms[name], inner, path)
    if base in ("bytes", "records"):
        return _bytes(value, path)
    if base == "uuid":
        return _uuid(value, path)
    return value


def _bytes(value: object, path: str) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        try:
            return bytes.fromhex(value)
        except ValueError:
            pass
    raise EncodeError("type", path, "bytes, or their hex text, are needed")


def _tags(value: object, path: str) -> tuple[tuple[Any, bytes], ...]:
    if not isinstance(value, list | tuple) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in value
    ):
        raise EncodeError("type", path, "a list of [tag, bytes] pairs is needed")
    return tuple((tag, _bytes(data, path)) for tag, data in value)


def _uuid(value: object, path: str) -> uuid.UUID:
    if isinstance(value, uuid.UUID):
        return value
    if isinstance(value, str):
        try:
            return uuid.UUID(value)
        except ValueError:
            pass
    raise EncodeError("type", path, "a uuid.UUID, or its hex text, is needed")
