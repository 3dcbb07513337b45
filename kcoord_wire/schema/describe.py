"""What the documentation of a message class says: the schema's text, with versions and tags.

Generated classes and those that are made at run time say the same: what cannot be printed (half of
a surrogate pair cannot even be the docstring of a class) is a space in both.
"""

from __future__ import annotations

from kcoord_wire.schema.model import Field, Message, Struct, Versions


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


def _plain(text: str) -> str:
    return "".join(each if each.isprintable() or each == "\n" else " " for each in text)


def _open(versions: Versions, valid: Versions) -> str:
    return f"{versions.low}+" if versions.high == valid.high and versions.low != versions.high else str(versions)


def _sentence(text: str) -> str:
    text = text.strip()
    if not text:
        return ""
    return text if text[-1] in ".!?:" else text + "."
