"""What a message looks like as a column: one Arrow type for all its versions, or as much of it as was asked for.

Laws:

* A struct has its fields in schema order, whatever the version; what a version lacks holds its default there.
* Every field may be null: which versions allow that is the decoder's business. Unknown tagged fields have no column.
* uint16 and uint32 become the next wider signed integer, a UUID its 16 bytes: Spark has neither.
* Choosing fields never changes a type, it leaves some out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Final

from kcoord_wire.codec.registry import MessageCodec
from kcoord_wire.extras import require
from kcoord_wire.schema.plan import Op, Step, StructPlan

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Shape", "arrow", "arrow_type", "chosen", "shape_of"]

_NAMES: Final = {
    Op.BOOL: "bool_",
    Op.INT8: "int8",
    Op.INT16: "int16",
    Op.INT32: "int32",
    Op.INT64: "int64",
    Op.UINT16: "int32",
    Op.UINT32: "int64",
    Op.FLOAT64: "float64",
    Op.UUID: "binary",
    Op.STRING: "string",
    Op.BYTES: "binary",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A column and what is in it: the fields of a struct, the one item of an array. `name` is the attribute's."""

    name: str
    op: Op
    children: tuple[Shape, ...] = ()

    def child(self, name: str) -> Shape | None:
        """The column of the struct's field `name`, None where it is left out."""
        return next((child for child in self.children if child.name == name), None)


@cache
def arrow() -> ModuleType:
    """The module pyarrow, looked up once: `column` asks for each column of each batch."""
    return require("pyarrow", "analyze", "decoding into columns")


def shape_of(codec: MessageCodec) -> Shape:
    """The whole message as a column.

    :raises TypeError: it is text, or holds a union, and so has no columns
    """
    if codec.schema.encoding == "text":
        raise TypeError(f"{codec.name} is encoded as text: it cannot be decoded into columns")
    if not codec.valid_versions:
        raise TypeError(f"{codec.name} has no version left: it cannot be decoded into columns")
    return Shape(codec.name, Op.STRUCT, _fields(codec.plan(codec.valid_versions[-1]), codec.name))


def _fields(plan: StructPlan, message: str) -> tuple[Shape, ...]:
    return tuple(_shape(step.attr, step, message) for step in plan.steps)


def _shape(name: str, step: Step, message: str) -> Shape:
    if step.op is Op.UNION:
        raise TypeError(f"{message}.{name} is a union: {message} cannot be decoded into columns")
    if step.op is Op.ARRAY:
        assert step.item is not None
        return Shape(name, step.op, (_shape("item", step.item, message),))
    if step.op is Op.STRUCT:
        assert step.struct is not None
        return Shape(name, step.op, _fields(step.struct, message))
    return Shape(name, step.op)


def arrow_type(shape: Shape, views: bool) -> pa.DataType:
    """The column's type; `views` where strings and bytes are string_view and binary_view."""
    pa = arrow()
    if shape.op is Op.STRUCT:
        return pa.struct([pa.field(child.name, arrow_type(child, views)) for child in shape.children])
    if shape.op is Op.ARRAY:
        return pa.list_(arrow_type(shape.children[0], views))
    name = _NAMES[shape.op]
    return getattr(pa, f"{name}_view" if views and name in ("string", "binary") else name)()


def chosen(shapes: Sequence[Shape], columns: Sequence[str] | None) -> list[Shape]:
    """As much of `shapes` as the dotted paths `columns` name; a message of which they name nothing is left out.

    :raises ValueError: a path names nothing
    """
    if columns is None:
        return list(shapes)
    if isinstance(columns, str):
        raise TypeError(f"columns is a list of paths, not the string {columns!r}")
    wanted: dict[str, list[tuple[str, ...]]] = {shape.name: [] for shape in shapes}
    for path in columns:
        parts = tuple(path.split("."))
        places = {parts[0]: parts[1:]} if parts[0] in wanted else dict.fromkeys(wanted, parts)
        found = [shape for shape in shapes if shape.name in places and _has(shape, places[shape.name])]
        if not found:
            raise ValueError(f"no field {path!r} in {', '.join(wanted)}")
        for shape in found:
            wanted[shape.name].append(places[shape.name])
    return [_narrowed(shape, wanted[shape.name]) for shape in shapes if wanted[shape.name]]


def _struct(shape: Shape) -> Shape:
    """The struct that the column holds, at whatever depth of arrays; the column itself where it holds none."""
    while shape.op is Op.ARRAY:
        shape = shape.children[0]
    return shape


def _has(shape: Shape, path: tuple[str, ...]) -> bool:
    if not path:
        return True
    child = _struct(shape).child(path[0])
    return child is not None and _has(child, path[1:])


def _narrowed(shape: Shape, paths: Iterable[tuple[str, ...]]) -> Shape:
    paths = list(paths)
    if () in paths:
        return shape
    if shape.op is Op.ARRAY:
        return Shape(shape.name, shape.op, (_narrowed(shape.children[0], paths),))
    kept = [
        _narrowed(child, [path[1:] for path in paths if path[0] == child.name])
        for child in shape.children
        if any(path[0] == child.name for path in paths)
    ]
    return Shape(shape.name, shape.op, tuple(kept))
