"""Every byte of a message with the field it belongs to, for when bytes are not what they should be.

Laws:

* The leaf rows cover every byte exactly once, in byte order, whether the bytes decode or not: what was not read is a
  row of its own at the end.
* Bytes that do not decode are explained as far as they go; the error is part of the explanation, not raised.
* Bytes fields that hold a message of their own (`embeds` in the schema) are looked into: for a consumer's, then for
  that of a worker of Kafka Connect. Where they hold something else they stay bytes, and a note says why.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.codec.backend import Buffer
from kcoord_wire.codec.registry import Registry
from kcoord_wire.codec.registry import registry as built_in
from kcoord_wire.errors import DecodeError
from kcoord_wire.schema.model import Message

if TYPE_CHECKING:
    from kcoord_wire.schema.constructs import Leaf

UNREAD: Final = "not read"
OF_CONNECT: Final = {
    "ConsumerProtocolSubscription": "ConnectProtocolMetadata",
    "ConsumerProtocolAssignment": "ConnectProtocolAssignment",
}
_MAX_HEX: Final = 8
_MAX_VALUE: Final = 48


@dataclass(frozen=True, slots=True)
class Row:
    """The bytes from `start` up to `end`, and what they are.

    :ivar path: the field, as in errors; a message embedded in a field is behind a colon:
        ``JoinGroupRequest.protocols[0].metadata:ConsumerProtocolSubscription.topics[0]``
    :ivar type: in the schema's terms: ``int32``, ``string``, ``compact length``, a struct's name
    :ivar value: what was read, None for a struct; a length is given as such, -1 for null
    :ivar depth: how many structs and embedded messages the row lies in
    :ivar leaf: whether the row is the bytes themselves; if not, the rows that it is made of follow it
    """

    start: int
    end: int
    path: str
    type: str
    value: object
    depth: int
    note: str = ""
    leaf: bool = True

    def to_json(self) -> dict[str, object]:
        """The row for a JSON writer: bytes and uuids as hex, as `to_dict` has them."""
        value = self.value
        if isinstance(value, bytes):
            value = value.hex()
        elif isinstance(value, uuid.UUID):
            value = value.hex
        return {
            "start": self.start,
            "end": self.end,
            "path": self.path,
            "type": self.type,
            "value": value,
            "depth": self.depth,
            "note": self.note,
            "leaf": self.leaf,
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the bytes of one message are; printed, it is a table.

    :ivar error: why the bytes do not decode, None if they do
    """

    message: str
    version: int
    data: bytes
    rows: tuple[Row, ...]
    error: DecodeError | None = None

    def to_json(self) -> dict[str, object]:
        """The explanation for a JSON writer."""
        error = None
        if self.error is not None:
            error = {
                "kind": self.error.kind,
                "offset": self.error.offset,
                "path": self.error.path,
                "detail": self.error.detail,
            }
        return {
            "message": self.message,
            "version": self.version,
            "size": len(self.data),
            "rows": [row.to_json() for row in self.rows],
            "error": error,
        }

    def __str__(self) -> str:
        table = [("start", "end", "bytes", "field", "type", "value"), *self._cells()]
        widths = [max(len(cells[column]) for cells in table) for column in range(6)]
        lines = [f"{self.message} version {self.version}, {len(self.data)} bytes", ""]
        for start, end, raw, field, type_, value in table:
            left = f"{start:>{widths[0]}}  {end:>{widths[1]}}  {raw:{widths[2]}}  {field:{widths[3]}}"
            lines.append(f"{left}  {type_:{widths[4]}}  {value}".rstrip())
        if self.error is not None:
            lines += ["", f"error: {self.error}"]
        return "\n".join(lines)

    def _cells(self) -> Iterator[tuple[str, str, str, str, str, str]]:
        above: list[str] = []
        for row in self.rows:
            del above[row.depth :]
            name = row.path.removeprefix(above[-1]).lstrip(".:") if above else row.path
            above.append(row.path)
            read = row.type != UNREAD
            value = _shown(row.value) if row.leaf and read else ""
            words = [value, f"({row.note})" if row.note else ""]
            yield (
                str(row.start),
                str(row.end),
                _hex(self.data[row.start : row.end]) if row.leaf else "",
                "  " * row.depth + name if read else "",
                row.type,
                " ".join(filter(None, words)),
            )


def _model(message: Message, version: int) -> Any:
    # construct is an extra: asked for when something is explained, so that this module can be named without it.
    from kcoord_wire.schema.construct_model import construct_model

    return construct_model(message, version)


def explain(
    data: Buffer, message: type | Message, version: int, *, strict: bool = True, registry: Registry = built_in
) -> Explanation:
    """What each byte of `data`, a body without size or header, is.

    :param message: the message's class, or its schema
    :param strict: as in `decode`
    :param registry: where the class, and the messages that fields embed, are looked up
    :raises TypeError: `message` is a class that is not in the registry
    """
    schema = message if isinstance(message, Message) else registry.by_class(message).schema
    raw = bytes(data)

    def find(name: str) -> Message | None:
        return registry[name].schema if name in registry else None

    rows = _Rows(find, strict)
    error = None
    try:
        if version not in schema.versions:
            raise DecodeError("version", 0, schema.name, f"there is no version {version}, only {schema.versions}")
        _model(schema, version).parse(raw, strict=strict, trace=rows)
    except DecodeError as raised:
        error = raised
    rows.close(len(raw), schema.name)
    return Explanation(schema.name, version, raw, tuple(rows.rows), error)


class _Rows:
    """The trace of a parse; within another message `base` bytes, `depth` levels and the path `above` further down."""

    def __init__(
        self, find: Callable[[str], Message | None], strict: bool, base: int = 0, depth: int = 0, above: str = ""
    ) -> None:
        self.find = find
        self.strict = strict
        self.base = base
        self.depth = depth
        self.above = above
        self.rows: list[Row] = []
        self.open: list[int] = []
        self.position = base

    def leaf(self, leaf: Leaf) -> None:
        row = self.row(leaf.start, leaf.end, leaf.path, leaf.type, leaf.value, leaf.note)
        within: list[Row] = []
        if leaf.embeds is not None and isinstance(leaf.value, bytes):
            within, note = self.embedded(row, leaf.value, leaf.embeds)
            if not within and leaf.embeds in OF_CONNECT:
                within, instead = self.embedded(row, leaf.value, OF_CONNECT[leaf.embeds])
                note = instead if within else note
            row = replace(row, note=note, leaf=not within)
        self.rows += [row, *within]
        self.position = row.end

    def enter(self, start: int, path: str, type_: str) -> None:
        self.rows.append(replace(self.row(start, start, path, type_, None), leaf=False))
        self.open.append(len(self.rows) - 1)

    def leave(self, end: int) -> None:
        index = self.open.pop()
        self.rows[index] = replace(self.rows[index], end=self.base + end)

    def close(self, size: int, path: str) -> None:
        """End what a failure left open, and account for the bytes that were not read."""
        while self.open:
            self.leave(self.position - self.base)
        if self.position < self.base + size:
            self.rows.append(self.row(self.position - self.base, size, path, UNREAD, None))

    def row(self, start: int, end: int, path: str, type_: str, value: object, note: str = "") -> Row:
        depth = self.depth + len(self.open)
        return Row(self.base + start, self.base + end, self.above + path, type_, value, depth, note)

    def embedded(self, row: Row, blob: bytes, name: str) -> tuple[list[Row], str]:
        """The rows of the message `name` that `blob` holds behind an int16 version, or none and the reason."""
        message = self.find(name)
        if message is None:
            return [], f"the registry has no schema of {name}"
        if len(blob) < 2:
            return [], f"no {name}: {len(blob)} bytes hold no version"
        version = int.from_bytes(blob[:2], "big", signed=True)
        if version < message.versions.low:
            return [], f"no {name}: version {version}"
        read_as = min(version, message.versions.high)
        inner = _Rows(self.find, self.strict, row.start + 2, row.depth + 1, f"{row.path}:")
        try:
            model = _model(message, read_as)
            model.parse(blob[2:], strict=self.strict, prefix=version > read_as, trace=inner)
        except DecodeError as error:
            moved = DecodeError(error.kind, error.offset + inner.base, error.path, error.detail)
            return [], f"no {name}: {moved}"
        inner.close(len(blob) - 2, name)
        note = f"read as version {read_as}" if version > read_as else ""
        prefix = Row(row.start, inner.base, f"{inner.above}version", "int16", version, inner.depth, note)
        return [prefix, *inner.rows], name


def _hex(data: bytes) -> str:
    return data.hex(" ") if len(data) <= _MAX_HEX else data[: _MAX_HEX - 1].hex(" ") + " .."


def _shown(value: object) -> str:
    text = str(value) if isinstance(value, uuid.UUID) else repr(value)
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 3] + "..."
