"""What Kafka's broker would refuse in a message that can be encoded: the keys ``refused`` of its schema.

Laws:

* The rules are those that hold whatever the broker's settings and the state of a group. Nothing is said of the bounds
  of a session timeout, or of a member that does not exist.
* `encode` checks none of them and costs nothing more: a table is made of a message's schema and version when it is
  first checked, and kept.
* A value that a version cannot hold is `encode`'s to refuse.

To add a rule: the key ``refused`` of a field (schemas/README.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from uuid import UUID
from weakref import WeakKeyDictionary

from kcoord_wire.codec.registry import MessageCodec, Registry
from kcoord_wire.codec.registry import registry as own_registry
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.schema.describe import refusal_doc
from kcoord_wire.schema.model import Message, Struct
from kcoord_wire.schema.plan import attribute_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_CLOSES: Final = "a broker closes the connection"


class Finding(NamedTuple):
    """A field that Kafka would refuse.

    :ivar path: of the field, ``members[2].member_id``; empty for the message
    :ivar rule: what it must be, ``must not be empty``
    :ivar error: what Kafka answers, of the request or of that part of it; None where it closes the connection
    :ivar source: the class of Kafka that has the rule
    """

    path: str
    rule: str
    error: ErrorCode | None
    source: str

    def __str__(self) -> str:
        answer = _CLOSES if self.error is None else self.error.name
        return f"{self.path}: {self.rule} ({answer})" if self.path else f"{self.rule} ({answer})"


_Beside: TypeAlias = tuple[tuple[str, tuple[object, ...]], ...]
"""Attributes of the same object, each with values."""


class _Rule(NamedTuple):
    attribute: str
    is_refused: Callable[[Any], bool]
    beside: _Beside
    not_beside: _Beside
    each: bool
    finding: Finding


class _Table(NamedTuple):
    """The rules of a struct, and the structs in it that have some."""

    rules: tuple[_Rule, ...]
    inner: tuple[tuple[str, _Table], ...]


_tables: Final[WeakKeyDictionary[MessageCodec, dict[int, _Table]]] = WeakKeyDictionary()


def check(message: DataclassInstance, version: int, *, registry: Registry = own_registry) -> tuple[Finding, ...]:
    """Return what Kafka would refuse in a message at a version, in the order of its fields; empty for nothing.

    A message without a finding may still be refused, for what depends on settings and state: an unknown member, a
    session timeout out of the broker's bounds.

    :raises TypeError: `message` is not a message of the registry
    """
    codec = registry.by_class(type(message))
    if version not in codec.valid_versions:
        is_answered = codec.type == "request" and codec.api_key == ApiKey.API_VERSIONS
        error = ErrorCode.UNSUPPORTED_VERSION if is_answered else None  # KIP-511
        return (Finding("", codec.no_version(version), error, "KafkaApis"),)
    tables = _tables.setdefault(codec, {})
    table = tables.get(version)
    if table is None:
        table = tables.setdefault(version, _table(codec.schema, codec.schema.root, version))
    return tuple(_findings(table, message, ""))


def _findings(table: _Table, value: Any, path: str) -> Iterator[Finding]:
    for rule in table.rules:
        held = getattr(value, rule.attribute)
        for place, item in _places(held) if rule.each else [("", held)]:
            if rule.is_refused(item) and _applies(rule, value):
                yield rule.finding._replace(path=f"{path}{rule.attribute}{place}")
    for attribute, inner in table.inner:
        held = getattr(value, attribute)
        many = isinstance(held, Sequence)  # lists, and those of lazy messages
        for place, item in _places(held) if many else [("", held)] if held is not None else []:
            yield from _findings(inner, item, f"{path}{attribute}{place}.")


def _places(items: Any) -> Iterator[tuple[str, Any]]:
    return ((f"[{number}]", item) for number, item in enumerate(items or ()))


def _applies(rule: _Rule, value: Any) -> bool:
    return all(getattr(value, name) in values for name, values in rule.beside) and not any(
        getattr(value, name) in values for name, values in rule.not_beside
    )


def _table(message: Message, struct: Struct, version: int) -> _Table:
    fields = [field for field in struct.fields if version in field.versions]
    rules = [
        _Rule(
            attribute_name(field.name),
            _CONDITIONS[refusal.when](refusal.bound),
            _beside(struct, refusal.beside),
            _beside(struct, refusal.not_beside),
            refusal.each,
            Finding("", refusal_doc(refusal), ErrorCode[refusal.error], refusal.source),
        )
        for field in fields
        for refusal in field.refused
        if version in refusal.versions
    ]
    inner = [
        (attribute_name(field.name), _table(message, message.struct_of(field), version))
        for field in fields
        if field.type.is_struct
    ]
    return _Table(tuple(rules), tuple((name, table) for name, table in inner if any(table)))


def _beside(struct: Struct, conditions: _Beside) -> _Beside:
    ids = {field.name for field in struct.fields if field.type.base == "uuid"}
    return tuple(
        (attribute_name(name), tuple(map(UUID, map(str, values))) if name in ids else values)
        for name, values in conditions
    )


def _unlike(pattern: Any) -> Callable[[Any], bool]:
    matches = re.compile(pattern).fullmatch
    return lambda value: value is not None and matches(value) is None


_CONDITIONS: Final[dict[str, Callable[[Any], Callable[[Any], bool]]]] = {
    "empty": lambda _: lambda value: value is not None and not len(value),
    "null": lambda _: lambda value: value is None,
    "given": lambda _: bool,
    "below": lambda bound: lambda value: value < bound,
    "above": lambda bound: lambda value: value > bound,
    "is": lambda bad: lambda value: value in bad,
    "notOneOf": lambda allowed: lambda value: value not in allowed,
    "unlike": _unlike,
}
"""By the key of the schema: makes what says whether a value is refused, of the key's value."""
