"""The column decoder in pure Python: every row is decoded into a message object, then turned into columns.

It is what the native decoder is compared with, and runs where that is not built. It holds a whole batch of objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from kcoord_wire.codec.columns.shape import Shape, arrow
from kcoord_wire.codec.headers import decode_prefixed, decode_request, decode_response, peek_request
from kcoord_wire.codec.registry import MessageCodec, Registry
from kcoord_wire.errors import DecodeError
from kcoord_wire.schema.plan import Op

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Decoder"]


class Decoder:
    """`codec.columns.ColumnDecoder` behind its checks of arguments.

    :param codecs: the messages
    :param shapes: of each message that has a column, that column
    :param by_key: which message a key chooses; where no keys are told, it is the one message
    :param schema: of what `decode` gives
    :param views: said by `schema` too, for pyarrow
    """

    def __init__(
        self,
        codecs: Sequence[MessageCodec],
        shapes: Sequence[Shape],
        by_key: Mapping[int, MessageCodec],
        form: str,
        schema: pa.Schema,
        strict: bool,
        registry: Registry,
        views: bool,
    ) -> None:
        self.codecs = codecs
        self.shapes = shapes
        self.by_key = by_key
        self.schema = schema
        self.strict = strict
        self.registry = registry
        self.row = {
            "request": self.request,
            "response": self.response,
            "message": self.message,
            "prefixed": self.prefixed,
            "typed": self.typed,
        }[form]
        self.heads = [field.name for field in schema][: len(schema) - len(shapes) - 2]
        # What is no message is a leaf, of whose shape nothing is asked.
        of_messages = {shape.name: shape for shape in shapes}
        self.columns = [of_messages.get(field.name) or Shape(field.name, Op.INT64) for field in schema]

    def decode(self, frames: pa.Array, keys: pa.Array | None, versions: pa.Array | None) -> pa.RecordBatch:
        """The columns of `frames`; keys and versions are int64, a row each."""
        n = len(frames)
        heads: list[list[Any]] = [[None] * n for _ in self.heads]
        structs: dict[str, list[Any]] = {shape.name: [None] * n for shape in self.shapes}
        errors: list[str | None] = [None] * n
        offsets: list[int | None] = [None] * n
        key_of = keys.to_pylist() if keys is not None else [None] * n
        version_of = versions.to_pylist() if versions is not None else [None] * n
        for i, body in enumerate(frames.to_pylist()):
            if body is None:
                continue
            codec = self.codecs[0] if keys is None else self.of_key(key_of[i])
            head: list[Any] = []
            try:
                found = self.row(body, codec, key_of[i], version_of[i], head)
            except DecodeError as error:
                errors[i], offsets[i] = error.kind, error.offset
                found = None
            for rows, value in zip(heads, head, strict=False):
                rows[i] = value
            if found is not None and found[0].name in structs:
                structs[found[0].name][i] = found[1]
        pa = arrow()
        values = [*heads, *structs.values(), errors, offsets]
        try:
            arrays = [
                column(shape, rows, field.type)
                for shape, rows, field in zip(self.columns, values, self.schema, strict=True)
            ]
        except pa.ArrowCapacityError as error:
            raise OverflowError(f"a column is too large for 32-bit offsets: decode smaller batches ({error})") from None
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def of_key(self, key: int | None) -> MessageCodec | None:
        return None if key is None else self.by_key.get(key)

    # Each gives the codec and the message, or None where the row is none of ours; what stands before the message goes
    # into `head`, also where the message then fails.

    def request(
        self, body: bytes, codec: MessageCodec | None, key: int | None, version: int | None, head: list[Any]
    ) -> tuple[MessageCodec, Any] | None:
        header = peek_request(body, strict=self.strict)
        head += (header.request_api_key, header.request_api_version, header.correlation_id, header.client_id)
        codec = self.of_key(header.request_api_key)
        if codec is None:
            return None
        return codec, decode_request(body, strict=self.strict, registry=self.registry)[1]

    def response(
        self, body: bytes, codec: MessageCodec | None, key: int | None, version: int | None, head: list[Any]
    ) -> tuple[MessageCodec, Any] | None:
        if len(body) >= 4:
            head.append(int.from_bytes(body[:4], "big", signed=True))
        if codec is None or key is None or version is None:
            return None
        return codec, decode_response(body, key, version, strict=self.strict, registry=self.registry)[1]

    def message(
        self, body: bytes, codec: MessageCodec | None, key: int | None, version: int | None, head: list[Any]
    ) -> tuple[MessageCodec, Any] | None:
        if codec is None or version is None:
            return None
        return codec, codec.decode(body, version, strict=self.strict)

    def prefixed(
        self, body: bytes, codec: MessageCodec | None, key: int | None, version: int | None, head: list[Any]
    ) -> tuple[MessageCodec, Any] | None:
        if len(body) >= 2:
            head.append(int.from_bytes(body[:2], "big", signed=True))
        if codec is None:
            return None
        return codec, decode_prefixed(codec.cls, body, strict=self.strict, registry=self.registry)[1]

    def typed(
        self, body: bytes, codec: MessageCodec | None, key: int | None, version: int | None, head: list[Any]
    ) -> tuple[MessageCodec, Any] | None:
        if len(body) < 2:
            raise DecodeError("truncated", 0, "key", "2 bytes of record type are needed")
        head.append(int.from_bytes(body[:2], "big", signed=True))
        codec = self.of_key(head[0])
        if codec is None:
            return None
        message, end = codec.decode_prefix(body, 0, offset=2, strict=self.strict)
        if self.strict and end != len(body):
            raise DecodeError("trailing", end, codec.name, f"{len(body) - end} bytes are left after the message")
        return codec, message


def column(shape: Shape, values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """The values of an attribute as an array. What is in a null struct is null as well."""
    pa = arrow()
    if shape.op is Op.ARRAY:
        item = shape.children[0]
        ends = accumulate((0 if value is None else len(value) for value in values), initial=0)
        starts = [None if value is None else end for value, end in zip([*values, ()], ends, strict=True)]
        items = [one for value in values if value is not None for one in value]
        return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), column(item, items, type_.value_type), type=type_)
    if shape.op is Op.STRUCT and shape.children:
        fields = [
            column(
                child, [None if value is None else getattr(value, child.name) for value in values], type_.field(i).type
            )
            for i, child in enumerate(shape.children)
        ]
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(fields, fields=list(type_), mask=mask)
    if shape.op is Op.STRUCT:
        return pa.array([None if value is None else {} for value in values], type_)
    if shape.op is Op.UUID:
        values = [None if value is None else value.bytes for value in values]
    return pa.array(values, type_)
