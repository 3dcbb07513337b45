"""The pure-Python codec: straight-line source made from a plan, compiled when it is first needed.

Laws:

* Generated source rejects by raising anything. What is wrong, and where, is found afterwards by a
  slow walk over the same bytes or value (`kcoord_wire.codec.diagnose`): a message without fault pays nothing for paths.
* Nothing is made that is larger than the bytes that are left: a count is compared with them first, and a slice ends
  where they do. A slice beyond the end leaves `pos > end`; the next read, or the final check, rejects that.
* Fixed-width neighbours, length prefixes included, are one run: one call of `struct` reads or writes them.
* Tracebacks show the source: each function is compiled as a separate module, named like
  ``<kcoord_wire JoinGroupResponse v7 decode>``.
* Instances are made without calling ``__init__``; every slot is stored.

The source of one message holds its structs inline, to a depth; deeper ones become functions of their own. In it, `m`,
`m1`, `m2` are the instances by depth, `pos` and `end` the reader's position and limit, `add` takes the writer's next
piece, and a name like ``read_ih`` is that run's `struct` function: an int32, then an int16.
"""

from __future__ import annotations

import linecache
import operator
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any, Final

from kcoord_wire.codec.backend import Buffer
from kcoord_wire.codec.diagnose import MAX_BYTES, MAX_TAG, explain_bytes, explain_value, java_int
from kcoord_wire.codec.into import encode_into
from kcoord_wire.codec.lazy import with_lazy_arrays
from kcoord_wire.codec.stored import as_subclass, stored_bytes, stored_int, stored_items, stored_message
from kcoord_wire.codec.view import VIEWED, parts_of
from kcoord_wire.schema.plan import MAX_STRING, Length, Op, Presence, Step, StructPlan
from kcoord_wire.schema.text import decode_like_java

INLINE_DEPTH: Final = 5  # structs within structs; CPython limits how deep blocks may nest in one function
MAX_INLINE: Final = 200  # structs written inline in one source: with ten in each, five levels would be 100,000
FORMATS: Final = {
    Op.BOOL: "?",
    Op.INT8: "b",
    Op.INT16: "h",
    Op.INT32: "i",
    Op.INT64: "q",
    Op.UINT16: "H",
    Op.UINT32: "I",
    Op.FLOAT64: "d",
    Op.UUID: "16s",
}
PREFIXES: Final = {Length.INT8: "b", Length.INT16: "h", Length.INT32: "i"}


class Program:
    """One message at one version: reads and writes it by functions generated from `plan`.

    :param plan: the message's plan
    :param classes: the dataclass of each of its structs, by `StructPlan.name`
    :param subclass: of the message's class, where instances of that are read
    """

    def __init__(self, plan: StructPlan, classes: Mapping[str, type], subclass: type | None = None) -> None:
        self.plan = plan
        self.classes = classes
        self._subclass = subclass
        self._readers: dict[tuple[bool, bool, bool], Callable[..., tuple[Any, int]]] = {}
        self._writer: Callable[[Any], bytes] | None = None

    def decode(self, data: Buffer, strict: bool = True, parts: bool = False, lazy: bool = False) -> Any:
        """The message that `data` holds.

        :param strict: refuse what `kcoord_wire.decode` says, trailing bytes among it
        :param parts: long bytes fields become parts of the input
        :param lazy: long arrays of structs become lazy arrays
        :raises DecodeError: the bytes are not such a message
        :raises TypeError: `data` is not a bytes-like object, or not contiguous
        """
        return self._read(data, 0, strict, True, parts, lazy)[0]

    def decode_prefix(
        self, data: Buffer, offset: int, strict: bool, parts: bool = False, lazy: bool = False
    ) -> tuple[Any, int]:
        """The message that starts at byte `offset` of `data`, and the offset of the byte after it.

        :raises DecodeError: the bytes are not such a message
        :raises ValueError: `offset` is negative; one past the end is the end
        """
        return self._read(data, offset, strict, False, parts, lazy)

    def encode(self, message: Any) -> bytes:
        """The bytes of `message`.

        :raises EncodeError: it cannot be written
        """
        writer = self._writer
        if writer is None:
            writer = self._writer = _WriterSource(self.plan, self.classes).compile()
        try:
            return writer(message)
        except Exception as error:
            refusal = error
        explain_value(self.plan, self.classes, message)
        raise refusal

    def encode_into(self, message: Any, buffer: bytearray, offset: int = 0) -> int:
        """Write the bytes of `message` into `buffer`; errors as `encode` and `codec.into.encode_into`."""
        return encode_into(buffer, offset, lambda: self.encode(message))

    def source(self, what: str = "decode") -> str:
        """The generated source: of ``decode``, ``decode lenient`` or ``encode``."""
        if what == "encode":
            return _WriterSource(self.plan, self.classes).text()
        return _ReaderSource(self.plan, self.classes, what != "decode lenient", False).text()

    def _read(
        self, data: Buffer, pos: int, strict: bool, whole: bool, parts: bool, lazy: bool, view: bool = False
    ) -> tuple[Any, int]:
        if parts:
            data = parts_of(data)
        elif not (view or isinstance(data, bytes)):
            # A view that is still open would keep the caller's bytearray from changing its size.
            with memoryview(data) as given, given.cast("B") as data:
                return self._read(data, pos, strict, whole, False, lazy, True)
        reader = self._readers.get((strict, view, parts))
        if reader is None:
            source = _ReaderSource(self.plan, self.classes, strict, view or parts, parts)
            reader = self._readers[strict, view, parts] = source.compile()
        end = len(data)
        if pos:
            if pos < 0:
                raise ValueError(f"the offset {pos} is negative")
            pos = min(pos, end)
        try:
            message, stop = reader(data, pos, end)
            if stop == end or (stop < end and not (whole and strict)):
                if lazy:
                    with_lazy_arrays(message)
                return message if self._subclass is None else as_subclass(message, self._subclass), stop
            raise Refused
        except (Refused, IndexError, struct.error, UnicodeDecodeError) as error:
            refusal = error
        explain_bytes(self.plan, data, pos, strict, whole)
        raise AssertionError(f"{self.plan.name} v{self.plan.version}: refused without a fault") from refusal


class Refused(Exception):
    """Raised by generated source and the functions it calls; never seen by a caller."""


# ---- called by generated source


def _uvarint(data: bytes | memoryview, pos: int) -> tuple[int, int]:
    value = data[pos] & 0x7F
    for shift in (7, 14, 21, 28):
        if data[pos] < 0x80:
            break
        pos += 1
        value |= (data[pos] & 0x7F) << shift
    if data[pos] >= 0x80:
        raise Refused
    return value & 0xFFFFFFFF, pos + 1


def _uvarint_strict(data: bytes | memoryview, pos: int) -> tuple[int, int]:
    value, stop = _uvarint(data, pos)
    if stop != pos + 1 and (not data[stop - 1] or (stop == pos + 5 and data[stop - 1] > 0x0F)):
        raise Refused
    return value, stop


def _long_length(data: bytes | memoryview, pos: int, limit: int) -> tuple[int, int]:
    value, pos = _uvarint(data, pos)
    length = java_int(value - 1)
    if length > limit:
        raise Refused
    return length, pos


def _long_length_strict(data: bytes | memoryview, pos: int, limit: int) -> tuple[int, int]:
    value, pos = _uvarint_strict(data, pos)
    if value > limit + 1:
        raise Refused
    return value - 1, pos


def _uvarint_bytes(value: int) -> bytes:
    if value < 0x80:
        return UVARINTS[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


UVARINTS: Final = tuple(bytes([value]) for value in range(0x80))


def _unknown_tags(
    data: bytes | memoryview, pos: int, end: int, known: frozenset[int], strict: bool
) -> tuple[tuple[tuple[int, bytes], ...], int]:
    uvarint = _uvarint_strict if strict else _uvarint
    count, pos = uvarint(data, pos)
    if not strict and java_int(count) < 0:
        return (), pos
    if count * 2 > end - pos:
        raise Refused
    tags: list[tuple[int, bytes]] = []
    last = -1
    for _ in range(count):
        tag, pos = uvarint(data, pos)
        size, pos = uvarint(data, pos)
        if (strict and tag <= last) or tag in known or size > end - pos:
            raise Refused
        last = tag
        tags.append((tag, bytes(data[pos : pos + size])))
        pos += size
    return tuple(tags), pos


def _tag_section(fields: Sequence[tuple[int, bytes]], unknown: Any, known: frozenset[int]) -> bytes:
    """The tag section of `fields`, ascending and of known tags, and of a caller's unknown ones."""
    last = -1
    tags = list(_tags_given(unknown))
    for tag, _ in tags:
        if not last < tag <= MAX_TAG or tag in known:
            raise Refused
        last = tag
    merged = sorted([*fields, *tags], key=operator.itemgetter(0))
    out = [_uvarint_bytes(len(merged))]
    for tag, payload in merged:
        out += (_uvarint_bytes(tag), _uvarint_bytes(len(payload)), payload)
    return b"".join(out)


def _tags_given(unknown: Any) -> Iterator[tuple[int, bytes]]:
    for given in _items(unknown):
        pair = _items(given)
        if len(pair) != 2 or not issubclass(type(pair[0]), int):
            raise Refused
        payload = stored_bytes(pair[1], contiguous=False)
        if payload is None:
            raise Refused
        yield stored_int(pair[0]), payload


def _no_tags(unknown: Any) -> None:
    if _items(unknown):
        raise Refused


def _bytes(value: Any) -> bytes:
    raw = stored_bytes(value)
    if raw is None:
        raise Refused
    return raw


def _items(value: Any) -> Any:
    items = stored_items(value)
    if items is None:
        raise Refused
    return items


def _is_filled(value: Any) -> bool:
    items = stored_items(value)
    return items is None or len(items) > 0


def _message(value: Any, cls: type) -> Any:
    plain = stored_message(value, cls)
    if plain is None:
        raise Refused
    return plain


class _Runs(dict[int, Callable[..., Any]]):
    """By n, the `struct` function for n numbers of one format. Short ones are kept: a list of replicas has three."""

    def __init__(self, letter: str, method: str) -> None:
        super().__init__()
        self.letter = letter
        self.method = method

    def __missing__(self, n: int) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(struct.Struct(f">{n}{self.letter}"), self.method)
        if n <= 64:
            self[n] = function
        return function


class _Source:
    """Lines of source, the names they use, and the functions made for deep structs."""

    what: str
    method: str
    verb: str

    def __init__(self, plan: StructPlan, classes: Mapping[str, type], label: str) -> None:
        self.plan = plan
        self.classes = classes
        self.label = label
        self.names: dict[str, Any] = {"Refused": Refused, "UUID": uuid.UUID, "new": object.__new__, "repeat": repeat}
        self.lines: list[str] = []
        self.indent = ""
        self.run: list[tuple[str, str]] = []  # format and variable of each fixed-width value not yet read or written
        self.functions: dict[StructPlan, str] = {}
        self.todo: list[StructPlan] = []
        self.inlined = 0

    def line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        self.line(opening)
        outer, self.indent = self.indent, self.indent + "    "
        yield
        self.indent = outer

    def name(self, wanted: str, value: Any) -> str:
        """A global name for `value`: `wanted`, numbered where that is another's already."""
        name, n = wanted, 1
        while name in self.names and self.names[name] is not value:
            n += 1
            name = f"{wanted}_{n}"
        self.names[name] = value
        return name

    def struct_function(self, formats: str) -> str:
        name = f"{self.verb}_{formats.replace('16s', 'u').replace('?', 't')}"
        if name not in self.names:
            self.names[name] = getattr(struct.Struct(">" + formats), self.method)
        return name

    def runs(self, letter: str) -> str:
        name = f"{self.verb}_many_{letter}"
        if name not in self.names:
            self.names[name] = _Runs(letter, self.method)
        return name

    def inlines(self, depth: int) -> bool:
        """Whether one more struct is written inline, at that depth."""
        self.inlined += depth < INLINE_DEPTH
        return depth < INLINE_DEPTH and self.inlined <= MAX_INLINE

    def function(self, plan: StructPlan) -> str:
        """The function for a struct that is not written inline."""
        if plan not in self.functions:
            self.functions[plan] = f"{self.verb}_struct_{len(self.functions)}"
            self.todo.append(plan)
        return self.functions[plan]

    def class_of(self, plan: StructPlan) -> str:
        return self.name(plan.name, self.classes[plan.name])

    def default(self, step: Step, fresh: bool) -> str:
        """An expression for the step's default; `fresh` where the value is handed out and may be changed."""
        value = step.default
        if value == ():
            return "[]"
        if value is ...:
            plan = step.struct if step.struct is not None else step.variants[0][1]
            made = f"{self.class_of(plan)}()"
            return made if fresh else self.name(f"default_{plan.name}", eval(made, self.names))
        if value is None or isinstance(value, bool | int | str | bytes):
            return repr(value)
        return self.name("default", value)

    def body(self, plan: StructPlan, root: bool) -> None:
        raise NotImplementedError

    def text(self) -> str:
        self.body(self.plan, True)
        while self.todo:
            self.line("")
            self.line("")
            self.body(self.todo.pop(0), False)
        return "\n".join(self.lines) + "\n"

    def compile(self) -> Callable[..., Any]:
        text = self.text()
        filename = f"<kcoord_wire {self.plan.name} v{self.plan.version} {self.label}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        exec(compile(text, filename, "exec"), self.names)
        function: Callable[..., Any] = self.names[self.what]
        return function


class _ReaderSource(_Source):
    what = "decode"
    verb = "read"
    method = "unpack_from"

    def __init__(
        self, plan: StructPlan, classes: Mapping[str, type], strict: bool, view: bool, parts: bool = False
    ) -> None:
        label = "decode" + " lenient" * (not strict) + (" parts" if parts else " view" * view)
        super().__init__(plan, classes, label)
        self.strict = strict
        self.view = view  # whether the bytes are given as a memoryview
        self.parts = parts
        self.checks: list[tuple[Step, str, int]] = []  # of the values in the run: what to look at once it is read
        self.width = 0
        self.names["uvarint"] = _uvarint_strict if strict else _uvarint
        self.names["long_length"] = _long_length_strict if strict else _long_length
        self.names["unknown_tags"] = _unknown_tags
        self.names["lenient_text"] = decode_like_java

    def body(self, plan: StructPlan, root: bool) -> None:
        name = self.what if root else self.functions[plan]
        with self.block(f"def {name}(data, pos, end):"):
            self.struct(plan, "m", 0)
            self.line("return m, pos")

    def struct(self, plan: StructPlan, m: str, depth: int) -> None:
        """Read the struct into a new instance, the variable `m`."""
        self.line(f"{m} = new({self.class_of(plan)})")
        self.fields(plan, m, depth)

    def fields(self, plan: StructPlan, m: str, depth: int) -> None:
        for step in plan.steps:
            if step.presence in (Presence.ABSENT, Presence.TAGGED):
                self.line(f"{m}.{step.attr} = {self.default(step, True)}")
        if plan.holds_tags:
            self.line(f"{m}.unknown_tags = ()")
        for step in plan.wire:
            target = f"{m}.{step.attr}"
            if step.presence is Presence.REMAINING:
                self.flush()
                with self.block("if pos == end:"):
                    self.line(f"{target} = None")
                with self.block("else:"):
                    self.value(step, target, depth, False)
            else:
                self.value(step, target, depth, step.nullable)
        if plan.flexible:
            self.tags(plan, m, depth)
        self.flush()

    def fixed(self, formats: str, size: int, target: str, step: Step | None = None) -> None:
        self.run.append((formats, target))
        if step is not None and (step.op is Op.UUID or step.bounded or (step.op is Op.BOOL and self.strict)):
            self.checks.append((step, target, self.width))
        self.width += size

    def flush(self) -> None:
        if not self.run:
            return
        function = self.struct_function("".join(formats for formats, _ in self.run))
        targets = ", ".join(target for _, target in self.run)
        self.line(f"{targets}{',' if len(self.run) == 1 else ''} = {function}(data, pos)")
        for step, target, at in self.checks:
            if step.op is Op.UUID:
                self.line(f"{target} = UUID(bytes={target})")
            elif step.op is Op.BOOL:
                with self.block(f"if data[pos + {at}] > 1:" if at else "if data[pos] > 1:"):
                    self.line("raise Refused")
            else:
                with self.block(f"if not {step.low} <= {target} <= {step.high}:"):
                    self.line("raise Refused")
        self.line(f"pos += {self.width}")
        self.run, self.checks, self.width = [], [], 0

    def prefix(self, length: Length, n: str, limit: int = 0xFFFFFFFF) -> None:
        """Read a length, count or marker into `n`; null is -1. A varint's value is one more, and held to `limit`."""
        if length is not Length.COMPACT:
            self.fixed(PREFIXES[length], struct.calcsize(PREFIXES[length]), n)
            self.flush()
            return
        self.byte(n)
        self.line(f"{n} -= 1")
        with self.block(f"if {n} > 126:"):
            self.line(f"{n}, pos = long_length(data, pos - 1, {limit})")

    def byte(self, n: str) -> None:
        """Read a varint's first byte, which every varint has, together with the run before it."""
        if self.run:
            self.fixed("B", 1, n)
            self.flush()
        else:
            self.line(f"{n} = data[pos]")
            self.line("pos += 1")

    def value(self, step: Step, target: str, depth: int, nullable: bool) -> None:
        if step.fixed_size:
            self.fixed(FORMATS[step.op], step.fixed_size, target, step)
        elif step.op is Op.UNION:
            self.union(step, target, depth)
        elif step.op is Op.STRUCT and not nullable:
            self.nested(step.struct, target, depth)
        else:
            n = f"n{depth}"
            self.prefix(step.length, n, MAX_STRING if step.op is Op.STRING else 0xFFFFFFFF)
            if step.op is Op.STRUCT:
                self.nullable_struct(step, n, target, depth)
            elif step.op is Op.ARRAY:
                self.array(step, n, target, depth, nullable)
            else:
                self.sized(step, n, target, nullable)

    def sized(self, step: Step, n: str, target: str, nullable: bool) -> None:
        """A string or bytes of `n` bytes."""
        taken = "data[pos:stop]"
        if step.op is Op.STRING:
            if not self.strict:
                taken = f"lenient_text({taken})"
            else:
                taken = f'str({taken}, "utf-8")' if self.view else f"{taken}.decode()"
            limited = step.high < MAX_STRING or step.length is Length.INT32
        else:
            taken = f"bytes({taken})" if self.view else taken
            if self.parts:
                taken = f"data[pos:stop] if {n} >= {VIEWED} else {taken}"
            limited = False
        if nullable:
            with self.block(f"if {n} >= 0:"):
                self.slice(step, n, target, taken, limited)
            with self.block(f"elif {n} == -1:" if self.strict else "else:"):
                self.line(f"{target} = None")
            if self.strict and step.length is not Length.COMPACT:
                with self.block("else:"):
                    self.line("raise Refused")
        else:
            with self.block(f"if {n} < 0:"):
                self.null_for_empty(n)
            self.slice(step, n, target, taken, limited)

    def null_for_empty(self, n: str) -> None:
        """Handle a length below 0 of a field that is not nullable: lenient reading takes null for the empty value."""
        if self.strict:
            self.line("raise Refused")
            return
        with self.block(f"if {n} != -1:"):
            self.line("raise Refused")
        self.line(f"{n} = 0")

    def slice(self, step: Step, n: str, target: str, taken: str, limited: bool) -> None:
        if limited:
            with self.block(f"if {n} > {step.high}:"):
                self.line("raise Refused")
        self.line(f"stop = pos + {n}")
        self.line(f"{target} = {taken}")
        self.line("pos = stop")

    def array(self, step: Step, n: str, target: str, depth: int, nullable: bool) -> None:
        item = step.item
        assert item is not None
        opening = "if"
        if not nullable and not self.strict:
            with self.block(f"if {n} < 0:"):
                self.null_for_empty(n)
        if nullable:
            with self.block(f"if {n} == -1:" if self.strict else f"if {n} < 0:"):
                self.line(f"{target} = None")
            opening = "elif"
        size = max(1, item.min_size)
        with self.block(f"{opening} 0 <= {n} <= {f'(end - pos) // {size}' if size > 1 else 'end - pos'}:"):
            if item.fixed_size and item.op not in (Op.BOOL, Op.UUID):
                self.line(f"{target} = list({self.runs(FORMATS[item.op])}[{n}](data, pos)) if {n} else []")
                self.line(f"pos += {n} * {item.fixed_size}" if item.fixed_size > 1 else f"pos += {n}")
            else:
                self.line(f"list{depth} = []")
                element = f"m{depth + 1}"
                if item.struct is not None and self.inlines(depth):
                    with self.block(f"for {element} in map(new, repeat({self.class_of(item.struct)}, {n})):"):
                        self.fields(item.struct, element, depth + 1)
                        self.line(f"list{depth}.append({element})")
                else:
                    with self.block(f"for _ in range({n}):"):
                        self.value(item, element, depth + 1, item.nullable)
                        self.flush()
                        self.line(f"list{depth}.append({element})")
                self.line(f"{target} = list{depth}")
        with self.block("else:"):
            self.line("raise Refused")

    def nested(self, plan: StructPlan | None, target: str, depth: int) -> None:
        assert plan is not None
        self.flush()
        if not self.inlines(depth):
            self.line(f"{target}, pos = {self.function(plan)}(data, pos, end)")
        elif "." in target:
            self.struct(plan, f"m{depth + 1}", depth + 1)
            self.line(f"{target} = m{depth + 1}")
        else:
            self.struct(plan, target, depth)

    def nullable_struct(self, step: Step, n: str, target: str, depth: int) -> None:
        present = "== 0" if step.length is Length.COMPACT else "== 1"
        # Lenient: a marker of 2**31 is a negative Java int, and null; as a length it is one less, which is positive.
        with self.block(f"if {n} == -1:" if self.strict else f"if not 0 <= {n} < {MAX_BYTES}:"):
            self.line(f"{target} = None")
        with self.block(f"elif {n} {present}:" if self.strict else "else:"):
            self.nested(step.struct, target, depth)
        if self.strict:
            with self.block("else:"):
                self.line("raise Refused")

    def union(self, step: Step, target: str, depth: int) -> None:
        n = f"n{depth}"
        self.prefix(Length.INT8, n)
        for position, (tag, plan) in enumerate(step.variants):
            with self.block(f"{'elif' if position else 'if'} {n} == {tag}:"):
                self.nested(plan, target, depth)
        with self.block("else:"):
            self.line("raise Refused")

    def tags(self, plan: StructPlan, m: str, depth: int) -> None:
        n = f"n{depth}"
        self.byte(n)
        known = self.name("known", plan.known_tags)
        with self.block(f"if {n}:"):
            if plan.tagged:
                self.known_and_unknown_tags(plan, m, n, known, depth)
            else:
                self.line(f"{m}.unknown_tags, pos = unknown_tags(data, pos - 1, end, {known}, {self.strict})")

    def known_and_unknown_tags(self, plan: StructPlan, m: str, n: str, known: str, depth: int) -> None:
        tag, size, start, last, unknown = (f"{word}{depth}" for word in ("tag", "size", "start", "last", "unknown"))
        self.line(f"{n}, pos = uvarint(data, pos - 1)")
        if not self.strict:
            with self.block(f"if {n} > {MAX_BYTES}:"):  # negative as a Java int: Kafka reads no tags
                self.line(f"{n} = 0")
        with self.block(f"if {n} * 2 > end - pos:"):
            self.line("raise Refused")
        self.line(f"{unknown} = []")
        if self.strict:
            self.line(f"{last} = -1")
        with self.block(f"for _ in range({n}):"):
            self.line(f"{tag}, pos = uvarint(data, pos)")
            self.line(f"{size}, pos = uvarint(data, pos)")
            if self.strict:
                with self.block(f"if {tag} <= {last}:"):
                    self.line("raise Refused")
                self.line(f"{last} = {tag}")
                self.line(f"{start} = pos")
            for position, step in enumerate(plan.tagged):
                with self.block(f"{'elif' if position else 'if'} {tag} == {step.tag}:"):
                    self.value(step, f"{m}.{step.attr}", depth, step.nullable)
                    self.flush()
                    if self.strict:
                        with self.block(f"if pos - {start} != {size}:"):
                            self.line("raise Refused")
            with self.block(f"elif {tag} in {known} or {size} > end - pos:"):
                self.line("raise Refused")
            with self.block("else:"):
                self.line(f"{unknown}.append(({tag}, bytes(data[pos:pos + {size}])))")
                self.line(f"pos += {size}")
        self.line(f"{m}.unknown_tags = tuple({unknown})")


class _WriterSource(_Source):
    what = "encode"
    verb = "write"
    method = "pack"

    def __init__(self, plan: StructPlan, classes: Mapping[str, type]) -> None:
        super().__init__(plan, classes, "encode")
        self.add = "add"
        self.variables = 0
        self.names |= {
            "as_bytes": _bytes,
            "as_items": _items,
            "as_message": _message,
            "index": stored_int,
            "is_filled": _is_filled,
            "join": b"".join,
            "no_tag": (),  # the one empty tuple that CPython has; any other empty sequence takes the slow way
            "no_tags": _no_tags,
            "tag_section": _tag_section,
            "to_bytes": int.to_bytes,
            "utf8": str.encode,
            "uvarint": _uvarint_bytes,
            "uuid_int": vars(uuid.UUID)["int"].__get__,  # reads the slot: a subclass may override the attribute
            "uvarints": UVARINTS,
        }

    def body(self, plan: StructPlan, root: bool) -> None:
        name = self.what if root else self.functions[plan]
        with self.block(f"def {name}(m):" if root else f"def {name}(m, add):"):
            if root:
                self.line("parts = []")
                self.line("add = parts.append")
            self.struct(plan, "m", 0)
            self.flush()
            if root:
                self.line("return join(parts)")

    def variable(self, word: str) -> str:
        # A value is written some lines after it was looked at, so no two values of a function share a name.
        self.variables += 1
        return f"{word}_{self.variables}"

    def flush(self) -> None:
        if self.run:
            function = self.struct_function("".join(formats for formats, _ in self.run))
            self.line(f"{self.add}({function}({', '.join(value for _, value in self.run)}))")
            self.run = []

    def struct(self, plan: StructPlan, m: str, depth: int) -> None:
        cls = self.class_of(plan)
        with self.block(f"if type({m}) is not {cls}:"):
            self.line(f"{m} = as_message({m}, {cls})")
        for step in plan.steps:
            held = f"{m}.{step.attr}"
            if step.presence is Presence.ABSENT and not step.ignorable:
                with self.block(f"if {self.differs(step, held)}:"):
                    self.line("raise Refused")
            elif step.presence is Presence.PLAIN:
                self.value(step, held, depth, step.nullable)
            elif step.presence is Presence.REMAINING:
                self.flush()
                with self.block(f"if {held} is not None:"):
                    self.value(step, held, depth, False)
                    self.flush()
        if plan.flexible:
            self.flush()
            self.tags(plan, m, depth)
        elif plan.holds_tags and not plan.drops_tags:
            with self.block(f"if {m}.unknown_tags is not no_tag:"):
                self.line(f"no_tags({m}.unknown_tags)")

    def differs(self, step: Step, held: str) -> str:
        """A condition: the field does not hold its default."""
        if step.default is None:
            return f"{held} is not None"
        if step.default == ():
            return f"(type({held}) is not list or {held}) and is_filled({held})"
        if step.default is ...:
            plan = step.struct if step.struct is not None else step.variants[0][1]
            return f"type({held}) is not {self.class_of(plan)} or {held} != {self.default(step, False)}"
        return f"{held} != {self.default(step, False)}"

    def tags(self, plan: StructPlan, m: str, depth: int) -> None:
        known = self.name("known", plan.known_tags)
        if not plan.tagged:
            with self.block(f"if {m}.unknown_tags is not no_tag:"):
                self.line(f"{self.add}(tag_section((), {m}.unknown_tags, {known}))")
            with self.block("else:"):
                self.line(f'{self.add}(b"\\0")')
            return
        tags = self.variable("tags")
        self.line(f"{tags} = []")
        outer = self.add
        for step in plan.tagged:
            with self.block(f"if {self.differs(step, f'{m}.{step.attr}')}:"):
                parts = self.variable("parts")
                self.line(f"{parts} = []")
                self.add = f"{parts}.append"
                self.value(step, f"{m}.{step.attr}", depth, step.nullable)
                self.flush()
                self.line(f"{tags}.append(({step.tag}, join({parts})))")
                self.add = outer
        with self.block(f"if {tags} or {m}.unknown_tags is not no_tag:"):
            self.line(f"{outer}(tag_section({tags}, {m}.unknown_tags, {known}))")
        with self.block("else:"):
            self.line(f'{outer}(b"\\0")')

    def prefix(self, length: Length, n: str) -> None:
        """Write the length or count `n`, a variable."""
        if length is not Length.COMPACT:
            self.run.append((PREFIXES[length], n))  # struct itself refuses a number that is too big
            return
        self.flush()
        self.line(f"{self.add}(uvarints[{n} + 1] if {n} < 127 else uvarint({n} + 1))")

    def value(self, step: Step, held: str, depth: int, nullable: bool) -> None:
        if step.fixed_size:
            self.fixed(step, held)
        elif step.op is Op.UNION:
            self.union(step, held, depth)
        elif step.op is Op.STRUCT:
            self.struct_value(step, held, depth, nullable)
        elif step.op is Op.ARRAY:
            self.array(step, held, depth, nullable)
        else:
            self.sized(step, held, nullable)

    def fixed(self, step: Step, held: str) -> None:
        if step.op is Op.BOOL:
            with self.block(f"if {held} is not True and {held} is not False:"):
                self.line("raise Refused")
        elif step.op is Op.UUID:
            with self.block(f"if not isinstance({held}, UUID):"):
                self.line("raise Refused")
            held = f"to_bytes(uuid_int({held}), 16)"
        elif step.bounded:
            with self.block(f"if not {step.low} <= index({held}) <= {step.high}:"):
                self.line("raise Refused")
        self.run.append((FORMATS[step.op], held))

    def sized(self, step: Step, held: str, nullable: bool) -> None:
        """A string or bytes."""
        raw = self.variable("raw")
        if step.op is Op.STRING:
            taken, limit = f"utf8({held})", step.high
        else:
            taken, limit = f"{held} if type({held}) is bytes else as_bytes({held})", MAX_BYTES
        # struct itself refuses a length that does not fit the prefix.
        bound = None if (step.length, limit) in ((Length.INT16, MAX_STRING), (Length.INT32, MAX_BYTES)) else limit
        if step.length is Length.COMPACT:
            self.flush()
        if nullable:
            with self.block(f"if {held} is None:"):
                if step.length is Length.COMPACT:
                    self.line(f'{self.add}(b"\\0")')
                else:
                    self.line(f'{raw} = b""')
                    self.line(f"n_{raw} = -1")
            with self.block("else:"):
                self.line(f"{raw} = {taken}")
                self.line(f"n_{raw} = len({raw})")
                self.bound(f"n_{raw}", bound)
                if step.length is Length.COMPACT:
                    self.prefix(step.length, f"n_{raw}")
                    self.line(f"{self.add}({raw})")
            if step.length is not Length.COMPACT:
                self.prefix(step.length, f"n_{raw}")
                self.flush()
                self.line(f"{self.add}({raw})")
            return
        self.line(f"{raw} = {taken}")
        self.line(f"n_{raw} = len({raw})")
        self.bound(f"n_{raw}", bound)
        self.prefix(step.length, f"n_{raw}")
        self.flush()
        self.line(f"{self.add}({raw})")

    def bound(self, n: str, limit: int | None) -> None:
        if limit is not None:
            with self.block(f"if {n} > {limit}:"):
                self.line("raise Refused")

    def array(self, step: Step, held: str, depth: int, nullable: bool) -> None:
        items = self.variable("items")
        self.line(f"{items} = {held}")
        if not nullable:
            self.elements(step, items, depth)
            return
        self.flush()
        with self.block(f"if {items} is None:"):
            if step.length is Length.COMPACT:
                self.line(f'{self.add}(b"\\0")')
            else:
                self.prefix(step.length, "-1")
                self.flush()
        with self.block("else:"):
            self.elements(step, items, depth)
            self.flush()

    def elements(self, step: Step, items: str, depth: int) -> None:
        item = step.item
        assert item is not None
        with self.block(f"if type({items}) is not list:"):
            self.line(f"{items} = as_items({items})")
        n = f"n_{items}"
        self.line(f"{n} = len({items})")
        self.prefix(step.length, n)
        self.flush()
        if item.fixed_size and item.op not in (Op.BOOL, Op.UUID):
            with self.block(f"if {n}:"):
                self.line(f"{self.add}({self.runs(FORMATS[item.op])}[{n}](*{items}))")
            return
        with self.block(f"for m{depth + 1} in {items}:"):
            self.value(item, f"m{depth + 1}", depth + 1, item.nullable)
            self.flush()

    def struct_value(self, step: Step, held: str, depth: int, nullable: bool) -> None:
        if not nullable:
            self.nested(step.struct, held, depth)
            return
        self.flush()
        null, present = ("\\0", "\\1") if step.length is Length.COMPACT else ("\\xff", "\\1")
        with self.block(f"if {held} is None:"):
            self.line(f'{self.add}(b"{null}")')
        with self.block("else:"):
            self.line(f'{self.add}(b"{present}")')
            self.nested(step.struct, held, depth)
            self.flush()

    def nested(self, plan: StructPlan | None, held: str, depth: int) -> None:
        assert plan is not None
        if not self.inlines(depth):
            self.flush()
            self.line(f"{self.function(plan)}({held}, {self.add})")
        elif "." in held:
            # Flush first: the pending run may still refer to the previous value of this variable.
            self.flush()
            self.line(f"m{depth + 1} = {held}")
            self.struct(plan, f"m{depth + 1}", depth + 1)
            self.flush()
        else:
            self.struct(plan, held, depth)

    def union(self, step: Step, held: str, depth: int) -> None:
        self.flush()
        for position, (tag, plan) in enumerate(step.variants):
            with self.block(f"{'elif' if position else 'if'} isinstance({held}, {self.class_of(plan)}):"):
                self.run.append(("b", str(tag)))
                self.flush()
                self.nested(plan, held, depth)
                self.flush()
        with self.block("else:"):
            self.line("raise Refused")
