"""The elements of the wire format as subclasses of `construct.Construct`, one small class for each.

Laws:

* Slow and literal on purpose: reading and writing are side by side, and no class knows a schema.
* Parsing and building raise what the codecs raise: `DecodeError` and `EncodeError` with the same kind, offset and path.
* A `Trace` receives every primitive that was read, in byte order and before it is checked.

The `path` that construct passes down is replaced with this module's: the message's name, then attributes. Context
parameters of `parse`: ``strict`` (default True; False reads what Kafka's own readers accept), ``prefix`` (default
False; True lets other bytes follow the message) and ``trace`` (default None).
"""

from __future__ import annotations

import io
import math
import operator
import re
import struct
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.schema.model import INTEGERS
from kcoord_wire.schema.text import decode_like_java

try:
    import construct
except ModuleNotFoundError as error:
    if error.name != "construct":
        raise
    raise ModuleNotFoundError(
        "kcoord_wire.schema.constructs needs construct: pip install 'kcoord_wire[explain]'", name="construct"
    ) from None

MAX_STRING: Final = 0x7FFF
MAX_BYTES: Final = 0x7FFFFFFF
MAX_TAG: Final = 0xFFFFFFFF
FORMATS: Final = {"int8": "b", "int16": "h", "int32": "l", "int64": "q", "uint16": "H", "uint32": "L", "float64": "d"}


@dataclass(frozen=True, slots=True)
class Leaf:
    """A primitive, a length, a marker or a tag that was read.

    :ivar start: its first byte, counted from the start of the stream
    :ivar end: the byte after its last
    :ivar path: the field it belongs to
    :ivar type: in the schema's terms: ``int32``, ``compact length``
    :ivar value: what was read
    :ivar note: a remark for people
    :ivar embeds: the message that the bytes usually hold
    """

    start: int
    end: int
    path: str
    type: str
    value: object
    note: str = ""
    embeds: str | None = None


class Trace(Protocol):
    """Receives what was read, in byte order."""

    def leaf(self, leaf: Leaf) -> None:
        """A leaf was read."""

    def enter(self, start: int, path: str, type_: str) -> None:
        """A struct or the message begins: everything up to its `leave` is part of it."""

    def leave(self, end: int) -> None:
        """The innermost struct has ended."""


@dataclass(frozen=True)
class FieldConstruct:
    """A field of a struct at the version. `presence` is ``plain``, ``tagged`` or ``absent``."""

    attr: str
    presence: str
    codec: Any
    default: object
    tag: int
    ignorable: bool

    def fresh(self) -> object:
        """The value of the field if it is not on the wire."""
        if self.default == ():
            return []
        return self.codec.fresh() if self.default is ... else self.default

    def is_default(self, value: object) -> bool:
        if self.default == ():
            return isinstance(value, list | tuple) and not value
        if self.default is None:
            return value is None
        try:
            return bool(value == self.fresh())
        except AttributeError:  # a struct with an empty slot: writing it reports which
            return False

    def refuse_lost(self, owner: object, path: str) -> None:
        """Check that an absent field holds its default in `owner`, unless the schema makes it ignorable."""
        if not self.ignorable and not self.is_default(_attribute(owner, self.attr, path)):
            raise EncodeError("version", path, "this version does not have the field, and it is not its default")


# ---- shared by the constructs


def _left(stream: Any) -> int:
    position: int = stream.tell()
    end: int = stream.seek(0, 2)
    stream.seek(position)
    return end - position


def _take(stream: Any, size: int, path: str) -> bytes:
    left = _left(stream)
    if left < size:
        raise DecodeError("truncated", stream.tell(), path, f"{size} bytes are needed, {left} are left")
    data: bytes = stream.read(size)
    return data


def _strict(context: Any) -> bool:
    return bool(context.get("strict", True))


def _report(context: Any, leaf: Leaf) -> None:
    trace = context.get("trace")
    if trace is not None:
        trace.leaf(leaf)


def _java_int(value: int) -> int:
    """The low 32 bits as a signed number: Kafka reads a varint into a Java int."""
    return (value + 2**31) % 2**32 - 2**31


def _attribute(value: object, attr: str, path: str) -> Any:
    try:
        return getattr(value, attr)
    except AttributeError:
        raise EncodeError("type", path, "the attribute is missing") from None


def _index(value: object, low: int, high: int, path: str) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        _wrong(path, "an integer", value)
    if not low <= number <= high:
        raise EncodeError("range", path, f"the number is not between {low} and {high}")
    return number


def _wrong(path: str, wanted: str, value: object) -> NoReturn:
    raise EncodeError("type", path, f"{wanted} is needed, not {type(value).__name__}")


class _Wire(construct.Construct):  # type: ignore[misc]
    """A construct with this module's `path`. `min_size` is the smallest number of bytes it takes on the wire."""

    min_size: int


# ---- fixed width


class Integer(_Wire):
    """A big-endian integer, within the bounds that the schema sets."""

    def __init__(self, base: str, minimum: int | None = None, maximum: int | None = None) -> None:
        super().__init__()
        self.base = base
        low, high = INTEGERS[base]
        self.low = low if minimum is None else minimum
        self.high = high if maximum is None else maximum
        self.subcon = construct.FormatField(">", FORMATS[base])
        self.min_size = self.subcon.sizeof()

    def _parse(self, stream: Any, context: Any, path: str) -> int:
        start = stream.tell()
        value: int = self.subcon.parse(_take(stream, self.min_size, path))
        _report(context, Leaf(start, stream.tell(), path, self.base, value))
        if not self.low <= value <= self.high:
            raise DecodeError("range", start, path, f"{value} is not between {self.low} and {self.high}")
        return value

    def _build(self, obj: object, stream: Any, context: Any, path: str) -> None:
        stream.write(self.subcon.build(_index(obj, self.low, self.high, path)))


class Float(_Wire):
    """An IEEE 754 double."""

    min_size = 8

    def _parse(self, stream: Any, context: Any, path: str) -> float:
        start = stream.tell()
        value: float = construct.Float64b.parse(_take(stream, 8, path))
        _report(context, Leaf(start, stream.tell(), path, "float64", value))
        return value

    def _build(self, obj: object, stream: Any, context: Any, path: str) -> None:
        try:
            stream.write(struct.pack(">d", math.copysign(obj, obj)))  # type: ignore[arg-type]
        except TypeError:
            _wrong(path, "a float", obj)
        except OverflowError:
            raise EncodeError("range", path, "the number is too large for a float64") from None


class Bool(_Wire):
    """One byte, 0 or 1; a lenient reader takes any other for true."""

    min_size = 1

    def _parse(self, stream: Any, context: Any, path: str) -> bool:
        start = stream.tell()
        (value,) = _take(stream, 1, path)
        _report(context, Leaf(start, stream.tell(), path, "bool", value if value > 1 else bool(value)))
        if value > 1 and _strict(context):
            raise DecodeError("value", start, path, f"a bool is 0 or 1, not {value}")
        return value != 0

    def _build(self, obj: object, stream: Any, context: Any, path: str) -> None:
        if not isinstance(obj, bool):
            _wrong(path, "a bool", obj)
        stream.write(b"\1" if obj else b"\0")


class Uuid(_Wire):
    """16 raw bytes."""

    min_size = 16

    def _parse(self, stream: Any, context: Any, path: str) -> uuid.UUID:
        start = stream.tell()
        value = uuid.UUID(bytes=_take(stream, 16, path))
        _report(context, Leaf(start, stream.tell(), path, "uuid", value))
        return value

    def _build(self, obj: object, stream: Any, context: Any, path: str) -> None:
        if not isinstance(obj, uuid.UUID):
            _wrong(path, "a uuid.UUID", obj)
        stream.write(obj.bytes)


class UVarint(_Wire):
    """An unsigned number in groups of seven bits, lowest first, at most five bytes."""

    min_size = 1

    def _parse(self, stream: Any, context: Any, path: str) -> int:
        start = stream.tell()
        value: int = 0
        for index in range(5):
            raw = stream.read(1)
            if not raw:
                raise DecodeError("truncated", start, path, "the varint does not end")
            value |= (raw[0] & 0x7F) << 7 * index
            if raw[0] < 0x80:
                break
        else:
            raise DecodeError("varint", start, path, "a varint has five bytes at most")
        if _strict(context):
            if value > 0xFFFFFFFF:
                raise DecodeError("varint", start, path, "a varint has 32 bits at most")
            if index and raw == b"\0":
                raise DecodeError("varint", start, path, "the varint is not canonical: it ends with a zero byte")
        return value & 0xFFFFFFFF

    def _build(self, obj: int, stream: Any, context: Any, path: str) -> None:
        while obj > 0x7F:
            stream.write(bytes([obj & 0x7F | 0x80]))
            obj >>= 7
        stream.write(bytes([obj]))


# ---- lengths, -1 for null


class PlainLength(_Wire):
    """A length or count as a signed integer, -1 for null."""

    def __init__(self, base: str) -> None:
        super().__init__()
        self.type = base
        self.subcon = construct.FormatField(">", FORMATS[base])
        self.min_size = self.subcon.sizeof()
        self.limit = INTEGERS[base][1]

    def _parse(self, stream: Any, context: Any, path: str) -> int:
        value: int = self.subcon.parse(_take(stream, self.min_size, path))
        return value

    def _build(self, obj: int, stream: Any, context: Any, path: str) -> None:
        stream.write(self.subcon.build(obj))


class CompactLength(_Wire):
    """A length or count as a varint of one more, 0 for null."""

    min_size = 1
    type = "compact"
    limit = 0xFFFFFFFE

    def _parse(self, stream: Any, context: Any, path: str) -> int:
        value = UVarint()._parse(stream, context, path) - 1
        return value if _strict(context) else _java_int(value)

    def _build(self, obj: int, stream: Any, context: Any, path: str) -> None:
        UVarint()._build(obj + 1, stream, context, path)


class _Sized(_Wire):
    """A value after a length that may be null."""

    counts = "length"

    def __init__(self, length: Any, nullable: bool) -> None:
        super().__init__()
        self.length = length
        self.nullable = nullable
        self.min_size = length.min_size

    def read_length(self, stream: Any, context: Any, path: str) -> int | None:
        """The length, None for null."""
        start = stream.tell()
        n: int = self.length._parse(stream, context, path)
        _report(
            context, Leaf(start, stream.tell(), path, f"{self.length.type} {self.counts}", n, "null" if n == -1 else "")
        )
        if n >= 0:
            return n
        if n == -1 or not _strict(context):
            if self.nullable:
                return None
            if n == -1 and _strict(context):
                raise DecodeError("null", start, path, "null is not allowed here")
            if n == -1:  # lenient: a null that is not allowed is the empty value
                return 0
        raise DecodeError("length", start, path, f"the length {n} is negative")

    def write_null(self, stream: Any, context: Any, path: str) -> None:
        if not self.nullable:
            raise EncodeError("null", path, "None is not allowed here")
        self.length._build(-1, stream, context, path)


class KafkaString(_Sized):
    """UTF-8 text after its length in bytes."""

    def __init__(self, length: Any, nullable: bool, max_length: int | None) -> None:
        super().__init__(length, nullable)
        self.high = MAX_STRING if max_length is None else min(MAX_STRING, max_length)

    def _parse(self, stream: Any, context: Any, path: str) -> str | None:
        start = stream.tell()
        size = self.read_length(stream, context, path)
        if size is None:
            return None
        if size > MAX_STRING:
            raise DecodeError("length", start, path, f"a string has {MAX_STRING} bytes at most, not {size}")
        if size > _left(stream):
            raise DecodeError("truncated", start, path, f"{size} bytes are needed, {_left(stream)} are left")
        content = stream.tell()
        data = stream.read(size)
        lenient = not _strict(context)
        shown = decode_like_java(data) if lenient else data.decode(errors="backslashreplace")
        _report(context, Leaf(content, stream.tell(), path, "string", shown))
        return _text(data, start, path, self.high, content, lenient)

    def _build(self, obj: object, stream: Any, context: Any, path: str) -> None:
        if obj is None:
            self.write_null(stream, context, path)
            return
        data = _utf8(obj, path, self.high)
        self.length._build(len(data), stream, context, path)
        stream.write(data)


def _text(data: bytes, start: int, path: str, high: int, content: int, lenient: bool = False) -> str:
    """The text of a string that starts at `start`, its bytes at `content`."""
    if len(data) > MAX_STRING:
        raise DecodeError("length", start, path, f"a string has {MAX_STRING} bytes at most, not {len(data)}")
    if len(data) > high:
        raise DecodeError("range", start, path, f"the string has {high} bytes at most, not {len(data)}")
    try:
        return decode_like_java(data) if lenient else data.decode()
    except UnicodeDecodeError as error:
        raise DecodeError("utf8", content + error.start, path, f"not UTF-8: {error.reason}") from None


def _utf8(value: object, path: str, high: int) -> bytes:
    if not isinstance(value, str):
        _wrong(path, "a str", value)
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise EncodeError("type", path, "the text holds a lone surrogate, which UTF-8 does not have") from None
    if len(data) > MAX_STRING:
        raise EncodeError("length", path, f"a string has {MAX_STRING} bytes at most, not {len(data)}")
    if len(data) > high:
        raise EncodeError("range", path, f"the string has {high} bytes at most, not {len(data)}")
    return data


def _raw(value: object, path: str) -> bytes:
    if isinstance(value, memoryview) and not value.c_contiguous:
        _wrong(path, "a contiguous buffer", value)
    if not isinstance(value, bytes | bytearray | memoryview):
        _wrong(path, "bytes", value)
    return bytes(value)


class KafkaBytes(_Sized):
    """Raw bytes after their length; `base` is ``bytes`` or ``records``."""

    def __init__(self, length: Any, nullable: bool, base: str, embeds: str | None) -> None:
        super().__init__(length, nullable)
        self.base = base
        self.embeds = embeds

    def _parse(self, stream: Any, context: Any, path: str) -> bytes | None:
        start = stream.tell()
        size = self.read_length(stream, context, path)
        if size is None:
            return None
        if size > _left(stream):
            raise DecodeError("truncated", start, path, f"{size} bytes are needed, {_left(stream)} are left")
        content = stream.tell()
        data: bytes = stream.read(size)
        _report(context, Leaf(content, stream.tell(), path, self.base, data, embeds=self.embeds))
        return data

    def _build(self, obj: object, stream: Any, context: Any, path: str) -> None:
        if obj is None:
            self.write_null(stream, context, path)
            return
        data = _raw(obj, path)
        if len(data) > MAX_BYTES:
            raise EncodeError("length", path, f"bytes have a length of {MAX_BYTES} at most, not {len(data)}")
        self.length._build(len(data), stream, context, path)
        stream.write(data)


class KafkaArray(_Sized):
    """A count, then that many elements."""

    counts = "count"

    def __init__(self, length: Any, nullable: bool, item: Any) -> None:
        super().__init__(length, nullable)
        self.item = item

    def _parse(self, stream: Any, context: Any, path: str) -> list[Any] | None:
        start = stream.tell()
        count = self.read_length(stream, context, path)
        if count is None:
            return None
        needed = count * max(1, self.item.min_size)
        if needed > _left(stream):
            detail = f"{count} elements need {needed} bytes, {_left(stream)} are left"
            raise DecodeError("truncated", start, path, detail)
        return [self.item._parse(stream, context, f"{path}[{index}]") for index in range(count)]

    def _build(self, obj: object, stream: Any, context: Any, path: str) -> None:
        if obj is None:
            self.write_null(stream, context, path)
            return
        if not isinstance(obj, list | tuple):
            _wrong(path, "a list", obj)
        if len(obj) > self.length.limit:
            raise EncodeError("length", path, f"{self.length.limit} elements at most, not {len(obj)}")
        self.length._build(len(obj), stream, context, path)
        for index, item in enumerate(obj):
            self.item._build(item, stream, context, f"{path}[{index}]")


class Remaining(_Wire):
    """An array at the end of a message that is present only if any bytes remain; None takes no bytes."""

    min_size = 0

    def __init__(self, array: KafkaArray) -> None:
        super().__init__()
        self.array = KafkaArray(array.length, False, array.item)

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        return self.array._parse(stream, context, path) if _left(stream) else None

    def _build(self, obj: object, stream: Any, context: Any, path: str) -> None:
        if obj is not None:
            self.array._build(obj, stream, context, path)


# ---- structs


class KafkaStruct(_Wire):
    """The fields in order; in a flexible version the tag section after them."""

    def __init__(
        self, name: str, cls: type, fields: tuple[FieldConstruct, ...], tags: TagSection | None, holds: bool
    ) -> None:
        super().__init__()
        self.struct_name = name
        self.cls = cls
        self.fields = fields
        self.tags = tags
        self.holds_tags = holds
        self.min_size = sum(m.codec.min_size for m in fields if m.presence == "plain") + (tags is not None)

    def fresh(self) -> Any:
        """An instance in which every field has its default."""
        values = {field.attr: field.fresh() for field in self.fields}
        return self.cls(**values, **({"unknown_tags": ()} if self.holds_tags else {}))

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        trace = context.get("trace")
        if trace is not None:
            trace.enter(stream.tell(), path, self.struct_name)
        value = self.fresh()
        for field in self.fields:
            if field.presence == "plain":
                setattr(value, field.attr, field.codec._parse(stream, context, f"{path}.{field.attr}"))
        if self.tags is not None:
            self.tags.parse_into(value, stream, context, path)
        if trace is not None:
            trace.leave(stream.tell())
        return value

    def _build(self, obj: object, stream: Any, context: Any, path: str) -> None:
        if obj is None:
            raise EncodeError("null", path, "None is not allowed here")
        if not isinstance(obj, self.cls):
            _wrong(path, f"a {self.cls.__name__}", obj)
        for field in self.fields:
            here = f"{path}.{field.attr}"
            if field.presence == "plain":
                field.codec._build(_attribute(obj, field.attr, here), stream, context, here)
            elif field.presence == "absent":
                field.refuse_lost(obj, here)
        if self.tags is not None:
            self.tags.build_from(obj, stream, context, path)
        elif self.holds_tags:
            here = f"{path}.unknown_tags"
            for pair in _unknown_tags(obj, here):
                _unknown_tag(pair, here)
                raise EncodeError("tag", here, "this version has no tagged fields")


class NullableStruct(_Wire):
    """A struct after a marker: int8 1, or -1 for null; as a tagged field a varint 1, or 0 for null."""

    min_size = 1

    def __init__(self, body: KafkaStruct, tagged: bool) -> None:
        super().__init__()
        self.body = body
        self.tagged = tagged
        self.marker: Any = UVarint() if tagged else PlainLength("int8")
        self.null = 0 if tagged else -1

    def fresh(self) -> Any:
        return self.body.fresh()

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        start = stream.tell()
        marker = self.marker._parse(stream, context, path)
        if self.tagged and not _strict(context):
            marker = _java_int(marker)
        type_ = "uvarint marker" if self.tagged else "int8 marker"
        _report(context, Leaf(start, stream.tell(), path, type_, marker, "null" if marker <= self.null else ""))
        if _strict(context) and marker not in (1, self.null):
            raise DecodeError("value", start, path, f"the marker is 1, or {self.null} for null, not {marker}")
        if marker <= self.null:
            return None
        return self.body._parse(stream, context, path)

    def _build(self, obj: object, stream: Any, context: Any, path: str) -> None:
        self.marker._build(self.null if obj is None else 1, stream, context, path)
        if obj is not None:
            self.body._build(obj, stream, context, path)


class Union(_Wire):
    """An int8 tag, then the struct of the variant with that tag."""

    def __init__(self, variants: Mapping[int, KafkaStruct]) -> None:
        super().__init__()
        self.variants = variants
        self.min_size = 1 + min(variant.min_size for variant in variants.values())

    def fresh(self) -> Any:
        return next(iter(self.variants.values())).fresh()

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        start = stream.tell()
        (tag,) = struct.unpack(">b", _take(stream, 1, path))
        _report(context, Leaf(start, stream.tell(), path, "int8 union tag", tag))
        if tag not in self.variants:
            raise DecodeError("value", start, path, f"there is no variant {tag}")
        return self.variants[tag]._parse(stream, context, path)

    def _build(self, obj: object, stream: Any, context: Any, path: str) -> None:
        for tag, variant in self.variants.items():
            if isinstance(obj, variant.cls):
                stream.write(struct.pack(">b", tag))
                variant._build(obj, stream, context, path)
                return
        _wrong(path, " or ".join(variant.cls.__name__ for variant in self.variants.values()), obj)


def _unknown_tags(value: object, path: str) -> list[Any] | tuple[Any, ...]:
    tags = _attribute(value, "unknown_tags", path)
    if not isinstance(tags, list | tuple):
        _wrong(path, "a tuple of pairs", tags)
    return tags


def _unknown_tag(pair: object, path: str) -> tuple[int, bytes]:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        _wrong(path, "a pair of tag and bytes", pair)
    tag, data = pair
    if not isinstance(tag, int) or not 0 <= tag <= MAX_TAG:
        _wrong(path, f"a tag from 0 to {MAX_TAG}", tag)
    if not isinstance(data, bytes | bytearray | memoryview):
        _wrong(path, "bytes", data)
    return int(tag), bytes(data)


class TagSection:
    """A count, then tag, size and payload of each tagged field, by ascending tag; unknown tags are kept as bytes."""

    def __init__(self, fields: Mapping[int, FieldConstruct], known: Iterable[int]) -> None:
        self.fields = fields
        self.known = frozenset(known)

    def parse_into(self, value: Any, stream: Any, context: Any, path: str) -> None:
        """Read the section at the end of the struct at `path` into `value`, which has its defaults."""
        here = f"{path}.unknown_tags"
        start = stream.tell()
        count = self._number(stream, context, here, "uvarint count")
        if not _strict(context):
            count = max(0, _java_int(count))  # Kafka's loop over the tags does not run for a negative count
        if count * 2 > _left(stream):
            raise DecodeError("truncated", start, here, f"{count} tagged fields, {_left(stream)} bytes are left")
        unknown: list[tuple[int, bytes]] = []
        previous = -1
        for _ in range(count):
            tag_at = stream.tell()
            tag = self._number(stream, context, here, "uvarint tag", self._names())
            size_at = stream.tell()
            size = self._number(stream, context, here, "uvarint size")
            if _strict(context) and tag <= previous:
                raise DecodeError("tag", tag_at, here, f"the tag {tag} follows the tag {previous}")
            previous = tag
            if tag in self.fields:
                self._parse_field(value, self.fields[tag], size, stream, context, path)
                continue
            if tag in self.known:
                raise DecodeError("tag", tag_at, here, f"this version does not have the tag {tag}")
            if size > _left(stream):
                raise DecodeError("truncated", size_at, here, f"{size} bytes are needed, {_left(stream)} are left")
            payload_at = stream.tell()
            data = stream.read(size)
            _report(context, Leaf(payload_at, stream.tell(), here, "tagged field", data, "unknown"))
            unknown.append((tag, data))
        value.unknown_tags = tuple(unknown)

    def _names(self) -> Mapping[int, str]:
        return {tag: field.attr for tag, field in self.fields.items()}

    def _number(self, stream: Any, context: Any, path: str, type_: str, names: Mapping[int, str] | None = None) -> int:
        start = stream.tell()
        number = UVarint()._parse(stream, context, path)
        note = "" if names is None else names.get(number, "unknown")
        _report(context, Leaf(start, stream.tell(), path, type_, number, note))
        return number

    def _parse_field(self, value: Any, field: FieldConstruct, size: int, stream: Any, context: Any, path: str) -> None:
        start = stream.tell()
        here = f"{path}.{field.attr}"
        setattr(value, field.attr, field.codec._parse(stream, context, here))
        used = stream.tell() - start
        if _strict(context) and used != size:
            raise DecodeError("tag", start, here, f"the field has {used} bytes, its size says {size}")

    def build_from(self, value: object, stream: Any, context: Any, path: str) -> None:
        """Write the section at the end of the struct `value` at `path`."""
        here = f"{path}.unknown_tags"
        payloads: dict[int, bytes] = {}
        previous = -1
        for pair in _unknown_tags(value, here):
            tag, data = _unknown_tag(pair, here)
            if tag <= previous:
                raise EncodeError("tag", here, f"the tag {tag} follows the tag {previous}")
            if tag in self.known:
                raise EncodeError("tag", here, f"the schema defines the tag {tag}")
            previous = tag
            payloads[tag] = data
        for tag, field in sorted(self.fields.items()):
            held = _attribute(value, field.attr, f"{path}.{field.attr}")
            if not field.is_default(held):
                payload = io.BytesIO()
                field.codec._build(held, payload, context, f"{path}.{field.attr}")
                payloads[tag] = payload.getvalue()
        number = UVarint()
        number._build(len(payloads), stream, context, here)
        for tag, data in sorted(payloads.items()):
            number._build(tag, stream, context, here)
            number._build(len(data), stream, context, here)
            stream.write(data)


# ---- text


class TextInteger:
    """Decimal digits after an optional sign."""

    def __init__(self, base: str, minimum: int | None, maximum: int | None) -> None:
        low, high = INTEGERS[base]
        self.low = low if minimum is None else minimum
        self.high = high if maximum is None else maximum

    def parse(self, token: bytes, start: int, path: str) -> int:
        if not re.fullmatch(rb"[+-]?[0-9]+", token):
            raise DecodeError("text", start, path, "the field is not an integer")
        sign, digits = (-1 if token[:1] == b"-" else 1), token.lstrip(b"+-").lstrip(b"0") or b"0"
        if len(digits) > 20 or not self.low <= sign * int(digits) <= self.high:
            raise DecodeError("range", start, path, f"the number is not between {self.low} and {self.high}")
        return sign * int(digits)

    def build(self, obj: object, path: str) -> bytes:
        return str(_index(obj, self.low, self.high, path)).encode()


class TextString:
    """UTF-8 text without the separator."""

    def __init__(self, max_length: int | None) -> None:
        self.high = MAX_STRING if max_length is None else min(MAX_STRING, max_length)

    def parse(self, token: bytes, start: int, path: str) -> str:
        return _text(token, start, path, self.high, start)

    def build(self, obj: object, path: str) -> bytes:
        if obj is None:
            raise EncodeError("null", path, "None is not allowed here")
        data = _utf8(obj, path, self.high)
        if b"/" in data:
            raise EncodeError("range", path, 'the string holds a "/", which separates the fields')
        return data


class TextMessage(_Wire):
    """The type and the fields as UTF-8 text, joined by ``/``; strict and lenient reading are the same."""

    min_size = 0

    def __init__(self, text_type: str, cls: type, fields: tuple[FieldConstruct, ...]) -> None:
        super().__init__()
        self.text_type = text_type
        self.cls = cls
        self.fields = fields

    def fresh(self) -> Any:
        """An instance in which every field has its default."""
        return self.cls(**{field.attr: field.fresh() for field in self.fields})

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        trace = context.get("trace")
        position = stream.tell()
        tokens = stream.read().split(b"/")
        fields = [field for field in self.fields if field.presence == "plain"]
        if tokens[0] != self.text_type.encode():
            raise DecodeError("text", position, path, f"the type is not {self.text_type}")
        if len(tokens) != 1 + len(fields):
            raise DecodeError(
                "text", position, path, f"{len(fields)} fields must follow the type, not {len(tokens) - 1}"
            )
        value = self.fresh()
        if trace is not None:
            trace.enter(position, path, self.text_type)
            trace.leaf(Leaf(position, position + len(tokens[0]), path, "text type", self.text_type))
        position += len(tokens[0])
        for field, token in zip(fields, tokens[1:], strict=True):
            start, end, here = position + 1, position + 1 + len(token), f"{path}.{field.attr}"
            if trace is not None:
                trace.leaf(Leaf(position, start, here, "separator", "/"))
                trace.leaf(Leaf(start, end, here, "text", token.decode(errors="backslashreplace")))
            setattr(value, field.attr, field.codec.parse(token, start, here))
            position = end
        if trace is not None:
            trace.leave(position)
        return value

    def _build(self, obj: object, stream: Any, context: Any, path: str) -> None:
        if not isinstance(obj, self.cls):
            _wrong(path, f"a {self.cls.__name__}", obj)
        tokens = [self.text_type.encode()]
        for field in self.fields:
            here = f"{path}.{field.attr}"
            if field.presence == "plain":
                tokens.append(field.codec.build(_attribute(obj, field.attr, here), here))
            else:
                field.refuse_lost(obj, here)
        stream.write(b"/".join(tokens))


# ---- messages


class WholeMessage(_Wire):
    """A message from the first byte to the last: paths start with its name; in strict mode no bytes may follow."""

    def __init__(self, name: str, body: Any) -> None:
        super().__init__()
        self.message_name = name
        self.body = body
        self.min_size = body.min_size

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        value = self.body._parse(stream, context, self.message_name)
        if _strict(context) and not context.get("prefix") and (left := _left(stream)):
            raise DecodeError("trailing", stream.tell(), self.message_name, f"{left} bytes follow the message")
        return value

    def _build(self, obj: object, stream: Any, context: Any, path: str) -> None:
        self.body._build(obj, stream, context, self.message_name)
