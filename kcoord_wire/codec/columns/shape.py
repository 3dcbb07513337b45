"""What a message looks like as a column, one Arrow type for all its versions, and what a decoder of it is made for.

Laws:

* A struct has its fields in schema order, whatever the version; what a version lacks holds its default there.
* Every field may be null: which versions allow that is the decoder's business. Unknown tagged fields have no column.
* uint16 and uint32 become the next wider signed integer, a UUID its 16 bytes: Spark has neither.
* Choosing fields never changes a type, it leaves some out.
* The columns of one message are at most `MAX_COLUMNS`, and the work before they are counted is linear in the schema:
  a short schema can name one struct in two fields of a struct, over and over, and so have 2**30 columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Final

from kcoord_wire.codec.registry import MessageCodec, Registry
from kcoord_wire.codec.registry import registry as built_in
from kcoord_wire.extras import require
from kcoord_wire.schema.plan import Op, Step, StructPlan

if TYPE_CHECKING:
    import pyarrow as pa


MAX_COLUMNS: Final = 10_000  # in one message; the released protocol's largest, FetchResponse, has about 60
MAX_TAGS: Final = 64  # in one struct: the native decoder keeps a bit for each that it has seen

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
    """A column and what is in it.

    :ivar name: the attribute
    :ivar op: what the column holds
    :ivar children: the fields of a struct, the one item of an array. Columns of one struct share them until `chosen`
    """

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
    return Shape(codec.name, Op.STRUCT, _Shapes(codec.name).fields(codec.plan(codec.valid_versions[-1])))


class _Shapes:
    """The columns of a message's structs, those of each struct made once."""

    def __init__(self, message: str) -> None:
        self.message = message
        self.done: dict[StructPlan, tuple[Shape, ...]] = {}

    def fields(self, plan: StructPlan) -> tuple[Shape, ...]:
        if plan not in self.done:
            if len(plan.known_tags) > MAX_TAGS:
                what = f"{plan.name} has {len(plan.known_tags)} tagged fields"
                raise TypeError(f"{what}: more than {MAX_TAGS} cannot be decoded into columns")
            self.done[plan] = tuple(self.shape(step.attr, step) for step in plan.steps)
        return self.done[plan]

    def shape(self, name: str, step: Step) -> Shape:
        if step.op is Op.UNION:
            raise TypeError(f"{self.message}.{name} is a union: {self.message} cannot be decoded into columns")
        if step.item is not None:
            return Shape(name, step.op, (self.shape("item", step.item),))
        return Shape(name, step.op, () if step.struct is None else self.fields(step.struct))


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

    :raises TypeError: `columns` is a string, or leaves more than `MAX_COLUMNS` of a message
    :raises ValueError: a path names nothing
    """
    if columns is None:
        return [_copied(shape) for shape in shapes]
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
    return [_copied(_narrowed(shape, wanted[shape.name])) for shape in shapes if wanted[shape.name]]


def _copied(shape: Shape) -> Shape:
    """The message's columns, none of which shares anything with another: a decoder knows them by identity."""
    size = _size(shape, {})
    if size > MAX_COLUMNS:
        raise TypeError(f"{shape.name} has {size} columns, more than {MAX_COLUMNS}: choose some of them")

    def copy(original: Shape) -> Shape:
        return Shape(original.name, original.op, tuple(map(copy, original.children)))

    return copy(shape)


def _size(shape: Shape, counted: dict[int, int]) -> int:
    key = id(shape.children)
    if not shape.children:
        return 1
    if key not in counted:
        counted[key] = sum(_size(child, counted) for child in shape.children)
    return 1 + counted[key]


def _struct(shape: Shape) -> Shape:
    """The struct that the column holds, through any depth of arrays; otherwise the column itself."""
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


HEADS: Final[Mapping[str, Mapping[str, Shape]]] = {
    "request": {
        "api_key": Shape("request_api_key", Op.INT16),
        "api_version": Shape("request_api_version", Op.INT16),
        "correlation_id": Shape("correlation_id", Op.INT32),
        "client_id": Shape("client_id", Op.STRING),
    },
    "response": {"correlation_id": Shape("correlation_id", Op.INT32)},
    "message": {},
    "prefixed": {"version": Shape("version", Op.INT16)},
    "typed": {"version": Shape("version", Op.INT16)},
}
"""By walk, the columns before the messages: what each holds, under the attribute's name in its header."""


@dataclass(frozen=True, slots=True)
class Task:
    """Which messages, how a row is walked, and what becomes of it.

    :ivar codecs: the messages
    :ivar shapes: the column of each message that has one
    :ivar by_key: which message a key chooses; empty where the one message has no key
    :ivar walk: ``request``, ``response``, ``message``, ``prefixed``, or ``typed`` (prefixed by the record type)
    :ivar schema: of the batches
    :ivar strict: as in `kcoord_wire.decode`
    :ivar registry: where the messages come from
    :ivar views: strings and bytes point into the input
    """

    codecs: Sequence[MessageCodec]
    shapes: Sequence[Shape]
    by_key: Mapping[int, MessageCodec]
    walk: str
    schema: pa.Schema
    strict: bool
    registry: Registry
    views: bool

    @property
    def header(self) -> MessageCodec | None:
        """The codec of the header before each message; None where the rows have none of Kafka's."""
        name = {"request": "RequestHeader", "response": "ResponseHeader"}.get(self.walk)
        return None if name is None else built_in[name]

    @property
    def head(self) -> Shape:
        """The columns before the messages, as the fields of one struct."""
        return Shape("head", Op.STRUCT, tuple(HEADS[self.walk].values()))

    def has_tags_before(self, codec: MessageCodec, version: int) -> bool:
        """Whether the header of that message and version ends with a tag section."""
        header = self.header
        return header is not None and codec.header_version(version) in header.flexible_versions
