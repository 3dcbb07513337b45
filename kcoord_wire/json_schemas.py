"""JSON Schemas (draft 2020-12, which OpenAPI 3.1 uses) of types, so that the form of a document has one source.

Laws:

* A dataclass or named tuple is a definition: an object that has all of its fields by name and no others.
* Descriptions are those of the docstrings: the first line of a type's, and of a field its ``:ivar``.
* An enumeration is its name where it is of numbers (error codes), and its value where it is of text.
"""

from __future__ import annotations

import enum
import inspect
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

_IVARS: Final = re.compile(r"^:ivar (\w+): (.*(?:\n[ ]{2,}.*)*)", re.MULTILINE)

Schema = dict[str, Any]


class Schemas:
    """Makes the schemas of one document.

    :param place: where its definitions stand, as in ``#/$defs/``
    :param scalars: types without parts besides texts, whole numbers and truth values, with their schemas
    :ivar definitions: by the name of their types: those that the schemas made so far refer to
    """

    def __init__(self, place: str, scalars: Mapping[Any, Schema]) -> None:
        self.definitions: dict[str, Schema] = {}
        self._place = place
        self._scalars = {str: {"type": "string"}, int: {"type": "integer"}, bool: {"type": "boolean"}, **scalars}

    def of(self, kind: Any) -> Schema:
        """Return the schema of a type's values.

        :raises TypeError: they have no form in JSON
        """
        if kind in self._scalars:
            return dict(self._scalars[kind])
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            return self._union(arguments)
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin is tuple and arguments[-1] is not Ellipsis:
            items = [self.of(each) for each in arguments]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if isinstance(origin, type) and issubclass(origin, Sequence):
            return {"type": "array", "items": self.of(arguments[0])}
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            values = [each.name if issubclass(kind, enum.IntEnum) else each.value for each in kind]
            return {"type": "string", "enum": values}
        return self._reference(kind)

    def properties(self, name: str, hint: Any) -> dict[str, Schema]:
        """Return the properties that a field has in JSON: one of its name, unless a subclass writes it otherwise."""
        return {name: self.of(hint)}

    def _union(self, arms: tuple[Any, ...]) -> Schema:
        found: list[Schema] = []
        for arm in arms:
            schema = {"type": "null"} if arm is type(None) else self.of(arm)
            if schema not in found:
                found.append(schema)
        if all(schema.keys() == {"type"} for schema in found):
            names = [name for schema in found for name in _listed(schema["type"])]
            return {"type": list(dict.fromkeys(names)) if len(names) > 1 else names[0]}
        return {"anyOf": found} if len(found) > 1 else found[0]

    def _reference(self, kind: Any) -> Schema:
        names = field_names(kind)
        if names is None:
            raise TypeError(f"{kind} has no form in JSON")
        if kind.__name__ not in self.definitions:
            self.definitions[kind.__name__] = {}  # known from here on, where a field is of the same type
            self.definitions[kind.__name__] = self._object(kind, names)
        return {"$ref": f"{self._place}{kind.__name__}"}

    def _object(self, kind: Any, names: Sequence[str]) -> Schema:
        hints, texts = get_type_hints(kind), _texts_of(kind)
        properties: dict[str, Schema] = {}
        for name in names:
            about = {"description": texts[name]} if name in texts else {}
            properties |= {key: {**schema, **about} for key, schema in self.properties(name, hints[name]).items()}
        return {
            "type": "object",
            "description": (kind.__doc__ or "").partition("\n")[0],
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }


def _listed(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


def field_names(kind: Any) -> tuple[str, ...] | None:
    """Return the names of a dataclass's or named tuple's fields; None for another type."""
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    names: tuple[str, ...] | None = getattr(kind, "_fields", None)
    return names


def _texts_of(kind: Any) -> dict[str, str]:
    """Return what the docstrings say of the fields, also of inherited ones; nothing where Python has dropped them."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        text = inspect.cleandoc(each.__doc__ or "")
        found |= {name: " ".join(about.split()) for name, about in _IVARS.findall(text)}
    return found
