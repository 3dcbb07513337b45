"""The column decoder in pure Python: every row is decoded into a message object, then turned into columns.

It is what the native decoder is compared with, and runs where that is not built. It holds a whole batch of objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from kcoord_wire.codec.columns.shape import Shape, Task, arrow
from kcoord_wire.codec.registry import MessageCodec, decode_prefixed, decode_request, decode_response, peek_request
from kcoord_wire.errors import DecodeError
from kcoord_wire.schema.plan import Op

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(slots=True)
class _Row:
    """One frame.

    :ivar body: its bytes
    :ivar codec: the message that its key chooses, None where it is not one of the decoder's messages
    :ivar key: the key given for it
    :ivar version: the version given for it
    :ivar head: the header's values, as far as they were read, also where the message then fails
    """

    body: bytes
    codec: MessageCodec | None
    key: int | None
    version: int | None
    head: list[Any]


_Found = tuple[MessageCodec, Any] | None


class Decoder:
    """Implements `codec.columns.ColumnDecoder` behind its checks of arguments.

    :param task: the messages and what becomes of their rows
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.codecs = task.codecs
        self.strict = task.strict
        self.registry = task.registry
        self.read = {
            "request": self.request,
            "response": self.response,
            "message": self.message,
            "prefixed": self.prefixed,
            "typed": self.typed,
        }[task.walk]
        # Header and error columns are scalars; any leaf shape will do.
        of_messages = {shape.name: shape for shape in task.shapes}
        self.columns = [of_messages.get(field.name) or Shape(field.name, Op.INT64) for field in task.schema]

    def decode(self, frames: pa.Array, keys: pa.Array | None, versions: pa.Array | None) -> pa.RecordBatch:
        """The columns of `frames`; keys and versions are int64, one a row."""
        n = len(frames)
        heads: list[list[Any]] = [[None] * n for _ in self.task.head.children]
        structs: dict[str, list[Any]] = {shape.name: [None] * n for shape in self.task.shapes}
        errors: list[str | None] = [None] * n
        offsets: list[int | None] = [None] * n
        key_of = keys.to_pylist() if keys is not None else [None] * n
        version_of = versions.to_pylist() if versions is not None else [None] * n
        for i, body in enumerate(frames.to_pylist()):
            if body is None:
                continue
            codec = self.codecs[0] if keys is None else self.of_key(key_of[i])
            row = _Row(body, codec, key_of[i], version_of[i], [])
            try:
                found = self.read(row)
            except DecodeError as error:
                errors[i], offsets[i] = error.kind, error.offset
                found = None
            for rows, value in zip(heads, row.head, strict=False):
                rows[i] = value
            if found is not None and found[0].name in structs:
                structs[found[0].name][i] = found[1]
        return self.batch([*heads, *structs.values(), errors, offsets])

    def batch(self, values: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        """The values of each column as a batch."""
        pa = arrow()
        schema = self.task.schema
        try:
            arrays = [
                column(shape, rows, field.type) for shape, rows, field in zip(self.columns, values, schema, strict=True)
            ]
        except pa.ArrowCapacityError as error:
            raise OverflowError(f"a column is too large for 32-bit offsets: decode smaller batches ({error})") from None
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def of_key(self, key: int | None) -> MessageCodec | None:
        return None if key is None else self.task.by_key.get(key)

    # Each returns the codec and the message, or None where the row is not one of the decoder's messages.

    def request(self, row: _Row) -> _Found:
        header = peek_request(row.body, strict=self.strict)
        row.head += (header.request_api_key, header.request_api_version, header.correlation_id, header.client_id)
        codec = self.of_key(header.request_api_key)
        if codec is None:
            return None
        return codec, decode_request(row.body, strict=self.strict, registry=self.registry)[1]

    def response(self, row: _Row) -> _Found:
        if len(row.body) >= 4:
            row.head.append(int.from_bytes(row.body[:4], "big", signed=True))
        if row.codec is None or row.key is None or row.version is None:
            return None
        message = decode_response(row.body, row.key, row.version, strict=self.strict, registry=self.registry)[1]
        return row.codec, message

    def message(self, row: _Row) -> _Found:
        if row.codec is None or row.version is None:
            return None
        return row.codec, row.codec.decode(row.body, row.version, strict=self.strict)

    def prefixed(self, row: _Row) -> _Found:
        if len(row.body) >= 2:
            row.head.append(int.from_bytes(row.body[:2], "big", signed=True))
        if row.codec is None:
            return None
        return row.codec, decode_prefixed(row.codec.cls, row.body, strict=self.strict, registry=self.registry)[1]

    def typed(self, row: _Row) -> _Found:
        if len(row.body) < 2:
            raise DecodeError("truncated", 0, "key", "2 bytes of record type are needed")
        row.head.append(int.from_bytes(row.body[:2], "big", signed=True))
        codec = self.of_key(row.head[0])
        if codec is None:
            return None
        message, end = codec.decode_prefix(row.body, 0, offset=2, strict=self.strict)
        if self.strict and end != len(row.body):
            raise DecodeError("trailing", end, codec.name, f"{len(row.body) - end} bytes are left after the message")
        return codec, message


def column(shape: Shape, values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """The values of an attribute as an array. What is in a null struct is null as well."""
    pa = arrow()
    if shape.op is Op.ARRAY:
        return _list_column(shape, values, type_)
    if shape.op is Op.STRUCT and shape.children:
        fields = [
            column(child, [getattr(value, child.name, None) for value in values], type_.field(i).type)
            for i, child in enumerate(shape.children)
        ]
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(fields, fields=list(type_), mask=mask)
    if shape.op is Op.STRUCT:
        values = [None if value is None else {} for value in values]
    elif shape.op is Op.UUID:
        values = [None if value is None else value.bytes for value in values]
    return pa.array(values, type_)


def _list_column(shape: Shape, values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    pa = arrow()
    ends = accumulate((len(value or ()) for value in values), initial=0)
    starts = [None if value is None else end for value, end in zip([*values, ()], ends, strict=True)]
    items = column(shape.children[0], [one for value in values for one in value or ()], type_.value_type)
    return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), items, type=type_)
