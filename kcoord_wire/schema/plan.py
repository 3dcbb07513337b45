"""A message at one version, flattened to typed steps: what every codec walks.

Laws:

* The plan is data. It names classes and attributes but holds no Python class, so that the native core, the source
  generator and the column decoder use the same plan. `describe` prints it, `digest` identifies it.
* `StructPlan.steps` are in schema order, which is wire order for the plain ones. A field that the version lacks is a
  step too: writing has to check that it holds its default, reading has to set it.
* `min_size` is the smallest number of bytes that a step can take on the wire; n elements need at least n times that.
"""

from __future__ import annotations

import enum
import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from kcoord_wire.schema.model import INTEGERS, Field, Message, Struct

MAX_STRING: Final = 0x7FFF  # UTF-8 bytes, both encodings, both directions (Kafka's MessageUtil, Writable.writeString)


class Op(enum.IntEnum):
    """What a step reads or writes. The native core is built with the same numbers and refuses to load with others."""

    BOOL = 0
    INT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    UINT16 = 5
    UINT32 = 6
    FLOAT64 = 7
    UUID = 8
    STRING = 9
    BYTES = 10
    ARRAY = 11
    STRUCT = 12
    UNION = 13


class Length(enum.IntEnum):
    """How a length or count is written: a signed integer with -1 for null, or a uvarint of length + 1 with 0 for null.

    For a nullable struct: INT8 is the marker -1 or 1, COMPACT the varint 0 or 1 of a tagged one.
    """

    NONE = 0
    INT8 = 1
    INT16 = 2
    INT32 = 3
    COMPACT = 4


class Presence(enum.IntEnum):
    """How a field is encoded in this version."""

    PLAIN = 0
    TAGGED = 1
    ABSENT = 2
    REMAINING = 3  # at the end, if any bytes remain; None means no bytes at all


SIZES: Final = {
    Op.BOOL: 1,
    Op.INT8: 1,
    Op.INT16: 2,
    Op.INT32: 4,
    Op.INT64: 8,
    Op.UINT16: 2,
    Op.UINT32: 4,
    Op.FLOAT64: 8,
    Op.UUID: 16,
}
_LENGTH_SIZES: Final = {Length.NONE: 0, Length.INT8: 1, Length.INT16: 2, Length.INT32: 4, Length.COMPACT: 1}
_OPS: Final = {op.name.lower(): op for op in Op} | {"records": Op.BYTES}


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One field of one version, or the element of an array (which has no attribute and is always plain).

    `default` is the value of a field that is not on the wire: an immutable, ``()`` for an empty list, ``...`` for the
    struct's own default, None for null. `low` and `high` bound an integer, or `high` the bytes of a string.
    """

    attr: str
    op: Op
    presence: Presence = Presence.PLAIN
    nullable: bool = False
    length: Length = Length.NONE
    item: Step | None = None
    struct: StructPlan | None = None
    variants: tuple[tuple[int, StructPlan], ...] = ()
    tag: int = -1
    ignorable: bool = False
    default: object = None
    low: int = 0
    high: int = 0
    bounded: bool = False

    @property
    def fixed_size(self) -> int:
        """Bytes on the wire if every value takes the same number, else 0."""
        return SIZES.get(self.op, 0)

    @property
    def min_size(self) -> int:
        if self.op is Op.STRUCT and not self.nullable:
            assert self.struct is not None
            return self.struct.min_size
        if self.op is Op.UNION:
            return 1 + min(plan.min_size for _, plan in self.variants)
        return self.fixed_size or _LENGTH_SIZES[self.length]


@dataclass(frozen=True, eq=False)
class StructPlan:
    """A struct at a version: `name` is the Python class, `holds_tags` whether it has the attribute unknown_tags.

    :ivar drops: what the version lacks is left out, whatever it holds: absent steps are ignorable, unknown tags too
    """

    name: str
    version: int
    flexible: bool
    holds_tags: bool
    steps: tuple[Step, ...]
    known_tags: frozenset[int]
    drops: bool = False

    @cached_property
    def wire(self) -> tuple[Step, ...]:
        """The plain steps, in wire order."""
        return tuple(s for s in self.steps if s.presence in (Presence.PLAIN, Presence.REMAINING))

    @cached_property
    def tagged(self) -> tuple[Step, ...]:
        """The steps of the tag section, in ascending order of tag."""
        return tuple(sorted((s for s in self.steps if s.presence is Presence.TAGGED), key=lambda s: s.tag))

    @cached_property
    def absent(self) -> tuple[Step, ...]:
        return tuple(s for s in self.steps if s.presence is Presence.ABSENT)

    @cached_property
    def min_size(self) -> int:
        return sum(s.min_size for s in self.steps if s.presence is Presence.PLAIN) + (1 if self.flexible else 0)

    @property
    def drops_tags(self) -> bool:
        """Whether unknown tags are left out: the version has none, and what it lacks is left out."""
        return self.drops and not self.flexible

    @cached_property
    def digest(self) -> str:
        """SHA-256 of `describe`, in hex."""
        import hashlib  # takes 3 ms

        return hashlib.sha256("\n".join(self.describe()).encode()).hexdigest()

    def describe(self, indent: str = "", described: set[str] | None = None) -> Iterator[str]:
        """The plan as text, one line for each step; of a struct that is used again, its name.

        :param described: names of the structs whose steps have a line already
        """
        described = set() if described is None else described
        if self.name in described:
            yield f"{indent}{self.name}, as above"
            return
        described.add(self.name)
        form = " flexible" if self.flexible else " with unknown_tags" if self.holds_tags else ""
        tags = f", tags {' '.join(map(str, sorted(self.known_tags)))}" if self.known_tags else ""
        drops = ", drops what it lacks" if self.drops else ""
        yield f"{indent}{self.name} v{self.version}{form}, at least {self.min_size} bytes{tags}{drops}"
        for step in self.steps:
            yield from _describe_step(step, indent + "  ", described)


def _describe_step(step: Step, indent: str, described: set[str]) -> Iterator[str]:
    words = [step.attr or "element", step.op.name.lower()]
    if step.length is not Length.NONE:
        words.append(f"length {step.length.name.lower()}")
    if step.presence is not Presence.PLAIN:
        words.append(step.presence.name.lower())
    if step.tag >= 0:
        words.append(f"tag {step.tag}")
    words += [word for word, on in (("nullable", step.nullable), ("ignorable", step.ignorable)) if on]
    if step.bounded:
        words.append(f"from {step.low} to {step.high}")
    if step.attr:
        words.append(f"default {step.default!r}")
    yield indent + " ".join(words)
    if step.item is not None:
        yield from _describe_step(step.item, indent + "  ", described)
    if step.struct is not None:
        yield from step.struct.describe(indent + "  ", described)
    for tag, plan in step.variants:
        yield f"{indent}  variant {tag}"
        yield from plan.describe(indent + "    ", described)


def compile_plan(message: Message, version: int, *, drops: bool = False) -> StructPlan:
    """The plan of `message` at `version`.

    :param drops: a plan for writing, which leaves out what the version lacks (`StructPlan.drops`)
    :raises ValueError: the message does not have that version
    """
    if version not in message.versions:
        raise ValueError(f"{message.name} has no version {version}: {message.versions}")
    return _Compiler(message, version, drops).struct(message.root)


class _Compiler:
    def __init__(self, message: Message, version: int, drops: bool) -> None:
        self.message = message
        self.version = version
        self.drops = drops
        self.flexible = version in message.flexible
        self.done: dict[str, StructPlan] = {}

    def struct(self, struct: Struct) -> StructPlan:
        if struct.name not in self.done:
            self.done[struct.name] = StructPlan(
                name=class_name(self.message, struct),
                version=self.version,
                flexible=self.flexible,
                holds_tags=bool(self.message.flexible),
                steps=tuple(self.field(field) for field in struct.fields),
                known_tags=frozenset(field.tag for field in struct.fields if field.tag is not None),
                drops=self.drops,
            )
        return self.done[struct.name]

    def field(self, field: Field) -> Step:
        if self.version not in field.versions:
            presence = Presence.ABSENT
        elif self.version in field.tagged:
            presence = Presence.TAGGED
        elif field.present_if_remaining:
            presence = Presence.REMAINING
        else:
            presence = Presence.PLAIN
        nullable = self.version in field.nullable
        if field.type.array:
            length = Length.COMPACT if self.flexible else Length[self.message.array_length.upper()]
            item = self.scalar(field, False, Presence.PLAIN)
            step = Step("", Op.ARRAY, nullable=nullable, length=length, item=item)
        else:
            step = self.scalar(field, nullable, presence)
        return replace(
            step,
            attr=attribute_name(field.name),
            presence=presence,
            tag=field.tag if presence is Presence.TAGGED and field.tag is not None else -1,
            ignorable=field.ignorable or (self.drops and presence is Presence.ABSENT),
            default=field.default,
        )

    def scalar(self, field: Field, nullable: bool, presence: Presence) -> Step:
        """A step for one value of the field's type, without the field's name, tag and presence."""
        if field.type.is_struct:
            plan = self.struct(self.message.struct_of(field))
            if not nullable:
                return Step("", Op.STRUCT, struct=plan)
            marker = Length.COMPACT if presence is Presence.TAGGED else Length.INT8
            return Step("", Op.STRUCT, nullable=True, length=marker, struct=plan)
        op = _OPS[field.type.base]
        if op is Op.UNION:
            return Step("", op, variants=tuple((v.tag, self.struct(v.struct)) for v in field.variants))
        if op is Op.STRING:
            length = Length.COMPACT if self.compact(field) else Length[self.message.string_length.upper()]
            limit = MAX_STRING if field.max_length is None else min(MAX_STRING, field.max_length)
            return Step("", op, nullable=nullable, length=length, high=limit)
        if op is Op.BYTES:
            return Step("", op, nullable=nullable, length=Length.COMPACT if self.compact(field) else Length.INT32)
        return self.number(field, op)

    def number(self, field: Field, op: Op) -> Step:
        if field.type.base not in INTEGERS:
            return Step("", op)
        low, high = INTEGERS[field.type.base]
        bounded = field.minimum is not None or field.maximum is not None
        low = low if field.minimum is None else field.minimum
        return Step("", op, low=low, high=high if field.maximum is None else field.maximum, bounded=bounded)

    def compact(self, field: Field) -> bool:
        return self.flexible if field.flexible is None else self.version in field.flexible


_WORD_START: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def attribute_name(name: str) -> str:
    """The Python attribute of a field: SessionTimeoutMs is session_timeout_ms; a keyword gets a trailing underscore."""
    attr = _WORD_START.sub("_", name).lower()
    return f"{attr}_" if keyword.iskeyword(attr) else attr


def class_name(message: Message, struct: Struct) -> str:
    """The Python class of a struct: its own name, after the message's name unless it already starts with that."""
    return struct.name if struct.name.startswith(message.name) else message.name + struct.name
