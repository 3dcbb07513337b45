"""The schema compiler: text -> model -> plan -> classes and codecs.

`text` reads JSON with comments, `reader` checks it into a `model.Message`, `plan` flattens a message at a version into
typed steps. `emit_classes` writes the committed message classes, `emit_pages` the tables of docs/wire-*.md; nothing at
run time imports them. What is said of messages and fields there, in classes and lists, is in `describe`.

To add a field, a version or a message: schemas/README.md. To change which schema files are taken: `files`, for
folders, archives and their bounds; the rules of a schema: `reader`.
"""

from __future__ import annotations

from kcoord_wire.schema.model import Field, FieldType, Message, Struct, Variant, Versions
from kcoord_wire.schema.plan import Length, Op, Presence, Step, StructPlan, compile_plan
from kcoord_wire.schema.reader import load_message, read_message

__all__ = [
    "Field",
    "FieldType",
    "Length",
    "Message",
    "Op",
    "Presence",
    "Step",
    "Struct",
    "StructPlan",
    "Variant",
    "Versions",
    "compile_plan",
    "load_message",
    "read_message",
]
