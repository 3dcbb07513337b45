"""Message classes made at run time for a user's own schemas: the shape of the generated ones, without the source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, make_dataclass
from typing import Any

from kcoord_wire.schema.model import Field, Message, Struct
from kcoord_wire.schema.plan import attribute_name, class_name

__all__ = ["make_classes"]


def make_classes(message: Message) -> Mapping[str, type]:
    """The class of `message` and of each of its structs, by class name: dataclasses with slots, keyword-only."""
    classes: dict[str, type] = {}

    def make(struct: Struct) -> type:
        name = class_name(message, struct)
        if name not in classes:
            fields: list[Any] = [(attribute_name(f.name), Any, _default(f, default_class(f))) for f in struct.fields]
            if message.flexible:
                fields.append(("unknown_tags", tuple[tuple[int, bytes], ...], ()))
            about = message.about if struct is message.root else struct.about
            namespace = {"__doc__": about or None, "__module__": __name__}
            classes[name] = make_dataclass(name, fields, slots=True, kw_only=True, namespace=namespace)
        return classes[name]

    def default_class(f: Field) -> Callable[[], object] | None:
        arms = [make(variant.struct) for variant in f.variants]
        if f.type.is_struct:
            return make(message.struct_of(f))
        return arms[0] if arms else None

    make(message.root)
    return classes


def _default(f: Field, factory: Callable[[], object] | None) -> Any:
    if f.default == ():
        return field(default_factory=list)
    if f.default is ...:
        assert factory is not None
        return field(default_factory=factory)
    return field(default=f.default)
