"""What is said of a message, its structs and fields: in the documentation of its class, in lists, on wire pages.

Generated classes and those that are made at run time say the same: what cannot be printed (half of
a surrogate pair cannot even be the docstring of a class) is a space in both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from kcoord_wire.schema.model import Field, Message, Refusal, Struct, Versions
from kcoord_wire.schema.plan import attribute_name


def walk_fields(
    message: Message, version: int | None = None, struct: Struct | None = None, path: str = ""
) -> Iterator[tuple[str, Field]]:
    """Yield each field with its path, depth first: ``topics``, ``topics[].name``, ``phase.Join.member_id``.

    :param version: leave out the fields that it does not have; None keeps all
    """
    for field in (struct or message.root).fields:
        if version is not None and version not in field.versions:
            continue
        name = f"{path}{attribute_name(field.name)}"
        yield name, field
        if field.type.is_struct:
            inner = f"{name}[]." if field.type.array else f"{name}."
            yield from walk_fields(message, version, message.struct_of(field), inner)
        for variant in field.variants:
            yield from walk_fields(message, version, variant.struct, f"{name}.{variant.struct.name}.")


def about_paragraphs(message: Message) -> list[str]:
    """Return what the schema says of a message as lines of Markdown; items of a list keep theirs."""
    lines: list[str] = []
    for paragraph in re.split(r"\n(?=\n| *[*-] )", _plain(message.about)):
        lines += [""] * paragraph.startswith("\n") + [" ".join(paragraph.split())]
    return lines


def class_doc(message: Message, struct: Struct) -> str:
    """What the class of `struct` is for, and its versions."""
    if struct is not message.root:
        about = struct.about or next(
            (
                f.about
                for s in (message.root, *message.structs.values())
                for f in s.fields
                if f.type.base == struct.name
            ),
            "",
        )
        return _plain(f"{_sentence(about)}\n\nVersions {message.versions & struct.versions} of {message.name}.")
    flexible = f", flexible {_open(message.flexible, message.versions)}" if message.flexible else ""
    return _plain(f"{message.about or message.name}\n\nVersions {message.versions}{flexible}.")


def field_doc(message: Message, field: Field) -> str:
    """What `field` is, its versions if the message has others, and its tag."""
    notes = []
    if not field.versions.covers(message.versions):
        notes.append(f"Versions {_open(field.versions & message.versions, message.versions)}.")
    if field.nullable & message.versions and not field.nullable.covers(field.versions & message.versions):
        notes.append(f"Null in versions {_open(field.nullable & message.versions, message.versions)}.")
    if field.tagged:
        notes.append(f"Tagged field {field.tag}.")
    return _plain(" ".join([_sentence(field.about), *notes]).strip())


_RULES: Final[Mapping[str, str]] = {
    "empty": "must not be empty",
    "null": "must not be null",
    "given": "must be null or empty",
    "below": "must be {} or more",
    "above": "must be {} or less",
    "is": "must not be {}",
    "notOneOf": "must be one of {}",
    "unlike": "must match {}",
}


def refusal_doc(refusal: Refusal) -> str:
    """Return the rule that a refusal makes of a field: ``must be 1 or more where member_epoch is 0``."""
    bound = refusal.bound if not isinstance(refusal.bound, tuple) else ", ".join(map(str, refusal.bound))
    rule = _RULES[refusal.when].format(bound)
    places = [
        f"{attribute_name(name)} is {verb}{' or '.join(json.dumps(value) for value in values)}"
        for verb, beside in (("", refusal.beside), ("not ", refusal.not_beside))
        for name, values in beside
    ]
    return f"{rule} where {' and '.join(places)}" if places else rule


def _plain(text: str) -> str:
    return "".join(each if each.isprintable() or each == "\n" else " " for each in text)


def _open(versions: Versions, valid: Versions) -> str:
    return f"{versions.low}+" if versions.high == valid.high and versions.low != versions.high else str(versions)


def _sentence(text: str) -> str:
    text = text.strip()
    if not text:
        return ""
    return text if text[-1] in ".!?:" else text + "."
