"""Wire pages: the sections of a Markdown page that say, for one message each, which bytes it has.

A section stands between two comments; the text around them is the page's own. The first comment names the message, its
version where it is not 0, and examples, a line each: the fields of the message as JSON (bytes as hex text), behind a
remark if there is one.

    <!-- message PingRequest
    {"consumer_id": "c1", "num_retries": 0}
    -->
    ... written by `emit_page`
    <!-- end of PingRequest -->

Laws:

* Layout, meaning and bytes are those of the schema: a table of all fields, then each example byte by byte, in the frame
  that the message has on the wire. `construct_model` writes the examples and reads them again.
* The text is deterministic, and a page that is emitted again stays as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from kcoord_wire.schema.construct_model import construct_model
from kcoord_wire.schema.constructs import KafkaBytes, KafkaStruct, Leaf, TextMessage
from kcoord_wire.schema.describe import about_paragraphs, walk_fields
from kcoord_wire.schema.model import Field, Message
from kcoord_wire.schema.plan import SIZES

_SECTION: Final = re.compile(
    r"(?P<head>^<!-- message (?P<name>\w+)(?: (?P<version>\d+))?\n(?P<examples>.*?)^-->\n)"
    r".*?(?P<foot>^<!-- end of (?P=name) -->$)",
    re.MULTILINE | re.DOTALL,
)
_COLUMNS: Final = 16  # bytes of a line of an example
_CORRELATION_ID: Final = 7  # of the examples
_SIZE: Final = "size"
_TYPE_ID: Final = "request_type_id"


def emit_page(text: str, messages: Mapping[str, Message]) -> str:
    """Return a page with the sections of its messages as the schemas have them.

    :raises ValueError: a section names no message, or its message has a flexible form
    :raises EncodeError: an example is not such a message
    """

    def section(match: re.Match[str]) -> str:
        name, version = match["name"], int(match["version"] or 0)
        if name not in messages:
            raise ValueError(f"there is no message {name}")
        lines = _section(_Framed(messages[name], version, messages), match["examples"].splitlines())
        return f"{match['head']}\n{chr(10).join(lines)}\n\n{match['foot']}"

    return _SECTION.sub(section, text)


def read_examples(text: str) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield name, version and fields of each example of a page, in order."""
    for match in _SECTION.finditer(text):
        for line in match["examples"].splitlines():
            yield match["name"], int(match["version"] or 0), _example(line)[1]


def _example(line: str) -> tuple[str, dict[str, Any]]:
    remark, brace, values = line.partition("{")
    return remark.rstrip(": "), json.loads(brace + values)


_SIZES: Final = {op.name.lower(): size for op, size in SIZES.items()}
_Part = tuple[bytes, list[Leaf]]


class _Framed:
    """A message of a version with what is before it in its frame, if it is a request or a response: size and header.

    :ivar is_framed: it has them
    :ivar header: the header's message and its version; None for one that is no message
    """

    def __init__(self, message: Message, version: int, messages: Mapping[str, Message]) -> None:
        if version in message.flexible:
            raise ValueError(f"{message.name} {version} has the flexible form, which no page describes")
        self.message = message
        self.version = version
        self.is_framed = message.type in ("request", "response")
        self.is_request = message.type == "request"
        self.header: tuple[Message, int] | None = None
        if self.is_framed and message.header == "kafka":
            self.header = messages["RequestHeader" if self.is_request else "ResponseHeader"], int(self.is_request)

    def rows(self) -> Iterator[tuple[str, str, int | None, str]]:
        """Yield each field: name, type, bytes if they are always as many, and meaning."""
        if self.is_framed:
            yield _SIZE, "int32", 4, "Bytes of the frame behind this field."
        if self.message.header == "typeId":
            yield _TYPE_ID, "int16", 2, f"Which message this is: {self.message.api_key}."
        for message, version in [*([self.header] if self.header else ()), (self.message, self.version)]:
            for path, field in walk_fields(message, version):
                size = None if field.type.array else _SIZES.get(field.type.base)
                yield path, _kind(field, version), size, _meaning(field)

    def example(self, values: Mapping[str, Any]) -> _Part:
        """Return the frame of an example, and what its bytes are."""
        parts: list[_Part] = []
        if self.header is not None:
            key = {"request_api_key": self.message.api_key, "request_api_version": self.version, "client_id": "me"}
            parts.append(_traced(*self.header, {"correlation_id": _CORRELATION_ID} | (key if self.is_request else {})))
        elif self.message.header == "typeId" and self.message.api_key is not None:
            parts.append(_integer(_TYPE_ID, "int16", self.message.api_key))
        parts.append(_traced(self.message, self.version, values))
        if self.is_framed:
            parts.insert(0, _integer(_SIZE, "int32", sum(len(data) for data, _ in parts)))
        frame, leaves = b"", list[Leaf]()
        for data, found in parts:
            base = len(frame)
            leaves += [replace(leaf, start=leaf.start + base, end=leaf.end + base) for leaf in found]
            frame += data
        return frame, leaves


def _integer(name: str, kind: str, value: int) -> _Part:
    return value.to_bytes(_SIZES[kind], "big"), [Leaf(0, _SIZES[kind], f".{name}", kind, value)]


class _Leaves:
    """A `Trace` that keeps the leaves; the length of a string or of bytes becomes a part of it."""

    def __init__(self) -> None:
        self.found: list[Leaf] = []

    def leaf(self, leaf: Leaf) -> None:
        has_length = self.found and self.found[-1].path == leaf.path
        self.found.append(replace(leaf, start=self.found.pop().start) if has_length else leaf)

    def enter(self, start: int, path: str, type_: str) -> None:
        """A struct has no bytes of its own."""

    def leave(self, end: int) -> None:
        """Nor does its end."""


def _traced(message: Message, version: int, values: Mapping[str, Any]) -> _Part:
    model, trace = construct_model(message, version), _Leaves()
    data: bytes = model.build(_filled(model.body, values, message.name))
    model.parse(data, trace=trace)
    return data, trace.found


def _filled(codec: Any, value: Any, path: str) -> Any:
    """Return what a construct builds from, of JSON: fields that are not named have their default."""
    codec = getattr(codec, "array", codec)  # of one that is present only if bytes remain
    if isinstance(value, list):
        return [_filled(codec.item, each, path) for each in value]
    if isinstance(codec, KafkaBytes) and value is not None:
        return bytes.fromhex(value)
    if not isinstance(codec, KafkaStruct | TextMessage) or value is None:
        return value
    filled, fields = codec.fresh(), {field.attr: field.codec for field in codec.fields}
    for name, given in value.items():
        if name not in fields:
            raise ValueError(f"{path} has no field {name!r}")
        setattr(filled, name, _filled(fields[name], given, f"{path}.{name}"))
    return filled


# ---- the text


def _kind(field: Field, version: int) -> str:
    if field.present_if_remaining:
        return f"{field.type}, or absent"
    return f"{field.type} or null" if version in field.nullable else str(field.type)


def _meaning(field: Field) -> str:
    bounds = [
        f"{word} {bound}"
        for word, bound in (("from", field.minimum), ("to", field.maximum), ("at most, in bytes,", field.max_length))
        if bound is not None
    ]
    return f"{field.about.rstrip('.')} ({' '.join(bounds)})." if bounds else field.about


def _section(framed: _Framed, examples: list[str]) -> Iterator[str]:
    about = about_paragraphs(framed.message)
    if len(list(framed.message.versions)) > 1:  # what follows the first sentence is about the other versions
        about = [about[0].partition(". ")[0].rstrip(".") + "."]
    yield from about
    yield ""
    is_text = framed.message.encoding == "text"
    yield from _part_rows(framed) if is_text else _byte_rows(framed)
    for line in examples:
        remark, values = _example(line)
        data, leaves = framed.example(values)
        yield ""
        yield f"{remark[:1].upper() + remark[1:] or 'Example'}, {len(data)} bytes:"
        yield ""
        if is_text:
            yield f"    {data.decode()}"
            yield ""
        yield from _listing(data, leaves)


def _part_rows(framed: _Framed) -> Iterator[str]:
    yield "| part | field | type | meaning |"
    yield "|--:|---|---|---|"
    yield f"| 0 | | text | The type: `{framed.message.text_type}`. |"
    for part, (name, kind, _, about) in enumerate(framed.rows(), 1):
        yield f"| {part} | `{name}` | {kind} | {_cell(about)} |"


def _byte_rows(framed: _Framed) -> Iterator[str]:
    """A row for each field: its offset while all before it have a known size, then ``then``; of an element ``each``."""
    yield "| offset | size | field | type | meaning |"
    yield "|--:|---|---|---|---|"
    offset: int | None = 0
    above = ""
    for path, kind, size, about in framed.rows():
        inside = path.rpartition(".")[0]
        at = "each" if inside.startswith(above) and inside != above and inside.endswith("[]") else "then"
        if "." not in path:
            at = at if offset is None else str(offset)
            offset = None if offset is None or size is None else offset + size
        above = inside
        yield f"| {at} | {size or _size(kind, framed.message)} | `{path}` | {kind} | {_cell(about)} |"


def _size(kind: str, message: Message) -> str:
    """The size of a field whose values have not all the same number of bytes."""
    if kind.startswith("[]"):
        return f"{_SIZES[message.array_length]} + elements"
    return f"{_SIZES['int32' if kind.startswith(('bytes', 'records')) else message.string_length]} + n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _listing(data: bytes, leaves: list[Leaf]) -> Iterator[str]:
    """The bytes as a block of code, a line for each field, or several for a long one."""
    width = max(min(leaf.end - leaf.start, _COLUMNS) for leaf in leaves) * 3 - 1
    for leaf in leaves:
        words = f"{leaf.path.partition('.')[2]} {_shown(leaf)}".strip()
        for start in range(leaf.start, leaf.end, _COLUMNS):
            part = data[start : min(start + _COLUMNS, leaf.end)].hex(" ")
            yield f"    {start:>4}  {part:<{width}}  {words if start == leaf.start else ''}".rstrip()


def _shown(leaf: Leaf) -> str:
    value: Any = leaf.value
    if leaf.type.endswith(("length", "count")) and value == -1:
        return "null"
    if leaf.type.endswith("count"):
        return f"a list of {value}"
    if isinstance(value, bytes):
        text = value.decode(errors="replace")
        return json.dumps(text) if text.isprintable() else f"{len(value)} bytes"
    return json.dumps(value, ensure_ascii=False)
