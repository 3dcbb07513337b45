"""A message as lines for people: path and value of every field, nested blobs decoded.

Laws:

* Paths are those of errors: `members[3].metadata`. The fields of a nested blob are below the field that contains it.
* `printable` escapes every character that a terminal could interpret as a command.
* A nested blob that does not decode is shown as hex; it is not an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import kcoord_wire as kw
from kcoord_wire.schema.model import Field, Message, Struct
from kcoord_wire.schema.plan import attribute_name, class_name


def printable(text: str) -> str:
    """The text with every unprintable character escaped as in Python source."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def number_runs(numbers: Iterable[int]) -> str:
    """Return ascending numbers as text: ``0-3, 7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def fields_of(message: Any, version: int) -> Iterator[tuple[str, str]]:
    """Path and printable value of every field of a version; nested blobs are decoded.

    :param message: a message of the registry
    :param version: fields of other versions are left out
    """
    codec = kw.registry.by_class(type(message))
    yield from _of_struct(codec.schema, codec.schema.root, message, version, "")


def _of_struct(schema: Message, struct: Struct, value: Any, version: int, path: str) -> Iterator[tuple[str, str]]:
    for field in struct.fields:
        if version in field.versions:
            name = attribute_name(field.name)
            yield from _of_value(schema, field, getattr(value, name), version, f"{path}.{name}" if path else name)
    for tag, data in getattr(value, "unknown_tags", ()):
        yield f"{path}.unknown_tags[{tag}]".lstrip("."), _scalar(data)


def _of_value(schema: Message, field: Field, value: Any, version: int, path: str) -> Iterator[tuple[str, str]]:
    arms = {class_name(schema, variant.struct): variant.struct for variant in field.variants}
    if isinstance(value, list):
        yield from _of_list(schema, field, value, version, path)
    elif value is not None and field.type.is_struct:
        yield from _of_struct(schema, schema.struct_of(field), value, version, path)
    elif type(value).__name__ in arms:
        arm = type(value).__name__
        yield from _of_struct(schema, arms[arm], value, version, f"{path}.{arm}")
    elif value and field.embeds is not None:
        yield from _embedded(field.embeds, value, path)
    else:
        yield path, _scalar(value)


def _of_list(schema: Message, field: Field, items: list[Any], version: int, path: str) -> Iterator[tuple[str, str]]:
    if not items or not (field.type.is_struct or field.variants):
        yield path, "[" + ", ".join(map(_scalar, items)) + "]"
        return
    for index, element in enumerate(items):
        yield from _of_value(schema, field, element, version, f"{path}[{index}]")


def _embedded(name: str, blob: bytes, path: str) -> Iterator[tuple[str, str]]:
    try:
        version, inner = kw.decode_prefixed(kw.registry[name].cls, blob)
    except kw.DecodeError:
        yield path, _scalar(blob)
        return
    yield f"{path}.version", str(version)
    known = min(version, kw.registry[name].valid_versions.stop - 1)
    for inner_path, text in fields_of(inner, known):
        yield f"{path}.{inner_path}", text


def _scalar(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return printable(json.dumps(value, ensure_ascii=False))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return f"{value.hex()} ({len(value)} bytes)" if value else "(no bytes)"
    return str(value)
