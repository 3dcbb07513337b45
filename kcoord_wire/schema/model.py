"""The checked content of a schema file: messages, structs, fields and version ranges as plain immutable data.

Laws:

* A `Message` that exists has passed every rule of the schema language (schemas/README.md); later stages do not check
  again.
* A file that breaks a rule is refused with its name, line, JSON path and the rule (`SchemaError`); unknown keys are
  refused too.
* The model knows nothing of Python classes, codecs or bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

MAX_VERSION: Final = 32767
_RANGE: Final = re.compile(r"([0-9]{1,5})(?:(\+)|-([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions from `low` to `high`, both included; empty where `low` is above `high`."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> Versions:
        """The range that `text` names (as Kafka's Versions.parse reads it).

        :raises ValueError: it is not a range
        """
        text = text.strip()
        if text == "none":
            return NONE
        match = _RANGE.fullmatch(text)
        if match is None:
            raise ValueError(f'"{text}" is not a version range: write none, 3, 0-9 or 4+')
        low = int(match[1])
        high = MAX_VERSION if match[2] else int(match[3] or low)
        if not low <= high <= MAX_VERSION:
            raise ValueError(f'"{text}" is not a version range: it must ascend and end at {MAX_VERSION} at most')
        return cls(low, high)

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    def __bool__(self) -> bool:
        return self.low <= self.high

    def __and__(self, other: Versions) -> Versions:
        both = Versions(max(self.low, other.low), min(self.high, other.high))
        return both if both else NONE

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.low, self.high + 1))

    def covers(self, other: Versions) -> bool:
        """Whether this range contains every version of `other`."""
        return not other or (self.low <= other.low and other.high <= self.high)

    @property
    def open_ended(self) -> bool:
        return self.high == MAX_VERSION

    def __str__(self) -> str:
        if not self:
            return "none"
        if self.low == self.high:
            return str(self.low)
        return f"{self.low}+" if self.open_ended else f"{self.low}-{self.high}"


NONE: Final = Versions(1, 0)
ALL: Final = Versions(0, MAX_VERSION)


INTEGERS: Final[Mapping[str, tuple[int, int]]] = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
}


@dataclass(frozen=True, slots=True)
class FieldType:
    """`base` is a primitive, ``union`` or the name of a struct; `array` says whether the field holds a list of them."""

    base: str
    array: bool = False

    @property
    def is_struct(self) -> bool:
        return self.base[:1].isupper()

    def __str__(self) -> str:
        return f"[]{self.base}" if self.array else self.base


@dataclass(frozen=True, slots=True)
class Variant:
    """One arm of a union: its tag on the wire (int8) and its fields."""

    tag: int
    struct: Struct


@dataclass(frozen=True, slots=True)
class Refusal:
    """What Kafka's broker refuses in a field, in the `versions`, whatever its settings and the state of a group.

    :ivar when: ``empty``, ``null``, ``given``, ``below``, ``above``, ``is``, ``notOneOf``, ``unlike``
    :ivar bound: an integer, several, or a regular expression; None where `when` says it all
    :ivar error: the name of the error code that is answered
    :ivar source: the class of Kafka that does it
    :ivar beside: only where other fields of the same struct have one of these values
    :ivar not_beside: only where they have none of these
    :ivar each: it is about each element of an array
    """

    when: str
    bound: object
    error: str
    source: str
    versions: Versions
    beside: tuple[tuple[str, tuple[object, ...]], ...] = ()
    not_beside: tuple[tuple[str, tuple[object, ...]], ...] = ()
    each: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """One field. `versions` are the versions that have it, `tagged` those in which it is a tagged field.

    `default` is the Python value of an unset field: ``()`` for arrays, ``...`` for structs and unions, or None.
    """

    name: str
    type: FieldType
    versions: Versions
    nullable: Versions = NONE
    tagged: Versions = NONE
    tag: int | None = None
    default: object = None
    ignorable: bool = False
    map_key: bool = False
    entity_type: str | None = None
    zero_copy: bool = False
    flexible: Versions | None = None
    about: str = ""
    embeds: str | None = None
    minimum: int | None = None
    maximum: int | None = None
    max_length: int | None = None
    present_if_remaining: bool = False
    variants: tuple[Variant, ...] = ()
    refused: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class Struct:
    """A named list of fields; `versions` are the message versions that have the struct."""

    name: str
    fields: tuple[Field, ...]
    versions: Versions
    about: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One schema file. `structs` holds every struct in it, inline and common, by name; `root` is the message itself,
    `source` the file's text."""

    name: str
    type: str
    root: Struct
    structs: Mapping[str, Struct]
    versions: Versions
    flexible: Versions
    api_key: int | None = None
    deprecated: Versions = NONE
    listeners: tuple[str, ...] = ()
    latest_unstable: bool = False
    family: str = "kafka"
    header: str = "kafka"
    array_length: str = "int32"
    string_length: str = "int16"
    encoding: str = "binary"
    text_type: str | None = None
    about: str = ""
    file: str = "<schema>"
    source: str = ""

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.root.fields

    def struct_of(self, field: Field) -> Struct:
        """The struct that `field`'s type names.

        :raises KeyError: the type is a primitive
        """
        return self.structs[field.type.base]
