"""Values of the coordinator as JSON, and the schema of that JSON: both derived from the types, so that they agree.

Laws:

* A dataclass or named tuple is an object with its fields by name; a mapping is an object, whose keys become text.
* An enumeration is its name where it is of numbers (error codes), and its value where it is of text.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_SCALARS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    range: {"type": "string"},
}


def json_form(value: Any) -> Any:
    """Return a value as what `json.dumps` writes.

    :raises TypeError: it is of no type that has a form
    """
    if isinstance(value, enum.IntEnum):
        return value.name
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, range):
        return f"{value.start}-{value.stop - 1}"
    names = _field_names(type(value))
    if names is not None:
        return {name: json_form(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): json_form(each) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [json_form(each) for each in value]
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def json_schema(kind: Any, components: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type's values in the form of `json_form`.

    :param components: schemas of named types by name, to which those that this one needs are added
    :raises TypeError: its values have no form
    """
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union(arguments, components)
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin is tuple and arguments[-1] is not Ellipsis:
        items = [json_schema(each, components) for each in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": json_schema(arguments[1], components)}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": json_schema(arguments[0], components)}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        values = [each.name if issubclass(kind, enum.IntEnum) else each.value for each in kind]
        return {"type": "string", "enum": values}
    return _reference(kind, components)


def _union(arms: tuple[Any, ...], components: dict[str, Any]) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    for arm in arms:
        schema = {"type": "null"} if arm is type(None) else json_schema(arm, components)
        if schema not in found:
            found.append(schema)
    return {"anyOf": found} if len(found) > 1 else found[0]


def _reference(kind: Any, components: dict[str, Any]) -> dict[str, Any]:
    names = _field_names(kind)
    if names is None:
        raise TypeError(f"{kind} has no form in JSON")
    if kind.__name__ not in components:
        components[kind.__name__] = {}  # known from here on, where a field is of the same type
        hints = get_type_hints(kind)
        components[kind.__name__] = {
            "type": "object",
            "description": (kind.__doc__ or "").partition("\n")[0],
            "properties": {name: json_schema(hints[name], components) for name in names},
            "required": list(names),
            "additionalProperties": False,
        }
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _field_names(kind: Any) -> tuple[str, ...] | None:
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    names: tuple[str, ...] | None = getattr(kind, "_fields", None)
    return names
