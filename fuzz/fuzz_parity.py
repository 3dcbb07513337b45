"""Native, pure Python and construct read the same value out of any bytes, or find the same fault at the same place."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from fuzz.shapes import choose
from kcoord_wire.codec.python import Program
from kcoord_wire.codec.registry import registry
from kcoord_wire.errors import DecodeError
from kcoord_wire.schema.construct_model import construct_model


def check(data: bytes) -> None:
    """`data`: a message behind its selector."""
    codec, version, body = choose(data)
    for strict in (True, False):
        outcomes = [outcome(reader, body, strict) for reader in readers(codec.name, version)]
        first = outcomes[0]
        assert all(other == first or repr(other) == repr(first) for other in outcomes), outcomes


@cache
def readers(name: str, version: int) -> list[Callable[[bytes, bool], Any]]:
    codec = registry[name]
    model = construct_model(codec.schema, version, codec.classes)
    by_construct = lambda data, strict: model.parse(data, strict=strict)  # noqa: E731
    if codec.schema.encoding == "text":
        return [lambda data, strict: codec.decode(data, version, strict=strict), by_construct]
    native = import_module("kcoord_wire._native").Program(codec.plan(version), codec.classes)
    return [native.decode, Program(codec.plan(version), codec.classes).decode, by_construct]


def outcome(read: Callable[[bytes, bool], Any], body: bytes, strict: bool) -> tuple[Any, ...]:
    try:
        return "value", read(body, strict)
    except DecodeError as error:
        return error.kind, error.offset, error.path
