"""Which topics, partitions and transactional ids a request names.

Laws:

* What is a name is read from the types of the request's class, so that a new api needs nothing here.
* A topic is found by its name and by its id. What is within bytes, such as a subscription, is not looked at.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import cache
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints

NameOf = Callable[[uuid.UUID], str | None]
"""Returns the name of the topic with an id; None if no topic has it."""

_TOPIC_RESOURCE: Final = 2  # ConfigResource.Type.TOPIC
_TRANSACTION_KEY: Final = 1  # FindCoordinatorRequest.CoordinatorType.TRANSACTION
_NUMBERS: Final = ("partition", "partition_index", "index")


class _Shape(NamedTuple):
    """The fields of a class by what they hold."""

    topics: tuple[str, ...]  # parts that name a topic
    names: tuple[str, ...]  # names of topics
    partitions: tuple[str, ...]  # numbers of partitions, or parts that have one
    transactions: tuple[str, ...]  # a transactional id, or several
    others: tuple[str, ...]  # parts of another kind


def _shape(part: Any) -> _Shape:
    kind: Any = type(part)
    return _shape_of(kind)


@cache
def _shape_of(cls: Any) -> _Shape:
    found: dict[str, list[str]] = {kind: [] for kind in _Shape._fields}
    for name, hint in get_type_hints(cls).items():
        item, is_list = hint, False
        while arguments := get_args(item):
            is_list |= get_origin(item) is list
            item = arguments[0]
        found[_kind_of(name, item, is_list)].append(name)
    return _Shape(*(tuple(found[kind]) for kind in _Shape._fields))


def _kind_of(name: str, item: Any, is_list: bool) -> str:
    if item is str and name.removesuffix("s").endswith("transactional_id"):
        return "transactions"
    if is_list and "topic" in name and item is str:
        return "names"
    if is_dataclass(item):
        if "topic" in name or "resource_type" in get_type_hints(item):
            return "topics"
        return "partitions" if "partition" in name else "others"
    return "partitions" if is_list and "partition" in name and item is int else "others"


_NAMES: Final = ("topic", "name", "topic_name")  # fields with the name of a topic


def topic_of(part: Any, name_of: NameOf) -> str | None:
    """Return the topic that a part of a request or response names, by name or id; None for an id of none."""
    name: str | None = next((found for field in _NAMES if (found := getattr(part, field, None))), None)
    if not name and getattr(part, "topic_id", None):
        return name_of(part.topic_id)
    return name or ""


def topics_of(request: Any, name_of: NameOf) -> Iterator[tuple[str, list[int]]]:
    """Yield the topics that a request names, each with the numbers of the partitions that it names of it."""
    shape = _shape(request)
    for field in shape.names:
        yield from ((name, []) for name in getattr(request, field) or ())
    for field in shape.topics:
        for part in _parts(request, field):
            if hasattr(part, "resource_type"):
                name = part.resource_name if part.resource_type == _TOPIC_RESOURCE else None
            else:
                name = topic_of(part, name_of)
            if name:
                yield name, _partitions_of(part)
    for field in shape.others:
        for part in _parts(request, field):
            yield from topics_of(part, name_of)


def _partitions_of(part: Any) -> list[int]:
    numbers = []
    for field in _shape(part).partitions:
        for each in getattr(part, field) or ():
            name = next((name for name in _NUMBERS if hasattr(each, name)), None)
            numbers.append(each if name is None else getattr(each, name))
    return numbers


def transactions_of(request: Any) -> Iterator[str]:
    """Yield the transactional ids that a request names."""
    if getattr(request, "key_type", None) == _TRANSACTION_KEY:
        yield from (request.key, *request.coordinator_keys)
    shape = _shape(request)
    for field in shape.transactions:
        value = getattr(request, field)
        yield from (value,) if isinstance(value, str) else value or ()
    for field in shape.others:
        for part in _parts(request, field):
            yield from transactions_of(part)


def _parts(request: Any, field: str) -> list[Any]:
    """Return the structs in a field: of a list its items, or the one that the field is."""
    value = getattr(request, field)
    parts = value if isinstance(value, list) else [value]
    return [part for part in parts if is_dataclass(part)]
